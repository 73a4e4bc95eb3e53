"""How fast one worker process works off jobs that do nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from statistics import median
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Max, Min

from demo_project.orders import tasks
from demo_project.orders.bench import bare, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from jobqueue import enqueue_many
from jobqueue.models import Attempt, Job
from jobqueue.states import Status
from jobqueue.stores import statements

#: The worker and its limit take turns, so that a slow moment of the machine falls on both.
ROUNDS = 3
#: How many jobs one statement of the bare loop claims or settles.
BATCH = 200
#: How many batches the bare loop claims ahead of settling them.
AHEAD = 4


def measure(jobs: int) -> Iterator[Figure]:
    """Drain jobs with a worker process and, on PostgreSQL, with its bare statements."""
    has_limit = connection.vendor == "postgresql"
    drains, limits = [], []
    for _ in range(ROUNDS):
        drains.append(_drain(jobs))
        limits += [_bare_rate(jobs)] if has_limit else []
    took = sorted(drain.seconds for drain in drains)
    start_up = median(drain.process_seconds - drain.seconds for drain in drains)
    yield Figure(
        name="no-op drain, one process",
        value=jobs / median(took),
        unit="jobs/s",
        limit=median(limits) if has_limit else None,
        limit_name="claim and acknowledge in a bare psycopg loop" if has_limit else "",
        note=(
            f"{jobs:,} jobs, median of {ROUNDS} rounds of {took[0]:.2f} to {took[-1]:.2f} s, from "
            "the first start to the last settled job by the database's clock; "
            f"start-up and exit of the process, {start_up:.1f} s, are not counted"
        ),
    )


class Drain(NamedTuple):
    """How long one drain took, and how long its process ran."""

    seconds: float
    process_seconds: float


def _drain(jobs: int) -> Drain:
    _load(jobs)
    process_seconds = worker.drain()
    return Drain(_seconds(jobs), process_seconds)


def _load(jobs: int) -> None:
    empty()
    enqueue_many(tasks.noop.bind() for _ in range(jobs))


def _seconds(jobs: int) -> float:
    succeeded = Job.objects.filter(status=Status.SUCCEEDED)
    if (done := succeeded.count()) != jobs:
        raise worker.WorkerFailed(f"the worker was to drain {jobs} jobs and did {done}")
    first = Attempt.objects.aggregate(at=Min("started_at"))["at"]
    last = succeeded.aggregate(at=Max("finished_at"))["at"]
    return (last - first).total_seconds()


def _bare_rate(jobs: int) -> float:
    _load(jobs)
    claimed: SimpleQueue[list[Any]] = SimpleQueue()
    room = threading.Semaphore(AHEAD)
    claimer = threading.Thread(target=_claim, args=(claimed, room), daemon=True)
    before = time.monotonic()
    claimer.start()
    settled = _settle(claimed, room)
    took = time.monotonic() - before
    claimer.join()
    if settled != jobs:
        raise worker.WorkerFailed(f"the bare loop was to drain {jobs} jobs and did {settled}")
    return jobs / took


def _claim(claimed: SimpleQueue[list[Any]], room: threading.Semaphore) -> None:
    parameters = bare.claim_parameters(BATCH)
    rows: list[Any] = [()]
    try:
        with bare.connect() as psycopg:
            while rows:
                room.acquire()
                rows = psycopg.execute(statements.CLAIM, parameters).fetchall()
                claimed.put(rows)
    finally:
        claimed.put([])


def _settle(claimed: SimpleQueue[list[Any]], room: threading.Semaphore) -> int:
    settled = 0
    with bare.connect() as psycopg:
        while rows := claimed.get():
            room.release()
            parameters = bare.acknowledge_parameters(rows)
            settled += len(psycopg.execute(statements.ACKNOWLEDGE, parameters).fetchall())
    return settled
