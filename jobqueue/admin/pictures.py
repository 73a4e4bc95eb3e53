"""The pictures of the overview: which numbers they show, and how those are written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin import display
from jobqueue.admin.axes import linear, logarithmic, round_spans
from jobqueue.admin.charts import Chart, Series, columns, over_time, stacked

_UNITS = ((1_000_000, gettext_lazy("M")), (1_000, gettext_lazy("k")))
#: Below this seconds have a decimal place.
FEW_SECONDS = 10
#: The last number of tries stands for all later ones.
LAST_TRY = 10


def draw(points: Sequence[Any], tries: Sequence[tuple[int, int]]) -> list[Chart]:
    """Return the pictures of a history, and of how many attempts a success took."""
    return [_depth(points), _age(points), _outcomes(points), *_spans(points), _tries(tries)]


def _depth(points: Sequence[Any]) -> Chart:
    series = [Series("first", _("pending"), [point.depth for point in points])]
    axis = linear(series[0].values, short)
    return over_time("depth", _("Pending jobs"), _starts(points), series, axis)


def _age(points: Sequence[Any]) -> Chart:
    ages = [_seconds(point.oldest_age, point.depth) for point in points]
    axis = linear(ages, span, steps=round_spans())
    series = [Series("first", _("oldest waits"), ages)]
    return over_time("age", _("Age of the oldest pending job"), _starts(points), series, axis)


def _seconds(age: timedelta | None, depth: int | None) -> float | None:
    """Return an age in seconds: nothing waited is 0, nobody looked is None."""
    if depth is None:
        return None
    return age.total_seconds() if age else 0.0


def _outcomes(points: Sequence[Any]) -> Chart:
    series = [
        Series("ok", _("succeeded"), [point.succeeded for point in points]),
        Series("failed", _("failed, to be tried again"), [point.retried for point in points]),
        Series("dead", _("dead"), [point.died for point in points]),
    ]
    return stacked("outcomes", _("Attempts that ended"), _starts(points), series, short)


def _spans(points: Sequence[Any]) -> list[Chart]:
    titles = {"wait": _("From due to claimed"), "run": _("Run time")}
    return [_percentiles(name, title, points) for name, title in titles.items()]


def _percentiles(name: str, title: str, points: Sequence[Any]) -> Chart:
    kinds = {"p50": "first", "p95": "second", "p99": "third"}
    series = [
        Series(kind, share, [getattr(point, f"{name}_{share}") for point in points])
        for share, kind in kinds.items()
    ]
    axis = logarithmic([value for each in series for value in each.values], span)
    return over_time(name, title, _starts(points), series, axis)


def _tries(tries: Sequence[tuple[int, int]]) -> Chart:
    pairs = [(f"{number}+" if number >= LAST_TRY else str(number), jobs) for number, jobs in tries]
    return columns("tries", _("Attempts to success"), _("Attempt"), pairs, short)


def _starts(points: Sequence[Any]) -> list[Any]:
    return [point.start for point in points]


def short(number: float) -> str:
    """Return a number in few characters, such as "1.5k"."""
    for size, unit in _UNITS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.3g}"


def span(seconds: float) -> str:
    """Return a span in few characters: its two largest units."""
    if not seconds:
        return "0"
    if 1 <= seconds < FEW_SECONDS:
        return f"{seconds:.2g} {_('s')}"
    return display.duration(timedelta(seconds=seconds))
