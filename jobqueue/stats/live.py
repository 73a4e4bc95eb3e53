"""How the whole queue is at this moment, counted no further than one wants."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import router
from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import Coalesce, Now

from jobqueue import conf
from jobqueue.models import DeadLetter, Job, Rollup, Worker
from jobqueue.querysets import ago
from jobqueue.stats import lanes
from jobqueue.stats.lanes import age_of


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
    using = using or router.db_for_read(Job)
    pending = Job.objects.using(using).pending()
    if queue_name is not None:
        pending = pending.filter(queue_name=queue_name)
    # The order of the claim index: a part of the table read from its start may hold none of them.
    found = pending.order_by(*lanes.ORDER)[:limit].aggregate(
        depth=Count("pk"), age=age_of(Min("run_after"))
    )
    if limit is None or found["depth"] < limit:
        return found["depth"], found["age"]
    names = lanes.names(pending) if queue_name is None else [queue_name]
    return limit, max(lanes.oldest(names, using=using).values(), default=None)


def live_workers(*, using: str | None = None) -> int:
    """Return how many workers have a heartbeat that is not stale."""
    workers = Worker.objects.using(using or router.db_for_read(Worker))
    return workers.filter(heartbeat_at__gte=ago(stale_after())).count()


def stale_after() -> timedelta:
    """Return after what silence a worker counts as gone: three heartbeats, or one lease."""
    return conf.get().LEASE


def now(using: str) -> datetime:
    """Return the time by the database's clock."""
    # An aggregate over no rows is one row, on every database.
    nothing = Rollup.objects.using(using).filter(pk=0)
    found: datetime = nothing.aggregate(now=Coalesce(Max("start"), Now()))["now"]
    return found


def capped(rows: QuerySet[Any], limit: int | None) -> int:
    """Return how many rows there are, at most ``limit``."""
    return rows.order_by()[:limit].count()
