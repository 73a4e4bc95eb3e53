"""How much a job writes to the server's log. On PostgreSQL only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from django.db import connection

from demo_project.orders import tasks
from demo_project.orders.bench import bare, bare_loop, draining, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale
from jobqueue.stores import statements

#: With its quotes and brackets this is 100 bytes of JSON.
TEXT = "x" * 96
#: One by one is slow, and each is like the other.
PART = 4


def measure(scale: Scale) -> Iterator[Figure]:
    """Read the server's place in its log before and after; others must leave the server alone."""
    jobs = max(scale.jobs // PART, 1)
    yield Figure(
        name="WAL of a job with 100 bytes of payload",
        value=_bytes(partial(_enqueue_and_work, jobs)) / jobs,
        unit="bytes",
        limit=_bytes(partial(_bare, jobs)) / jobs,
        limit_name="the statements in a bare psycopg loop",
        note=f"{jobs:,} jobs from enqueue to settled, all that the server wrote meanwhile",
    )


def _bytes(act: Callable[[], None]) -> int:
    empty()
    before = _place()
    act()
    return _place() - before


def _place() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        [(place,)] = cursor.fetchall()
        return int(place)


def _enqueue_and_work(jobs: int) -> None:
    before = draining.newest()
    for _ in range(jobs):
        tasks.swallow.enqueue(TEXT)
    with worker.started() as running:
        running.wait_for_the_last(after=before)


def _bare(jobs: int) -> None:
    request = bare.REQUEST._replace(args=f'["{TEXT}"]')
    with bare.connect() as psycopg:
        for _ in range(jobs):
            psycopg.execute(statements.INSERT, request)
    bare_loop.drain()
