"""How each queue is, and what became of its jobs in the last minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

from django.db import router
from django.db.models import BooleanField, ExpressionWrapper, OuterRef, Q, QuerySet, Sum
from django.db.models.functions import Now

from jobqueue.measures import MINUTE, beginning
from jobqueue.models import DeadLetter, Job, Queue, Rollup
from jobqueue.stats import lanes
from jobqueue.stats.live import backlog, now

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
    names = _names({*running, *expired}, using)
    counts = _counts(names, limit, using)
    ages = _ages({name: depth for name, (depth, _letters) in counts.items()}, limit, using)
    return [
        QueueState(name, depth, ages.get(name), running[name], expired[name], letters)
        for name, (depth, letters) in sorted(counts.items())
    ]


def _names(leased: set[str], using: str) -> list[str]:
    """Return the names of the queues that have been seen, or in which something is to be done."""
    seen = Queue.objects.using(using).order_by("name").values_list("name", flat=True)
    found = {*seen[:MOST_QUEUES], *leased}
    for rows in (Job.objects.using(using).pending(), DeadLetter.objects.using(using).open()):
        found.update(islice(lanes.names(rows), MOST_QUEUES))
    return sorted(found)[:MOST_QUEUES]


def _counts(names: list[str], limit: int, using: str) -> dict[str, tuple[int, ...]]:
    """Count the pending jobs and the dead letters of each queue, each at most to the limit."""

    def rows(name: Any) -> list[QuerySet[Any]]:
        letters = DeadLetter.objects.using(using).open().filter(queue_name=name).order_by()
        return [_pending(name, limit, using), letters.values("pk")[:limit]]

    depth, letters = map(lanes.CountOf, rows(OuterRef("name")))
    found = lanes.of_each(names, using=using, depth=depth, letters=letters)
    for name in set(names).difference(found):
        found[name] = tuple(each.count() for each in rows(name))
    return found


def _ages(depths: Mapping[str, int], limit: int, using: str) -> dict[str, timedelta]:
    """Return how long the oldest job of each queue has been due: computed, or looked up."""
    few = [name for name, depth in depths.items() if 0 < depth < limit]
    many = [name for name, depth in depths.items() if depth >= limit]
    ages = lanes.oldest(many, using=using) if many else {}
    if few:
        age = lanes.age_of(lanes.EarliestOf(_pending(OuterRef("name"), limit, using)))
        ages |= {name: age for name, (age,) in lanes.of_each(few, using=using, age=age).items()}
    unseen = {
        name: backlog(limit=limit, queue_name=name, using=using)[1]
        for name in few
        if name not in ages
    }
    return ages | {name: age for name, age in unseen.items() if age is not None}


def _pending(name: Any, limit: int, using: str) -> QuerySet[Any]:
    # The order of the claim index: a part of the table read from its start may hold none of them.
    pending = Job.objects.using(using).pending().filter(queue_name=name)
    return pending.order_by(*lanes.ORDER).values("run_after")[:limit]


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
