"""How spans of time are counted: in buckets, each wider than the one before by the same factor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping

#: Two buckets to each doubling, from a millisecond to nine hours: a percentile is read from them
#: with an error of less than a fifth. The upper bounds, in seconds; what is beyond is in one more.
BOUNDS: tuple[float, ...] = tuple(round(0.001 * 2 ** (step / 2), 6) for step in range(51))

#: A distribution as it is kept: from the number of a bucket, as text, to how many fell into it.
Distribution = Mapping[str, int]


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
