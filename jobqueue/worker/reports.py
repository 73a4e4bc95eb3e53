"""How a supervised worker tells its parent that it lives: a byte a second through a pipe."""

from __future__ import annotations

import os
from contextlib import suppress
from time import monotonic

from jobqueue.worker import pulse

#: Set for a child that is to report: the number of the pipe's end that it got from its parent.
REPORTS_TO = "JOBQUEUE_REPORTS_TO"

READY, ALIVE, STOPPED = b"r", b"a", b"s"


class Reporter:
    """The worker's end."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        os.set_blocking(fd, False)  # the parent may stand still
        os.set_inheritable(fd, False)

    def show(self, *, is_alive: bool, is_ready: bool) -> None:
        """Report; a parent that does not read, or is gone, changes nothing."""
        with suppress(OSError):
            os.write(self._fd, READY if is_ready else ALIVE if is_alive else STOPPED)


class Reports:
    """The parent's end."""

    def __init__(self) -> None:
        self._fd, self.writer = os.pipe()
        os.set_blocking(self._fd, False)
        self._last = ALIVE
        self._heard_at: float | None = None

    def close_writer(self) -> None:
        """Leave the other end to the worker alone."""
        os.close(self.writer)

    def read(self) -> None:
        """Take note of what came since."""
        with suppress(BlockingIOError):
            if came := os.read(self._fd, 4096):
                self._last, self._heard_at = came[-1:], monotonic()

    def close(self) -> None:
        """Read no more, since the worker has ended."""
        os.close(self._fd)
        self._last, self._heard_at = ALIVE, None

    @property
    def is_ready(self) -> bool:
        """Whether the worker said so last."""
        return self._last == READY and not self.is_silent

    @property
    def is_silent(self) -> bool:
        """Whether the worker has started, and then said nothing for too long."""
        return self._heard_at is not None and monotonic() > self._heard_at + pulse.PATIENCE

    @property
    def has_stopped(self) -> bool:
        """Whether the worker makes no progress, by its own word or by its silence."""
        return self._last == STOPPED or self.is_silent
