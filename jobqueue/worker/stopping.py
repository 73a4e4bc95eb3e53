"""The signals that ask a worker to stop: the first drains, the second gives up the leases."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_caught(request_stop: Callable[[], None]) -> Iterator[None]:
    """Call ``request_stop`` for each signal; it may only set a flag and wake a sleeper.

    Signals reach the main thread alone: in another (a test may run a worker so) nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def caught(_signum: int, _frame: FrameType | None) -> None:
        request_stop()

    before: dict[int, Any] = {number: signal.signal(number, caught) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stop_with_parent(request_stop: Callable[[], None]) -> None:
    """Ask to stop when standard input ends: the supervisor holds its other end."""

    def wait() -> None:
        # Not sys.stdin: a thread that waits in its lock would abort the interpreter's shutdown.
        while os.read(0, 1):
            pass
        request_stop()

    threading.Thread(target=wait, name="jobqueue-parent", daemon=True).start()
