"""Handlers that leave their evidence outside the database."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobqueue import JobContext, task
from tests.chaos.journal import Journal
from tests.chaos.models import Effect

#: Longer than it takes a signal to arrive.
NEVER = 60.0


class Failed(Exception):
    """What failing handlers raise."""


_opening = threading.Lock()


def journal() -> Journal:
    """Return the journal of this process."""
    with _opening:
        return _journal(os.getpid())


@functools.cache
def _journal(pid: int) -> Journal:
    return Journal(Path(os.environ["CHAOS_FOLDER"]) / f"handler-{pid}-{time.monotonic_ns()}.jsonl")


@contextmanager
def noted(context: JobContext, key: str) -> Iterator[None]:
    """Note the start and the end of an attempt, and how long it believes its lease to last."""
    claim, write = context.claim, journal().write
    told = {"job": claim.id, "fence": claim.fence, "pid": os.getpid()}
    more = {"key": key, "attempt": claim.attempts, "worker": claim.claimed_by}
    write("start", **told, **more, leased_until=context.lease.ends)
    how = "raised"
    try:
        yield
        how = "returned"
    finally:
        write("end", **told, how=how, leased_until=context.lease.ends)


@task(takes_context=True)
def work(context: JobContext, key: str, kind: str, seconds: float = 0.0) -> None:
    """Behave as one of the kinds does."""
    with noted(context, key):
        time.sleep(seconds)
        if kind == "killer":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(NEVER)
        if kind == "hopeless" or (kind == "flaky" and context.attempt == 1):
            raise Failed(kind)


@task(takes_context=True, atomic=True)
def work_atomically(context: JobContext, key: str) -> None:
    """Write a row that must be there exactly once."""
    with noted(context, key):
        Effect.objects.create(job_id=context.job_id, fence=context.claim.fence)
