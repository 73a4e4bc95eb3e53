"""``--processes N``: N workers are kept alive, and all of them end with their parent."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from threading import Thread

import pytest

from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome, Reason, Status
from jobqueue.worker.supervisor import Child, Supervisor
from tests import tasks
from tests.processes import PATIENCE, Gate, Marks, WorkerProcess, database_url, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]
QUICK = ("--processes", "2", "--concurrency", "1", "--poll-interval", "0.1")


def pids() -> dict[str, int]:
    return dict(WorkerRow.objects.order_by("name").values_list("name", "pid"))


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def wait_for_workers(count: int = 2, *, without: int = 0) -> dict[str, int]:
    def found() -> dict[str, int]:
        workers = pids()
        return workers if len(workers) == count and without not in workers.values() else {}

    return wait_until(found, doing=f"{count} workers, none of them {without}")


class TestWorkers:
    def test_are_kept_alive_and_stopped_together(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        parent = worker_process(*QUICK, "--name", "pair", "--lease", "3", ready=False)
        before = wait_for_workers()
        assert list(before) == ["pair-0", "pair-1"]
        assert parent.pid not in before.values()
        jobs = [tasks.hold.enqueue(gate=gate.path, marks=marks.path) for _ in range(2)]
        started = marks.wait_for("start", count=2)
        assert {mark["pid"] for mark in started} == set(before.values())

        os.kill(before["pair-0"], signal.SIGKILL)
        after = wait_for_workers(without=before["pair-0"])
        assert after["pair-1"] == before["pair-1"]
        assert parent.lines_with("worker.replaced", f"pid={before['pair-0']}", "exit_code=-9")
        marks.wait_for("start", count=3)  # the lost job, by the new process

        parent.signal(signal.SIGTERM)
        wait_until(lambda: len(parent.lines_with("worker.draining")) == 2)
        gate.open()
        assert parent.wait() == 0, parent.output
        assert set(Job.objects.values_list("status", flat=True)) == {Status.SUCCEEDED}
        assert Attempt.objects.filter(outcome=Outcome.LOST).count() == 1
        assert {job.pk for job in jobs} == set(Job.objects.values_list("pk", flat=True))
        assert not WorkerRow.objects.exists()
        assert "Fatal" not in parent.output
        assert "Traceback" not in parent.output

    def test_give_up_on_the_second_signal(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        for _ in range(2):
            tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        parent = worker_process(*QUICK, ready=False)
        marks.wait_for("start", count=2)
        parent.signal(signal.SIGTERM)
        wait_until(lambda: len(parent.lines_with("worker.draining")) == 2)
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 1
        outcomes = Attempt.objects.values_list("outcome", flat=True)
        assert list(outcomes) == [Outcome.INTERRUPTED] * 2
        assert Job.objects.pending().count() == 2

    def test_drain_when_their_parent_is_killed(self, worker_process: StartWorker) -> None:
        parent = worker_process(*QUICK, ready=False)
        workers = wait_for_workers()
        parent.kill()
        wait_until(lambda: not pids(), doing="the workers to leave")
        wait_until(lambda: not any(map(is_alive, workers.values())))

    def test_are_told_to_stop_even_if_they_are_just_starting(
        self, worker_process: StartWorker
    ) -> None:
        parent = worker_process(*QUICK, ready=False)
        parent.wait_for_line("worker:")  # one of them shows its banner, the other may not yet
        parent.signal(signal.SIGTERM)
        assert parent.wait(timeout=15) == 0
        assert not WorkerRow.objects.exists()

    def test_are_told_what_was_asked_before_they_were_there(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("DATABASE_URL", database_url())
        supervisor = Supervisor(["-v0"], processes=2, name="", ends=False)
        start = supervisor._start

        def start_and_stop(number: int) -> Child:
            supervisor.request_stop()
            return start(number)

        monkeypatch.setattr(supervisor, "_start", start_and_stop)
        thread = Thread(target=supervisor.run, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert supervisor.exit_code in {0, 1}

    def test_that_fell_before_do_not_count_when_the_rest_is_stopped(
        self, worker_process: StartWorker
    ) -> None:
        """Whether the fallen one has been replaced yet makes no difference."""
        parent = worker_process(*QUICK, ready=False)
        for pid in wait_for_workers().values():
            os.kill(pid, signal.SIGKILL)
        parent.wait_for_line("worker.replaced")
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0, parent.output

    def test_end_by_themselves_when_there_is_nothing_to_do(
        self, worker_process: StartWorker
    ) -> None:
        jobs = [tasks.leave_row.enqueue(str(number)) for number in range(20)]
        parent = worker_process(*QUICK, "--until-empty", ready=False)
        assert parent.wait() == 0
        assert Job.objects.filter(status=Status.SUCCEEDED).count() == len(jobs)
        assert not WorkerRow.objects.exists()


def test_a_job_that_kills_its_worker_runs_out_of_attempts(
    worker_process: StartWorker, marks: Marks
) -> None:
    """C-04, C-14: and the job next to it is done."""
    poison = tasks.kill_self.using(max_attempts=3).enqueue(marks=marks.path)
    failing = tasks.fail.using(max_attempts=1).enqueue()
    harmless = tasks.leave_mark.enqueue("harmless", marks=marks.path)
    parent = worker_process(*QUICK, "--lease", "1", ready=False)
    wait_until(DeadLetter.objects.filter(pk=poison.pk).exists)
    wait_until(Job.objects.filter(pk=harmless.pk, status=Status.SUCCEEDED).exists)
    wait_until(DeadLetter.objects.filter(pk=failing.pk).exists)
    assert DeadLetter.objects.get(pk=poison.pk).reason == Reason.WORKER_LOST
    outcomes = Attempt.objects.of(poison.pk).values_list("outcome", flat=True)
    assert list(outcomes) == [Outcome.LOST] * 3
    assert len(marks.read("run", key="harmless")) == 1
    assert len(marks.read("run")) == 1 + 3
    parent.wait_for_line("job.dead", f"job={poison.pk} ", "reason=worker_lost")
    parent.wait_for_line("job.dead", f"job={failing.pk} ", "reason=attempts_exhausted")
    parent.signal(signal.SIGTERM)
    assert parent.wait() in {0, 1}
