"""Promote: what is due becomes pending, however long it has been due."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobqueue import lifecycle
from jobqueue.models import Attempt, Job
from tests import tasks, verbs
from tests.factories import JobFactory
from tests.in_process import run_until_empty

MINUTE = timedelta(minutes=1)


@pytest.mark.django_db
class TestPromote:
    def test_makes_pending_what_is_due(self) -> None:
        due = JobFactory(scheduled=True, due_in=-MINUTE)
        later = JobFactory(scheduled=True, due_in=MINUTE)
        assert lifecycle.promote().total() == 1
        assert [verbs.where(job.pk) for job in (due, later)] == ["pending", "scheduled"]

    def test_takes_the_longest_due_first(self) -> None:
        newer = JobFactory(scheduled=True, due_in=-MINUTE)
        older = JobFactory(scheduled=True, due_in=-2 * MINUTE)
        assert lifecycle.promote(limit=1).total() == 1
        assert [verbs.where(job.pk) for job in (older, newer)] == ["pending", "scheduled"]

    def test_leaves_everything_else_alone(self) -> None:
        for state in ("claimed", "succeeded", "cancelled"):
            JobFactory(**{state: True})
        before = verbs.everything()
        assert lifecycle.promote().total() == 0
        assert verbs.everything() == before

    def test_keeps_the_time_at_which_the_job_was_due(self) -> None:
        """So that those due longer run first."""
        job = JobFactory(scheduled=True, due_in=-MINUTE)
        lifecycle.promote()
        assert Job.objects.get(pk=job.pk).run_after == job.run_after


@pytest.mark.django_db(transaction=True)
def test_a_day_without_workers_drops_nothing_and_runs_each_job_once() -> None:
    """C-80: what fell due while no worker ran is made up for once."""
    state = {"scheduled": True, "task": tasks.noop.name}
    due = JobFactory.create_batch(30, due_in=-timedelta(hours=26), **state)
    later = JobFactory(due_in=timedelta(days=7), **state)
    run_until_empty()
    assert {verbs.where(job.pk) for job in due} == {"succeeded"}
    assert verbs.where(later.pk) == "scheduled"
    assert sorted(Attempt.objects.values_list("job_id", flat=True)) == [job.pk for job in due]
