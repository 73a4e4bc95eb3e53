"""The metrics: what each is called, what it means and where it comes from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from jobqueue import registry, stats
from jobqueue.measures import BOUNDS, EVER, Distribution, add, for_ever
from jobqueue.models import BulkOperation, Job, Rollup, Worker
from jobqueue.querysets import ago
from jobqueue.states import WorkerState
from jobqueue.stats import QueueFigures

#: Nothing is counted any further: a scrape comes a few times a minute, and may see many queues.
MOST_COUNTED = 10_000
#: How many queues, pairs of a queue and a task, and tasks have series of their own: the first by
#: name, so that a series never goes and comes.
MOST_QUEUES = 100
MOST_PAIRS = 1000
MOST_TASKS = 100
#: A histogram has every second bucket: one for each doubling.
STEP = 2


class QueueGauge(NamedTuple):
    """One figure of each queue."""

    name: str
    text: str
    value: Callable[[QueueFigures], float]


QUEUE_GAUGES = (
    QueueGauge(
        "jobqueue_depth",
        f"Jobs that can run now; about how many, beyond {MOST_COUNTED}.",
        lambda queue: queue.depth,
    ),
    QueueGauge(
        "jobqueue_oldest_age_seconds",
        "How long the job that waits longest has been due; 0 when none waits.",
        lambda queue: queue.oldest_age.total_seconds() if queue.oldest_age else 0,
    ),
    QueueGauge(
        "jobqueue_in_flight",
        f"Jobs that a worker holds under a lease; counted up to {MOST_COUNTED}.",
        lambda queue: queue.in_flight,
    ),
    QueueGauge(
        "jobqueue_expired_leases",
        "Jobs whose lease has run out, and that no worker has rescued yet.",
        lambda queue: queue.expired,
    ),
    QueueGauge(
        "jobqueue_dead_letters",
        f"Dead letters that nobody has dealt with; counted up to {MOST_COUNTED}.",
        lambda queue: queue.dead_letters,
    ),
    QueueGauge(
        "jobqueue_paused",
        "1 while an operator has paused the queue.",
        lambda queue: queue.paused is not None,
    ),
)


def of_queues(alias: str) -> Iterator[Metric]:
    """Yield how each queue is at this moment."""
    found = sorted(stats.by_queue(limit=MOST_COUNTED, using=alias), key=lambda queue: queue.name)
    queues = [_with_estimate(queue, alias) for queue in found[:MOST_QUEUES]]
    for gauge in QUEUE_GAUGES:
        family = GaugeMetricFamily(gauge.name, gauge.text, labels=["queue"])
        for queue in queues:
            family.add_metric([queue.name], gauge.value(queue))
        yield family
    yield _left_out("queues", len(found) > MOST_QUEUES)


def _with_estimate(queue: QueueFigures, alias: str) -> QueueFigures:
    """Put the planner's estimate in the place of a depth that was not counted to its end."""
    if queue.depth < MOST_COUNTED:
        return queue
    estimate = stats.estimated_depth(queue.name, using=alias) or 0
    return queue._replace(depth=max(estimate, MOST_COUNTED))


def of_workers(alias: str) -> Iterator[Metric]:
    """Yield who works, and what operators have asked the workers to do."""
    live = stats.live_workers(using=alias)
    draining = Worker.objects.using(alias).filter(
        state=WorkerState.DRAINING, heartbeat_at__gte=ago(stats.stale_after())
    )
    operations = BulkOperation.objects.using(alias).running()
    yield GaugeMetricFamily(
        "jobqueue_live_workers", "Workers whose heartbeat is not stale.", value=live
    )
    yield GaugeMetricFamily(
        "jobqueue_workers_draining", "Live workers that take no more jobs.", value=draining.count()
    )
    yield GaugeMetricFamily(
        "jobqueue_stuck",
        "1 when jobs wait, or should by now, and no worker lives.",
        value=not live and _jobs_wait(alias),
    )
    yield GaugeMetricFamily(
        "jobqueue_bulk_operations_running",
        "Replays and discards of many dead letters that are under way.",
        value=operations.order_by()[:MOST_COUNTED].count(),
    )


def _jobs_wait(alias: str) -> bool:
    jobs = Job.objects.using(alias)
    return jobs.pending().exists() or jobs.due().exists()


def of_tasks(alias: str) -> Iterator[Metric]:
    """Yield what has been counted since for ever."""
    rows = Rollup.objects.using(alias).filter(span=EVER, start=for_ever())
    found = list(rows.order_by("queue_name", "task")[: MOST_PAIRS + 1])
    tasks = sorted({row.task for row in found})
    kept = found[:MOST_PAIRS]
    yield from _counters(kept)
    yield from _histograms(kept, tasks[:MOST_TASKS])
    yield _leases(tasks[:MOST_TASKS], alias)
    yield _left_out("totals", len(found) > MOST_PAIRS or len(tasks) > MOST_TASKS)


def _counters(rows: Sequence[Rollup]) -> Iterator[Metric]:
    claims = CounterMetricFamily(
        "jobqueue_claims",
        "Jobs that workers took, less those that they handed back unstarted within seconds.",
        labels=["queue", "task"],
    )
    attempts = CounterMetricFamily(
        "jobqueue_attempts",
        "Attempts that succeeded, that failed and will be retried, or that left a dead letter.",
        labels=["queue", "task", "outcome"],
    )
    lost = CounterMetricFamily(
        "jobqueue_attempts_lost",
        "Of the retried and the died, those that were lost with their worker.",
        labels=["queue", "task"],
    )
    for row in rows:
        claims.add_metric([row.queue_name, row.task], row.claimed)
        lost.add_metric([row.queue_name, row.task], row.lost)
        for outcome in ("succeeded", "retried", "died"):
            attempts.add_metric([row.queue_name, row.task, outcome], getattr(row, outcome))
    yield from (claims, attempts, lost)


def _histograms(rows: Iterable[Rollup], tasks: Iterable[str]) -> Iterator[Metric]:
    waits: dict[str, Counter[str]] = {task: Counter() for task in tasks}
    runs: dict[str, Counter[str]] = {task: Counter() for task in waits}
    for row in rows:
        if row.task in waits:
            add(waits[row.task], row.waits)
            add(runs[row.task], row.runs)
    yield _histogram("jobqueue_wait_seconds", "From due to claimed", waits)
    yield _histogram("jobqueue_run_seconds", "From started to finished", runs)


def _histogram(name: str, text: str, by_task: dict[str, Counter[str]]) -> Metric:
    family = HistogramMetricFamily(
        name, f"{text}; the sum is estimated from the buckets, to a fifth.", labels=["task"]
    )
    for task, distribution in by_task.items():
        family.add_metric([task], cumulative(distribution), estimated_sum(distribution))
    return family


def cumulative(distribution: Distribution) -> list[tuple[str, float]]:
    """Return the buckets as Prometheus wants them: how many took no longer than each bound."""
    buckets: list[tuple[str, float]] = []
    total = 0
    for number, bound in enumerate(BOUNDS):
        total += distribution.get(str(number), 0)
        if number % STEP == 0:
            buckets.append((str(bound), total))
    return [*buckets, ("+Inf", sum(distribution.values()))]


def estimated_sum(distribution: Distribution) -> float:
    """Return about how many seconds were counted: each in the middle of its narrow bucket."""
    return sum(count * _middle(int(number)) for number, count in distribution.items())


def _middle(number: int) -> float:
    """Return the geometric mean of a bucket's bounds; two buckets are a doubling."""
    return float(BOUNDS[0] * 2 ** (min(number, len(BOUNDS)) / 2 - 0.25))


def _leases(tasks: Iterable[str], alias: str) -> Metric:
    own, usual = registry.leases(), stats.usual_lease(alias)
    family = GaugeMetricFamily(
        "jobqueue_lease_seconds", "How long a claim of the task lasts.", labels=["task"]
    )
    for task in tasks:
        family.add_metric([task], own.get(task, usual))
    return family


def _left_out(part: str, is_cut: bool) -> Metric:  # noqa: FBT001 - the figure itself
    return GaugeMetricFamily(
        f"jobqueue_{part}_left_out",
        "1 when there are more than have series of their own: the first by name have.",
        value=is_cut,
    )
