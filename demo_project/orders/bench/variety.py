"""What many queues and priorities cost a worker, and what failures do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from demo_project.orders import tasks
from demo_project.orders.bench import draining, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale, take_turns
from jobqueue import enqueue_many

QUEUES = 32
PRIORITIES = 8


def measure_queues(scale: Scale) -> Iterator[Figure]:
    """Drain jobs of many queues, each with several priorities."""
    ways = {"one": partial(draining.load, scale.jobs), "many": partial(_load_many, scale.jobs)}
    rates = _rates(ways, scale)
    yield Figure(
        name=f"drain, {QUEUES} queues and {PRIORITIES} priorities",
        value=rates["many"],
        unit="jobs/s",
        limit=rates["one"],
        limit_name="one queue and one priority",
    )


def measure_failures(scale: Scale) -> Iterator[Figure]:
    """Drain jobs that fail at their first attempt and succeed at the second."""
    ways = {
        "half": partial(_load_stumbling, scale.jobs, times=1),
        "none": partial(_load_stumbling, 2 * scale.jobs, times=0),
    }
    rates = _rates(ways, scale)
    yield Figure(
        name="drain, every second attempt fails",
        value=rates["half"],
        unit="attempts/s",
        limit=rates["none"],
        limit_name="the same task when no attempt fails",
        note=f"{scale.jobs:,} jobs that fail once, wait as scheduled for no time, and are promoted",
    )


def _rates(ways: dict[str, Callable[[], int]], scale: Scale) -> dict[str, float]:
    empty()
    with worker.waiting() as running:
        rated = {name: partial(_rate_afresh, running, load) for name, load in ways.items()}
        return take_turns(rated, scale.rounds)


def _rate_afresh(running: worker.Running, load: Callable[[], int]) -> float:
    empty()
    return draining.rate(running, load)


def _load_many(jobs: int) -> int:
    lanes = [
        tasks.noop.using(queue_name=f"bench-{queue}", priority=priority)
        for priority in range(PRIORITIES)
        for queue in range(QUEUES)
    ]
    enqueue_many(lanes[number % len(lanes)].bind() for number in range(jobs))
    return jobs


def _load_stumbling(jobs: int, *, times: int) -> int:
    enqueue_many(tasks.stumble.bind(times) for _ in range(jobs))
    return jobs * (1 + times)
