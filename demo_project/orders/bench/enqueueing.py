"""How fast jobs are written, beside plain Django and plain psycopg."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from django.db import connection

from demo_project.orders import tasks
from demo_project.orders.bench import bare
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from jobqueue import enqueue_many
from jobqueue.models import Job
from jobqueue.stores import statements

#: Rounds take turns, so that a slow moment of the machine falls on all.
ROUNDS = 10
BULK_ROUNDS = 3

SAME_ROW = {
    "task": tasks.noop.name,
    "args": [],
    "kwargs": {},
    "queue_name": tasks.noop.queue_name,
    "max_attempts": 5,
}
COPIED = ("task", "args", "kwargs", "queue_name", "max_attempts")


def measure_single(jobs: int) -> Iterator[Figure]:
    """Enqueue jobs one by one, each in a transaction of its own (autocommit)."""
    empty()
    ways: dict[str, Callable[[], object]] = {
        "enqueue, one by one": tasks.noop.enqueue,
        "objects.create(), one by one": lambda: Job.objects.create(**SAME_ROW),
    }
    if connection.vendor != "postgresql":
        yield from _figures(_take_turns(ways, jobs), limit=None)
        return
    with bare.connect() as psycopg:
        ways["bare"] = lambda: psycopg.execute(statements.INSERT, bare.REQUEST).fetchone()
        rates = _take_turns(ways, jobs)
    yield from _figures(rates, limit=rates.pop("bare"))


def _figures(rates: dict[str, float], *, limit: float | None) -> Iterator[Figure]:
    limit_name = "the same INSERT in a bare psycopg loop" if limit else ""
    for name, rate in rates.items():
        yield Figure(name=name, value=rate, unit="jobs/s", limit=limit, limit_name=limit_name)


def _take_turns(ways: dict[str, Callable[[], object]], jobs: int) -> dict[str, float]:
    """Return how often a second each way ran, ``jobs`` times in all."""
    times = max(jobs // ROUNDS, 1)
    took = dict.fromkeys(ways, 0.0)
    for _ in range(ROUNDS):
        for name, act in ways.items():
            before = time.perf_counter()
            for _ in range(times):
                act()
            took[name] += time.perf_counter() - before
    return {name: ROUNDS * times / seconds for name, seconds in took.items()}


def measure_bulk(jobs: int) -> Iterator[Figure]:
    """Enqueue many jobs in one call."""
    has_limit = connection.vendor == "postgresql"
    rates, limits = [], []
    for _ in range(BULK_ROUNDS):
        rates.append(_bulk_rate(jobs))
        limits += [_copy_rate(jobs)] if has_limit else []
    yield Figure(
        name="enqueue_many",
        value=median(rates),
        unit="jobs/s",
        limit=median(limits) if has_limit else None,
        limit_name="COPY of the same rows, unchecked and without their ids" if has_limit else "",
        note=f"{jobs:,} jobs in one transaction, median of {BULK_ROUNDS} rounds",
    )


def _bulk_rate(jobs: int) -> float:
    empty()
    before = time.perf_counter()
    enqueue_many(tasks.noop.bind() for _ in range(jobs))
    return jobs / (time.perf_counter() - before)


def _copy_rate(jobs: int) -> float:
    empty()
    row = (tasks.noop.name, "[]", "{}", tasks.noop.queue_name, 5)
    before = time.perf_counter()
    with bare.connect() as psycopg, psycopg.cursor() as cursor:
        with cursor.copy(f"COPY jobqueue_job ({', '.join(COPIED)}) FROM STDIN") as copy:
            for _ in range(jobs):
                copy.write_row(row)
        took = time.perf_counter() - before
    return jobs / took
