"""Rescue: jobs whose lease has run out are taken over, and the lost attempt is recorded."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.db.models import F

from jobqueue import lifecycle
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.querysets import ago
from jobqueue.states import Outcome, Reason, Status
from tests import verbs
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


class TestRescue:
    def test_makes_a_lost_job_pending_at_once(self) -> None:
        job = JobFactory(claimed=True, lease_left=-MINUTE, claimed_ago=2 * MINUTE)
        assert lifecycle.rescue() == 1
        job.refresh_from_db()
        assert (job.status, job.attempts, job.fence) == (Status.PENDING, 1, 1)
        assert (job.claimed_by, job.claimed_at, job.claimed_until) == (None, None, None)
        assert verbs.claim_one(worker="worker-b").fence == 2

    def test_records_who_lost_it_and_when(self) -> None:
        """C-13: nothing is left unexplained, and no attempt looks as if it still ran."""
        job = JobFactory(
            claimed=True, claimed_by="worker-x", claimed_ago=9 * MINUTE, lease_left=-4 * MINUTE
        )
        lifecycle.rescue()
        attempt = Attempt.objects.get()
        assert (attempt.job_id, attempt.number, attempt.fence) == (job.pk, 1, 1)
        assert (attempt.worker, attempt.outcome) == ("worker-x", Outcome.LOST)
        assert "worker-x" in attempt.message
        near = timedelta(seconds=30)
        assert abs(attempt.duration - 5 * MINUTE) < timedelta(seconds=1)
        ended = Attempt.objects.filter(finished_at__lt=ago(4 * MINUTE - near))
        assert ended.filter(finished_at__gt=ago(4 * MINUTE + near)).exists()

    def test_leaves_alone_what_is_held_or_only_old(self) -> None:
        """C-11: only the end of the lease decides, never an age."""
        day = timedelta(days=3)
        JobFactory(claimed=True, claimed_ago=day, age=day)
        JobFactory(age=day)
        JobFactory(scheduled=True, due_in=-day, age=day)
        JobFactory(succeeded=True, finished_ago=day)
        JobFactory(cancelled=True, finished_ago=day)
        before = verbs.everything()
        assert lifecycle.rescue() == 0
        assert verbs.everything() == before

    def test_buries_a_job_that_is_out_of_attempts(self) -> None:
        """C-04: a job that kills its workers runs out of attempts like any other."""
        job = JobFactory(max_attempts=3)
        for number in range(1, 4):
            claimed = verbs.claim_one()
            assert claimed.attempts == number
            verbs.expire(job.pk)
            assert lifecycle.rescue() == 1
        assert not verbs.claim(9)
        letter = DeadLetter.objects.get()
        assert (letter.pk, letter.reason, letter.attempts) == (job.pk, Reason.WORKER_LOST, 3)
        assert verbs.outcomes(job.pk) == ["lost"] * 3

    def test_treats_each_job_by_its_own_budget(self) -> None:
        jobs = [JobFactory(claimed=True, lease_left=-MINUTE, max_attempts=n) for n in (1, 2)]
        assert lifecycle.rescue() == 2
        assert [verbs.where(job.pk) for job in jobs] == ["dead", "pending"]

    def test_takes_no_more_than_its_limit(self) -> None:
        JobFactory.create_batch(3, claimed=True, lease_left=-MINUTE)
        assert [lifecycle.rescue(limit=2), lifecycle.rescue(limit=2), lifecycle.rescue()] == [
            2,
            1,
            0,
        ]

    def test_happens_once(self) -> None:
        job = JobFactory(claimed=True, lease_left=-MINUTE)
        assert [lifecycle.rescue(), lifecycle.rescue()] == [1, 0]
        assert verbs.outcomes(job.pk) == ["lost"]

    def test_of_a_job_that_was_to_be_cancelled_cancels_it(self) -> None:
        """C-22."""
        job = JobFactory(claimed=True, lease_left=-MINUTE, cancel_requested=True)
        lifecycle.rescue()
        assert verbs.where(job.pk) == "cancelled"
        assert verbs.outcomes(job.pk) == ["lost"]

    def test_of_a_job_of_an_unknown_task_works(self) -> None:
        job = JobFactory(claimed=True, lease_left=-MINUTE, task="nobody.knows", args="text")
        assert lifecycle.rescue() == 1
        assert verbs.where(job.pk) == "pending"

    def test_of_an_unreadable_payload_works(self) -> None:
        jobs = [JobFactory(claimed=True, lease_left=-MINUTE, max_attempts=n) for n in (1, 2)]
        for job in jobs:
            verbs.set_raw(job.pk, kwargs='{"a": 1' + "0" * 5000 + "}")
        assert lifecycle.rescue() == 2
        assert Job.objects.defer("kwargs").get().pk == jobs[1].pk

    def test_leaves_no_lease_behind_that_has_ended(self) -> None:
        """C-01."""
        JobFactory.create_batch(3, claimed=True, lease_left=-MINUTE)
        lifecycle.rescue()
        assert not Job.objects.expired().exists()
        assert not Job.objects.filter(claimed_until__lt=F("claimed_at")).exists()
