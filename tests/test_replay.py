"""Replay and discard: a dead letter becomes a job again, once, or is done with."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error

from jobqueue import lifecycle
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Reason, Status
from tests import verbs
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory
from tests.tasks import fail, noop

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def die(task: Any = fail, *args: Any, max_attempts: int = 1) -> int:
    """Let a job fail until it is dead; return its id."""
    job = task.using(max_attempts=max_attempts).enqueue(*args)
    for _ in range(max_attempts):
        verbs.run_next()
        verbs.fall_due(job.pk)
        lifecycle.promote()
    assert verbs.where(job.pk) == "dead"
    return int(job.pk)


class TestReplay:
    def test_makes_a_pending_job_of_the_same_id_and_content(self) -> None:
        letter = DeadLetterFactory(
            args=[1, {"ä": None}], kwargs={"b": 2}, priority=7, queue_name="mail", actor="ann",
            correlation_id="order-1", version=3, trace={"traceparent": "00-1"},
        )  # fmt: skip
        assert lifecycle.replay([letter.pk]) == [letter.pk]
        job = Job.objects.get()
        same = ("id", "task", "args", "kwargs", "version", "queue_name", "priority", "actor")
        same += ("correlation_id", "trace", "enqueued_at", "fence", "attempts", "last_error")
        assert {name: getattr(job, name) for name in same} == {
            name: getattr(letter, name) for name in same
        }
        assert job.status == Status.PENDING
        assert not job.cancel_requested
        assert not DeadLetter.objects.exists()

    def test_gives_a_full_budget_on_top_of_what_was_spent(self) -> None:
        """C-107."""
        pk = die(max_attempts=3)
        lifecycle.replay([pk])
        job = Job.objects.get()
        assert (job.attempts, job.max_attempts, job.budget, job.replays) == (3, 6, 3, 1)
        for _ in range(3):
            verbs.run_next()
            verbs.fall_due(pk)
            lifecycle.promote()
        assert verbs.where(pk) == "dead"
        assert [attempt.number for attempt in Attempt.objects.of(pk)] == [1, 2, 3, 4, 5, 6]
        lifecycle.replay([pk])
        job = Job.objects.get()
        assert (job.attempts, job.max_attempts, job.budget, job.replays) == (6, 9, 3, 2)

    def test_gives_no_attempt_for_a_snooze_of_the_first_life(self) -> None:
        JobFactory(max_attempts=2)
        lifecycle.settle([verbs.snoozed(verbs.claim_one())])
        verbs.fall_due(*Job.objects.values_list("pk", flat=True))
        lifecycle.promote()
        claimed = verbs.claim_one()
        lifecycle.settle([verbs.buried(claimed)])
        lifecycle.replay([claimed.id])
        assert Job.objects.get().budget == 2
        assert verbs.claim_one().tries == 1

    def test_starts_the_backoff_afresh(self) -> None:
        pk = die(max_attempts=3)
        lifecycle.replay([pk])
        claimed = verbs.claim_one()
        assert (claimed.attempts, claimed.tries) == (4, 1)

    @pytest.mark.parametrize("reason", Reason.values)
    def test_works_whatever_it_died_of_and_runs_now(self, reason: str) -> None:
        """C-107: no old time, no old lease."""
        letter = DeadLetterFactory(reason=reason, attempts=1, fence=4, age=-DAY)
        lifecycle.replay([letter.pk])
        claimed = verbs.claim_one(worker="worker-b")
        assert (claimed.id, claimed.fence, claimed.claimed_by) == (letter.pk, 5, "worker-b")
        assert claimed.has_attempts_left

    def test_of_the_same_letter_twice_works_once(self) -> None:
        """C-104; at the same time: test_interleavings."""
        letter = DeadLetterFactory()
        assert lifecycle.replay([letter.pk, letter.pk]) == [letter.pk]
        assert lifecycle.replay([letter.pk]) == []
        assert Job.objects.count() == 1

    def test_and_failing_again_leaves_one_letter(self) -> None:
        """C-104."""
        pk = die()
        lifecycle.replay([pk])
        verbs.run_next()
        assert DeadLetter.objects.get().replays == 1
        assert not Job.objects.exists()
        assert verbs.outcomes(pk) == ["failed", "failed"]

    def test_after_the_task_was_put_right_succeeds_with_one_history(self) -> None:
        pk = die()
        DeadLetter.objects.update(task=noop.name, args=[])
        lifecycle.replay([pk])
        verbs.run_next()
        assert verbs.where(pk) == "succeeded"
        assert verbs.outcomes(pk) == ["failed", "succeeded"]

    def test_of_a_letter_that_cannot_be_read_moves_it_all_the_same(self) -> None:
        """C-103, C-105: no row is looked into, so none can stop the others."""
        good = DeadLetterFactory.create_batch(3)
        unknown = DeadLetterFactory(task="nobody.knows", reason=Reason.UNKNOWN_TASK)
        broken = DeadLetterFactory(args="text", kwargs=[1])
        ids = [letter.pk for letter in (*good, unknown, broken)]
        assert sorted(lifecycle.replay(ids)) == sorted(ids)
        assert Job.objects.pending().count() == 5

    def test_takes_any_number_and_says_which(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C-106."""
        # "jobqueue.lifecycle.alias" is the function of that name; this is its module.
        monkeypatch.setattr(sys.modules["jobqueue.lifecycle.alias"], "BATCH", 3)
        ids = [letter.pk for letter in DeadLetterFactory.create_batch(7)]
        assert sorted(lifecycle.replay(iter([*ids, 10**9]))) == ids
        assert not DeadLetter.objects.exists()

    def test_of_nothing_does_nothing(self) -> None:
        assert lifecycle.replay([]) == []
        assert lifecycle.replay([10**9]) == []

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        ("event", "table"), [("INSERT", "jobqueue_job"), ("DELETE", "jobqueue_deadletter")]
    )
    def test_that_fails_half_way_leaves_the_letter(self, event: str, table: str) -> None:
        """C-107: the mark of death goes only if the job is there."""
        letter = DeadLetterFactory()
        before = verbs.everything()
        with verbs.refusing(event, table), pytest.raises(Error, match="refused"):
            lifecycle.replay([letter.pk])
        assert verbs.everything() == before


class TestDiscard:
    def test_deletes_the_letter_and_keeps_its_attempts(self) -> None:
        pk = die()
        assert lifecycle.discard([pk]) == 1
        assert verbs.where(pk) == "gone"
        assert verbs.outcomes(pk) == ["failed"]

    def test_counts_what_was_there(self) -> None:
        letters = DeadLetterFactory.create_batch(2)
        job = JobFactory()
        assert lifecycle.discard([letters[0].pk, job.pk, 10**9]) == 1
        assert lifecycle.discard([letter.pk for letter in letters]) == 1
        assert lifecycle.discard([]) == 0
        assert Job.objects.get() == job

    def test_of_a_vanished_task_works(self) -> None:
        """C-105."""
        letter = DeadLetterFactory(task="nobody.knows", args="text", kwargs=[1])
        AttemptFactory(job=Job(pk=letter.pk, task=letter.task, attempts=1, queue_name="x", fence=1))
        assert lifecycle.discard([letter.pk]) == 1
