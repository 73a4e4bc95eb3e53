"""Settle outcomes as a group commit: all that wait in one statement, then all that came since."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import inf
from queue import Empty, SimpleQueue
from time import monotonic, sleep
from typing import NamedTuple

from django.db import (
    DataError,
    Error,
    IntegrityError,
    ProgrammingError,
    close_old_connections,
    reset_queries,
)

from jobqueue import lifecycle, logs
from jobqueue.claims import Failure, Key, Lease, Settlement
from jobqueue.worker.pulse import Pulse
from jobqueue.worker.threads import Pause

#: Settlements in one statement: enough to share a commit, few enough to be brief.
MOST = 500

#: The longest between two tries, in seconds: a short lease leaves time for few.
LONGEST_PAUSE = 1.0

#: Errors that the content of a row can cause; any other is taken for the database being away.
_ABOUT_THE_ROW = (DataError, IntegrityError, ProgrammingError)


class Ended(NamedTuple):
    """An outcome on its way, with the lease under which it may be recorded."""

    lease: Lease
    settlement: Settlement


class Settler:
    """Takes outcomes from the threads and records them, whatever the database does meanwhile."""

    def __init__(self, *, using: str, on_settled: Callable[[list[Settlement]], None]) -> None:
        self.using = using
        self.pulse = Pulse("settle")
        self._queue: SimpleQueue[Ended | None] = SimpleQueue()
        self._unsettled: dict[Key, Lease] = {}
        self._on_settled = on_settled

    def __len__(self) -> int:
        """Return how many outcomes are not recorded yet."""
        return len(self._unsettled)

    def put(self, lease: Lease, settlement: Settlement) -> None:
        """Hand over an outcome; called from any thread."""
        self._unsettled[lease.claim.key] = lease
        self._queue.put(Ended(lease, settlement))

    def close(self) -> None:
        """Let the thread end once everything handed over is recorded or given up."""
        self._queue.put(None)

    def work(self) -> None:
        """Settle until closed."""
        while batch := self._take():
            self._settle(batch)
            reset_queries()  # grow for ever under DEBUG
            for lease, _ in batch:
                self._unsettled.pop(lease.claim.key, None)
            self._on_settled([settlement for _, settlement in batch])

    def _take(self) -> list[Ended]:
        """Wait for an outcome and return all that are there; none when closed."""
        batch: list[Ended] = []
        self.pulse.beat(rests=inf)
        ended = self._queue.get()
        while ended is not None:
            batch.append(ended)
            if len(batch) == MOST:
                return batch
            try:
                ended = self._queue.get_nowait()
            except Empty:
                return batch
        if batch:
            self._queue.put(None)  # for the next turn
        return batch

    def _settle(self, batch: list[Ended], *, again: bool = False) -> None:
        """Record a batch; while the database is away try again, until the leases have ended."""
        pause = Pause(longest=LONGEST_PAUSE)
        while batch:
            self.pulse.beat()
            try:
                lifecycle.settle(
                    [ended.settlement for ended in batch], using=self.using, again=again
                )
                return
            except _ABOUT_THE_ROW as error:
                self._settle_one_by_one(batch, error)
                return
            except Error as error:
                close_old_connections()
                again = True  # the statement may have been committed before its answer was lost
                logs.problem("worker.settle_failed", error, jobs=len(batch))
            sleep(pause.next())
            batch = self._still_held(batch)

    def _still_held(self, batch: list[Ended]) -> list[Ended]:
        """Let go of outcomes whose lease has ended: their jobs will be rescued."""
        now = monotonic()
        for ended in batch:
            if ended.lease.ends <= now:
                _unrecorded(ended.settlement, "the lease ended")
        return [ended for ended in batch if ended.lease.ends > now]

    def _settle_one_by_one(self, batch: list[Ended], error: Error) -> None:
        """Find the outcome that the database refuses, and record that one without its texts."""
        if len(batch) > 1:
            for ended in batch:
                self._settle([ended], again=True)
            return
        settlement = batch[0].settlement
        logs.problem("job.unrecordable", error, job=settlement.claim.id)
        bare = replace(
            settlement,
            result=None,
            failure=Failure(error_class="unrecordable", message="its details could not be stored"),
        )
        try:
            lifecycle.settle([bare], using=self.using, again=True)
        except Error as second:
            _unrecorded(settlement, str(second))


def _unrecorded(settlement: Settlement, why: str) -> None:
    """Say that an outcome is given up: the job's lease will end, and it will be rescued."""
    logs.event(logging.ERROR, "job.unrecorded", job=settlement.claim.id, err=why)
