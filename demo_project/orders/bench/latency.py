"""How long a job waits for an idle worker."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from statistics import quantiles
from typing import Any

from django.db import connection, transaction

from demo_project.orders import tasks
from demo_project.orders.bench import bare, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale
from jobqueue.models import Job
from jobqueue.states import Status
from jobqueue.stores import statements
from jobqueue.stores.claiming import CLAIM

LONGEST = 30.0  # seconds
NOTE = "{} jobs, one at a time, from the commit's return to the handler's start"
CHANNEL = "jobqueue_bench"
#: Jobs before the first that counts: they fill the caches of two processes and of the server.
WARMING = 3


def measure(scale: Scale) -> Iterator[Figure]:
    """Enqueue one job at a time for an idle worker, and compare with a bare NOTIFY."""
    empty()
    samples = max(scale.samples, 2)
    with worker.waiting():
        for _ in range(WARMING):
            _sample()
        pickups = [_sample() for _ in range(samples)]
    limits = _bare_samples(samples) if connection.vendor == "postgresql" else []
    for name, percent in (("p50", 50), ("p95", 95)):
        yield Figure(
            name=f"pickup latency, {name}",
            value=_percentile(pickups, percent),
            unit="ms",
            limit=_percentile(limits, percent) if limits else None,
            limit_name="NOTIFY and one claim on bare connections" if limits else "",
            note=NOTE.format(samples) if percent == 50 else "",
        )


def _percentile(samples: list[float], percent: int) -> float:
    return 1000 * quantiles(samples, n=100)[percent - 1]


def _pause() -> None:
    """Let the worker fall idle, and come at no fixed moment between two of its polls."""
    time.sleep(random.uniform(0.05, 1.05))


def _sample() -> float:
    _pause()
    with transaction.atomic():
        job = tasks.clock.enqueue()
    committed = time.monotonic()
    while time.monotonic() < committed + LONGEST:
        time.sleep(0.02)  # out of the worker's way
        if done := Job.objects.filter(pk=job.pk, status=Status.SUCCEEDED).first():
            return float(done.result) - committed
    raise worker.WorkerFailed(f"the worker did not take a job within {LONGEST:.0f} s")


def _bare_samples(number: int) -> list[float]:
    """Do what a worker must at the least, on bare connections: hear of a job, and claim it."""
    empty()
    claimed: SimpleQueue[float] = SimpleQueue()
    with bare.connect() as listening, bare.connect() as sending:
        listening.execute(f"LISTEN {CHANNEL}")
        arguments = (listening, claimed, number)
        listener = threading.Thread(target=_claim_when_told, args=arguments, daemon=True)
        listener.start()
        samples = [_send(sending, claimed) for _ in range(number)]
        listener.join()
    return samples


def _claim_when_told(listening: Any, claimed: SimpleQueue[float], number: int) -> None:
    with bare.connect() as claiming:
        for _ in listening.notifies(stop_after=number, timeout=LONGEST):
            claiming.execute(CLAIM, bare.claim_parameters(1)).fetchall()
            claimed.put(time.monotonic())


def _send(sending: Any, claimed: SimpleQueue[float]) -> float:
    time.sleep(random.uniform(0.01, 0.05))  # the listener must be waiting again
    with sending.transaction():
        sending.execute(statements.INSERT, bare.REQUEST)
        sending.execute(f"NOTIFY {CHANNEL}")
    committed = time.monotonic()
    try:
        return claimed.get(timeout=LONGEST) - committed
    except Empty:
        raise worker.WorkerFailed("a bare NOTIFY was not heard") from None
