"""How fast several processes enqueue while a worker works. On PostgreSQL only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import IO

from django.conf import settings
from django.utils import timezone

from demo_project.orders.bench import draining, worker
from demo_project.orders.bench.database import empty
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale, take_turns
from jobqueue.models import Worker

#: What keeps the worker busy from the start to the end, in jobs for each second.
BACKLOG = 20_000
LIMIT_NAME = "the same without the notification"
#: A worker that never takes its mark off: whoever enqueues has to notify it.
LISTENER = {"name": "bench-listener", "host": "", "pid": 1, "concurrency": 1, "listens": True}


def measure(scale: Scale) -> Iterator[Figure]:
    """Enqueue from many processes, one job a transaction, while one worker takes the jobs."""
    empty()
    with _producers(scale.producers) as producers, worker.started() as running:
        running.wait_for(Worker.objects.exists, worker.START_TIMEOUT)
        ways: dict[str, Callable[[], float]] = {
            "usual": partial(_rate, producers, "usual", scale),
            "silent": partial(_rate, producers, "silent", scale),
            "always": partial(_rate_with_listener, producers, scale),
        }
        rates = take_turns(ways, scale.rounds)
    for way, name in (
        ("usual", f"enqueue by {scale.producers} producers, one busy worker"),
        ("always", "the same with a NOTIFY in every transaction, for comparison"),
    ):
        yield Figure(
            name=name,
            value=rates[way],
            unit="jobs/s",
            limit=rates["silent"],
            limit_name=LIMIT_NAME,
        )


def _rate(producers: Sequence[subprocess.Popen[str]], way: str, scale: Scale) -> float:
    draining.load(round(BACKLOG * scale.seconds))
    for producer in producers:
        _of(producer.stdin).write(f"{way} {scale.seconds}\n")
        _of(producer.stdin).flush()
    return sum(int(_of(producer.stdout).readline()) for producer in producers) / scale.seconds


def _rate_with_listener(producers: Sequence[subprocess.Popen[str]], scale: Scale) -> float:
    listener = Worker.objects.create(**LISTENER, heartbeat_at=timezone.now())
    try:
        return _rate(producers, "usual", scale)
    finally:
        listener.delete()


@contextmanager
def _producers(number: int) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        producers = [stack.enter_context(_producer()) for _ in range(number)]
        for producer in producers:
            if _of(producer.stdout).readline() != "ready\n":
                raise worker.WorkerFailed("a producer did not start")
        yield producers


@contextmanager
def _producer() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-m", "demo_project.orders.bench.producer"],
        cwd=settings.BASE_DIR,
        env=worker.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as producer:
        yield producer  # leaving closes its standard input, which ends it


def _of(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
