"""The queue's own statements without the queue: psycopg, autocommit, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import connection

from demo_project.orders import tasks
from jobqueue.claims import JobRequest

#: What the INSERT of a no-op job is given.
REQUEST = JobRequest(
    task=tasks.noop.name,
    args="[]",
    kwargs="{}",
    version=1,
    queue_name=tasks.noop.queue_name,
    priority=0,
    max_attempts=5,
    run_at=None,
    run_in=None,
    correlation_id="",
    actor="",
    trace=None,
)


def connect() -> Any:
    """Return a psycopg connection to the database that Django uses."""
    import psycopg  # there may be none where the database is another

    parameters = connection.get_connection_params()
    for django_s in ("context", "cursor_factory"):
        parameters.pop(django_s, None)
    return psycopg.connect(**parameters, autocommit=True)


def claim_parameters(limit: int) -> dict[str, Any]:
    """Return what the claim of no-op jobs is given."""
    return {
        "queue_names": [tasks.noop.queue_name],
        "limits": [limit],
        "most": limit,
        "worker": "bare",
        "lease": 60.0,
        "leases": "{}",
    }


def acknowledge_parameters(claims: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return what the acknowledgement of claims is given; they begin with id and fence."""
    return {
        "ids": [pk for pk, *_ in claims],
        "fences": [fence for _, fence, *_ in claims],
        "started_ago": [0] * len(claims),
        "finished_ago": [0] * len(claims),
        "worker": "bare",
    }
