"""Sums over the rollups of a span of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from django.db.models import QuerySet

from jobqueue.measures import ALL, KEPT, MINUTE, NUMBERS, QUARTER, add, beginning, percentile
from jobqueue.models import Rollup
from jobqueue.stats.live import now

HOUR = timedelta(hours=1)
#: What is told of a distribution.
SHARES = (0.5, 0.95, 0.99)


@dataclass(slots=True)
class Sums:
    """What several rollups hold together."""

    counts: Counter[str] = field(default_factory=Counter)
    waits: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)

    def add(self, row: Mapping[str, object]) -> None:
        """Add one row, as ``values()`` gives it."""
        for name in NUMBERS:
            self.counts[name] += row[name]  # type: ignore[operator]
        for name in ("waits", "runs"):
            add(getattr(self, name), row.get(name) or {})  # type: ignore[arg-type]


def percentiles(distribution: Mapping[str, int]) -> tuple[float | None, ...]:
    """Return the median and the two percentiles above it, in seconds."""
    return tuple(percentile(distribution, share) for share in SHARES)


def width(span: timedelta) -> int:
    """Return the width of the rollups that reach back so far."""
    return MINUTE if span <= KEPT[MINUTE] else QUARTER


def since(span: timedelta, *, using: str) -> QuerySet[Rollup]:
    """Return the rollups of each queue and task in the latest ``span``, this minute included.

    From an hour on they are quarters, a fifteenth of the rows; the first may begin before the span.
    """
    seconds = QUARTER if span >= HOUR else MINUTE
    first = beginning(now(using) - span, seconds)
    rows = Rollup.objects.using(using).filter(span=seconds, start__gte=first)
    return rows.exclude(queue_name=ALL[0])
