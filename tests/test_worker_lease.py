"""A claim is a lease: kept while its worker lives, taken over when it does not, and never both."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from jobqueue import lifecycle
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome, Reason, Status
from tests import tasks
from tests.factories import JobFactory
from tests.in_process import run_until_empty
from tests.models import Mark
from tests.processes import (
    Gate,
    Marks,
    OtherConnection,
    WorkerProcess,
    wait_for_lock_wait,
    wait_until,
)

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]
A_MINUTE = timedelta(minutes=1)
QUICK = ("--poll-interval", "0.1")


def succeeded(*jobs: Job) -> Callable[[], bool]:
    ids = [job.pk for job in jobs]
    done = Job.objects.filter(pk__in=ids, status=Status.SUCCEEDED)
    return lambda: done.count() == len(ids)


def outcomes(job: Job) -> list[tuple[int, str, str]]:
    attempts = Attempt.objects.of(job.pk)
    return list(attempts.values_list("number", "outcome", "worker"))


@contextmanager
def trigger(table: str, event: str, body: str) -> Iterator[None]:
    """Have PostgreSQL do something before each row of ``event`` on a table."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN {body}; RETURN NEW; END $$"
        )
        cursor.execute(
            f"CREATE TRIGGER meddle BEFORE {event} ON {table}"
            " FOR EACH ROW EXECUTE FUNCTION meddle()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION meddle CASCADE")


class TestAKilledWorker:
    def test_loses_no_job_and_each_lost_attempt_is_recorded(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        """C-01, C-09, C-13: killed with as many jobs in flight as it may hold, twice."""
        jobs = [tasks.hold.enqueue(gate=gate.path, marks=marks.path) for _ in range(3)]
        options = ("--concurrency", "3", "--lease", "1", *QUICK)
        for number in (1, 2):
            worker = worker_process(*options, "--name", f"worker-{number}")
            marks.wait_for("start", count=3, attempt=number)
            assert worker.kill() == -signal.SIGKILL
        assert Job.objects.claimed().count() == 3
        worker = worker_process(*options, "--name", "worker-3")
        marks.wait_for("start", attempt=3)
        gate.open()  # now they run one at a time: any of them may be what kills its workers
        later = tasks.leave_mark.enqueue(marks=marks.path)
        wait_until(succeeded(*jobs, later))
        for job in jobs:
            assert outcomes(job) == [
                (1, Outcome.LOST, "worker-1"),
                (2, Outcome.LOST, "worker-2"),
                (3, Outcome.SUCCEEDED, "worker-3"),
            ]
        lost = Attempt.objects.filter(outcome=Outcome.LOST).latest("pk")
        assert lost.started_at < lost.finished_at
        assert "worker-2" in lost.message
        assert not Job.objects.claimed().exists()
        assert len(worker.lines_with("job.lost", "worker=worker-2")) == 3

    @pytest.mark.postgresql
    def test_in_the_middle_of_a_rescue_leaves_the_jobs_to_the_next(
        self, worker_process: StartWorker, second_connection: OtherConnection
    ) -> None:
        """C-10."""
        jobs = [JobFactory(claimed=True, lease_left=-A_MINUTE) for _ in range(3)]
        with trigger("jobqueue_attempt", "INSERT", "PERFORM pg_advisory_xact_lock(42)"):
            second_connection.begin()
            second_connection.run(_execute, "SELECT pg_advisory_xact_lock(42)")
            worker = worker_process(*QUICK)
            wait_for_lock_wait()
            worker.kill()
            assert Job.objects.expired().count() == 3
            second_connection.roll_back()
            run_until_empty()
        assert succeeded(*jobs)()
        assert {outcomes(job)[0] for job in jobs} == {(1, Outcome.LOST, "worker-a")}
        assert {len(outcomes(job)) for job in jobs} == {2}


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


STANDING = (
    "status",
    "claimed_by",
    "attempts",
    "fence",
    "max_attempts",
    "attempts_forgiven",
    "run_after",
    "last_error",
)


def test_a_worker_that_slept_past_its_leases_changes_nothing(
    worker_process: StartWorker, marks: Marks, gate: Gate
) -> None:
    """C-02, C-03: ack, retry, dead-letter and snooze are refused, and atomic writes roll back."""
    given: dict[str, Any] = {"gate": gate.path, "marks": marks.path}
    ack = tasks.hold_each.enqueue("ack", **given)
    retry = tasks.hold_each.using(max_attempts=2).enqueue("retry", **given)
    discard = tasks.hold_each.enqueue("discard", **given)
    snooze = tasks.hold_each.enqueue("snooze", **given)
    jobs = [ack, retry, discard, snooze]
    if connection.features.has_select_for_update:  # else its transaction would lock all others out
        jobs.append(tasks.hold_each_atomically.enqueue("row", **given))
    sleeper = worker_process("--name", "sleeper", "--concurrency", "5", "--lease", "1", *QUICK)
    marks.wait_for("start", count=len(jobs), attempt=1)
    sleeper.signal(signal.SIGSTOP)
    worker_process("--name", "heir", "--concurrency", str(len(jobs)), *QUICK)
    marks.wait_for("start", count=len(jobs), attempt=2)
    before = list(Job.objects.order_by("pk").values_list(*STANDING))

    sleeper.signal(signal.SIGCONT)
    Gate(Path(f"{gate.path}.1")).open()
    for job in jobs:
        sleeper.wait_for_line("job.lease_lost", f"job={job.pk} ", "worker=sleeper")
    assert list(Job.objects.order_by("pk").values_list(*STANDING)) == before
    assert {row[:3] for row in before} == {(Status.CLAIMED, "heir", 2)}
    assert {outcomes(job)[-1] for job in jobs} == {(1, Outcome.LOST, "sleeper")}
    assert not DeadLetter.objects.exists()
    assert not Mark.objects.exists()
    other = tasks.leave_mark.enqueue(marks=marks.path)
    assert marks.wait_for("run", job=other.pk)[0]["pid"] == sleeper.pid

    Gate(Path(f"{gate.path}.2")).open()
    wait_until(succeeded(ack, *jobs[4:]))
    wait_until(lambda: not Job.objects.claimed().exists())
    assert {outcomes(job)[-1][::2] for job in jobs} == {(2, "heir")}
    ack.refresh_from_db()
    assert ack.result == "attempt 2"
    reasons = dict(DeadLetter.objects.values_list("pk", "reason"))
    assert reasons == {retry.pk: Reason.ATTEMPTS_EXHAUSTED, discard.pk: Reason.DISCARDED}
    assert [mark.value for mark in Mark.objects.all()] == ["2" for _ in jobs[4:]]
    assert len(marks.read("start")) == 2 * len(jobs)


class TestALivingWorker:
    def test_keeps_the_lease_of_handlers_that_take_long_and_burn_the_processor(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-05, C-06, C-07: three leases long, another worker waiting, each UPDATE slow."""
        slow = tasks.slow.enqueue(6, marks=marks.path, key="slow")
        spinning = tasks.spin.enqueue(6, marks=marks.path)
        with _slow_updates():
            first = worker_process("--concurrency", "2", "--lease", "2", *QUICK)
            marks.wait_for("start", count=2)
            worker_process("--concurrency", "2", "--lease", "2", *QUICK)
            marks.wait_for("end", count=2)
            wait_until(succeeded(slow, spinning))
        assert {mark["pid"] for mark in marks.read("start")} == {first.pid}
        assert len(marks.read("start")) == 2
        assert len(outcomes(slow)) == len(outcomes(spinning)) == 1

    def test_that_cannot_keep_it_loses_the_job_but_the_handler_did_not_fail(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-07: one long call into C that lets no other thread run."""
        job = tasks.hold_the_interpreter.enqueue(4, marks=marks.path)
        first = worker_process("--name", "first", "--lease", "1", *QUICK)
        marks.wait_for("start", attempt=1)
        worker_process("--name", "second", *QUICK)
        first.wait_for_line("job.lease_lost", f"job={job.pk} ")
        assert outcomes(job) == [(1, Outcome.LOST, "first"), (2, Outcome.SUCCEEDED, "second")]
        job.refresh_from_db()
        assert job.result == "attempt 2"

    def test_is_told_that_a_running_job_was_cancelled(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-22."""
        job = tasks.hold_until_cancelled.enqueue(marks=marks.path)
        worker_process("--lease", "1", *QUICK)
        marks.wait_for("start")
        assert lifecycle.cancel([job.pk]) == 1
        assert marks.wait_for("end")[0]["cancel_requested"]
        wait_until(succeeded(job))
        assert len(outcomes(job)) == 1


@contextmanager
def _slow_updates() -> Iterator[None]:
    if connection.vendor != "postgresql":
        yield
        return
    with trigger("jobqueue_job", "UPDATE", "PERFORM pg_sleep(0.3)"):
        yield
