"""How fast worker processes work off jobs that do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from django.db import connection
from django.db.models import Max, Min

from demo_project.orders import tasks
from demo_project.orders.bench import bare_loop, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale, take_turns
from jobqueue import enqueue_many
from jobqueue.models import Attempt, Job

NOTE = (
    "{:,} jobs that come in one transaction to a worker that waits, median of {} rounds, from the "
    "first start to the last settled job by the database's clock"
)


def measure(scale: Scale) -> Iterator[Figure]:
    """Drain jobs with one worker process and, on PostgreSQL, with its bare statements."""
    has_limit = connection.vendor == "postgresql"
    ways: dict[str, Callable[[], float]] = {"worker": partial(_afresh, scale.jobs, processes=1)}
    if has_limit:
        ways["bare"] = partial(_bare_rate, scale.jobs)
    rates = take_turns(ways, scale.rounds)
    yield Figure(
        name="no-op drain, one process",
        value=rates["worker"],
        unit="jobs/s",
        limit=rates.get("bare"),
        limit_name="claim and acknowledge in a bare psycopg loop" if has_limit else "",
        note=NOTE.format(scale.jobs, scale.rounds),
    )


def measure_processes(scale: Scale) -> Iterator[Figure]:
    """Drain jobs with two processes under one parent."""
    ways = {
        "one": partial(_afresh, 2 * scale.jobs, processes=1),
        "two": partial(_afresh, 2 * scale.jobs, processes=2),
    }
    rates = take_turns(ways, scale.rounds)
    yield Figure(
        name="no-op drain, two processes",
        value=rates["two"],
        unit="jobs/s",
        limit=rates["one"],
        limit_name="one process",
        note=NOTE.format(2 * scale.jobs, scale.rounds),
    )


def _afresh(jobs: int, *, processes: int) -> float:
    empty()
    with worker.waiting(processes=processes) as running:
        return rate(running, partial(load, jobs))


def load(jobs: int) -> int:
    """Enqueue jobs that do nothing; return how many attempts they take."""
    enqueue_many(tasks.noop.bind() for _ in range(jobs))
    return jobs


def rate(running: worker.Running, load: Callable[[], int]) -> float:
    """Return how many attempts a second a waiting worker makes at what is loaded for it."""
    before = newest()
    attempts = load()
    running.wait_for_the_last(after=before)
    return attempts / _seconds(attempts, after=before)


def rate_from_start(load: Callable[[], int]) -> float:
    """Return the same of a worker that is started when everything is there."""
    before = newest()
    attempts = load()
    with worker.started() as running:
        running.wait_for_the_last(after=before)
    return attempts / _seconds(attempts, after=before)


def newest() -> int:
    """Return the highest id of a job."""
    return Job.objects.aggregate(id=Max("pk"))["id"] or 0


def _seconds(expected: int, *, after: int) -> float:
    attempts = Attempt.objects.filter(job_id__gt=after)
    if (done := attempts.count()) != expected:
        raise worker.WorkerFailed(f"the worker was to make {expected} attempts and made {done}")
    first = attempts.aggregate(at=Min("started_at"))["at"]
    last = Job.objects.filter(pk__gt=after).aggregate(at=Max("finished_at"))["at"]
    return float((last - first).total_seconds())


def _bare_rate(jobs: int) -> float:
    empty()
    load(jobs)
    took, settled = bare_loop.drain()
    if settled != jobs:
        raise worker.WorkerFailed(f"the bare loop was to drain {jobs} jobs and did {settled}")
    return jobs / took
