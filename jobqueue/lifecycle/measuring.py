"""Measure: add up what workers have counted, and note once a minute how the queues stand."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic

from jobqueue import failpoints, stats
from jobqueue.lifecycle.alias import alias, store
from jobqueue.measures import (
    ALL,
    DISTRIBUTIONS,
    EVER,
    MINUTE,
    MOST_TRIES,
    NUMBERS,
    QUARTER,
    Counts,
    add,
    beginning,
    for_ever,
)
from jobqueue.models import Queue, Rollup, Sample

#: Depths are counted no further in samples.
MOST_SAMPLED = 100_000
#: Rollups changed by one statement.
_ROWS = 100

#: What tells one rollup from the others: span, start, queue and task.
_Key = tuple[int, datetime, str, str]
_KEY = ("span", "start", "queue_name", "task")


@failpoints.around
def count(
    counted: Mapping[tuple[str, str], Mapping[float, Counts]], *, using: str | None = None
) -> None:
    """Add what was counted of each queue and task to the rollups, all of it or nothing.

    The counts come with when they were made, on the monotonic clock of this process; the minute
    that they belong to is the database's. Two that add at the same time wait for each other.
    """
    if not counted:
        return
    using = alias(using)
    added = _by_rollup(counted, now=stats.now(using), asked=monotonic())
    for_good = [key for key in added if key[0] == EVER]
    passing = [key for key in added if key[0] != EVER]
    _make_known((name for name, _ in counted), using)
    _make_rows(for_good, using)
    with store(using).transaction():
        # First what all have in common: who waits for another's new minute waits here, and holds
        # nothing that the other needs.
        rows = _lock(for_good, using)
        _make_rows(passing, using)
        rows += _lock(passing, using)
        for row in rows:
            _add(row, added[_key(row)])
        fields = [*NUMBERS, *DISTRIBUTIONS]
        Rollup.objects.using(using).bulk_update(rows, fields, batch_size=_ROWS)


def _by_rollup(
    counted: Mapping[tuple[str, str], Mapping[float, Counts]], *, now: datetime, asked: float
) -> dict[_Key, Counts]:
    added: defaultdict[_Key, Counts] = defaultdict(Counts)
    for names, parts in counted.items():
        for made, counts in parts.items():
            at = now - timedelta(seconds=asked - made)
            added[(EVER, for_ever(), *names)].add(counts)
            for span in (MINUTE, QUARTER):
                for whose in (names, ALL):
                    added[(span, beginning(at, span), *whose)].add(counts)
    return dict(added)


def _make_known(names: Iterable[str], using: str) -> None:
    """Let operators find queues that have been seen; they are paused by their row."""
    seen = set(names)
    known = Queue.objects.using(using).filter(name__in=seen).values_list("name", flat=True)
    if missing := sorted(seen.difference(known)):
        rows = [Queue(name=name) for name in missing]
        Queue.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def _make_rows(keys: Sequence[_Key], using: str) -> None:
    """Write the rows that are not there, in one order, so that no two wait for each other."""
    rows = [Rollup(**dict(zip(_KEY, key, strict=True))) for key in sorted(keys)]
    Rollup.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def _lock(keys: Sequence[_Key], using: str) -> list[Rollup]:
    wanted = set(keys)
    columns = zip(_KEY, zip(*keys, strict=True), strict=True)
    near = Rollup.objects.using(using).filter(**{f"{name}__in": set(of) for name, of in columns})
    return [row for row in store(using).lock(near.order_by(*_KEY)) if _key(row) in wanted]


def _key(row: Rollup) -> _Key:
    return row.span, row.start, row.queue_name, row.task


def _add(row: Rollup, counts: Counts) -> None:
    """Add to a row, of which nothing falls below zero.

    What was claimed may be handed back after it was added. A counter for ever keeps it: whoever
    watches a counter takes a step back for a new beginning, and the whole for what came since.
    """

    def gain(more: int) -> int:
        return max(more, 0) if row.span == EVER else more

    for name in NUMBERS:
        setattr(row, name, max(getattr(row, name) + gain(getattr(counts, name)), 0))
    for name in DISTRIBUTIONS:
        total: Counter[str] = Counter()
        add(total, getattr(row, name))
        for number, more in getattr(counts, name).items():
            total[_slot(name, number)] += gain(more)
        setattr(row, name, {number: total[number] for number in total if total[number] > 0})


def _slot(name: str, number: int) -> str:
    """Return under what a number is kept: success at any late attempt is one."""
    return str(min(max(number, 1), MOST_TRIES) if name == "tries" else number)


@failpoints.around
def sample(*, using: str | None = None) -> float:
    """Note how the queues stand, unless another worker has; return what is left of this minute.

    What is left is in seconds, by the database's clock. Queues in which there is nothing have no
    row of their own.
    """
    using = alias(using)
    now = stats.now(using)
    minute = beginning(now, MINUTE)
    rows = Sample.objects.using(using)
    if not rows.filter(minute=minute, queue_name="").exists():
        whole = _standing(stats.figures(limit=MOST_SAMPLED, using=using))
        _, is_ours = rows.get_or_create(minute=minute, queue_name="", defaults=whole)
        if is_ours:
            _sample_each(minute, using)
    return MINUTE - (now - minute).total_seconds()


def _sample_each(minute: datetime, using: str) -> None:
    states = stats.states(limit=MOST_SAMPLED, using=using)
    _make_known((state.name for state in states), using)
    standings = [(state.name, _standing(state)) for state in states]
    Sample.objects.using(using).bulk_create(
        [
            Sample(minute=minute, queue_name=name, **standing)
            for name, standing in standings
            if any(standing.values())
        ],
        ignore_conflicts=True,
    )


def _standing(found: stats.Figures | stats.QueueState) -> dict[str, object]:
    return {
        "depth": found.depth,
        "oldest_age": found.oldest_age,
        "in_flight": found.in_flight,
        "dead_letters": found.dead_letters,
    }
