"""The claim for PostgreSQL: the one statement that every worker sends all the time.

See :mod:`jobqueue.stores.statements` for what holds for all statements.
"""

from __future__ import annotations

from jobqueue.claims import Claim

_COLUMNS = ", ".join(Claim._fields)
_WAITED = "extract(epoch FROM claimed_at - run_after)::float8 AS waited"
#: A claimed row's columns as a claim.
READ = ", ".join(_WAITED if name == "waited" else name for name in Claim._fields)

# ANY(ARRAY(..)) rather than IN (..): it can never update more rows than its LIMIT, and stale
# statistics cannot turn it into a scan of the table. RETURNING has no order, so the few rows are
# sorted again. run_after goes out as text: it comes back as a floor, and dates are slow to read.
_THESE = f"""
WITH claimed AS (
    UPDATE jobqueue_job
    SET status = 'claimed', attempts = attempts + 1, fence = fence + 1, claimed_by = %(worker)s,
        claimed_at = statement_timestamp(),
        claimed_until = statement_timestamp() + interval '1 second'
            * COALESCE((%(leases)s::jsonb ->> task)::float8, %(lease)s)
    WHERE id = ANY (ARRAY({{these}}))
    RETURNING {READ}
)
SELECT {_COLUMNS.replace("run_after", "run_after::text")} FROM claimed
ORDER BY claimed.priority DESC, claimed.run_after, claimed.id
"""

# Asked once for each turn, before any job is read. The queue stands two levels up, from where a
# NOT EXISTS cannot become a join, so that it changes nothing else of the plan.
IS_PAUSED = "paused_at IS NOT NULL AND COALESCE(paused_until > statement_timestamp(), true)"
_IS_OPEN = f"""NOT EXISTS (
                    SELECT FROM jobqueue_queue WHERE name = turn.queue_name AND {IS_PAUSED}
                )"""

# Each queue has its turn. The ORDER BY is the index: nothing is sorted, and only what is taken is
# read and locked. "most" is no less than any queue's limit: it is there for the planner, which
# takes a limit that it does not know for a tenth of the table.
CLAIM = _THESE.format(
    these=f"""
        SELECT due.id
        FROM unnest(%(queue_names)s::text[], %(limits)s::int8[]) AS turn (queue_name, quota),
            LATERAL (
                SELECT best.id FROM (
                    SELECT job.id FROM jobqueue_job AS job
                    WHERE job.status = 'pending' AND job.queue_name = turn.queue_name
                    ORDER BY job.priority DESC, job.run_after, job.id
                    LIMIT %(most)s
                    FOR NO KEY UPDATE SKIP LOCKED
                ) AS best
                WHERE {_IS_OPEN}
                LIMIT turn.quota
            ) AS due
    """
)

# The same, from where the last claim ended in each priority's lane. While some old snapshot is
# open, the index entries of jobs that are gone cannot be cleaned away, and to walk past them again
# with every claim is what kills a queue. The lanes of a queue are given and read best first.
CLAIM_ABOVE = _THESE.format(
    these=f"""
        SELECT due.id
        FROM unnest(%(queue_names)s::text[], %(limits)s::int8[]) AS turn (queue_name, quota),
            LATERAL (
                SELECT best.id
                FROM unnest(%(lane_names)s::text[], %(priorities)s::int2[],
                        %(run_afters)s::timestamptz[], %(ids)s::int8[])
                        AS lane (queue_name, priority, run_after, id),
                    LATERAL (
                        SELECT job.id FROM jobqueue_job AS job
                        WHERE job.status = 'pending' AND job.queue_name = turn.queue_name
                            AND job.priority = lane.priority
                            AND (job.run_after, job.id) > (lane.run_after, lane.id)
                        ORDER BY job.run_after, job.id
                        LIMIT %(most)s
                        FOR NO KEY UPDATE SKIP LOCKED
                    ) AS best
                WHERE lane.queue_name = turn.queue_name AND {_IS_OPEN}
                LIMIT turn.quota
            ) AS due
    """
)
