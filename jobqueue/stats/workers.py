"""Who works, and how much each has in hand."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import NamedTuple

from django.db import router
from django.db.models import F

from jobqueue.models import Job, Worker
from jobqueue.stats.lanes import age_of
from jobqueue.stats.live import stale_after

#: No more workers than this, by name, and no more leases of theirs, are looked at.
MOST_WORKERS = 200
MOST_LEASES = 10_000


class WorkerFigures(NamedTuple):
    """One worker process, whether it lives, and what it holds."""

    worker: Worker
    heartbeat_age: timedelta
    is_stale: bool
    #: Jobs that it has claimed and not settled, waiting ones included.
    held: int
    #: What it has in hand as a share of what it can run at once: at most 1.
    load: float


def workers(*, using: str | None = None) -> list[WorkerFigures]:
    """Return the worker processes, those that went silent within the last hour included."""
    using = using or router.db_for_read(Worker)
    claimed = Job.objects.using(using).claimed().order_by()
    held = Counter(claimed.values_list("claimed_by", flat=True)[:MOST_LEASES])
    rows = Worker.objects.using(using).annotate(heartbeat_age=age_of(F("heartbeat_at")))
    return [_figures(worker, held[worker.name]) for worker in rows.order_by("name")[:MOST_WORKERS]]


def _figures(worker: Worker, held: int) -> WorkerFigures:
    age: timedelta = worker.heartbeat_age  # type: ignore[attr-defined]
    load = min(held / worker.concurrency, 1.0) if worker.concurrency else 0.0
    return WorkerFigures(worker, age, age > stale_after(), held, load)
