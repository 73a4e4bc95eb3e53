"""What an old snapshot costs, which keeps dead rows from being cleaned away. On PostgreSQL only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from demo_project.orders.bench import bare, draining, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale

QUARTERS = """
SELECT extract(epoch FROM quarter[1] - started)::float8,
    extract(epoch FROM quarter[3] - quarter[2])::float8
FROM (
    SELECT percentile_disc(ARRAY[0.25, 0.75, 1.0]) WITHIN GROUP (ORDER BY finished_at) AS quarter,
        min(started_at) AS started
    FROM jobqueue_attempt
) AS times
"""


def measure(scale: Scale) -> Iterator[Figure]:
    """Drain many jobs while somebody reads a report, and compare the end with the start."""
    empty()
    draining.load(scale.passing)
    with _snapshot(), worker.started() as running:
        running.wait_for_the_last(after=0)
    with connection.cursor() as cursor:
        cursor.execute(QUARTERS)
        [(first, last)] = cursor.fetchall()
    quarter = scale.passing / 4
    yield Figure(
        name=f"drain under an open snapshot, the last quarter of {scale.passing:,}",
        value=quarter / last,
        unit="jobs/s",
        limit=quarter / first,
        limit_name="the first quarter",
    )


@contextmanager
def _snapshot() -> Iterator[None]:
    """Keep a REPEATABLE READ transaction open that has read something."""
    with bare.connect() as psycopg:
        psycopg.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        psycopg.execute("SELECT count(*) FROM jobqueue_job")
        yield
        psycopg.execute("ROLLBACK")
