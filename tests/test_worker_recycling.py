"""A process that has served ends between jobs, and another goes on; what the exit codes say."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from jobqueue import enqueue_many
from jobqueue.management.commands import runworker
from jobqueue.models import Attempt, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome, Status
from jobqueue.worker import memory, options
from jobqueue.worker.reports import REPORTS_TO, Reports
from jobqueue.worker.supervisor import RECYCLED, SUPERVISED
from tests import tasks
from tests.in_process import new_worker, run_to_the_end, run_until_empty, start, wait_for_end
from tests.processes import Gate, Marks, WorkerProcess, manage, wait_until
from tests.test_docs import in_first_column, read

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]
#: Less, and more, than any process of Python uses.
TINY, HUGE = 1, 1_000_000
PROCESSES = ("--processes", "2", "--poll-interval", "0.1")


def jobs_that_are(status: Status) -> int:
    return Job.objects.filter(status=status).count()


class TestMaxMemory:
    def test_ends_the_worker_between_jobs_and_hands_back_what_waits(self) -> None:
        """C-36."""
        enqueue_many(tasks.noop.bind() for _ in range(600))  # more than a worker holds
        worker = run_to_the_end(max_memory=TINY, concurrency=1)
        assert worker.exit_code == 0
        assert jobs_that_are(Status.SUCCEEDED) >= 1, "even a limit too low lets a job through"
        assert Job.objects.pending().filter(attempts=0).exists()
        assert Job.objects.count() == 600
        assert not Job.objects.claimed().exists()
        assert not WorkerRow.objects.exists()

    def test_lets_running_jobs_finish(self, marks: Marks, gate: Gate) -> None:
        held = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        tasks.noop.enqueue()
        worker = new_worker(max_memory=TINY, concurrency=2)
        thread = start(worker)
        wait_until(lambda: worker.claimer.has_served)
        late = tasks.noop.enqueue()
        gate.open()
        wait_for_end(thread)
        assert worker.exit_code == 0
        assert Job.objects.get(pk=held.pk).status == Status.SUCCEEDED
        assert Job.objects.get(pk=late.pk).status == Status.PENDING

    def test_changes_nothing_below_the_limit(self) -> None:
        for _ in range(20):
            tasks.noop.enqueue()
        run_until_empty(max_memory=HUGE)
        assert jobs_that_are(Status.SUCCEEDED) == 20

    def test_is_refused_where_nothing_says_how_much_that_is(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "resident", lambda: None)
        with pytest.raises(ValueError, match="max-memory: this system does not say"):
            options.WorkerOptions(max_memory=HUGE)

    def test_is_at_least_1(self) -> None:
        with pytest.raises(ValueError, match="max-memory must be at least 1, not 0"):
            options.WorkerOptions(max_memory=0)


class TestMemory:
    def test_grows_by_what_is_allocated(self) -> None:
        before = memory.resident()
        kept = bytearray(b"x") * (100 * memory.MEGABYTE)
        after = memory.resident()
        assert before is not None
        assert after is not None
        assert after - before > 80 * memory.MEGABYTE
        assert len(kept) == 100 * memory.MEGABYTE

    def test_never_was_more_than_its_peak(self) -> None:
        now, peak = memory.resident(), memory.peak()
        assert now is not None
        assert peak is not None
        assert now < peak + 10 * memory.MEGABYTE


@pytest.mark.parametrize(
    "limit",
    [("--max-memory", str(TINY)), pytest.param(("--max-jobs", "1"), marks=pytest.mark.chaos)],
)
def test_a_worker_that_has_served_is_replaced_until_there_is_nothing_to_do(
    limit: tuple[str, str], worker_process: StartWorker
) -> None:
    for _ in range(4):
        tasks.noop.enqueue()
    parent = worker_process(*PROCESSES, "--concurrency", "1", "--until-empty", *limit, ready=False)
    assert parent.wait() == 0, parent.output
    assert jobs_that_are(Status.SUCCEEDED) == 4
    assert parent.lines_with("INFO worker.replaced", "exit_code=75")
    assert not WorkerRow.objects.exists()


def test_what_marks_a_supervised_worker_is_not_handed_on_to_what_its_handlers_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another worker, say, that would stop with the handler's input and report to a wrong file."""
    reports = Reports()
    monkeypatch.setenv(SUPERVISED, "1")
    monkeypatch.setenv(REPORTS_TO, str(reports.writer))
    monkeypatch.setattr(runworker, "stop_with_parent", lambda _: None)
    tasks.noop.enqueue()
    with pytest.raises(SystemExit) as ended:
        call_command("runworker", "--max-jobs", "1", "--poll-interval", "0.1", "-v0")
    assert ended.value.code == RECYCLED
    assert not {SUPERVISED, REPORTS_TO} & set(os.environ)
    reports.close_writer()
    reports.close()


@pytest.mark.chaos
def test_a_process_with_a_handler_that_cannot_be_stopped_is_replaced(
    worker_process: StartWorker, marks: Marks, gate: Gate
) -> None:
    """Its neighbours finish, what it held beyond them runs elsewhere, and nothing is lost."""
    stuck = tasks.overrun_in_one_call.using(max_attempts=1).enqueue(600, marks=marks.path)
    held = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
    parent = worker_process("--concurrency", "2", *PROCESSES, ready=False)
    marks.wait_for("start", count=2)
    line = parent.wait_for_line("worker.handler_stuck", f"job={stuck.pk}")
    assert line
    later = [tasks.leave_row.enqueue(str(number)) for number in range(10)]
    gate.open()
    parent.wait_for_line("ERROR worker.replaced", "exit_code=1")
    wait_until(lambda: WorkerRow.objects.count() == 2)
    wait_until(lambda: jobs_that_are(Status.SUCCEEDED) == 1 + len(later))
    outcomes: dict[Any, Any] = dict(Attempt.objects.values_list("job_id", "outcome"))
    assert outcomes.pop(stuck.pk) == Outcome.TIMED_OUT
    assert set(outcomes) == {held.pk, *(job.pk for job in later)}
    assert set(outcomes.values()) == {Outcome.SUCCEEDED}
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0


class TestExitCodes:
    """Those of a drain and of giving up: test_worker_drain; of a handler that is stuck: above."""

    def test_are_described(self) -> None:
        codes = {code for code in in_first_column(read("deployment.md")) if code.isdigit()}
        assert codes == {"0", "1", "2", "75", "130", "137", "143"}

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (("--max-memory", "1"), 0),
            (("--health", "nonsense"), 1),
            (("--no-such-flag",), 2),
        ],
    )
    def test_say_how_it_went(self, arguments: tuple[str, ...], code: int) -> None:
        tasks.noop.enqueue()
        ended = manage("runworker", "--poll-interval", "0.1", *arguments)
        assert ended.returncode == code, ended.stdout + ended.stderr
