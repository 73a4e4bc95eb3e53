"""Tables as they are after years of work: millions of rows, put in by the set. PostgreSQL only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection

from demo_project.orders import tasks
from demo_project.orders.bench.database import execute
from jobqueue import measures
from jobqueue.states import Outcome, Reason

#: What the rows are spread over.
QUEUES = ("default", "mail", "webhooks", "reports", "media", "billing", "search", "imports")
TASKS = (
    *(task.name for task in vars(tasks).values() if hasattr(task, "queue_name")),
    *(f"shop.tasks.number_{number}" for number in range(20)),
)
#: Errors that differ in their fingerprint.
FAULTS = 400
WORKERS = 20
HELD = 200
TABLES = (
    "jobqueue_job",
    "jobqueue_attempt",
    "jobqueue_deadletter",
    "jobqueue_worker",
    "jobqueue_queue",
    "jobqueue_rollup",
    "jobqueue_sample",
    "jobqueue_operationlog",
)

#: Of a hundred jobs 30 wait, 5 are scheduled, 64 have succeeded and one was cancelled; the oldest
#: is a week old. The last few are held by workers.
JOBS = """
INSERT INTO jobqueue_job (id, task, args, kwargs, queue_name, priority, enqueued_at, run_after,
    correlation_id, attempts, fence, status, finished_at, claimed_by, claimed_at, claimed_until)
SELECT number, ({tasks})[1 + number / 7 % {task_count}], '[]',
    jsonb_build_object('order_id', number, 'note', 'as it comes, with some more to tell'),
    ({queues})[1 + number / 100 % {queue_count}], number / 1000 % 3 - 1, enqueued,
    CASE WHEN status = 'scheduled' THEN now() + number % 86400 * interval '1 s' ELSE enqueued END,
    CASE WHEN number % 10 = 0 THEN 'request-' || number / 100 ELSE '' END,
    (status IN ('succeeded', 'claimed'))::int, (status IN ('succeeded', 'claimed'))::int, status,
    CASE WHEN status IN ('succeeded', 'cancelled') THEN enqueued + interval '2 s' END,
    CASE WHEN status = 'claimed' THEN 'bench-' || number % {workers} END,
    CASE WHEN status = 'claimed' THEN now() - interval '20 s' END,
    CASE WHEN status = 'claimed' THEN now() + (number % 50 - 5) * interval '1 s' END
FROM (
    SELECT number, now() - ({rows} - number) * (interval '7 days' / {rows}) AS enqueued,
        CASE WHEN number > {rows} - {held} THEN 'claimed'
            WHEN number * 37 % 100 < 30 THEN 'pending'
            WHEN number * 37 % 100 < 35 THEN 'scheduled'
            WHEN number * 37 % 100 < 99 THEN 'succeeded'
            ELSE 'cancelled'
        END AS status
    FROM generate_series(1, {rows}) AS number
) AS numbered
"""
#: As many attempts as jobs; every tenth failed.
ATTEMPTS = """
INSERT INTO jobqueue_attempt (job_id, number, fence, task, queue_name, worker, started_at,
    finished_at, outcome, error_class, message, traceback, fingerprint)
SELECT number, 1, 1, ({tasks})[1 + number / 7 % {task_count}],
    ({queues})[1 + number / 100 % {queue_count}], 'bench-' || number % {workers}, started,
    started + interval '2 s', CASE WHEN failed THEN ({outcomes})[1 + number / 10 % {outcome_count}]
        ELSE 'succeeded' END,
    CASE WHEN failed THEN 'shop.errors.Fault' || number / 10 % 30 ELSE '' END,
    CASE WHEN failed THEN 'order ' || number || ' could not be delivered' ELSE '' END,
    CASE WHEN failed THEN repeat('  File "shop/tasks.py", line 1, in deliver' || E'\\n', 10)
        ELSE '' END,
    CASE WHEN failed THEN to_char(number / 10 % {faults}, 'FM0000000000000000') ELSE '' END
FROM (
    SELECT number, number % 10 = 0 AS failed,
        now() - ({rows} - number) * (interval '7 days' / {rows}) AS started
    FROM generate_series(1, {rows}) AS number
) AS numbered
"""
LETTERS = """
INSERT INTO jobqueue_deadletter (id, task, args, kwargs, queue_name, enqueued_at, run_after,
    died_at, attempts, fence, reason, error_class, message, last_error, fingerprint, correlation_id,
    discarded_at, discarded_by, discard_reason)
SELECT {rows} + number, ({tasks})[1 + number % {faults} % {task_count}], '[]',
    jsonb_build_object('order_id', number, 'note', 'as it comes, with some more to tell'),
    ({queues})[1 + number % {queue_count}], died - interval '1 h', died - interval '1 h', died,
    5, 5, ({reasons})[1 + number % {faults} % {reason_count}],
    'shop.errors.Fault' || number % {faults} % 30, 'order ' || number || ' could not be delivered',
    'Fault: order ' || number || ' could not be delivered',
    to_char(number % {faults}, 'FM0000000000000000'), '',
    CASE WHEN number % 10 = 0 THEN now() END, CASE WHEN number % 10 = 0 THEN 'bench' ELSE '' END,
    CASE WHEN number % 10 = 0 THEN 'not wanted any more' ELSE '' END
FROM (
    SELECT number, now() - ({letters} - number) * (interval '7 days' / {letters}) AS died
    FROM generate_series(1, {letters}) AS number
) AS numbered
"""
#: Those of the dead letters: without them a letter's page would have nothing to tell.
TRIES = """
INSERT INTO jobqueue_attempt (job_id, number, fence, task, queue_name, worker, started_at,
    finished_at, outcome, error_class, message, traceback, fingerprint)
SELECT id, number, number, task, queue_name, 'bench-' || id % {workers}, enqueued_at, died_at,
    'failed', error_class, message, 'Traceback', fingerprint
FROM jobqueue_deadletter, generate_series(1, 5) AS number WHERE id > {rows} + {letters} - 1000
"""
WORKING = """
INSERT INTO jobqueue_worker (name, host, pid, concurrency, lease, heartbeat_at)
SELECT 'bench-' || number, 'host-' || number % 4, 1000 + number, 8, interval '1 minute',
    now() - CASE WHEN number % 10 = 9 THEN interval '10 minutes' ELSE interval '1 s' END
FROM generate_series(0, {workers} - 1) AS number
"""
KNOWN_QUEUES = """
INSERT INTO jobqueue_queue (name, paused_at, paused_by, pause_reason)
SELECT name, CASE WHEN name = 'imports' THEN now() END, CASE WHEN name = 'imports' THEN 'bench'
    ELSE '' END, CASE WHEN name = 'imports' THEN 'the supplier is down' ELSE '' END
FROM unnest({queues}) AS name
"""
#: A day: of minutes for the last hour and more, of quarters of an hour, and one row since for ever.
ROLLUPS = """
INSERT INTO jobqueue_rollup
    (span, start, queue_name, task, claimed, succeeded, retried, died, lost, waits, runs, tries)
SELECT span, start, queue_name, task, 100, 90, 8, 2, 1, '{waits}', '{runs}', '{tries}'
FROM (
    SELECT 60 AS span, generate_series(date_trunc('minute', now()) - interval '2 hours',
        now(), interval '1 minute') AS start
    UNION ALL SELECT 900, generate_series(date_trunc('hour', now()) - interval '24 hours', now(),
        interval '15 minutes')
    UNION ALL SELECT 0, '1970-01-01 00:00:00+00'
) AS spans, (
    SELECT queue_name, task FROM unnest({queues}) AS queue_name, unnest(({tasks})[1:10]) AS task
    UNION ALL SELECT '', ''
) AS names
WHERE span > 0 OR queue_name <> ''
"""
SAMPLES = """
INSERT INTO jobqueue_sample (minute, queue_name, depth, oldest_age, in_flight, dead_letters)
SELECT minute, queue_name, 1000, interval '10 minutes', 20, 100
FROM generate_series(date_trunc('minute', now()) - interval '24 hours', now(), interval '1 minute')
    AS minute, unnest({queues} || ARRAY['']) AS queue_name
"""
LOG = """
INSERT INTO jobqueue_operationlog (actor_id, actor, reason, action, target_type, target_id, at)
SELECT '1', 'bench', 'the bench asked for it', 'replay', 'deadletter', number,
    now() - ({letters} - number) * interval '1 minute'
FROM generate_series(1, {letters}) AS number
"""
DISTRIBUTION = {str(measures.bucket(0.1 * step)): step for step in range(1, 10)}


def fill(*, rows: int, letters: int) -> None:
    """Put in ``rows`` jobs and attempts, dead letters, and what workers would have written."""
    numbers = {"rows": rows, "letters": letters, "held": min(HELD, rows // 2), "workers": WORKERS}
    names = {"task": TASKS, "queue": QUEUES}
    names |= {"outcome": [Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST], "reason": Reason.values}
    values: dict[str, object] = {**numbers, "faults": FAULTS}
    for name, each in names.items():
        values |= {f"{name}s": _array(each), f"{name}_count": len(each)}
    counts = json.dumps(DISTRIBUTION)
    values |= {"waits": counts, "runs": counts, "tries": json.dumps({"1": 80, "2": 10})}
    with _loading():
        for statement in (JOBS, ATTEMPTS, LETTERS, TRIES):
            execute(statement.format(**values))
    for statement in (WORKING, KNOWN_QUEUES, ROLLUPS, SAMPLES, LOG):
        execute(statement.format(**values))
    execute(f"SELECT setval(pg_get_serial_sequence('jobqueue_job', 'id'), {rows + letters})")
    execute("ANALYZE")


def clear() -> None:
    """Take everything out again."""
    execute(f"TRUNCATE {', '.join(TABLES)}")


@contextmanager
def _loading() -> Iterator[None]:
    """Leave out the log and the indexes within the block; both are there after it."""
    indexes = _indexes()
    for table in TABLES[:3]:
        execute(f"ALTER TABLE {table} SET UNLOGGED")
    for name, _definition in indexes:
        execute(f'DROP INDEX "{name}"')
    yield
    execute("SET maintenance_work_mem = '256MB'")
    for _name, definition in indexes:
        execute(definition)
    execute("RESET maintenance_work_mem")


def _indexes() -> list[tuple[str, str]]:
    """Return the indexes that are no constraint's of the large tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes"
            " WHERE tablename = ANY (%s) AND indexname NOT IN (SELECT conname FROM pg_constraint)",
            [list(TABLES[:3])],
        )
        return cursor.fetchall()


def _array(names: object) -> str:
    return "ARRAY[" + ", ".join(f"'{name}'" for name in names) + "]"  # type: ignore[attr-defined]
