"""Ctrl-C and its like: the first asks the demo to end at its next step, the second cuts in."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self


class Interrupted(Exception):
    """Somebody asked the demo to end."""


class Interruption:
    """Catches the signals inside its block and keeps them for the next :meth:`check`.

    A KeyboardInterrupt wherever the program happens to be may hit Django in the middle of a commit:
    what then surfaces is a database error, and nobody can tell what it came from.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise Interrupted when one of the signals has come."""
        if self._asked:
            raise Interrupted

    def _caught(self, _number: int, _frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
