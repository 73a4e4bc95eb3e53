"""Whatever a handler does, its outcome is recorded, and the next job finds a clean worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from jobqueue import lifecycle, signals
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome, Reason, Status
from tests import tasks
from tests.in_process import run_until_empty, running_worker
from tests.models import Mark
from tests.processes import Gate, Marks, WorkerProcess, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]


def last_attempt(job: Job) -> Attempt:
    return Attempt.objects.filter(job_id=job.pk).latest("number")


def only_once(task: Any) -> Any:
    return task.using(max_attempts=1)


class TestErrorsThatResist:
    """C-17, C-18."""

    def test_a_nul_in_the_message_is_made_visible(self) -> None:
        job = only_once(tasks.fail_with_nul).enqueue()
        run_until_empty()
        letter = DeadLetter.objects.get(pk=job.pk)
        assert letter.error_class == "ValueError"
        assert "before" in letter.message
        assert "after" in letter.message
        assert "\0" not in last_attempt(job).traceback

    @pytest.mark.parametrize(
        ("kind", "error_class"),
        [
            ("str", "tests.tasks.StrRaises"),
            ("repr", "tests.tasks.ReprRaises"),
            ("arguments", "tests.tasks.NeedsArguments"),
            ("lock", "ValueError"),
        ],
    )
    def test_an_unprintable_error_is_recorded_by_its_class(
        self, kind: str, error_class: str
    ) -> None:
        job = tasks.fail_unprintably.using(max_attempts=2).enqueue(kind)
        run_until_empty()
        letter = DeadLetter.objects.get(pk=job.pk)
        assert (letter.reason, letter.error_class) == (Reason.ATTEMPTS_EXHAUSTED, error_class)
        assert letter.message
        assert letter.attempts == 2
        assert "fail_unprintably" in last_attempt(job).traceback

    def test_an_endless_message_is_cut(self) -> None:
        job = only_once(tasks.fail_at_length).enqueue(5_000_000)
        run_until_empty()
        assert len(last_attempt(job).message) < 10_000

    def test_the_errors_before_an_error_are_in_its_traceback(self) -> None:
        job = only_once(tasks.fail_in_a_chain).enqueue()
        run_until_empty()
        assert "the cause" in last_attempt(job).traceback
        assert "the effect" in last_attempt(job).traceback


class TestResultsThatCannotBeStored:
    """C-19."""

    @pytest.mark.parametrize("kind", ["nan", "nul", "set", "model", "huge"])
    def test_the_work_counts_and_the_attempt_says_why_there_is_no_result(
        self, kind: str, marks: Marks
    ) -> None:
        job = tasks.return_oddly.enqueue(kind, marks=marks.path)
        run_until_empty()
        job.refresh_from_db()
        assert (job.status, job.result) == (Status.SUCCEEDED, None)
        assert len(marks.read("run")) == 1
        assert "the result was not kept" in last_attempt(job).message


class TestExits:
    """C-29."""

    @pytest.mark.parametrize(
        ("task", "arguments", "error_class"),
        [
            (tasks.exit_politely, (0,), "SystemExit"),
            (tasks.exit_politely, (3,), "SystemExit"),
            (tasks.interrupt, (), "KeyboardInterrupt"),
            (tasks.fail_with_a_base_exception, (), "tests.tasks.Unwell"),
            (tasks.recurse, (), "RecursionError"),
        ],
    )
    def test_are_failed_attempts_of_one_job_and_the_worker_goes_on(
        self, task: Any, arguments: tuple[Any, ...], error_class: str
    ) -> None:
        job = only_once(task).enqueue(*arguments)
        next_job = tasks.leave_row.enqueue("after")
        worker = run_until_empty(concurrency=1)
        assert worker.exit_code == 0
        assert last_attempt(job).outcome == Outcome.FAILED
        assert DeadLetter.objects.get(pk=job.pk).error_class == error_class
        assert Job.objects.get(pk=next_job.pk).status == Status.SUCCEEDED

    def test_behind_pythons_back_are_crashes_even_with_code_0(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        job = only_once(tasks.exit_at_once).enqueue(0, marks=marks.path)
        assert worker_process("--lease", "1").wait() == 0
        assert Job.objects.get(pk=job.pk).status == Status.CLAIMED
        with running_worker():
            wait_until(DeadLetter.objects.filter(pk=job.pk).exists)
        assert DeadLetter.objects.get(pk=job.pk).reason == Reason.WORKER_LOST
        assert last_attempt(job).outcome == Outcome.LOST
        assert len(marks.read("run")) == 1


class TestTheDatabaseAfterAHandler:
    """C-30, C-31, C-32."""

    @pytest.mark.parametrize("kind", ["alone", "in a block of its own", "in a raw transaction"])
    def test_a_swallowed_database_error_harms_no_later_job(self, kind: str) -> None:
        jobs = [only_once(tasks.swallow_database_error).enqueue(kind) for _ in range(3)]
        next_job = tasks.leave_row.enqueue("after")
        run_until_empty(concurrency=1)
        outcomes = {last_attempt(job).outcome for job in jobs}
        expected = Outcome.FAILED if kind == "in a raw transaction" else Outcome.SUCCEEDED
        assert outcomes == {expected}
        assert last_attempt(next_job).outcome == Outcome.SUCCEEDED
        assert Mark.objects.filter(key="after").count() == 1

    def test_an_error_of_the_database_is_recorded_as_it_is(self) -> None:
        job = only_once(tasks.fail_in_the_database).enqueue()
        next_job = tasks.leave_row.enqueue("after")
        run_until_empty(concurrency=1)
        assert last_attempt(job).error_class == "django.db.utils.DataError"
        assert last_attempt(next_job).outcome == Outcome.SUCCEEDED

    @pytest.mark.parametrize(
        "kind",
        ["autocommit", "atomic", "raw", pytest.param("lock", marks=pytest.mark.postgresql)],
    )
    def test_a_transaction_left_open_is_rolled_back_and_fails_the_attempt(self, kind: str) -> None:
        job = only_once(tasks.leak_transaction).enqueue(kind, "leaked")
        next_job = tasks.leave_row.enqueue("after")
        run_until_empty(concurrency=1)
        assert last_attempt(job).error_class == "jobqueue.exceptions.LeakedTransaction"
        assert last_attempt(next_job).outcome == Outcome.SUCCEEDED
        assert list(Mark.objects.values_list("key", flat=True)) == ["after"]

    @pytest.mark.parametrize("kind", ["close", "close_all", "close_old", "raw", "in a block"])
    def test_a_closed_connection_is_opened_again(self, kind: str) -> None:
        job = only_once(tasks.close_connection).enqueue(kind)
        later = [tasks.leave_row.enqueue(str(number)) for number in range(3)]
        run_until_empty(concurrency=1)
        outcome = last_attempt(job).outcome
        assert outcome in {Outcome.SUCCEEDED, Outcome.FAILED}
        assert outcome == Outcome.SUCCEEDED or kind == "in a block"
        assert {last_attempt(each).outcome for each in later} == {Outcome.SUCCEEDED}
        assert Mark.objects.count() == 3


class TestWhatAThreadRemembers:
    """C-33."""

    @pytest.mark.parametrize("failing", [False, True])
    def test_is_gone_before_the_next_job(self, *, failing: bool) -> None:
        only_once(tasks.leave_locale).enqueue(failing=failing)
        job = tasks.read_locale.enqueue()
        run_until_empty(concurrency=1)
        job.refresh_from_db()
        assert job.result == {
            "language": "en",
            "time zone": "UTC",
            "script prefix": "/",
            "leftover": "",
        }


@pytest.mark.parametrize("kind", ["multiprocessing", "os.fork", "child returns"])
def test_a_forked_child_is_no_second_worker_and_leaves_the_connection_alone(
    kind: str, worker_process: StartWorker, marks: Marks
) -> None:
    """C-34."""
    job = only_once(tasks.fork).enqueue(kind, marks=marks.path)
    later = [tasks.leave_row.enqueue(str(number)) for number in range(10)]
    worker = worker_process("--concurrency", "1", "--until-empty")
    assert worker.wait() == 0, worker.output
    assert {last_attempt(each).outcome for each in later} == {Outcome.SUCCEEDED}
    assert Mark.objects.count() == 10
    assert last_attempt(job).outcome == Outcome.SUCCEEDED
    [parent], [child] = marks.read("parent"), marks.read("child")
    assert parent["pid"] != child["pid"]
    assert parent["session"] != child["session"]
    assert len(worker.lines_with("job.")) == 11, worker.output


def _virtual_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[0]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class TestMemory:
    def test_running_out_of_it_is_a_failed_attempt(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-38."""
        resource = pytest.importorskip("resource")
        worker = worker_process("--concurrency", "1", "--poll-interval", "0.1")
        warm_up = tasks.leave_row.enqueue("before")
        wait_until(Job.objects.filter(pk=warm_up.pk, status=Status.SUCCEEDED).exists)
        limit = _virtual_bytes(worker.pid) + 200_000_000
        resource.prlimit(worker.pid, resource.RLIMIT_AS, (limit, limit))
        job = tasks.exhaust_memory.using(max_attempts=2).enqueue(megabytes=2000, marks=marks.path)
        next_job = tasks.leave_row.enqueue("after")
        wait_until(Job.objects.filter(pk=next_job.pk, status=Status.SUCCEEDED).exists)
        wait_until(DeadLetter.objects.filter(pk=job.pk).exists)
        assert DeadLetter.objects.get(pk=job.pk).error_class == "MemoryError"
        assert len(marks.read("start")) == 2
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0

    def test_queries_are_not_kept_in_debug(self, settings: Any) -> None:
        """C-35."""
        settings.DEBUG = True
        kept: list[int] = []

        def look(**kwargs: Any) -> None:  # runs in the thread that settles
            kept.append(len(connection.queries_log))

        signals.settled.connect(look)
        try:
            with running_worker(concurrency=2):
                for _ in range(30):
                    tasks.count_logged_queries.enqueue()
                wait_until(lambda: len(kept) == 30)
                tasks.count_logged_queries.enqueue()
                wait_until(lambda: len(kept) == 31)
        finally:
            signals.settled.disconnect(look)
        assert set(Job.objects.values_list("result", flat=True)) == {0}
        assert kept[-1] < 10  # those of the last settlement alone


class TestAsyncHandlers:
    """C-37."""

    def test_are_awaited(self) -> None:
        job = tasks.async_row.enqueue("awaited")
        run_until_empty()
        job.refresh_from_db()
        assert (job.status, job.result) == (Status.SUCCEEDED, "awaited")
        assert Mark.objects.filter(key="awaited").count() == 1

    def test_fail_with_their_own_error(self) -> None:
        job = only_once(tasks.async_fail).enqueue()
        run_until_empty()
        assert last_attempt(job).message == "awaited and failed"


class TestTimeouts:
    def test_a_loop_in_python_is_interrupted(self, marks: Marks) -> None:
        job = tasks.overrun.using(max_attempts=2).enqueue(marks=marks.path)
        worker = run_until_empty()
        assert worker.exit_code == 0
        assert len(marks.read("start")) == 2
        assert DeadLetter.objects.get(pk=job.pk).reason == Reason.TIMED_OUT
        attempts = Attempt.objects.of(job.pk)
        assert [attempt.outcome for attempt in attempts] == [Outcome.TIMED_OUT] * 2

    def test_one_as_long_as_the_lease_is_recorded_each_time(self, marks: Marks) -> None:
        """C-08."""
        job = tasks.overrun_with_the_lease.using(max_attempts=2).enqueue(marks=marks.path)
        with running_worker(name="a"), running_worker(name="b"):
            wait_until(DeadLetter.objects.filter(pk=job.pk).exists)
        attempts = Attempt.objects.of(job.pk)
        assert [attempt.outcome for attempt in attempts] == [Outcome.TIMED_OUT] * 2
        assert len(marks.read("start")) == 2

    def test_a_handler_that_cannot_be_interrupted_takes_its_process_with_it(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        """The attempt is recorded, what else runs finishes, and whoever started it starts anew."""
        stuck = tasks.overrun_in_a_pool.using(max_attempts=1).enqueue(600, marks=marks.path)
        other = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        worker = worker_process("--concurrency", "2")
        worker.wait_for_line("worker.handler_stuck", f"job={stuck.pk}")
        worker.wait_for_line("worker.draining")
        gate.open()
        assert worker.wait() == 1
        assert DeadLetter.objects.get(pk=stuck.pk).reason == Reason.TIMED_OUT
        assert last_attempt(stuck).outcome == Outcome.TIMED_OUT
        assert last_attempt(other).outcome == Outcome.SUCCEEDED
        assert not marks.read("end", key="")[1:]


class TestCancelling:
    """C-22."""

    def test_a_running_job_that_fails_gets_no_further_attempt(
        self, marks: Marks, gate: Gate
    ) -> None:
        job = tasks.hold_then_fail.enqueue(gate=gate.path, marks=marks.path)
        with running_worker():
            marks.wait_for("start")
            assert lifecycle.cancel([job.pk]) == 1
            gate.open()
            wait_until(Job.objects.filter(pk=job.pk, status=Status.CANCELLED).exists)
        assert [attempt.outcome for attempt in Attempt.objects.of(job.pk)] == [Outcome.FAILED]
        assert len(marks.read("start")) == 1
