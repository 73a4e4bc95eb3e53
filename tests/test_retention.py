"""Prune: old rows go in small batches, by ages that the settings say; nothing else does."""

from __future__ import annotations

import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import lifecycle
from jobqueue.lifecycle import maintenance
from jobqueue.measures import EVER, QUARTER, beginning
from jobqueue.models import Attempt, DeadLetter, Job, Replay, Rollup, Sample
from jobqueue.querysets import ago
from tests import verbs
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    RollupFactory,
    SampleFactory,
)

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
NOTHING = {"jobs": 0, "attempts": 0, "replays": 0, "rollups": 0, "samples": 0}


def orphan(*, finished_ago: timedelta) -> Attempt:
    """Return an attempt whose job is gone."""
    attempt = AttemptFactory(finished_ago=finished_ago)
    Job.objects.filter(pk=attempt.job_id).delete()
    return attempt


class TestPrune:
    def test_deletes_jobs_that_finished_long_ago(self) -> None:
        for state in ("succeeded", "cancelled"):
            JobFactory(**{state: True}, finished_ago=DAY + MINUTE)
        kept = [
            JobFactory(**{state: True}, finished_ago=DAY - MINUTE)
            for state in ("succeeded", "cancelled")
        ]
        assert lifecycle.prune()["jobs"] == 2
        assert set(Job.objects.all()) == set(kept)

    def test_never_deletes_a_job_that_is_not_finished(self) -> None:
        """C-11."""
        year = 365 * DAY
        for state in ("pending", "scheduled", "claimed"):
            JobFactory(**{state: True}, age=year, due_in=-year, claimed_ago=year)
        JobFactory(claimed=True, lease_left=-year, age=year)
        assert lifecycle.prune() == NOTHING
        assert Job.objects.count() == 4

    def test_goes_by_the_settings(self, settings: Any) -> None:
        settings.JOBQUEUE = {
            "KEEP_SUCCEEDED": MINUTE, "KEEP_ATTEMPTS": MINUTE, "KEEP_DEAD_LETTERS": MINUTE,
        }  # fmt: skip
        JobFactory(succeeded=True, finished_ago=2 * MINUTE)
        orphan(finished_ago=2 * MINUTE)
        DeadLetterFactory(died_ago=2 * MINUTE)
        assert lifecycle.prune() == NOTHING | {"jobs": 1, "attempts": 1, "dead letters": 1}

    def test_never_deletes_a_dead_letter_unless_an_age_is_set(self, settings: Any) -> None:
        letter = DeadLetterFactory(died_ago=5000 * DAY)
        assert "dead letters" not in lifecycle.prune()
        assert DeadLetter.objects.get() == letter
        settings.JOBQUEUE = {"KEEP_DEAD_LETTERS": 5001 * DAY}
        assert lifecycle.prune()["dead letters"] == 0
        settings.JOBQUEUE = {"KEEP_DEAD_LETTERS": 4999 * DAY}
        assert lifecycle.prune()["dead letters"] == 1

    def test_keeps_attempts_for_as_long_as_their_job_or_letter_is_there(self) -> None:
        old = 31 * DAY
        running = AttemptFactory(finished_ago=old)
        letter = DeadLetterFactory(died_ago=old)
        dead = AttemptFactory(job=JobFactory(attempts=1, fence=1), finished_ago=old)
        Attempt.objects.filter(pk=dead.pk).update(job_id=letter.pk)
        young, gone = orphan(finished_ago=old - 2 * DAY), orphan(finished_ago=old)
        assert lifecycle.prune()["attempts"] == 1
        assert not Attempt.objects.filter(pk=gone.pk).exists()
        assert set(Attempt.objects.values_list("pk", flat=True)) == {running.pk, dead.pk, young.pk}

    def test_reads_few_of_the_attempts_that_are_young(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every worker asks once a minute, and no index tells how old they are."""
        monkeypatch.setattr(maintenance, "STRIDE", 4)
        for _ in range(3):
            orphan(finished_ago=31 * DAY)
        young = [orphan(finished_ago=DAY).pk for _ in range(40)]
        with CaptureQueriesContext(connection) as queries:
            assert lifecycle.prune()["attempts"] == 3
        looks = [each["sql"] for each in queries if " EXISTS" in each["sql"]]
        bounds = [int(found[1]) for sql in looks if (found := re.search(r'"id" <= (\d+)', sql))]
        assert all(bound < young[4] for bound in bounds)
        assert bounds
        assert list(Attempt.objects.order_by("pk").values_list("pk", flat=True)) == young

    def test_treats_discarded_letters_like_all_others(self, settings: Any) -> None:
        settings.JOBQUEUE = {"KEEP_DEAD_LETTERS": DAY}
        old, young = DeadLetterFactory(died_ago=2 * DAY), DeadLetterFactory()
        lifecycle.discard([old.pk, young.pk])
        assert lifecycle.prune()["dead letters"] == 1
        assert DeadLetter.objects.get().pk == young.pk

    def test_keeps_replays_for_as_long_as_their_job_or_letter_is_there(self) -> None:
        live, dead, gone, young = DeadLetterFactory.create_batch(4)
        lifecycle.replay([live.pk, dead.pk, gone.pk, young.pk])
        DeadLetterFactory(id=dead.pk, fence=9)
        Job.objects.exclude(pk=live.pk).delete()
        Replay.objects.exclude(job_id=young.pk).update(replayed_at=ago(31 * DAY))
        assert lifecycle.prune()["replays"] == 1
        assert not Replay.objects.filter(job_id=gone.pk).exists()
        assert Replay.objects.count() == 3

    def test_lets_attempts_go_with_their_jobs_in_the_end(self) -> None:
        job = JobFactory(succeeded=True, finished_ago=2 * DAY)
        AttemptFactory(job=job, finished_ago=2 * DAY, succeeded=True)
        assert lifecycle.prune() == NOTHING | {"jobs": 1}
        Attempt.objects.update(finished_at=ago(31 * DAY))
        assert lifecycle.prune() == NOTHING | {"attempts": 1}

    def test_deletes_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C-67."""
        monkeypatch.setattr(maintenance, "BATCH", 3)
        for number in range(7):
            JobFactory(succeeded=True, finished_ago=2 * DAY + number * MINUTE)
        with CaptureQueriesContext(connection) as queries:
            assert lifecycle.prune()["jobs"] == 7
        deletes = [
            query for query in queries if query["sql"].startswith('DELETE FROM "jobqueue_job"')
        ]
        assert len(deletes) == 3

    def test_deletes_all_of_many_that_finished_in_the_same_instant(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(maintenance, "BATCH", 3)
        JobFactory.create_batch(8, succeeded=True)
        Job.objects.update(finished_at=ago(2 * DAY))
        assert lifecycle.prune()["jobs"] == 8

    def test_keeps_figures_for_as_long_as_they_are_drawn(self) -> None:
        days = 24 * 60
        young, old, past = (RollupFactory(minutes=minutes).start for minutes in (10, 170, 190))
        recent, week, _more = (
            RollupFactory(span=QUARTER, minutes=minutes).start
            for minutes in (190, 7 * days, 9 * days)
        )
        RollupFactory(span=EVER)
        for minutes in (190, 7 * days, 9 * days):
            SampleFactory(minutes=minutes)
        # Two rows each: what a task did, and what all did together.
        assert lifecycle.prune() == NOTHING | {"rollups": 4, "samples": 1}
        starts = {span: set[object]() for span in (60, QUARTER, EVER)}
        for row in Rollup.objects.all():
            starts[row.span].add(row.start)
        assert starts[60] == {young, old}
        of_minutes = {beginning(start, QUARTER) for start in (young, old, past)}
        assert starts[QUARTER] == of_minutes | {recent, week}
        assert Rollup.objects.filter(span=EVER).count() == 1
        assert Sample.objects.count() == 2

    def test_can_be_told_to_stop_after_some_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(maintenance, "BATCH", 3)
        JobFactory.create_batch(7, succeeded=True, finished_ago=2 * DAY)
        counts = [lifecycle.prune(most_batches=1)["jobs"] for _ in range(4)]
        assert counts == [3, 3, 1, 0]

    def test_only_looking_deletes_nothing_and_counts_the_same(self) -> None:
        JobFactory.create_batch(2, succeeded=True, finished_ago=2 * DAY)
        orphan(finished_ago=31 * DAY)
        before = verbs.everything()
        would = lifecycle.prune(dry_run=True)
        assert would == NOTHING | {"jobs": 2, "attempts": 1}
        assert verbs.everything() == before
        assert lifecycle.prune() == would


class TestPruneJobs:
    def run(self, *arguments: str) -> str:
        output = StringIO()
        call_command("prunejobs", *arguments, stdout=output)
        return output.getvalue()

    def test_says_how_much_it_deleted(self) -> None:
        JobFactory.create_batch(2, succeeded=True, finished_ago=2 * DAY)
        assert self.run() == "deleted 2 jobs, 0 attempts, 0 replays, 0 rollups, 0 samples\n"
        assert not Job.objects.exists()

    def test_only_says_what_it_would_delete(self, settings: Any) -> None:
        settings.JOBQUEUE = {"KEEP_DEAD_LETTERS": MINUTE}
        DeadLetterFactory(died_ago=DAY)
        output = self.run("--dry-run", "--database", "default")
        listed = "0 jobs, 1 dead letters, 0 attempts, 0 replays, 0 rollups, 0 samples"
        assert output == f"would delete {listed}\n"
        assert DeadLetter.objects.exists()
