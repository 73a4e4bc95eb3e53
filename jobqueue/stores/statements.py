"""The statements for PostgreSQL, hand-written where their plan or their cost matters.

Instants are ``statement_timestamp()``: ``now()`` would be the start of a transaction, which may be
old. Literal statuses stand in the text, never as parameters, so that partial indexes apply. With
values in the place of the ``%(name)s`` each runs in psql as it stands.
"""

from __future__ import annotations

from jobqueue.claims import JobRequest
from jobqueue.stores.base import MOVED
from jobqueue.stores.claiming import IS_PAUSED, READ

_REQUEST = ", ".join(name for name in JobRequest._fields if name not in ("run_at", "run_in"))
_DECIDED = ", ".join(name for name in _REQUEST.split(", ") if name not in ("args", "kwargs"))
_GIVEN_REQUEST = ", ".join(JobRequest._fields)
_INSERT_SELECT = f"""INSERT INTO jobqueue_job ({_REQUEST}, run_after, status)
SELECT {_REQUEST}, due.at,
    CASE WHEN due.at > statement_timestamp() THEN 'scheduled' ELSE 'pending' END"""
_DUE = """LATERAL (SELECT COALESCE(
        given.run_at, statement_timestamp() + given.run_in * interval '1 second',
        statement_timestamp())) AS due (at)"""

# A notification takes a lock on the whole cluster at commit: it is sent only where a worker waits.
_SOMEONE_WAITS = """EXISTS (
        SELECT FROM jobqueue_worker
        WHERE listens AND heartbeat_at > statement_timestamp() - interval '1 minute'
    )"""
_WAKE = f"""CASE WHEN status = 'pending' AND {_SOMEONE_WAITS}
    THEN pg_notify('jobqueue', queue_name)::text END"""

INSERT = f"""
{_INSERT_SELECT}
FROM (VALUES (%s, %s::jsonb, %s::jsonb, %s, %s, %s, %s, %s::timestamptz, %s::float8,
        %s, %s, %s::jsonb)) AS given ({_GIVEN_REQUEST}),
    {_DUE}
RETURNING id, status, run_after, enqueued_at, {_WAKE}
"""

# Ids come from the sequence in the order of the rows that the sorted sub-select delivers.
INSERT_MANY = f"""
{_INSERT_SELECT}
FROM unnest(%s::text[], %s::jsonb[], %s::jsonb[], %s::int2[], %s::text[], %s::int2[], %s::int4[],
        %s::timestamptz[], %s::float8[], %s::text[], %s::text[], %s::jsonb[])
    WITH ORDINALITY AS given ({_GIVEN_REQUEST}, position),
    {_DUE}
ORDER BY given.position
RETURNING id, {_WAKE}
"""

# Many rows go by COPY, which takes half the time of an INSERT. It returns nothing, so their ids are
# taken before, with the time by which they are due; and it cannot notify, so that comes after.
TAKE_IDS = """
WITH ids AS MATERIALIZED (  -- looks the sequence up once, not for each id
    SELECT pg_get_serial_sequence('jobqueue_job', 'id')::regclass AS sequence
)
SELECT array_agg(nextval(sequence)), statement_timestamp()
FROM ids, generate_series(1, %(count)s)
"""
COPY = f"COPY jobqueue_job ({_DECIDED}, run_after, status, id, args, kwargs) FROM STDIN"
WAKE = f"""
SELECT pg_notify('jobqueue', queue_name)
FROM unnest(%(queue_names)s::text[]) AS given (queue_name)
WHERE {_SOMEONE_WAITS}
"""

# SKIP LOCKED: a row that a settle has locked needs no extension, and to wait could deadlock.
# greatest: an operator may have given the lease more time than this worker would.
EXTEND = """
UPDATE jobqueue_job AS job
SET claimed_until = greatest(job.claimed_until,
    statement_timestamp() + given.span * interval '1 second')
FROM unnest(%(ids)s::int8[], %(fences)s::int8[], %(spans)s::float8[]) AS given (id, fence, span)
WHERE job.id = ANY (ARRAY(
        SELECT id FROM jobqueue_job WHERE id = ANY (%(ids)s::int8[]) FOR NO KEY UPDATE SKIP LOCKED
    ))
    AND job.id = given.id
    AND CASE WHEN job.claimed_until IS NULL THEN false ELSE job.fence = given.fence END
RETURNING job.id, job.fence, job.cancel_requested
"""

# What EXTEND skipped: still ours, or really gone?
HELD = """
SELECT job.id, job.fence, job.cancel_requested
FROM unnest(%(ids)s::int8[], %(fences)s::int8[]) AS given (id, fence)
JOIN jobqueue_job AS job USING (id, fence)
WHERE job.id = ANY (%(ids)s::int8[]) AND job.claimed_until IS NOT NULL
"""

_GIVEN = """
WITH given AS (
    SELECT * FROM json_to_recordset(%(settlements)s) AS given (
        id int8, fence int8, status text, reason text, outcome text, worker text, delay float8,
        started_ago float8, finished_ago float8, result text,
        error_class text, message text, traceback text, fingerprint text)
),"""

# The fence, in one place. claimed_until says that the claim is open without naming status, which
# would lead the planner to a partial index that is full of dead rows. CASE hides both conditions
# from its statistics: where these say that no row is claimed, it would join every row with every.
_FENCED = """job.id = ANY (%(ids)s::int8[]) AND job.id = given.id
        AND CASE WHEN job.claimed_until IS NULL THEN false ELSE job.fence = given.fence END"""

# What UPDATE and DELETE return holds all that the attempt needs: a second join could go quadratic.
_RECORDED = """recorded AS (
    INSERT INTO jobqueue_attempt (job_id, number, fence, task, queue_name, worker, started_at,
        finished_at, outcome, error_class, message, traceback, fingerprint)
    SELECT id, attempts, fence, task, queue_name, worker,
        statement_timestamp() - started_ago * interval '1 second',
        statement_timestamp() - finished_ago * interval '1 second',
        outcome, error_class, message, traceback, fingerprint
    FROM settled WHERE outcome <> 'released'
)"""

_OF_GIVEN = """given.worker, given.outcome, given.started_ago, given.finished_ago, given.reason,
        given.error_class, given.message, given.traceback, given.fingerprint"""

# Most jobs simply succeed: arrays of numbers instead of JSON, and a third less work.
ACKNOWLEDGE = f"""
WITH settled AS (
    UPDATE jobqueue_job AS job
    SET status = 'succeeded', finished_at = statement_timestamp(),
        claimed_by = NULL, claimed_at = NULL, claimed_until = NULL
    FROM unnest(%(ids)s::int8[], %(fences)s::int8[], %(started_ago)s::int8[],
            %(finished_ago)s::int8[]) AS given (id, fence, started_ago, finished_ago)
    WHERE {_FENCED}
    RETURNING job.id, job.task, job.queue_name, job.attempts, job.fence,
        given.started_ago, given.finished_ago
), recorded AS (
    INSERT INTO jobqueue_attempt (job_id, number, fence, task, queue_name, worker, started_at,
        finished_at, outcome)
    SELECT id, attempts, fence, task, queue_name, %(worker)s,
        statement_timestamp() - started_ago * interval '1 microsecond',
        statement_timestamp() - finished_ago * interval '1 microsecond', 'succeeded'
    FROM settled
)
SELECT id, fence FROM settled
"""

# An attempt that was snoozed or interrupted is forgiven: it happened, but costs nothing. A job
# whose cancellation was asked for while it ran gets no further attempt.
_CANCELLED = "(job.cancel_requested AND given.status IN ('pending', 'scheduled'))"
_FORGIVEN = "(given.outcome IN ('snoozed', 'interrupted'))::int"
SETTLE = f"""{_GIVEN}
settled AS (
    UPDATE jobqueue_job AS job
    SET status = CASE WHEN {_CANCELLED} THEN 'cancelled' ELSE given.status END,
        finished_at = CASE WHEN {_CANCELLED} OR given.status = 'succeeded'
            THEN statement_timestamp() END,
        run_after = COALESCE(statement_timestamp() + given.delay * interval '1 second',
            job.run_after),
        attempts = job.attempts - (given.outcome = 'released')::int,
        max_attempts = job.max_attempts + {_FORGIVEN},
        attempts_forgiven = job.attempts_forgiven + {_FORGIVEN},
        losses = CASE given.outcome WHEN 'lost' THEN least(job.losses + 1, 1000)
            WHEN 'released' THEN job.losses ELSE 0 END,
        last_error = COALESCE(NULLIF(left(given.message, 500), ''), job.last_error),
        result = given.result::jsonb,
        claimed_by = NULL, claimed_at = NULL, claimed_until = NULL
    FROM given
    WHERE {_FENCED}
    RETURNING job.id, job.status, job.task, job.queue_name, job.attempts, job.fence, {_OF_GIVEN}
), {_RECORDED}
SELECT id, fence, status FROM settled
"""

DELETE = f"""{_GIVEN}
settled AS (
    DELETE FROM jobqueue_job AS job USING given
    WHERE {_FENCED}
    RETURNING job.id, job.task, job.queue_name, job.attempts, job.fence, {_OF_GIVEN}
), {_RECORDED}
SELECT id, fence FROM settled
"""

BURY = f"""{_GIVEN}
settled AS (
    DELETE FROM jobqueue_job AS job USING given
    WHERE {_FENCED}
    RETURNING {", ".join(f"job.{column}" for column in MOVED)}, {_OF_GIVEN}
), letters AS (
    INSERT INTO jobqueue_deadletter
        ({", ".join(MOVED)}, reason, error_class, message, fingerprint, last_error)
    SELECT {", ".join(MOVED)}, reason, error_class, message, fingerprint, left(message, 500)
    FROM settled
), {_RECORDED}
SELECT id, fence FROM settled
"""

PROMOTE = """
UPDATE jobqueue_job SET status = 'pending'
WHERE id = ANY (ARRAY(
    SELECT id FROM jobqueue_job
    WHERE status = 'scheduled' AND run_after <= statement_timestamp()
    ORDER BY run_after
    LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING queue_name
"""

LOCK_EXPIRED = f"""
SELECT {READ}, extract(epoch FROM statement_timestamp() - claimed_at)::float8,
    extract(epoch FROM statement_timestamp() - claimed_until)::float8
FROM jobqueue_job
WHERE status = 'claimed' AND claimed_until < statement_timestamp()
ORDER BY claimed_at
LIMIT %(limit)s
FOR NO KEY UPDATE SKIP LOCKED
"""

# What an idle worker asks once a poll. One index probe for each queue, however many jobs it holds
# (a "loose index scan", PostgreSQL wiki), one for the next that is scheduled, and the few claimed
# rows. Not EXISTS: from what statistics say of a part of the table it may seem quicker to read the
# table from its start. An order that only the right index has leaves no choice.
LOOK = f"""
WITH RECURSIVE queue (name) AS (
    (SELECT queue_name FROM jobqueue_job WHERE status = 'pending' ORDER BY queue_name LIMIT 1)
    UNION ALL
    SELECT (SELECT queue_name FROM jobqueue_job
            WHERE status = 'pending' AND queue_name > queue.name ORDER BY queue_name LIMIT 1)
    FROM queue WHERE queue.name IS NOT NULL
)
SELECT ARRAY(SELECT name FROM queue WHERE name IS NOT NULL AND name <> ALL (paused.names)),
    paused.names,
    COALESCE((SELECT run_after <= statement_timestamp() FROM jobqueue_job
            WHERE status = 'scheduled' ORDER BY run_after LIMIT 1), false),
    COALESCE((SELECT true FROM jobqueue_job
            WHERE status = 'claimed' AND claimed_until < statement_timestamp()
            ORDER BY claimed_at LIMIT 1), false),
    COALESCE((SELECT true FROM jobqueue_bulkoperation
            WHERE state = 'running' ORDER BY id LIMIT 1), false)
FROM (SELECT ARRAY(SELECT name FROM jobqueue_queue WHERE {IS_PAUSED})) AS paused (names)
"""
