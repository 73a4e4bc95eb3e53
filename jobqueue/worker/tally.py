"""Count what is claimed and what becomes of it, in memory: no job costs a write for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from itertools import islice
from threading import Lock
from time import monotonic
from typing import Any

from django.db import Error

from jobqueue import lifecycle, signals
from jobqueue.claims import Claim, Key, Settlement
from jobqueue.measures import BOUNDS, Counts, bucket
from jobqueue.states import Outcome, Status

#: Counts are kept apart by the seconds in which they were made: so exact are their minutes.
SLICE = 5.0
#: Queues and tasks that are added in one transaction.
PAIRS = 100
#: So many counts are kept, by queue, task and slice, while they cannot be added; the oldest go.
MOST_KEPT = 20_000
#: The longest that the worker's end waits for counts that are being added, in seconds.
LEAVING = 2.0

#: By queue and task, and then by when they were made on the monotonic clock.
Counted = dict[tuple[str, str], dict[float, Counts]]

_SUCCEEDED = Outcome.SUCCEEDED


class Tally:
    """What one worker has counted and not yet added to the rollups.

    Its threads share it. They lock it once for all claims, or outcomes, of one statement.
    """

    def __init__(self, *, using: str) -> None:
        self.using = using
        self._lock = Lock()
        self._flushing = Lock()
        self._slices: dict[float, defaultdict[tuple[str, str], Counts]] = {}

    def open(self) -> None:
        """Count what this process settles from now on."""
        signals.group_settled.connect(self.settled)

    def close(self) -> None:
        """Count no more."""
        signals.group_settled.disconnect(self.settled)

    def claimed(self, claims: Sequence[Claim]) -> None:
        """Count claims, and how long their jobs had been due."""
        with self._counting() as slice_:
            for claim in claims:
                counts = slice_[claim.queue_name, claim.task]
                counts.claimed += 1
                counts.waits[bisect_left(BOUNDS, claim.waited)] += 1

    def settled(
        self,
        *,
        settlements: Sequence[Settlement],
        recorded: AbstractSet[Key],
        using: str,
        **_: Any,
    ) -> None:
        """Count outcomes, but for those that were refused."""
        if using != self.using:
            return
        if len(recorded) < len(settlements):
            settlements = [each for each in settlements if each.claim.key in recorded]
        with self._counting() as slice_:
            for settlement in settlements:
                claim = settlement.claim
                counts = slice_[claim.queue_name, claim.task]
                if settlement.outcome is _SUCCEEDED:  # spelled out: a worker does so all day
                    took = settlement.finished - settlement.started
                    counts.succeeded += 1
                    counts.runs[bisect_left(BOUNDS, took)] += 1
                    counts.tries[claim.attempts - claim.attempts_forgiven] += 1
                else:
                    _count(settlement, counts)

    @contextmanager
    def _counting(self) -> Iterator[defaultdict[tuple[str, str], Counts]]:
        with self._lock:
            made = monotonic() // SLICE * SLICE
            slice_ = self._slices.get(made)
            if slice_ is None:
                slice_ = self._slices[made] = defaultdict(Counts)
            yield slice_

    def flush(self) -> None:
        """Add what was counted to the rollups; after an error it is kept for the next time."""
        if not self._flushing.acquire(timeout=LEAVING):
            return  # another thread has what was counted
        try:
            self._add(self._take())
        finally:
            self._flushing.release()

    def _add(self, counted: Counted) -> None:
        try:
            while counted:
                pairs = list(islice(sorted(counted), PAIRS))
                lifecycle.count({pair: counted[pair] for pair in pairs}, using=self.using)
                for pair in pairs:
                    del counted[pair]
        except Error:
            self._keep(counted)
            raise

    def _take(self) -> Counted:
        with self._lock:
            slices, self._slices = self._slices, {}
        counted: Counted = defaultdict(dict)
        for made, slice_ in slices.items():
            for pair, counts in slice_.items():
                counted[pair][made] = counts
        return counted

    def _keep(self, counted: Mapping[tuple[str, str], Mapping[float, Counts]]) -> None:
        with self._lock:
            for pair, parts in counted.items():
                for made, counts in parts.items():
                    self._slices.setdefault(made, defaultdict(Counts))[pair].add(counts)
            while sum(map(len, self._slices.values())) > MOST_KEPT:
                del self._slices[min(self._slices)]


def _count(settlement: Settlement, counts: Counts) -> None:
    match settlement.outcome:
        case Outcome.RELEASED:
            counts.claimed -= 1
            counts.waits[bucket(settlement.claim.waited)] -= 1
        case Outcome.FAILED | Outcome.TIMED_OUT:
            counts.runs[bucket(settlement.duration)] += 1
            _count_failure(settlement, counts)
        case Outcome.LOST:
            _count_failure(settlement, counts)


def _count_failure(settlement: Settlement, counts: Counts) -> None:
    if settlement.status is None:
        counts.died += 1
    elif settlement.status is not Status.CANCELLED:
        counts.retried += 1
    else:
        return
    if settlement.outcome is Outcome.LOST:
        counts.lost += 1
