"""SIGTERM and SIGINT at any moment: nothing is lost, and the exit code says how it went."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from jobqueue import enqueue_many, lifecycle
from jobqueue.claims import Turn
from jobqueue.models import Attempt, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome, Status
from tests import tasks
from tests.in_process import run_until_empty
from tests.models import Mark
from tests.processes import Gate, Marks, WorkerProcess, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]
QUICK = ("--poll-interval", "0.1")
TERM, INT = signal.SIGTERM, signal.SIGINT
#: Far less than the poll interval or the drain timeout of the tests that wait for so long.
SOON = 15.0


def state(job: Job) -> tuple[str, int]:
    job.refresh_from_db()
    return job.status, job.attempts


def processor_seconds(pid: int) -> float:
    """Return how long the process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class TestTheFirstSignal:
    @pytest.mark.parametrize("signum", [TERM, INT])
    def test_lets_running_jobs_finish_and_hands_back_the_rest_uncounted(
        self, signum: int, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        enqueue_many(tasks.noop.bind() for _ in range(20))  # quick ones, so that it claims ahead
        worker = worker_process("--concurrency", "1", *QUICK)
        wait_until(lambda: Job.objects.filter(status=Status.SUCCEEDED).count() == 20)
        hold = tasks.hold.bind(gate=gate.path, marks=marks.path)
        ids = enqueue_many([hold, *(tasks.leave_row.bind(str(n)) for n in range(5))])
        running, *waiting = (Job.objects.get(pk=pk) for pk in ids)
        marks.wait_for("start")
        worker.signal(signum)
        worker.wait_for_line("worker.draining", "running=1")
        late = tasks.leave_row.enqueue("late")
        wait_until(lambda: Job.objects.pending().count() == 6)
        assert {state(job) for job in [*waiting, late]} == {(Status.PENDING, 0)}
        claims = lifecycle.claim([Turn("default", 10)], worker="other", lease=timedelta(minutes=1))
        assert [claim.id for claim in claims] == [*(job.pk for job in waiting), late.pk]
        gate.open()
        assert worker.wait() == 0
        assert state(running) == (Status.SUCCEEDED, 1)
        assert not Mark.objects.exists()
        assert not Attempt.objects.filter(job_id__in=[job.pk for job in waiting]).exists()
        assert not WorkerRow.objects.exists()

    def test_does_not_disturb_statements_and_transactions(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-45."""
        job = tasks.write_at_length.enqueue("row", rows=50, seconds=1.0, marks=marks.path)
        worker = worker_process(*QUICK)
        marks.wait_for("start")
        worker.signal(TERM)
        assert worker.wait() == 0
        assert state(job) == (Status.SUCCEEDED, 1)
        assert Mark.objects.count() == 50

    def test_ends_an_idle_worker_without_waiting_for_the_next_look(
        self, worker_process: StartWorker
    ) -> None:
        """C-43."""
        worker = worker_process("--poll-interval", "60")
        wait_until(WorkerRow.objects.exists)
        worker.signal(TERM)
        assert worker.wait(timeout=SOON) == 0
        assert not WorkerRow.objects.exists()

    def test_during_import_leaves_nothing_behind(self, worker_process: StartWorker) -> None:
        job = tasks.noop.enqueue()
        worker = worker_process(ready=False)
        worker.signal(TERM)
        assert worker.wait(timeout=SOON) in {-TERM, 0}
        assert state(job)[0] in {Status.PENDING, Status.SUCCEEDED}
        assert not WorkerRow.objects.exists()


class TestGivingUp:
    """C-42."""

    @pytest.mark.parametrize("signals", [(TERM, TERM), (INT, INT), (TERM, INT)])
    def test_after_a_second_signal_others_may_take_the_jobs_at_once(
        self,
        signals: tuple[int, int],
        worker_process: StartWorker,
        marks: Marks,
        gate: Gate,
    ) -> None:
        job = tasks.hold.using(max_attempts=1).enqueue(gate=gate.path, marks=marks.path)
        worker = worker_process(*QUICK)
        marks.wait_for("start")
        worker.signal(signals[0])
        worker.wait_for_line("worker.draining")
        worker.signal(signals[1])
        assert worker.wait(timeout=SOON) == 1
        self.assert_given_up(job, worker, marks)

    def test_after_the_drain_timeout_too(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        job = tasks.hold.using(max_attempts=1).enqueue(gate=gate.path, marks=marks.path)
        worker = worker_process("--drain-timeout", "1.5", *QUICK)
        marks.wait_for("start")
        worker.signal(TERM)
        worker.wait_for_line("worker.draining")
        before = processor_seconds(worker.pid)
        wait_until(lambda: not Job.objects.claimed().exists())
        assert processor_seconds(worker.pid) - before < 0.8, "it waits without computing"
        assert worker.wait(timeout=SOON) == 1
        self.assert_given_up(job, worker, marks)

    def assert_given_up(self, job: Job, worker: WorkerProcess, marks: Marks) -> None:
        assert state(job) == (Status.PENDING, 1)
        assert job.max_attempts == 2
        attempts = Attempt.objects.of(job.pk)
        assert [attempt.outcome for attempt in attempts] == [Outcome.INTERRUPTED]
        [claim] = lifecycle.claim([Turn("default", 1)], worker="b", lease=timedelta(minutes=1))
        assert claim.id == job.pk
        assert not marks.read("end")
        assert "Traceback" not in worker.output
        assert worker.lines_with("job.interrupted", f"job={job.pk} ")
        assert worker.lines_with("worker.stopped", "exit_code=1")
        assert not WorkerRow.objects.exists()


JOBS = 300  # a round: more than are done before the signals


class TestAnyMoment:
    """C-40."""

    def test_is_a_good_one_to_stop(self, worker_process: StartWorker) -> None:
        self.stop_at_random(worker_process, rounds=3, longest=0.3)

    @pytest.mark.soak
    def test_is_a_good_one_to_stop_for_long(self, worker_process: StartWorker) -> None:
        self.stop_at_random(worker_process, rounds=150, longest=1.0)

    def stop_at_random(self, worker_process: StartWorker, *, rounds: int, longest: float) -> None:
        """Stop three workers at a time in the middle of quick jobs; then see to all jobs."""
        for number in range(rounds):
            enqueue_many(tasks.leave_row.bind(f"{number}-{n}") for n in range(JOBS))
            workers = [worker_process("--concurrency", "2", "-v2", ready=False) for _ in range(3)]
            for worker in workers:
                worker.wait_for_line("worker.started")
            for worker in workers:
                time.sleep(random.uniform(0, longest))  # the random moment
                worker.signal(TERM)
            for worker in workers:
                assert worker.wait() == 0, worker.output
                assert "Traceback" not in worker.output, worker.output[
                    worker.output.index("Traceback") - 300 :
                ]
            assert not Job.objects.claimed().exists()
            assert not WorkerRow.objects.exists()
        assert not Job.objects.pending().filter(attempts__gt=0).exists()
        run_until_empty()
        assert Mark.objects.count() == JOBS * rounds
        assert set(Job.objects.values_list("status", "attempts")) == {(Status.SUCCEEDED, 1)}
        assert Attempt.objects.count() == JOBS * rounds
