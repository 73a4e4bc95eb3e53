"""Leases in the hands of people: more time, or an end, and what the holder learns of it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError
from django.db.models import F

from jobqueue import lifecycle
from jobqueue.claims import Claim, Lease
from jobqueue.context import JobContext
from jobqueue.exceptions import WorkerLives
from jobqueue.lifecycle import Actor
from jobqueue.models import Attempt, DeadLetter, Job, OperationLog, Worker
from jobqueue.querysets import from_now
from jobqueue.states import Outcome, Reason, Status
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory, WorkerFactory
from tests.soundness import violations

pytestmark = pytest.mark.django_db

ALICE = Actor("7", "alice")
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def claimed(**options: Any) -> Claim:
    """Claim a new job, as a worker does."""
    JobFactory(**options)
    return verbs.claim_one()


def left(job_id: int) -> timedelta:
    """Return what is left of a job's lease, by the database's clock."""
    span: timedelta = Job.objects.with_time_left().get(pk=job_id).time_left  # type: ignore[attr-defined]
    return span


class TestExtend:
    def test_gives_a_lease_at_least_the_span_from_now(self) -> None:
        claim = claimed()
        assert lifecycle.extend_leases([claim.id], HOUR) == 1
        assert HOUR - MINUTE < left(claim.id) <= HOUR

    def test_never_shortens_a_lease(self) -> None:
        job = JobFactory(claimed=True, lease_left=2 * HOUR)
        assert lifecycle.extend_leases([job.pk], MINUTE) == 1
        assert Job.objects.get().claimed_until == job.claimed_until

    def test_is_not_cut_short_by_the_holders_heartbeat(self) -> None:
        claim = claimed()
        lifecycle.extend_leases([claim.id], HOUR)
        lease = verbs.lease_on(claim, span=60.0)
        lifecycle.extend([lease])
        assert not lease.lost
        assert left(claim.id) > HOUR - MINUTE

    def test_keeps_a_lost_job_from_being_rescued(self) -> None:
        claim = claimed()
        verbs.expire(claim.id)
        lifecycle.extend_leases([claim.id], HOUR)
        assert lifecycle.rescue() == 0
        assert lifecycle.settle([verbs.succeeded(claim)]) == {claim.id}

    def test_leaves_everything_without_a_lease_alone(self) -> None:
        states = ("pending", "scheduled", "succeeded", "cancelled")
        ids = [JobFactory(**{state: True}).pk for state in states]
        before = verbs.everything()
        assert lifecycle.extend_leases([*ids, 10**9], HOUR, by=ALICE) == 0
        assert verbs.everything() == before
        assert not OperationLog.objects.exists()

    def test_is_logged_with_the_ends_before_and_after(self) -> None:
        job = JobFactory(claimed=True)
        lifecycle.extend_leases([job.pk], HOUR, by=ALICE, reason="a big one", correlation_id="op-1")
        [line] = OperationLog.objects.of(Job, job.pk)
        assert (line.action, line.actor_id, line.actor) == ("extend_lease", "7", "alice")
        assert (line.reason, line.correlation_id) == ("a big one", "op-1")
        assert line.before == {"claimed_until": job.claimed_until.isoformat(timespec="seconds")}
        job.refresh_from_db()
        assert line.after == {"claimed_until": job.claimed_until.isoformat(timespec="seconds")}


class TestRelease:
    """C-09: the fence is what makes it safe to take a job from somebody who may still have it."""

    def test_gives_the_job_to_others_at_once(self) -> None:
        claim = claimed()
        assert lifecycle.release_leases([claim.id]) == 1
        assert verbs.where(claim.id) == "pending"
        again = verbs.claim_one(worker="worker-b")
        assert (again.id, again.fence, again.attempts) == (claim.id, claim.fence + 1, 2)
        assert violations() == []

    def test_refuses_what_the_holder_reports_later(self) -> None:
        claim = claimed()
        lifecycle.release_leases([claim.id])
        before = verbs.everything()
        for end in (verbs.succeeded, verbs.retried, verbs.buried, verbs.released):
            assert lifecycle.settle([end(claim)]) == set()
        assert verbs.everything() == before

    def test_refuses_it_while_another_has_the_job_too(self) -> None:
        claim = claimed()
        lifecycle.release_leases([claim.id])
        again = verbs.claim_one(worker="worker-b")
        assert lifecycle.settle([verbs.succeeded(claim)]) == set()
        assert lifecycle.settle([verbs.succeeded(again)]) == {claim.id}
        assert verbs.outcomes(claim.id) == ["lost", "succeeded"]
        assert violations() == []

    def test_is_seen_by_the_heartbeat_and_by_the_handler(self) -> None:
        claim = claimed()
        lease = verbs.lease_on(claim)
        context = JobContext(claim, lease, None, _extended)
        assert not context.lease_lost
        lifecycle.release_leases([claim.id])
        lifecycle.extend([lease])
        assert lease.lost
        assert context.lease_lost

    def test_records_the_attempt_as_lost_and_names_who_and_why(self) -> None:
        claim = claimed()
        lifecycle.release_leases([claim.id], by=ALICE, reason="the host is on fire")
        attempt = Attempt.objects.get()
        assert (attempt.outcome, attempt.number, attempt.worker) == (Outcome.LOST, 1, "worker-a")
        assert attempt.message == "alice released its lease: the host is on fire"
        assert attempt.duration < MINUTE
        job = Job.objects.get()
        assert (job.losses, job.last_error) == (1, attempt.message)

    def test_after_the_last_attempt_makes_it_a_dead_letter(self) -> None:
        claim = claimed(max_attempts=1)
        assert lifecycle.release_leases([claim.id], by=ALICE) == 1
        letter = DeadLetter.objects.get()
        assert (letter.pk, letter.reason) == (claim.id, Reason.WORKER_LOST)
        assert OperationLog.objects.get().after == {"status": "dead"}
        assert lifecycle.settle([verbs.succeeded(claim)]) == set()
        assert violations() == []

    def test_of_a_job_that_is_to_be_cancelled_cancels_it(self) -> None:
        claim = claimed()
        lifecycle.cancel([claim.id])
        lifecycle.release_leases([claim.id], by=ALICE)
        assert verbs.where(claim.id) == "cancelled"
        assert OperationLog.objects.get().after == {"status": "cancelled"}

    def test_of_a_lease_that_has_run_out_ends_it_where_it_ended(self) -> None:
        claim = claimed()
        verbs.expire(claim.id)
        ended = Job.objects.get().claimed_until
        assert ended is not None
        lifecycle.release_leases([claim.id])
        finished = Attempt.objects.get().finished_at
        assert abs(finished - ended) < MINUTE / 2

    def test_leaves_everything_without_a_lease_alone(self) -> None:
        states = ("pending", "scheduled", "succeeded", "cancelled")
        ids = [JobFactory(**{state: True}).pk for state in states] + [DeadLetterFactory().pk]
        before = verbs.everything()
        assert lifecycle.release_leases([*ids, 10**9], by=ALICE) == 0
        assert verbs.everything() == before
        assert not OperationLog.objects.exists()

    def test_of_a_payload_that_nobody_can_read_works_too(self) -> None:
        claim = claimed()
        verbs.set_raw(claim.id, kwargs='{"n": ' + "9" * 5000 + "}")
        assert lifecycle.release_leases([claim.id]) == 1

    def test_is_logged_with_the_holder(self) -> None:
        job = JobFactory(claimed=True)
        lifecycle.release_leases([job.pk], by=ALICE, reason="stuck", correlation_id="op-2")
        [line] = OperationLog.objects.of(Job, job.pk)
        assert (line.action, line.reason, line.correlation_id) == ("release_lease", "stuck", "op-2")
        until = job.claimed_until.isoformat(timespec="seconds")
        assert line.before == {"claimed_by": "worker-a", "claimed_until": until}
        assert line.after == {"status": "pending"}

    def test_and_its_line_in_the_log_fail_together(self) -> None:
        claim = claimed()
        before = verbs.everything()
        with verbs.refusing("INSERT", "jobqueue_operationlog"), pytest.raises(DatabaseError):
            lifecycle.release_leases([claim.id], by=ALICE)
        assert verbs.everything() == before


def _extended(lease: Lease) -> bool:
    lifecycle.extend([lease])
    return not lease.lost


class TestReleaseWorker:
    def test_ends_all_leases_of_a_worker_that_is_gone_and_no_others(self) -> None:
        WorkerFactory(name="worker-a", silent_for=HOUR)
        theirs = JobFactory.create_batch(3, claimed=True)
        other = JobFactory(claimed=True, claimed_by="worker-b")
        assert lifecycle.release_worker("worker-a", by=ALICE) == 3
        assert [verbs.where(job.pk) for job in theirs] == ["pending"] * 3
        assert verbs.where(other.pk) == "claimed"

    def test_works_when_the_workers_own_row_is_gone(self) -> None:
        job = JobFactory(claimed=True)
        assert lifecycle.release_worker("worker-a") == 1
        assert verbs.where(job.pk) == "pending"

    def test_is_refused_for_one_that_lives(self) -> None:
        WorkerFactory(name="worker-a")
        JobFactory(claimed=True)
        before = verbs.everything()
        with pytest.raises(WorkerLives, match="worker-a was heard of less than 0:01:00 ago"):
            lifecycle.release_worker("worker-a", by=ALICE)
        assert verbs.everything() == before
        assert not OperationLog.objects.exists()

    def test_is_logged_for_the_worker_and_for_each_job(self) -> None:
        worker = WorkerFactory(name="worker-a", silent_for=HOUR)
        job = JobFactory(claimed=True)
        lifecycle.release_worker("worker-a", by=ALICE, correlation_id="op-3")
        [line] = OperationLog.objects.of(Worker, worker.pk)
        assert (line.action, line.after) == ("release_worker", {"leases": 1})
        [of_job] = OperationLog.objects.of(Job, job.pk)
        assert (of_job.action, of_job.correlation_id) == ("release_lease", line.correlation_id)


class TestManyAtOnce:
    def test_leave_one_line_that_names_them_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.lifecycle.audit.MOST_LINES", 2)
        jobs = JobFactory.create_batch(3, claimed=True)
        lifecycle.extend_leases([job.pk for job in jobs], HOUR, by=ALICE)
        line = OperationLog.objects.get()
        assert (line.count, line.target_id) == (3, "")
        assert line.targets == {"ids": [job.pk for job in jobs]}
        assert set(line.before) == {str(job.pk) for job in jobs}

    def test_by_the_projects_own_code_leave_none(self) -> None:
        job = JobFactory(claimed=True)
        lifecycle.release_leases([job.pk])
        assert not OperationLog.objects.exists()
        assert Attempt.objects.get().message == "its lease was released"

    def test_of_a_worker_that_was_silent_for_a_lease_are_those_of_one_that_is_gone(
        self, settings: Any
    ) -> None:
        WorkerFactory(name="worker-a", silent_for=2 * MINUTE)
        JobFactory(claimed=True)
        settings.JOBQUEUE = {"LEASE": 5 * MINUTE}
        with pytest.raises(WorkerLives):
            lifecycle.release_worker("worker-a")
        Worker.objects.update(heartbeat_at=F("heartbeat_at") - 5 * MINUTE)
        assert lifecycle.release_worker("worker-a") == 1


def test_the_statement_of_the_heartbeat_still_lengthens_a_lease() -> None:
    claim = claimed()
    Job.objects.update(claimed_until=from_now(timedelta(seconds=1)))
    lifecycle.extend([verbs.lease_on(claim, span=60.0)])
    assert left(claim.id) > MINUTE / 2
    assert Job.objects.get().status == Status.CLAIMED
