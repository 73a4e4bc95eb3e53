"""Clear away what is older than the retention settings, a little at a time."""

from __future__ import annotations

import random
from datetime import timedelta
from queue import Empty, SimpleQueue

from django.db import Error, connections

from jobqueue import lifecycle, logs
from jobqueue.lifecycle.alias import BATCH
from jobqueue.models import Worker

#: How long between two rounds when everything old was cleared away, in seconds.
PAUSE = 60.0
#: How many batches of each kind one round deletes; a round that does all of them is soon followed.
BATCHES = 10
#: A worker's row without a heartbeat for so long belongs to a process that is gone.
GONE = timedelta(hours=1)


class Janitor:
    """A thread of every worker; rows that one of them deletes are skipped by the others."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        self._closed: SimpleQueue[None] = SimpleQueue()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.put(None)

    def work(self) -> None:
        """Clear away until closed; the first round comes after a random part of the pause."""
        pause = random.uniform(0, PAUSE)  # noqa: S311 - not a secret
        while not self._is_closed_within(pause):
            pause = 1.0 if self._round() else PAUSE
            connections.close_all()

    def _is_closed_within(self, seconds: float) -> bool:
        try:
            self._closed.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _round(self) -> bool:
        """Delete some of what is old; return whether there is likely more."""
        try:
            counts = lifecycle.prune(most_batches=BATCHES, using=self.using)
            Worker.objects.using(self.using).silent_for(GONE).delete()
        except Error as error:
            logs.problem("worker.prune_failed", error)
            return False
        return max(counts.values()) >= BATCHES * BATCH
