"""Whether a thread makes progress, and whether the database answers it."""

from __future__ import annotations

import sys
from math import inf
from threading import get_ident
from time import monotonic

#: How much longer than it meant to rest a thread may be silent, in seconds.
PATIENCE = 30.0


class Pulse:
    """Shows that a thread comes round again and again, unless it waits for the database."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread: int | None = None
        self._due = inf  # until it has begun

    def beat(self, *, rests: float = 0.0) -> None:
        """Show life, and say for how many seconds there may be nothing else to do."""
        self._thread = get_ident()
        self._due = monotonic() + max(rests, 0.0)

    def has_stopped(self) -> bool:
        """Whether the thread is overdue, and not for the database's sake.

        One that is seen to wait for the database is given a new term: it has to get over it.
        """
        if monotonic() <= self._due + PATIENCE:
            return False
        if _is_in_database(self._thread):
            self._due = monotonic()
            return False
        return True


def _is_in_database(thread: int | None) -> bool:
    """Whether a thread is inside Django's database layer: connecting, querying, committing.

    Its stack says so whatever the call was, and costs a thread nothing that is not overdue.
    """
    frame = sys._current_frames().get(thread or 0)  # noqa: SLF001 - documented for such diagnoses
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("django.db.backends."):
            return True
        frame = frame.f_back
    return False


class Contact:
    """Remembers when the database last answered, and whether it has failed since."""

    def __init__(self) -> None:
        self._answered: float | None = None
        self._has_failed = False

    def answered(self) -> None:
        """Note an answer."""
        self._has_failed = False
        self._answered = monotonic()

    def failed(self) -> None:
        """Note an error in place of an answer."""
        self._has_failed = True

    def trouble(self, *, after: float) -> str:
        """Return what is wrong, if only that no answer came for so many seconds; else nothing."""
        if self._answered is None:
            return "the database has not answered yet"
        if self._has_failed:
            return "the database is away"
        silence = monotonic() - self._answered
        return f"the database has not answered for {silence:.0f} s" if silence > after else ""
