"""What rows cost that only lie in the table. On PostgreSQL only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from statistics import median

from django.db import connection, transaction

from demo_project.orders import tasks
from demo_project.orders.bench import bare, draining
from demo_project.orders.bench.database import another_database, empty, execute, moved_to
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale, take_turns
from jobqueue.stores.claiming import CLAIM

#: How many jobs the claim takes whose buffers are counted, and from how many at the least.
CLAIMED = 100
FEW = 1000

JOBS = """
INSERT INTO jobqueue_job (task, args, kwargs, queue_name, max_attempts, {columns})
SELECT '{task.name}', '[]', '{{}}', '{task.queue_name}', 5, {values}
FROM generate_series(1, {rows}) AS number
"""
PENDING = ("priority", "-10")
SUCCEEDED = (
    "status, attempts, fence, finished_at",
    "'succeeded', 1, 1, statement_timestamp()",
)
SCHEDULED = (
    "priority, status, run_after",
    "10, 'scheduled', statement_timestamp() + interval '7 days' + number * interval '1 ms'",
)
ATTEMPTS = """
INSERT INTO jobqueue_attempt
    (job_id, number, fence, task, queue_name, worker, started_at, finished_at, outcome)
SELECT id, 1, 1, task, queue_name, 'ballast', finished_at, finished_at, 'succeeded'
FROM jobqueue_job WHERE status = 'succeeded'
"""

KINDS = {
    "pending behind": PENDING,
    "succeeded and kept, with their attempts": SUCCEEDED,
    "scheduled for next week, with better priority": SCHEDULED,
}


def measure(scale: Scale) -> Iterator[Figure]:
    """Drain jobs with ballast in the table, and without: a database for each, by turns."""
    ways = {"": partial(_rate_in, str(connection.settings_dict["NAME"]), scale.jobs)}
    with ExitStack() as stack:
        for number, (name, kind) in enumerate(KINDS.items()):
            laden = stack.enter_context(another_database(str(number)))
            with moved_to(laden):
                _load(kind, scale.rows)
            ways[name] = partial(_rate_in, laden, scale.jobs)
        rates = take_turns(ways, scale.rounds)
    for name in KINDS:
        yield Figure(
            name=f"drain, {scale.rows:,} {name}",
            value=rates[name],
            unit="jobs/s",
            limit=rates[""],
            limit_name="the same in an empty table",
        )


def _rate_in(database: str, jobs: int) -> float:
    """Start a worker for each drain: one that waited would work off the ballast."""
    with moved_to(database):
        return draining.rate_from_start(partial(draining.load, jobs))


def insert(kind: tuple[str, str], rows: int) -> None:
    """Put jobs into the table as they would lie there, with their attempts if they have any."""
    columns, values = kind
    execute(JOBS.format(task=tasks.noop, columns=columns, values=values, rows=rows))
    execute(ATTEMPTS)


def _load(kind: tuple[str, str], rows: int) -> None:
    insert(kind, rows)
    execute("VACUUM (ANALYZE) jobqueue_job, jobqueue_attempt")  # as autovacuum would, soon


def measure_buffers(scale: Scale) -> Iterator[Figure]:
    """Count the pages that a claim touches in a short line and in a long one."""
    long, short = _buffers(scale.rows), _buffers(FEW)
    yield Figure(
        name=f"shared buffers of a claim of {CLAIMED}, {scale.rows:,} pending",
        value=long,
        unit="buffers",
        limit=short,
        limit_name=f"{FEW:,} pending",
    )


def _buffers(rows: int) -> float:
    empty()
    _load(PENDING, rows)
    return median(_buffers_once() for _ in range(3))


def _buffers_once() -> int:
    with transaction.atomic(), connection.cursor() as cursor:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {CLAIM}"
        cursor.execute(explain, bare.claim_parameters(CLAIMED))
        [(answer,)] = cursor.fetchall()
        transaction.set_rollback(True)
    plan = (json.loads(answer) if isinstance(answer, str) else answer)[0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
