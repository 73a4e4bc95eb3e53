"""What a worker does beside its jobs, now and then: clear away, add up counts, look at queues."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from queue import Empty, SimpleQueue
from time import monotonic

from django.db import connections

from jobqueue import lifecycle, logs
from jobqueue.lifecycle.alias import BATCH
from jobqueue.models import Worker
from jobqueue.worker.tally import Tally

#: How long between two rounds of pruning when everything old was cleared away, in seconds.
PAUSE = 60.0
#: How many batches of each kind one round deletes; a round that does all of them is soon followed.
BATCHES = 10
#: A worker's row without a heartbeat for so long belongs to a process that is gone.
GONE = timedelta(hours=1)
#: How long counts are kept in memory, in seconds, and so how much a killed worker takes with it.
FLUSH = (10.0, 15.0)
#: How far into a minute a worker looks whether somebody has noted how the queues stand.
INTO_THE_MINUTE = (1.0, 20.0)
#: The first look comes sooner: after a deploy, and for workers that do not live long.
FIRST_SAMPLE = (0.5, 5.0)
#: How long until a chore that failed is tried again, in seconds.
AGAIN = 15.0


class Chore:
    """Something that has to be done now and then, and may fail without harm to anything else.

    The work returns in how many seconds it is to be done again.
    """

    def __init__(
        self, work: Callable[[], float], *, failed: str, first: float, again: float = AGAIN
    ) -> None:
        self._work = work
        self._failed = failed
        self._again = again
        #: When to do it next, on the monotonic clock.
        self.due = monotonic() + first

    def do(self) -> None:
        """Do it now; after an error, again after a pause."""
        try:
            pause = self._work()
        except Exception as error:  # noqa: BLE001 - a figure must not end a worker
            logs.problem(self._failed, error)
            pause = self._again
        self.due = monotonic() + pause


class Janitor:
    """A thread of every worker; what one of them does is skipped by the others."""

    def __init__(self, tally: Tally, *, using: str, only_counts: bool = False) -> None:
        self.using = using
        self.tally = tally
        self._closed: SimpleQueue[None] = SimpleQueue()
        self.flush = Chore(self._flush, failed="worker.count_failed", first=_between(*FLUSH))
        self.sample = Chore(
            self._sample, failed="worker.sample_failed", first=_between(*FIRST_SAMPLE)
        )
        self.prune = Chore(
            self._prune, failed="worker.prune_failed", first=_between(0, PAUSE), again=PAUSE
        )
        #: Those of this worker.
        self.chores = [self.flush] if only_counts else [self.flush, self.sample, self.prune]

    def close(self) -> None:
        """Let the thread end."""
        self._closed.put(None)

    def finish(self) -> None:
        """Add what was counted to the end."""
        self.flush.do()

    def work(self) -> None:
        """Do what is due until closed."""
        while not self._is_closed_within(self._rest()):
            for chore in self.chores:
                if chore.due <= monotonic():
                    chore.do()
            connections.close_all()

    def _rest(self) -> float:
        return max(min(chore.due for chore in self.chores) - monotonic(), 0.0)

    def _is_closed_within(self, seconds: float) -> bool:
        try:
            self._closed.get(timeout=seconds)
        except Empty:
            return False
        return True

    def _flush(self) -> float:
        self.tally.flush()
        return _between(*FLUSH)

    def _sample(self) -> float:
        return lifecycle.sample(using=self.using) + _between(*INTO_THE_MINUTE)

    def _prune(self) -> float:
        """Delete some of what is old; soon again if there is likely more."""
        counts = lifecycle.prune(most_batches=BATCHES, using=self.using)
        Worker.objects.using(self.using).silent_for(GONE).delete()
        return 1.0 if max(counts.values()) >= BATCHES * BATCH else PAUSE


def _between(least: float, most: float) -> float:
    """Return a pause such that workers that started together do not go on together."""
    return random.uniform(least, most)  # noqa: S311 - not a secret
