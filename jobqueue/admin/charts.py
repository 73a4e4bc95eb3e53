"""Pictures as plain numbers: where each line, bar and label stands; a template draws them as SVG.

The picture is WIDTH by HEIGHT and is scaled to its place. Nothing is told by colour alone: each
kind of line has its own dashes, each kind of bar its own hatch, and the numbers stand in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import pairwise
from typing import NamedTuple

from django.utils.formats import date_format
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _

from jobqueue.admin import display
from jobqueue.admin.axes import BASE, TOP, Axis, Show, Tick, Value, linear

WIDTH, HEIGHT = 480, 170
LEFT, RIGHT = 48, 464
#: Half of the width of a line that has one point only.
HALF_DOT = 1.5
_HOUR = 3600


class Series(NamedTuple):
    """One kind of number over time; None where nothing was measured."""

    kind: str
    label: str
    values: Sequence[Value]


class Line(NamedTuple):
    """A part of a line without a gap, as SVG has its points."""

    kind: str
    points: str


class Bar(NamedTuple):
    """A rectangle."""

    kind: str
    x: float
    y: float
    width: float
    height: float


class Bucket(NamedTuple):
    """A strip of the picture from top to bottom, and what a tooltip says there."""

    x: float
    width: float
    title: str


class Chart(NamedTuple):
    """One picture, and all that it says as text."""

    name: str
    title: str
    summary: str
    keys: Sequence[Series]
    y_ticks: Sequence[Tick]
    x_ticks: Sequence[Tick]
    lines: Sequence[Line]
    bars: Sequence[Bar]
    buckets: Sequence[Bucket]
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to be drawn."""
        return not (self.lines or self.bars)


def over_time(
    name: str, title: str, starts: Sequence[datetime], series: Sequence[Series], axis: Axis
) -> Chart:
    """Return a picture with a line for each series, and gaps where nothing was measured."""
    places = _places(len(starts))
    lines = [line for each in series for line in _lines(each, places, axis)]
    summary = "; ".join(_in_short(each, axis.show) for each in series)
    return _chart((name, title, summary), starts, series, axis, lines=lines)


def stacked(
    name: str, title: str, starts: Sequence[datetime], series: Sequence[Series], show: Show
) -> Chart:
    """Return a picture with one bar for each instant, the series on top of each other."""
    sums = [sum(value or 0 for value in values) for values in _across(series)]
    axis = linear(sums, show)
    bars = [bar for bar in _stacks(series, _places(len(starts)), axis) if bar.height]
    totals = [f"{each.label}: {show(sum(value or 0 for value in each.values))}" for each in series]
    return _chart((name, title, "; ".join(totals)), starts, series, axis, bars=bars)


def columns(
    name: str, title: str, head: str, pairs: Sequence[tuple[str, int]], show: Show
) -> Chart:
    """Return a picture with a bar for each label."""
    series = Series("ok", title, [number for _label, number in pairs])
    places, axis = _places(len(pairs)), linear(series.values, show)
    labels = [label for label, _number in pairs]
    return Chart(
        name,
        title,
        "; ".join(f"{label}: {show(number)}" for label, number in pairs),
        [],
        axis.ticks,
        [Tick(x, label) for (x, _width), label in zip(places, labels, strict=True)],
        [],
        [bar for bar in _stacks([series], places, axis) if bar.height],
        _buckets(labels, [series], places, show),
        [head, title],
        [[label, show(number)] for label, number in pairs],
    )


def _chart(
    heading: tuple[str, str, str],
    starts: Sequence[datetime],
    series: Sequence[Series],
    axis: Axis,
    *,
    lines: Sequence[Line] = (),
    bars: Sequence[Bar] = (),
) -> Chart:
    places, labels = _places(len(starts)), [_clock(start) for start in starts]
    rows = zip(labels, _across(series), strict=True)
    return Chart(
        *heading,
        keys=series if len(series) > 1 else [],
        y_ticks=axis.ticks,
        x_ticks=_hours(starts, places),
        lines=lines,
        bars=bars,
        buckets=_buckets(labels, series, places, axis.show),
        heads=[_("Time"), *(each.label for each in series)],
        rows=[[label, *(_shown(value, axis.show) for value in values)] for label, values in rows],
    )


def _across(series: Sequence[Series]) -> list[tuple[Value, ...]]:
    return list(zip(*(each.values for each in series), strict=True))


def _places(number: int) -> list[tuple[float, float]]:
    """Return the middle and the width of each of so many strips."""
    width = (RIGHT - LEFT) / max(number, 1)
    return [(LEFT + width * (place + 0.5), width) for place in range(number)]


def _lines(series: Series, places: Sequence[tuple[float, float]], axis: Axis) -> list[Line]:
    parts: list[list[tuple[float, float]]] = [[]]
    for (x, _width), value in zip(places, series.values, strict=True):
        if value is None:
            parts.append([])
        else:
            parts[-1].append((round(x, 1), axis.at(value)))
    return [Line(_kind(series, part), _points(part)) for part in parts if part]


def _kind(series: Series, part: list[tuple[float, float]]) -> str:
    """Return the kind of a line: one that is a dot has no dashes to be told by."""
    return f"{series.kind} jobqueue-dot" if len(part) == 1 else series.kind


def _points(part: list[tuple[float, float]]) -> str:
    if len(part) == 1:
        [(x, y)] = part
        part = [(x - HALF_DOT, y), (x + HALF_DOT, y)]
    return " ".join(f"{x:g},{y:g}" for x, y in part)


def _stacks(
    series: Sequence[Series], places: Sequence[tuple[float, float]], axis: Axis
) -> Iterable[Bar]:
    for (x, width), values in zip(places, _across(series), strict=True):
        ends = [0.0]
        for value in values:
            ends.append(ends[-1] + (value or 0))
        wide = width * 0.8 if width < BASE - TOP else BASE - TOP
        for each, (start, end) in zip(series, pairwise(map(axis.at, ends)), strict=True):
            left = round(x - wide / 2, 1)
            yield Bar(each.kind, left, end, round(wide, 1), round(start - end, 1))


def _buckets(
    labels: Sequence[str],
    series: Sequence[Series],
    places: Sequence[tuple[float, float]],
    show: Show,
) -> list[Bucket]:
    return [
        Bucket(
            round(x - width / 2, 1),
            round(width, 1),
            f"{label}: "
            + ", ".join(
                f"{each.label} {_shown(value, show)}"
                for each, value in zip(series, values, strict=True)
            ),
        )
        for label, (x, width), values in zip(labels, places, _across(series), strict=True)
    ]


def _in_short(series: Series, show: Show) -> str:
    known = [value for value in series.values if value is not None]
    if not known:
        return _("%(label)s: nothing measured") % {"label": series.label}
    last, most = show(known[-1]), show(max(known))
    return _("%(label)s: last %(last)s, at most %(most)s") % {
        "label": series.label,
        "last": last,
        "most": most,
    }


def _hours(starts: Sequence[datetime], places: Sequence[tuple[float, float]]) -> list[Tick]:
    """Label every quarter of an hour of the last hour, and every sixth hour of the last day."""
    if not starts:
        return []
    step = _HOUR // 4 if (starts[-1] - starts[0]).total_seconds() <= _HOUR else 6 * _HOUR
    local = [template_localtime(start) for start in starts]
    return [
        Tick(round(x, 1), _clock(start))
        for start, (x, _width), here in zip(starts, places, local, strict=True)
        if (here.hour * _HOUR + here.minute * 60) % step == 0
    ]


def _clock(instant: datetime) -> str:
    return date_format(template_localtime(instant), "H:i")


def _shown(value: Value, show: Show) -> str:
    return display.NOTHING if value is None else show(value)
