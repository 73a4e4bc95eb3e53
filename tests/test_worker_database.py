"""Whatever the database does to a worker, it carries on, and no outcome is lost or made up."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from jobqueue import lifecycle
from jobqueue.models import Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome
from tests import tasks
from tests.in_process import run_until_empty, running_worker
from tests.models import Mark
from tests.processes import (
    Gate,
    Marks,
    WorkerProcess,
    database_url,
    sessions,
    terminate_sessions,
    wait_until,
)
from tests.test_worker_lease import QUICK, outcomes, succeeded, trigger

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

StartWorker = Callable[..., WorkerProcess]
#: An error that says nothing about the row: PostgreSQL's "cannot connect now".
NOT_NOW = "RAISE 'not now' USING ERRCODE = '57P03'"
SECOND = timedelta(seconds=1)


def cut_off(worker: WorkerProcess, *, times: int) -> None:
    """End every session of the worker, and those that it opens then, so many times."""
    for _ in range(times):
        wait_until(lambda: sessions(worker.session), doing="the worker to connect again")
        terminate_sessions(worker.session)


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def without_table(table: str) -> Iterator[None]:
    execute(f"ALTER TABLE {table} RENAME TO not_yet")
    try:
        yield
    finally:
        execute(f"ALTER TABLE not_yet RENAME TO {table}")


@contextmanager
def without_column(table: str, column: str) -> Iterator[None]:
    execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO gone")
    try:
        yield
    finally:
        execute(f"ALTER TABLE {table} RENAME COLUMN gone TO {column}")


class TestConnectionsThatAreCut:
    def test_while_handlers_run_cost_only_those_that_used_theirs(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        """C-12, C-48: again and again, with a second worker that would take what is free."""
        given: dict[str, Any] = {"gate": gate.path, "marks": marks.path}
        queries = tasks.hold_between_queries.enqueue("row", **given)
        bystander = tasks.hold.enqueue(**given)
        worker = worker_process("--name", "first", *QUICK)
        marks.wait_for("start", count=2)
        worker_process("--name", "second", *QUICK)
        cut_off(worker, times=4)
        wait_until(lambda: sessions(worker.session))
        gate.open()
        wait_until(succeeded(queries, bystander))
        assert outcomes(bystander) == [(1, Outcome.SUCCEEDED, "first")]
        assert [outcome for _, outcome, _ in outcomes(queries)] == [
            Outcome.FAILED,
            Outcome.SUCCEEDED,
        ]
        assert [mark.value for mark in Mark.objects.all()] == ["2"]
        assert len(marks.read("start")) == 3
        later = [tasks.leave_row.enqueue(str(number)) for number in range(10)]
        wait_until(succeeded(*later))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0

    @pytest.mark.parametrize(
        ("options", "attempts"),
        [("conn_max_age=0", 2), ("conn_max_age=60&conn_health_checks=1", 1)],
    )
    def test_while_the_worker_is_idle_cost_an_attempt_at_most(
        self, options: str, attempts: int, worker_process: StartWorker
    ) -> None:
        """C-47: with health checks not even that."""
        url = database_url()
        url += ("&" if "?" in url else "?") + options
        worker = worker_process("--concurrency", "1", *QUICK, DATABASE_URL=url)
        first = tasks.leave_row.enqueue("before")
        wait_until(succeeded(first))
        wait_until(WorkerRow.objects.exists)
        cut_off(worker, times=1)
        job = tasks.leave_row.enqueue("after")
        wait_until(succeeded(job))
        assert Job.objects.filter(pk=job.pk, attempts__lte=attempts).exists()
        assert worker.process.poll() is None
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


class TestAnAckThatIsRefused:
    """C-15, C-16."""

    def test_is_tried_again_on_a_new_connection_when_its_own_is_cut(
        self, worker_process: StartWorker
    ) -> None:
        execute("CREATE SEQUENCE acks")
        cut_the_first = (
            "IF nextval('acks') = 1 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF"
        )
        try:
            with trigger("jobqueue_attempt", "INSERT", cut_the_first):
                worker = worker_process("--name", "only", *QUICK)
                job = tasks.leave_row.enqueue("once")
                wait_until(succeeded(job))
        finally:
            execute("DROP SEQUENCE acks")
        assert outcomes(job) == [(1, Outcome.SUCCEEDED, "only")]
        assert len(worker.lines_with("worker.settle_failed")) == 1
        assert Mark.objects.count() == 1

    def test_counts_when_the_database_gives_in_before_the_lease_ends(
        self, worker_process: StartWorker
    ) -> None:
        with trigger("jobqueue_attempt", "INSERT", NOT_NOW):
            worker = worker_process("--name", "only", *QUICK)
            job = tasks.leave_row.enqueue("once")
            worker.wait_for_line("worker.settle_failed", "not now")
        wait_until(succeeded(job))
        assert outcomes(job) == [(1, Outcome.SUCCEEDED, "only")]
        assert Mark.objects.count() == 1

    def test_leaves_the_job_to_its_lease_when_it_does_not(
        self, worker_process: StartWorker
    ) -> None:
        with trigger("jobqueue_attempt", "INSERT", NOT_NOW):
            worker = worker_process("--name", "only", "--lease", "1", *QUICK)
            job = tasks.leave_row.enqueue("twice")
            worker.wait_for_line("worker.settle_failed", "not now")
            wait_until(Job.objects.expired().exists)
            worker.wait_for_line("job.unrecorded", f"job={job.pk} ")
        wait_until(succeeded(job))
        assert outcomes(job) == [(1, Outcome.LOST, "only"), (2, Outcome.SUCCEEDED, "only")]
        assert worker.process.poll() is None


def test_a_column_that_is_missing_for_a_while_neither_ends_nor_deafens_a_worker() -> None:
    """C-21."""
    with running_worker(lease=SECOND, concurrency=2) as worker:
        with without_column("jobqueue_attempt", "outcome"):
            jobs = [tasks.leave_row.enqueue(str(number)) for number in range(10)]
            wait_until(lambda: Mark.objects.count() >= 2)
            wait_until(Job.objects.expired().exists)
        wait_until(succeeded(*jobs))
        assert worker.stop_requests == 0
    assert not Job.objects.claimed().exists()


def test_an_error_in_the_bookkeeping_itself_ends_the_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C-21: it is never alive and doing nothing, and the lease brings the job back."""

    def broken(*args: object, **kwargs: object) -> None:
        raise ValueError("a fault of our own")

    job = tasks.leave_row.enqueue("twice")
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "settle", broken)
        with running_worker(lease=SECOND, drain_timeout=SECOND / 5) as worker:
            wait_until(lambda: worker.stop_requests)
    assert worker.exit_code == 1
    wait_until(Job.objects.expired().exists)
    run_until_empty()
    assert [outcome for _, outcome, _ in outcomes(job)] == [Outcome.LOST, Outcome.SUCCEEDED]


class TestStarting:
    """C-53, and C-43 for a worker that waits for its database."""

    def test_before_migrate_waits_and_says_why_in_one_line(
        self, worker_process: StartWorker
    ) -> None:
        job = tasks.leave_row.enqueue("later")
        with without_table("jobqueue_job"):
            worker = worker_process(*QUICK)
            line = worker.wait_for_line("worker.database_away")
            assert "jobqueue_job" in line
            assert "does not exist" in line
            assert "Traceback" not in worker.output
            assert "LINE" not in worker.output
        wait_until(succeeded(job))
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0

    def test_without_a_database_waits_with_pauses_until_it_is_stopped(
        self, worker_process: StartWorker
    ) -> None:
        nowhere = "postgres://nobody@127.0.0.1:1/nothing"
        worker = worker_process(*QUICK, DATABASE_URL=nowhere)
        wait_until(lambda: len(worker.lines_with("worker.database_away")) >= 4)
        pauses = [
            float(line.split("retry_in_s=")[1].split()[0])
            for line in worker.lines_with("worker.database_away")
        ]
        assert pauses[3] > pauses[0]
        assert all("refused" in line for line in worker.lines_with("worker.", "err="))
        worker.signal(signal.SIGTERM)
        assert worker.wait(timeout=15) == 0
