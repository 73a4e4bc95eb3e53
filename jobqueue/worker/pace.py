"""How many jobs to hold beyond those that run: none where jobs are slow, many where quick."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.claims import Settlement

#: The work that may wait for a thread, in seconds: enough to bridge a claim, too little to hoard.
HOLD = 0.2
#: The most jobs that may wait, however quick they are.
MOST = 500
#: How much the newest batch of outcomes counts in the mean.
WEIGHT = 0.3


class Pace:
    """A running mean of how long this worker's jobs take."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._mean: float | None = None

    def observe(self, settlements: Sequence[Settlement]) -> None:
        """Take the durations of finished attempts into account."""
        mean = sum(each.duration for each in settlements) / len(settlements)
        old = self._mean
        self._mean = mean if old is None else old + WEIGHT * (mean - old)

    def forget(self) -> None:
        """Hold nothing back until jobs finish again: those that run are slower than was thought."""
        self._mean = None

    @property
    def prefetch(self) -> int:
        """How many jobs may wait for a thread."""
        if self._mean is None:
            return 0
        return min(int(self.concurrency * HOLD / max(self._mean, 1e-6)), MOST)
