"""What happened over an hour or a day, as points of equal width."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import router

from jobqueue.measures import ALL, NUMBERS, beginning
from jobqueue.models import Rollup, Sample
from jobqueue.stats.live import now
from jobqueue.stats.rollups import Sums, percentiles, width


class Point(NamedTuple):
    """What happened in one span of time, and how the queue stood in it at its worst.

    Waits and runs are percentiles in seconds; they are None when nothing was measured, and what
    follows them is None when nobody took a sample.
    """

    start: datetime
    seconds: int
    claimed: int
    succeeded: int
    retried: int
    died: int
    lost: int
    wait_p50: float | None
    wait_p95: float | None
    wait_p99: float | None
    run_p50: float | None
    run_p95: float | None
    run_p99: float | None
    depth: int | None
    oldest_age: timedelta | None
    in_flight: int | None
    dead_letters: int | None


#: How a queue stood: depth, oldest age, in flight, dead letters.
_Standing = tuple[Any, ...]
_STANDING = ("depth", "oldest_age", "in_flight", "dead_letters")
_NOTHING: _Standing = (0, None, 0, 0)
_UNKNOWN: _Standing = (None,) * len(_STANDING)


def history(
    *, span: timedelta, queue_name: str | None = None, using: str | None = None
) -> list[Point]:
    """Return the points of the latest ``span``, oldest first, of one queue or of all.

    Up to three hours they are minutes, beyond that quarters of an hour, eight days of them. The
    last is the last that is over. A point is there when nothing happened, too.
    """
    using = using or router.db_for_read(Rollup)
    seconds = width(span)
    step = timedelta(seconds=seconds)
    end = beginning(now(using), seconds)
    starts = [end - number * step for number in range(span // step, 0, -1)]
    if not starts:
        return []
    sums = _sums(seconds, starts[0], end, queue_name, using=using)
    standings = _standings(seconds, starts[0], end, queue_name or "", using=using)
    return [_point(start, seconds, sums[start], standings.get(start)) for start in starts]


def _sums(
    seconds: int, first: datetime, end: datetime, queue_name: str | None, *, using: str
) -> defaultdict[datetime, Sums]:
    rows = Rollup.objects.using(using).filter(
        span=seconds, start__gte=first, start__lt=end, queue_name=queue_name or ALL[0]
    )
    sums: defaultdict[datetime, Sums] = defaultdict(Sums)
    for row in rows.values("start", *NUMBERS, "waits", "runs"):
        sums[row["start"]].add(row)
    return sums


def _standings(
    seconds: int, first: datetime, end: datetime, queue_name: str, *, using: str
) -> dict[datetime, _Standing]:
    """Return the worst of each span: a peak must not vanish in a picture of the day."""
    samples = Sample.objects.using(using).filter(
        queue_name__in=["", queue_name], minute__gte=first, minute__lt=end
    )
    worst: dict[datetime, _Standing] = {}
    for minute, name, *standing in samples.values_list("minute", "queue_name", *_STANDING):
        start = beginning(minute, seconds)
        # Somebody looked, and a queue in which there is nothing has no row of its own.
        seen = standing if name == queue_name else _NOTHING
        pairs = zip(worst.get(start, _UNKNOWN), seen, strict=True)
        worst[start] = tuple(_larger(one, other) for one, other in pairs)
    return worst


def _larger(one: Any, other: Any) -> Any:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


def _point(start: datetime, seconds: int, sums: Sums, standing: _Standing | None) -> Point:
    counts = [sums.counts[name] for name in NUMBERS]
    spans = [*percentiles(sums.waits), *percentiles(sums.runs)]
    return Point._make([start, seconds, *counts, *spans, *(standing or _UNKNOWN)])
