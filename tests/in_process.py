"""Whole workers in this process, for what needs no process of its own: no kill, no signal."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.db import connections

from jobqueue.worker import Worker, WorkerOptions
from tests.processes import PATIENCE

MAIN = "jobqueue-main"
#: Quick looks, and leases that last as long as the longest test.
QUICK: dict[str, Any] = {
    "poll_interval": timedelta(seconds=0.05),
    "drain_timeout": timedelta(seconds=20),
}


def new_worker(**options: Any) -> Worker:
    """Return a worker that looks often; it is not started."""
    return Worker(WorkerOptions(**QUICK | options))


@contextmanager
def running_worker(**options: Any) -> Iterator[Worker]:
    """Have a worker run in threads of this process, and drain it in the end."""
    worker = new_worker(**options)
    thread = start(worker)
    try:
        yield worker
    finally:
        worker.request_stop()
        wait_for_end(thread)


def run_until_empty(**options: Any) -> Worker:
    """Run a worker until there is nothing to do, and return it."""
    return run_to_the_end(until_empty=True, **options)


def run_to_the_end(**options: Any) -> Worker:
    """Run a worker until it ends by itself, and return it."""
    worker = new_worker(**options)
    wait_for_end(start(worker))
    return worker


def start(worker: Worker) -> threading.Thread:
    """Run a worker in a thread, where it leaves the signals of this process alone."""

    def run() -> None:
        try:
            worker.run()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name=MAIN, daemon=True)
    thread.start()
    return thread


def wait_for_end(thread: threading.Thread) -> None:
    """Wait until the worker and all of its threads have ended, and with them their connections."""
    thread.join(PATIENCE)
    assert not thread.is_alive(), "the worker is still running"
    ours = [other for other in threading.enumerate() if other.name.startswith("jobqueue-")]
    if any(other.name == MAIN for other in ours):
        return  # another worker still runs, and waits for the rest
    for other in ours:
        other.join(PATIENCE)
        assert not other.is_alive(), f"{other.name} is still running"
