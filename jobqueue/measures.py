"""How spans of time are counted: in buckets, each wider than the one before by the same factor."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.conf import settings

#: The spans of rollups, in seconds: a minute, a quarter of an hour, and since for ever.
MINUTE, QUARTER, EVER = 60, 900, 0
#: The queue and the task of what all of them did together in a minute or a quarter.
ALL = ("", "")
#: How long rollups of each span are kept: an hour of minutes is drawn, and three let one look
#: back from there; a day of quarters is drawn, and eight let one compare with a week ago.
KEPT = {MINUTE: timedelta(hours=3), QUARTER: timedelta(days=8)}
#: Samples are drawn beside the quarters.
SAMPLES_KEPT = KEPT[QUARTER]

#: Success at this attempt and at any later one are counted as one.
MOST_TRIES = 10

#: Two buckets to each doubling, from a millisecond to nine hours: a percentile that is read from
#: them is never too low, and at most 42 % too high. The upper bounds, in seconds; what is beyond is
#: in one more.
BOUNDS: tuple[float, ...] = tuple(round(0.001 * 2 ** (step / 2), 6) for step in range(51))

#: What is counted, and what is measured.
NUMBERS = ("claimed", "succeeded", "retried", "died", "lost")
DISTRIBUTIONS = ("waits", "runs", "tries")

#: A distribution as it is kept: from the number of a bucket, as text, to how many fell into it.
Distribution = Mapping[str, int]


def _zeros() -> defaultdict[int, int]:
    return defaultdict(int)


@dataclass(slots=True)
class Counts:
    """What became of one task's jobs of one queue; see :class:`~jobqueue.models.Rollup`.

    Claims that were handed back are taken off, so a part of a whole may be below zero.
    """

    claimed: int = 0
    succeeded: int = 0
    retried: int = 0
    died: int = 0
    lost: int = 0
    waits: defaultdict[int, int] = field(default_factory=_zeros)
    runs: defaultdict[int, int] = field(default_factory=_zeros)
    tries: defaultdict[int, int] = field(default_factory=_zeros)

    def add(self, other: Counts) -> None:
        """Add what was counted elsewhere."""
        for name in NUMBERS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in DISTRIBUTIONS:
            mine = getattr(self, name)
            for number, count in getattr(other, name).items():
                mine[number] += count


def bucket(seconds: float) -> int:
    """Return the number of the bucket that a span falls into."""
    return bisect_left(BOUNDS, seconds)


def percentile(distribution: Distribution, share: float) -> float | None:
    """Return the span, in seconds, that ``share`` (0 to 1) of what was counted did not exceed.

    It is the upper bound of a bucket; None when nothing was counted.
    """
    rest = share * sum(distribution.values())
    if not rest:
        return None
    for number, count in sorted((int(key), count) for key, count in distribution.items()):
        rest -= count
        if rest <= 0:
            return BOUNDS[min(number, len(BOUNDS) - 1)]
    return BOUNDS[-1]


def add(total: Counter[str], more: Distribution) -> None:
    """Add what was counted elsewhere; leave out what somebody who wrote a row by hand got wrong."""
    for key, count in more.items():
        if key.isdecimal():
            total[key] += count


def beginning(instant: datetime, span: int) -> datetime:
    """Return when the minute or quarter began that an instant lies in."""
    seconds = (instant.minute * 60 + instant.second) % span
    return instant - timedelta(seconds=seconds, microseconds=instant.microsecond)


def for_ever() -> datetime:
    """Return the start of the span that has no end."""
    return datetime(1970, 1, 1, tzinfo=UTC if settings.USE_TZ else None)
