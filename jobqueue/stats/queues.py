"""How each queue is, and what became of its jobs in the last minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

from django.db import router
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet, Sum
from django.db.models.functions import Now

from jobqueue.measures import MINUTE, beginning
from jobqueue.models import DeadLetter, Job, Queue, Rollup
from jobqueue.stats.live import backlog, capped, now

#: Queues are looked at one by one; no more of them than this, the first by name.
MOST_QUEUES = 200
#: How many full minutes the counts are of.
MINUTES = 5
_COUNTS = ("claimed", "succeeded", "retried", "died")


class QueueState(NamedTuple):
    """How one queue is at one moment; see :class:`~jobqueue.stats.Figures`."""

    name: str
    depth: int
    oldest_age: timedelta | None
    in_flight: int
    expired: int
    dead_letters: int


class QueueFigures(NamedTuple):
    """How one queue is, and what its workers have done in the last full minutes."""

    name: str
    depth: int
    oldest_age: timedelta | None
    in_flight: int
    expired: int
    dead_letters: int
    #: The row that says by whom, when and why, while the queue is paused.
    paused: Queue | None
    claimed: int
    succeeded: int
    #: Attempts that failed and will be followed by another.
    retried: int
    #: Attempts that ended in a dead letter.
    died: int
    minutes: int = MINUTES


def by_queue(*, limit: int, using: str | None = None) -> list[QueueFigures]:
    """Return the figures of each queue, by name; none is counted beyond ``limit``."""
    using = using or router.db_for_read(Job)
    paused = {queue.name: queue for queue in Queue.objects.using(using).paused()}
    recent = _recent(using)
    return [
        QueueFigures(*state, paused.get(state.name), *recent.get(state.name, (0, 0, 0, 0)))
        for state in states(limit=limit, using=using)
    ]


def states(*, limit: int, using: str) -> list[QueueState]:
    """Return how each queue is, those with waiting jobs that no worker has seen included."""
    running, expired = _leased(limit, using)
    return [
        QueueState(
            name,
            *backlog(limit=limit, queue_name=name, using=using),
            running[name],
            expired[name],
            capped(DeadLetter.objects.using(using).open().filter(queue_name=name), limit),
        )
        for name in _names({*running, *expired}, using)
    ]


def _names(leased: set[str], using: str) -> list[str]:
    """Return the names of the queues that have been seen, or in which something is to be done."""
    seen = Queue.objects.using(using).order_by("name").values_list("name", flat=True)
    pending = Job.objects.using(using).pending()
    letters = DeadLetter.objects.using(using).open()
    found = {*seen[:MOST_QUEUES], *leased}
    for rows in (pending, letters):
        found.update(islice(_distinct(rows), MOST_QUEUES))
    return sorted(found)[:MOST_QUEUES]


def _distinct(rows: QuerySet[Any]) -> Iterator[str]:
    """Yield each queue that rows name: a look-up in an index each, where DISTINCT reads all."""
    names = rows.order_by("queue_name").values_list("queue_name", flat=True)
    name = names.first()
    while name is not None:
        yield name
        name = names.filter(queue_name__gt=name).first()


def _leased(limit: int, using: str) -> tuple[Counter[str], Counter[str]]:
    """Count the claimed jobs of each queue, at most ``limit`` in all: running, and expired.

    There are no more of them than all workers hold together.
    """
    is_running = ExpressionWrapper(Q(claimed_until__gt=Now()), output_field=BooleanField())
    claimed = Job.objects.using(using).claimed().order_by()
    rows = claimed.values_list("queue_name", is_running)[:limit]
    counts: dict[bool, Counter[str]] = {True: Counter(), False: Counter()}
    for name, runs in rows:
        counts[bool(runs)][name] += 1
    return counts[True], counts[False]


def _recent(using: str) -> Mapping[str, tuple[int, ...]]:
    end = beginning(now(using), MINUTE)
    rows = Rollup.objects.using(using).filter(
        span=MINUTE, start__gte=end - timedelta(minutes=MINUTES), start__lt=end
    )
    sums = rows.order_by().values("queue_name").annotate(*(Sum(name) for name in _COUNTS))
    named = sums.values_list("queue_name", *(f"{name}__sum" for name in _COUNTS))
    return {name: tuple(counts) for name, *counts in named}
