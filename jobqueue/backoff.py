"""How long to wait before the next attempt: pure functions from an attempt number to a delay."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

#: No delay is longer, whatever a backoff says.
CEILING = timedelta(days=30)

#: From the number of the attempt that failed (1, 2, ...) to the delay before the next.
Backoff = Callable[[int], timedelta]


@dataclass(frozen=True, slots=True)
class Exponential:
    """Wait a random span up to ``base * factor ** (attempt - 1)``, and never above ``cap``.

    The randomness is "full jitter" (Marc Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015): jobs that failed together do not come back together.
    """

    base: timedelta = timedelta(seconds=5)
    factor: float = 4.0
    cap: timedelta = timedelta(hours=1)
    jitter: bool = True

    def longest(self, attempt: int) -> timedelta:
        """Return the delay without jitter."""
        ceiling = min(self.cap, CEILING).total_seconds()
        try:
            seconds = self.base.total_seconds() * self.factor ** max(attempt - 1, 0)
        except OverflowError:
            seconds = ceiling
        return timedelta(seconds=min(seconds, ceiling))

    def __call__(self, attempt: int) -> timedelta:
        """Return the delay after the given attempt failed."""
        longest = self.longest(attempt)
        return longest * random.random() if self.jitter else longest  # noqa: S311 - not a secret


@dataclass(frozen=True, slots=True)
class Steps:
    """Wait the given spans one after the other; the last one repeats."""

    spans: tuple[timedelta, ...]

    def __call__(self, attempt: int) -> timedelta:
        """Return the delay after the given attempt failed."""
        return self.spans[min(max(attempt, 1), len(self.spans)) - 1]


def as_backoff(value: timedelta | Sequence[timedelta] | Backoff) -> Backoff:
    """Read what ``@task(backoff=...)`` accepts: one span, several in turn, or a function."""
    if isinstance(value, timedelta):
        return Steps((value,))
    if isinstance(value, list | tuple) and value:
        if all(isinstance(span, timedelta) for span in value):
            return Steps(tuple(value))
    elif callable(value):
        return value
    raise TypeError(
        f"backoff must be a timedelta, a sequence of timedeltas or a callable, not {value!r}"
    )


def delay_after(attempt: int, backoff: Backoff) -> timedelta:
    """Return the delay after the given attempt failed, between zero and the ceiling."""
    return min(max(backoff(attempt), timedelta(0)), CEILING)
