"""The shape that the worker's helper threads share."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from django.db import connections

from jobqueue import logs


def start_thread(
    name: str, work: Callable[[], None], *, failed: Callable[[], None]
) -> threading.Thread:
    """Run ``work`` in a daemon thread that closes its connections; call ``failed`` if it raises.

    A worker with a dead thread would look alive and do nothing, so ``failed`` must end it.
    """

    def run() -> None:
        try:
            work()
        except BaseException:  # noqa: BLE001 - whatever it was, the worker has to end
            failed()
            logs.event(logging.ERROR, "worker.thread_failed", thread=name, with_traceback=True)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, name=f"jobqueue-{name}", daemon=True)
    thread.start()
    return thread


class Pause:
    """Growing pauses with jitter, for as long as the database is away."""

    FIRST = 0.1
    LONGEST = 10.0

    def __init__(self) -> None:
        self._next = self.FIRST

    def next(self) -> float:
        """Return how long to wait now, in seconds; the next pause is up to twice as long."""
        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        self._next = min(self._next * 2, self.LONGEST)
        return pause

    def reset(self) -> None:
        """Start again with the shortest."""
        self._next = self.FIRST
