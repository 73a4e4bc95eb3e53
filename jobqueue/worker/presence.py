"""The row by which a worker shows that it lives."""

from __future__ import annotations

import os
import socket
from functools import partial
from time import monotonic

from django.db.models.functions import Now

from jobqueue import failpoints
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import WorkerState
from jobqueue.worker.options import WorkerOptions

#: The longest between two beats, in seconds.
LONGEST = 20.0


def _alias(presence: Presence) -> str:
    return presence.options.using


class Presence:
    """One worker's row: there while it runs, renewed as often as its leases."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.interval = min(options.lease.total_seconds() / 3, LONGEST)
        #: Whether the row asks for notifications of new jobs.
        self.listens = False
        self._due = 0.0
        self._is_announced = False
        self._state = WorkerState.RUNNING

    def beat_if_due(self) -> None:
        """Renew the row when it is time to."""
        if monotonic() >= self._due:
            self.beat()

    @partial(failpoints.around, using=_alias)
    def beat(self) -> None:
        """Write the row with the database's time."""
        rows = WorkerRow.objects.using(self.options.using)
        own = rows.filter(name=self.options.name)
        if not self._is_announced:
            own.delete()  # a process of this name was killed
        if not own.update(state=self._state, heartbeat_at=Now()):
            rows.create(
                name=self.options.name,
                state=self._state,
                host=socket.gethostname(),
                pid=os.getpid(),
                queues=self.options.queues_text,
                concurrency=self.options.concurrency,
                lease=self.options.lease,
                listens=self.listens,
            )
        self._is_announced = True
        self._due = monotonic() + self.interval

    def listen(self, listens: bool) -> None:  # noqa: FBT001 - what it sets
        """Ask for notifications of new jobs, or no longer."""
        row = WorkerRow.objects.using(self.options.using).filter(name=self.options.name)
        found = row.update(listens=listens, heartbeat_at=Now())
        self.listens = listens and bool(found)  # the first beat may not have written it yet

    def draining(self) -> None:
        """Say so with the next beat, at once."""
        self._state = WorkerState.DRAINING
        self._due = 0.0

    @partial(failpoints.around, using=_alias)
    def leave(self) -> None:
        """Delete the row."""
        WorkerRow.objects.using(self.options.using).filter(name=self.options.name).delete()
