"""Cancel and run now: what people do to jobs that are not dead."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta

import pytest

from jobqueue import lifecycle
from jobqueue.claims import Settlement
from jobqueue.models import Job
from jobqueue.states import Status
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


class TestCancel:
    """C-22."""

    @pytest.mark.parametrize("state", ["pending", "scheduled"])
    def test_a_job_that_waits_is_cancelled_at_once_and_never_starts(self, state: str) -> None:
        job = JobFactory(**{state: True}, due_in=-MINUTE)
        assert lifecycle.cancel([job.pk]) == 1
        job.refresh_from_db()
        assert job.status == Status.CANCELLED
        assert job.finished_at is not None
        lifecycle.promote()
        assert not verbs.claim(9)

    def test_a_job_that_waits_for_its_retry_is_cancelled_at_once(self) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.retried(verbs.claim_one())])
        assert lifecycle.cancel([job.pk]) == 1
        assert verbs.where(job.pk) == "cancelled"
        assert verbs.outcomes(job.pk) == ["failed"]

    def test_a_job_that_runs_is_asked_to_stop_and_keeps_its_lease(self) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        assert lifecycle.cancel([job.pk]) == 1
        job.refresh_from_db()
        assert (job.status, job.cancel_requested) == (Status.CLAIMED, True)
        lease = verbs.lease_on(claimed)
        lifecycle.extend([lease])
        assert lease.cancel_requested

    @pytest.mark.parametrize(
        ("end", "where"),
        [
            (verbs.succeeded, "succeeded"),
            (verbs.retried, "cancelled"),
            (verbs.snoozed, "cancelled"),
            (verbs.released, "cancelled"),
            (verbs.interrupted, "cancelled"),
            (verbs.buried, "dead"),
        ],
    )
    def test_whatever_a_running_job_does_no_further_attempt_starts(
        self, end: Callable[..., Settlement], where: str
    ) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        lifecycle.cancel([job.pk])
        assert lifecycle.settle([end(claimed)]) == {job.pk}
        assert verbs.where(job.pk) == where
        lifecycle.promote()
        assert not verbs.claim(9)

    def test_in_the_same_instant_as_the_ack_the_ack_stands(self) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])
        assert lifecycle.cancel([job.pk]) == 0
        assert verbs.where(job.pk) == "succeeded"

    def test_counts_what_there_was_to_cancel(self) -> None:
        waiting, later = JobFactory(), JobFactory(scheduled=True)
        running = JobFactory(claimed=True)
        done, gone = JobFactory(succeeded=True), JobFactory(cancelled=True)
        dead = DeadLetterFactory()
        ids = [each.pk for each in (waiting, later, running, done, gone, dead)]
        assert lifecycle.cancel([*ids, 10**9]) == 3
        assert lifecycle.cancel(ids) == 0
        assert [verbs.where(pk) for pk in ids] == [
            *("cancelled", "cancelled", "claimed"),
            *("succeeded", "cancelled", "dead"),
        ]

    def test_takes_any_number_of_ids_and_any_iterable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # "jobqueue.lifecycle.alias" is the function of that name; this is its module.
        monkeypatch.setattr(sys.modules["jobqueue.lifecycle.alias"], "BATCH", 3)
        jobs = JobFactory.create_batch(7)
        assert lifecycle.cancel(job.pk for job in jobs) == 7
        assert not Job.objects.pending().exists()
        assert lifecycle.cancel([]) == 0


class TestRunNow:
    def test_makes_a_scheduled_job_pending_and_due_now(self) -> None:
        job = JobFactory(scheduled=True, due_in=MINUTE)
        assert lifecycle.run_now([job.pk]) == 1
        job.refresh_from_db()
        assert job.status == Status.PENDING
        assert verbs.claim_one().id == job.pk

    def test_takes_its_place_behind_what_is_due_longer(self) -> None:
        later = JobFactory(scheduled=True, due_in=MINUTE)
        first = JobFactory(age=MINUTE)
        lifecycle.run_now([later.pk])
        assert [claimed.id for claimed in verbs.claim(2)] == [first.pk, later.pk]

    def test_leaves_everything_else_alone(self) -> None:
        states = ("pending", "claimed", "succeeded", "cancelled")
        ids = [JobFactory(**{state: True}).pk for state in states]
        before = verbs.everything()
        assert lifecycle.run_now([*ids, 10**9]) == 0
        assert verbs.everything() == before
