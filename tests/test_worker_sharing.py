"""Workers share: nobody hoards, nobody starves, and every queue has its turn."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from jobqueue import enqueue_many, lifecycle
from jobqueue.claims import Claim, Turn
from jobqueue.models import Attempt, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Status
from jobqueue.worker import Worker, claimer
from jobqueue.worker.options import parse_queues
from tests import tasks
from tests.in_process import running_worker
from tests.processes import Gate, Marks, WorkerProcess, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]


def is_done(*ids: int) -> bool:
    return not Job.objects.filter(pk__in=ids).exclude(status=Status.SUCCEEDED).exists()


def make_quick(worker: Worker) -> None:
    """Have it run so many quick jobs that it takes the next in advance."""
    enqueue_many(tasks.noop.bind() for _ in range(50))
    wait_until(lambda: worker.claimer.pace.prefetch >= 20)
    wait_until(lambda: not len(worker.hand))


class TestPrefetch:
    def test_of_long_jobs_there_is_none(self, marks: Marks, gate: Gate) -> None:
        """--concurrency 1 holds one job, not a batch."""
        enqueue_many(tasks.hold.bind(gate=gate.path, marks=marks.path) for _ in range(5))
        with running_worker(concurrency=1) as worker:
            marks.wait_for("start")
            wait_until(lambda: not worker.claimer.room())
            assert Job.objects.claimed().count() == 1
            assert len(worker.hand) == 1
            gate.open()
            marks.wait_for("end", count=5)

    def test_is_handed_back_from_behind_a_slow_job(self, marks: Marks, gate: Gate) -> None:
        """An idle worker gets it, and no attempt is counted for having waited."""
        with running_worker(name="busy", concurrency=1) as worker:
            make_quick(worker)
            slow = tasks.hold.bind(gate=gate.path, marks=marks.path)
            _, *behind = enqueue_many([slow, *[tasks.noop.bind() for _ in range(20)]])
            marks.wait_for("start")
            wait_until(lambda: len(worker.hand) > 1, doing="the worker to hold what it cannot run")
            with running_worker(name="idle", concurrency=1):
                wait_until(lambda: is_done(*behind))
            workers = Attempt.objects.filter(job_id__in=behind).values_list("worker", flat=True)
            assert set(workers) == {"idle"}
            assert set(Attempt.objects.values_list("number", flat=True)) == {1}
            gate.open()


class TestFairness:
    def test_equal_jobs_are_shared_out_evenly(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """Each of two workers does half of the work, give or take a fifth.

        SQLite gives its one lock for writing to whoever asks at the right moment: there, each has
        a part.
        """
        for name in ("a", "b"):
            worker_process("--name", name, "--concurrency", "4", "--poll-interval", "0.1")
        ids = enqueue_many(tasks.slow.bind(0.02) for _ in range(800))
        wait_until(lambda: is_done(*ids))
        done = Counter(Attempt.objects.values_list("worker", flat=True))
        assert done.total() == len(ids)
        assert set(done) == {"a", "b"}
        if connection.vendor != "sqlite":
            assert max(done.values()) < 1.2 * len(ids) / 2, done


class TestQueues:
    def test_shares_hold_under_load(self, marks: Marks) -> None:
        """--queues a:1,b:2: never more at once, however many wait."""
        for name in ("a", "b"):
            enqueue_many(
                tasks.slow.using(queue_name=name).bind(0.02, marks=marks.path, key=name)
                for _ in range(30)
            )
        with running_worker(queues=parse_queues("a:1,b:2"), concurrency=8):
            marks.wait_for("end", count=60)
        assert most_at_once(marks, "a") == 1
        assert most_at_once(marks, "b") == 2

    def test_a_flood_delays_others_by_no_more_than_a_turn(self, marks: Marks) -> None:
        """C-68: another queue has its turn while the flood goes on."""
        enqueue_many(tasks.slow.bind(0.005) for _ in range(2000))
        with running_worker(concurrency=2) as worker:
            wait_until(lambda: worker.claimer.pace.prefetch > 0)
            other = tasks.noop.using(queue_name="other").enqueue()
            wait_until(lambda: is_done(other.pk))
            assert Job.objects.pending().filter(queue_name="default").count() > 1000
            Job.objects.pending().delete()

    def test_exhausted_priorities_do_not_hide_the_others(self) -> None:
        """A full claim is followed by one from where it ended; what is elsewhere comes next."""
        enqueue_many(
            tasks.noop.using(priority=priority).bind() for priority in range(8) for _ in range(40)
        )
        with running_worker(concurrency=2, poll_interval=timedelta(minutes=1)):
            wait_until(lambda: Attempt.objects.count() == 320)

    def test_are_claimed_in_one_statement(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """However many there are, with room for all or for a few."""
        names = [f"queue-{number}" for number in range(12)]
        enqueue_many(tasks.noop.using(queue_name=name).bind() for name in names * 2)
        asked: list[int] = []
        claim = lifecycle.claim

        def counted(turns: list[Turn], **kwargs: Any) -> list[Claim]:
            asked.append(len(turns))
            return claim(turns, **kwargs)

        monkeypatch.setattr(lifecycle, "claim", counted)
        with running_worker(concurrency=24):
            wait_until(lambda: Attempt.objects.count() == 24)
        assert asked[0] == len(names)


def most_at_once(marks: Marks, key: str) -> int:
    running = most = 0
    for mark in marks.read(key=key):
        running += {"start": 1, "end": -1}[mark["event"]]
        most = max(most, running)
    return most


@pytest.mark.postgresql
class TestNotifications:
    """C-69: only a worker that waits asks for them, since each costs whoever enqueues."""

    def test_are_asked_for_by_an_idle_worker_and_not_by_one_with_a_backlog(self) -> None:
        with running_worker(concurrency=2):
            wait_until(is_told_of_jobs)
            enqueue_many(tasks.slow.bind(0.005) for _ in range(1000))
            wait_until(lambda: not is_told_of_jobs())
            assert Job.objects.pending().exists()
            Job.objects.pending().delete()
            wait_until(is_told_of_jobs)

    def test_are_not_needed_while_jobs_come_in_all_the_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And no job waits for a poll meanwhile."""
        monkeypatch.setattr(claimer, "BUSY", 3)  # a second holds no more on a slow machine
        with running_worker(poll_interval=timedelta(minutes=10)):
            wait_until(is_told_of_jobs)
            ids: list[int] = []

            def enqueued_unannounced() -> bool:
                ids.append(tasks.noop.enqueue().pk)
                wait_until(lambda: is_done(ids[-1]))
                return not is_told_of_jobs()

            wait_until(enqueued_unannounced, doing="so many jobs in a row that it only asks")
            ids.append(tasks.noop.enqueue().pk)
            wait_until(lambda: is_done(ids[-1]))
            wait_until(is_told_of_jobs)  # silence


def is_told_of_jobs() -> bool:
    return WorkerRow.objects.filter(listens=True).exists()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_parent_of_worker_processes_holds_no_connection(worker_process: StartWorker) -> None:
    """--processes: neither to the database nor to anything else."""
    parent = worker_process("--processes", "2", "--poll-interval", "0.1", ready=False)
    job = tasks.noop.enqueue()
    wait_until(lambda: is_done(job.pk))
    assert not sockets(parent.pid)
    with socket.create_server(("127.0.0.1", 0)):
        assert sockets(os.getpid())  # the look finds what is there
    parent.signal(signal.SIGTERM)
    assert parent.wait() == 0


def sockets(pid: int) -> list[str]:
    found = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since
            found.append(str(file.readlink()))
    return [target for target in found if target.startswith("socket:")]
