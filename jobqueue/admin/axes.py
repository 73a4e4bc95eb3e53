"""Axes of pictures: from values to heights, with few and round labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import count
from math import ceil, log10
from typing import Any, NamedTuple

#: Where the highest and the lowest value stand, from the top of the picture.
TOP, BASE = 10, 146
#: The most parts that ticks divide an axis into.
MOST_PARTS = 4
#: Round spans, in seconds; after days come 2, 5, 10... of them.
_SPANS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10_800, 21_600, 43_200, 86_400),
)
_MARKS = (0.001, 0.01, 0.1, 1, 10, 60, 600, 3600, 36_000)

Value = float | None
Show = Callable[[Any], str]


class Tick(NamedTuple):
    """A label of an axis, and where it stands."""

    at: float
    label: str


class Axis(NamedTuple):
    """From a value to its height in the picture; logarithmic where it does not begin at 0."""

    low: float
    high: float
    values: Sequence[float]
    show: Show

    def at(self, value: float) -> float:
        """Return how far from the top a value stands; what is beyond the axis stands at its end."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if low:
            low, high, value = log10(low), log10(high), log10(value)
        return round(BASE - (BASE - TOP) * (value - low) / (high - low), 1)

    @property
    def ticks(self) -> list[Tick]:
        """The labels."""
        return [Tick(self.at(value), self.show(value)) for value in self.values]


def linear(values: Iterable[Value], show: Show, *, steps: Iterable[float] | None = None) -> Axis:
    """Return an axis from 0 to the next round number, with few ticks."""
    most = max((value for value in values if value is not None), default=0) or 1
    step = next(step for step in steps or round_numbers() if most <= step * MOST_PARTS)
    parts = ceil(most / step)
    return Axis(0, parts * step, [part * step for part in range(parts + 1)], show)


def logarithmic(values: Iterable[Value], show: Show) -> Axis:
    """Return an axis for spans in seconds, from a round one below to a round one above."""
    known = [value for value in values if value is not None] or [_MARKS[0]]
    lows = [mark for mark in _MARKS if mark <= min(known)] or _MARKS[:1]
    highs = [mark for mark in _MARKS if mark >= max(known)] or _MARKS[-1:]
    low, high = lows[-1], highs[0]
    if low == high:
        place = min(_MARKS.index(low), len(_MARKS) - 2)
        low, high = _MARKS[place : place + 2]
    return Axis(low, high, [mark for mark in _MARKS if low <= mark <= high], show)


def round_numbers() -> Iterable[float]:
    """Yield 1, 2, 5, 10, 20, 50..."""
    for power in count():
        yield from (10**power, 2 * 10**power, 5 * 10**power)


def round_spans() -> Iterable[float]:
    """Yield spans that people count in, in seconds."""
    yield from _SPANS
    for number in round_numbers():
        yield number * _SPANS[-1]
