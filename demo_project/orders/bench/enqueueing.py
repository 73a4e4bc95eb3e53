"""How fast jobs are written, beside plain Django and plain psycopg."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from django.db import connection

from demo_project.orders import tasks
from demo_project.orders.bench import bare, pgbench
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale, take_turns
from jobqueue import enqueue_many
from jobqueue.models import Job
from jobqueue.stores import statements

#: One by one is slow, and each is like the other.
SINGLE_PART = 20

SAME_ROW = {
    "task": tasks.noop.name,
    "args": [],
    "kwargs": {},
    "queue_name": tasks.noop.queue_name,
    "max_attempts": 5,
}
COPIED = ("task", "args", "kwargs", "queue_name", "max_attempts")


def measure_single(scale: Scale) -> Iterator[Figure]:
    """Enqueue jobs one by one, each in a transaction of its own (autocommit)."""
    jobs = max(scale.jobs // SINGLE_PART // scale.rounds, 1)
    ways: dict[str, Callable[[], float]] = {
        "enqueue": partial(_rate, tasks.noop.enqueue, jobs),
        "create": partial(_rate, lambda: Job.objects.create(**SAME_ROW), jobs),
    }
    if connection.vendor != "postgresql":
        yield from _single(take_turns(ways, scale.rounds))
        return
    with bare.connect() as psycopg:
        empty()
        ways["bare"] = partial(
            _rate, lambda: psycopg.execute(statements.INSERT, bare.REQUEST).fetchone(), jobs
        )
        if pgbench.rate(1):
            ways["pgbench"] = lambda: pgbench.rate(jobs) or 0.0
        yield from _single(take_turns(ways, scale.rounds))


def _single(rates: dict[str, float]) -> Iterator[Figure]:
    """Return each rate beside the others."""
    for name, beside, limit_name in (
        ("enqueue", "create", "objects.create() of the same row"),
        ("enqueue", "bare", "the same INSERT in a bare psycopg loop"),
        ("enqueue", "pgbench", "an INSERT of the same row by pgbench"),
    ):
        if beside in rates:
            yield Figure(
                name="enqueue, one by one",
                value=rates[name],
                unit="jobs/s",
                limit=rates[beside],
                limit_name=limit_name,
            )


def _rate(act: Callable[[], object], times: int) -> float:
    before = time.perf_counter()
    for _ in range(times):
        act()
    return times / (time.perf_counter() - before)


def measure_bulk(scale: Scale) -> Iterator[Figure]:
    """Enqueue many jobs in one call."""
    has_limit = connection.vendor == "postgresql"
    ways = {"many": partial(_bulk_rate, scale.jobs)}
    if has_limit:
        ways["copy"] = partial(_copy_rate, scale.jobs)
    rates = take_turns(ways, scale.rounds)
    yield Figure(
        name="enqueue_many",
        value=rates["many"],
        unit="jobs/s",
        limit=rates.get("copy"),
        limit_name="COPY of the same rows, ready-made text without ids" if has_limit else "",
        note=f"{scale.jobs:,} jobs in one transaction, median of {scale.rounds} rounds",
    )


def _bulk_rate(jobs: int) -> float:
    empty()
    before = time.perf_counter()
    enqueue_many(tasks.noop.bind() for _ in range(jobs))
    return jobs / (time.perf_counter() - before)


def _copy_rate(jobs: int) -> float:
    empty()
    rows = f"{tasks.noop.name}\t[]\t{{}}\t{tasks.noop.queue_name}\t5\n" * jobs
    before = time.perf_counter()
    with bare.connect() as psycopg, psycopg.cursor() as cursor:
        with cursor.copy(f"COPY jobqueue_job ({', '.join(COPIED)}) FROM STDIN") as copy:
            copy.write(rows)
        took = time.perf_counter() - before
    return jobs / took
