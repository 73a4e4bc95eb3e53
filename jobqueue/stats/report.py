"""All figures at once, as ``queuestats`` prints them; as JSON for other programs."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import router

from jobqueue.models import Job, Queue
from jobqueue.stats.estimates import estimated_depth
from jobqueue.stats.live import Figures, figures, now
from jobqueue.stats.queues import QueueFigures, by_queue
from jobqueue.stats.tasks import TaskFigures, by_task, tries
from jobqueue.stats.workers import WorkerFigures, workers

#: What is counted at this moment is counted no further; a number that is this means "or more".
LIMIT = 100_000
#: What is told of tasks happened in so long.
SPAN = timedelta(hours=1)


class Report(NamedTuple):
    """The figures of the whole, of each queue, each task and each worker."""

    at: datetime
    whole: Figures
    queues: list[QueueFigures]
    #: The planner's guess of how many jobs wait in each queue that was not counted to its end.
    estimates: dict[str, int | None]
    tasks: list[TaskFigures]
    tries: list[tuple[int, int]]
    workers: list[WorkerFigures]


def report(*, using: str | None = None, limit: int = LIMIT) -> Report:
    """Return all figures."""
    using = using or router.db_for_read(Job)
    queues = by_queue(limit=limit, using=using)
    return Report(
        at=now(using),
        whole=figures(limit=limit, using=using),
        queues=queues,
        estimates={
            queue.name: estimated_depth(queue.name, using=using)
            for queue in queues
            if queue.depth >= limit
        },
        tasks=by_task(span=SPAN, using=using),
        tries=tries(span=SPAN, using=using),
        workers=workers(using=using),
    )


def as_json(found: Report, *, limit: int = LIMIT) -> dict[str, Any]:
    """Return a report in JSON's own types: spans in seconds, instants in ISO 8601."""
    return {
        "at": found.at.isoformat(),
        "counted_to": limit,
        "whole": _plain(found.whole),
        "queues": [
            _plain(queue)
            | {
                "paused": _pause(queue.paused),
                "estimated_depth": found.estimates.get(queue.name),
            }
            for queue in found.queues
        ],
        "span": SPAN.total_seconds(),
        "tasks": [_plain(task) for task in found.tasks],
        "tries": {str(number): count for number, count in found.tries},
        "workers": [_worker(each) for each in found.workers],
    }


def _plain(row: NamedTuple) -> dict[str, Any]:
    values = row._asdict().items()
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in values
    }


def _pause(queue: Queue | None) -> dict[str, Any] | None:
    if queue is None or queue.paused_at is None:
        return None
    return {
        "since": queue.paused_at.isoformat(),
        "until": queue.paused_until and queue.paused_until.isoformat(),
        "by": queue.paused_by,
        "reason": queue.pause_reason,
    }


def _worker(found: WorkerFigures) -> dict[str, Any]:
    worker = found.worker
    return {
        "name": worker.name,
        "host": worker.host,
        "pid": worker.pid,
        "state": worker.state,
        "queues": worker.queues,
        "concurrency": worker.concurrency,
        "started_at": worker.started_at.isoformat(),
        "heartbeat_age": found.heartbeat_age.total_seconds(),
        "is_stale": found.is_stale,
        "held": found.held,
        "load": found.load,
    }
