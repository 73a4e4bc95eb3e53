"""Which queues rows lie in, and how old what waits there is, by look-ups that read no backlog.

A database finds the next name in an index at once, but DISTINCT and a minimum read all of it. What
comes next is asked of all queues that are known in one statement, and of each other by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from django.db.models import (
    DateTimeField,
    DurationField,
    ExpressionWrapper,
    F,
    IntegerField,
    OuterRef,
    QuerySet,
    Subquery,
)
from django.db.models.functions import Now

from jobqueue.models import Job, Queue

#: No more queues than this are asked about at once, and no more lanes (a queue and a priority).
MOST_QUEUES = 200
MOST_LANES = 100
#: The order of the claim index.
ORDER = ("queue_name", "-priority", "run_after", "id")


class CountOf(Subquery):
    """How many rows a query returns, which may be cut off at a limit and refer to the outer row."""

    template = "(SELECT count(*) FROM (%(subquery)s) AS counted)"
    output_field = IntegerField()


class EarliestOf(Subquery):
    """When the first of the rows that a query returns was due, in the same way."""

    template = "(SELECT min(run_after) FROM (%(subquery)s) AS counted)"
    output_field = DateTimeField()


def age_of(instant: Any) -> Any:
    """Return how long ago ``instant`` was, by the database's clock."""
    return ExpressionWrapper(Now() - instant, output_field=DurationField())


def names(rows: QuerySet[Any]) -> Iterator[str]:
    """Yield each queue that rows name, in order."""
    ordered = rows.order_by("queue_name").values_list("queue_name", flat=True)
    following = Subquery(ordered.filter(queue_name__gt=OuterRef("name"))[:1])
    seen = Queue.objects.using(rows.db).annotate(following=following)
    known = dict(seen.values_list("name", "following")[:MOST_QUEUES])
    name = ordered.first()
    while name is not None:
        yield name
        name = known[name] if name in known else ordered.filter(queue_name__gt=name).first()


def of_each(
    queue_names: Collection[str], *, using: str, **found: Any
) -> dict[str, tuple[Any, ...]]:
    """Return what expressions find for each queue, whose name is ``OuterRef("name")`` to them.

    A queue that has no row is left out.
    """
    rows = Queue.objects.using(using).filter(name__in=queue_names).annotate(**found)
    return {name: tuple(values) for name, *values in rows.values_list("name", *found)}


def oldest(queue_names: Iterable[str], *, using: str) -> dict[str, timedelta]:
    """Return how long the job that has waited longest in each queue has been due.

    The first of each lane is its oldest. All lanes of the same rank in their queues are looked at
    together, no more of them than MOST_LANES.
    """
    ages: defaultdict[str, timedelta] = defaultdict(lambda: timedelta.min)
    heads = list(_heads(list(islice(queue_names, MOST_LANES)), using))
    left = MOST_LANES
    while heads and left > 0:
        found = _look_at(heads[:left], using)
        left -= len(heads)
        heads = [lower for _name, _age, lower in found if lower is not None]
        for name, age, _lower in found:
            ages[name] = max(ages[name], age)
    return dict(ages)


def _heads(queue_names: Sequence[str], using: str) -> Iterator[int]:
    """Yield the keys of the jobs that are first in their queues."""
    pending = Job.objects.using(using).pending().order_by(*ORDER).values_list("pk", flat=True)
    first = Subquery(pending.filter(queue_name=OuterRef("name"))[:1])
    known = of_each(queue_names, using=using, first=first)
    for name in queue_names:
        pk = known[name][0] if name in known else pending.filter(queue_name=name).first()
        if pk is not None:
            yield pk


def _look_at(heads: Sequence[int], using: str) -> list[tuple[str, timedelta, int | None]]:
    """Return the queue and the age of each, and the first job of the lane behind its own.

    They may have been claimed a moment ago; what they were tells as much.
    """
    same_queue = Job.objects.using(using).pending().filter(queue_name=OuterRef("queue_name"))
    lower = same_queue.filter(priority__lt=OuterRef("priority")).order_by(*ORDER)
    rows = Job.objects.using(using).filter(pk__in=heads)
    return list(
        rows.annotate(age=age_of(F("run_after")), lower=Subquery(lower.values("pk")[:1]))
        .order_by()
        .values_list("queue_name", "age", "lower")
    )
