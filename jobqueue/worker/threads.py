"""The shape that the worker's helper threads share."""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
from collections.abc import Callable

from django.db import connections

from jobqueue import logs

#: How long the threads that handlers left behind may keep a process that is done, in seconds.
LEFT_BEHIND = 3.0


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


def end_soon(code: int) -> None:
    """End this process with ``code`` even if a thread goes on that some handler started.

    Python waits for such threads without end, and whoever stopped the worker would have to kill it.
    """
    waited = threading.Event()
    atexit.register(waited.set)  # Python waits for threads first
    threading.Thread(target=_end, args=(code, waited), name="jobqueue-end", daemon=True).start()


def _end(code: int, waited: threading.Event) -> None:
    if waited.wait(LEFT_BEHIND):
        return
    others = set(threading.enumerate()) - {threading.main_thread()}
    names = sorted(each.name for each in others if not each.name.startswith("jobqueue-"))
    logs.event(logging.WARNING, "worker.threads_left", threads=",".join(names))
    logging.shutdown()
    os._exit(code)


class Pause:
    """Growing pauses with jitter, for as long as the database is away."""

    FIRST = 0.1
    LONGEST = 10.0

    def __init__(self, *, longest: float = LONGEST) -> None:
        self._longest = longest
        self._next = self.FIRST

    def next(self) -> float:
        """Return how long to wait now, in seconds; the next pause is up to twice as long."""
        pause = self._next * random.uniform(0.5, 1.0)  # noqa: S311 - not a secret
        self._next = min(self._next * 2, self._longest)
        return pause

    def reset(self) -> None:
        """Start again with the shortest."""
        self._next = self.FIRST
