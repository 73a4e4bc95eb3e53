"""How the whole queue is at this moment, counted no further than one wants."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple

from django.db import router
from django.db.models import (
    Count,
    DurationField,
    Expression,
    ExpressionWrapper,
    F,
    Max,
    Min,
    QuerySet,
)
from django.db.models.functions import Coalesce, Now

from jobqueue import conf
from jobqueue.models import DeadLetter, Job, Rollup, Worker
from jobqueue.querysets import ago

#: Oldest ages are looked for in no more lanes (a queue and a priority) than this.
MOST_LANES = 100
_LANES = ("queue_name", "-priority", "run_after", "id")


class Figures(NamedTuple):
    """How the queue is at one moment."""

    #: Jobs that can run now.
    depth: int
    #: How long the pending job that has waited longest has been due; None when none waits.
    oldest_age: timedelta | None
    #: Jobs that a worker holds and whose lease still runs.
    in_flight: int
    #: Jobs whose lease has run out: lost, until a worker rescues them.
    expired: int
    #: Jobs that gave up and that nobody has dealt with.
    dead_letters: int
    #: Workers whose heartbeat is not stale.
    live_workers: int
    #: Whether jobs wait, or should by now, and there is no live worker to take them.
    is_stuck: bool


def figures(*, limit: int | None = None, using: str | None = None) -> Figures:
    """Return all figures; none is counted beyond ``limit``, so that a long queue costs little."""
    using = using or router.db_for_read(Job)
    depth, oldest_age = backlog(limit=limit, using=using)
    jobs = Job.objects.using(using)
    live = live_workers(using=using)
    return Figures(
        depth=depth,
        oldest_age=oldest_age,
        in_flight=capped(jobs.in_flight(), limit),
        expired=capped(jobs.expired(), limit),
        dead_letters=capped(DeadLetter.objects.using(using).open(), limit),
        live_workers=live,
        is_stuck=not live and (depth > 0 or jobs.due().exists()),
    )


def backlog(
    *, limit: int | None = None, queue_name: str | None = None, using: str | None = None
) -> tuple[int, timedelta | None]:
    """Return how many jobs are pending, of one queue or of all, and how long the oldest was due.

    With more of them than ``limit`` the depth is ``limit``, and the age is looked up rather than
    computed over all.
    """
    pending = Job.objects.using(using or router.db_for_read(Job)).pending()
    if queue_name is not None:
        pending = pending.filter(queue_name=queue_name)
    # The order of the claim index: a part of the table read from its start may hold none of them.
    found = pending.order_by(*_LANES)[:limit].aggregate(
        depth=Count("pk"), age=age_of(Min("run_after"))
    )
    if limit is None or found["depth"] < limit:
        return found["depth"], found["age"]
    return limit, max((head.age for head in islice(_lane_heads(pending), MOST_LANES)), default=None)


def _lane_heads(pending: QuerySet[Job]) -> Iterator[Any]:
    """Yield the first pending job of each lane, which is its oldest.

    Each step is a look-up or two in the claim index, where a minimum would read all of it.
    """
    heads = (
        pending.annotate(age=age_of(F("run_after")))
        .only("queue_name", "priority")
        .order_by(*_LANES)
    )
    head = heads.first()
    while head:
        yield head
        same_queue = heads.filter(queue_name=head.queue_name)
        head = (
            same_queue.filter(priority__lt=head.priority).first()
            or heads.filter(queue_name__gt=head.queue_name).first()
        )


def live_workers(*, using: str | None = None) -> int:
    """Return how many workers have a heartbeat that is not stale."""
    workers = Worker.objects.using(using or router.db_for_read(Worker))
    return workers.filter(heartbeat_at__gte=ago(stale_after())).count()


def stale_after() -> timedelta:
    """Return after what silence a worker counts as gone: three heartbeats, or one lease."""
    return conf.get().LEASE


def age_of(instant: Expression | F) -> Any:
    """Return how long ago ``instant`` was, by the database's clock."""
    return ExpressionWrapper(Now() - instant, output_field=DurationField())


def now(using: str) -> datetime:
    """Return the time by the database's clock."""
    # An aggregate over no rows is one row, on every database.
    nothing = Rollup.objects.using(using).filter(pk=0)
    found: datetime = nothing.aggregate(now=Coalesce(Max("start"), Now()))["now"]
    return found


def capped(rows: QuerySet[Any], limit: int | None) -> int:
    """Return how many rows there are, at most ``limit``."""
    return rows.order_by()[:limit].count()
