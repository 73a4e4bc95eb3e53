"""How long the jobs of each task run, how near to their lease, and how often they fail."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple

from django.db import router
from django.db.models import Min

from jobqueue import conf, registry
from jobqueue.measures import EVER, NUMBERS, add, percentile
from jobqueue.models import Rollup, Worker
from jobqueue.querysets import ago
from jobqueue.stats.live import stale_after
from jobqueue.stats.rollups import Sums, percentiles, since

#: A task whose longest runs take this share of their lease is pointed out: the heartbeat extends
#: a lease when a third has passed, so such runs hang on it.
NEAR = 0.5
#: The percentile of run times that is compared with the lease, and called usual.
USUAL = 0.95


class TaskFigures(NamedTuple):
    """What became of one task's attempts, and how long they ran, in seconds."""

    task: str
    #: Attempts that ended by themselves: those of which the run time is known.
    runs: int
    succeeded: int
    retried: int
    died: int
    p50: float | None
    p95: float | None
    p99: float | None
    lease: timedelta
    #: The 95th percentile as a share of the lease.
    share: float | None
    is_near_lease: bool


def by_task(*, span: timedelta, using: str | None = None) -> list[TaskFigures]:
    """Return the figures of each task that had anything done in the latest ``span``, by name."""
    using = using or router.db_for_read(Rollup)
    sums: defaultdict[str, Sums] = defaultdict(Sums)
    for row in since(span, using=using).values("task", *NUMBERS, "runs"):
        sums[row["task"]].add(row)
    leases, usual = registry.leases(), usual_lease(using)
    return [
        _figures(task, sums[task], timedelta(seconds=leases.get(task, usual)))
        for task in sorted(sums)
    ]


def usual_lease(using: str) -> float:
    """Return the shortest lease that a live worker gives, in seconds."""
    live = Worker.objects.using(using).filter(heartbeat_at__gte=ago(stale_after()))
    found: timedelta | None = live.aggregate(lease=Min("lease"))["lease"]
    return (found or conf.get().LEASE).total_seconds()


def _figures(task: str, sums: Sums, lease: timedelta) -> TaskFigures:
    p50, p95, p99 = percentiles(sums.runs)
    share = None if p95 is None else p95 / lease.total_seconds()
    return TaskFigures(
        task=task,
        runs=sum(sums.runs.values()),
        succeeded=sums.counts["succeeded"],
        retried=sums.counts["retried"],
        died=sums.counts["died"],
        p50=p50,
        p95=p95,
        p99=p99,
        lease=lease,
        share=share,
        is_near_lease=share is not None and share >= NEAR,
    )


def tries(*, span: timedelta, using: str | None = None) -> list[tuple[int, int]]:
    """Return how many jobs succeeded at which attempt; the last, 10, stands for any later one."""
    total: Counter[str] = Counter()
    rows = since(span, using=using or router.db_for_read(Rollup))
    for found in rows.exclude(succeeded=0).values_list("tries", flat=True):
        add(total, found)
    return sorted((int(number), count) for number, count in total.items())


def usual_run_time(tasks: Collection[str], *, using: str | None = None) -> dict[str, float]:
    """Return, for tasks that have ever run, what 95 % of their runs did not exceed, in seconds."""
    rows = Rollup.objects.using(using or router.db_for_read(Rollup))
    total: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for task, runs in rows.filter(span=EVER, task__in=tasks).values_list("task", "runs"):
        add(total[task], runs)
    usual = {task: percentile(runs, USUAL) for task, runs in total.items()}
    return {task: seconds for task, seconds in usual.items() if seconds is not None}
