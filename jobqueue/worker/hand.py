"""The jobs in a worker's hands, from claim to settlement: shared by its threads."""

from __future__ import annotations

from collections.abc import Collection
from queue import Empty, SimpleQueue

from jobqueue.claims import Claim, Key, Lease
from jobqueue.runner import Attempt


class Hand:
    """What this process holds: jobs wait for a thread, run, and are let go when they are finished.

    The heartbeat extends what waits and what runs. The lease of a finished job is left to end, so
    that a job whose outcome cannot be recorded does not stay with a living worker for ever.

    A process that stood still may claim a job anew of which it still runs a lost attempt: claims
    are told apart by their fence, too.

    Threads share it without a lock: each entry of a dict is set and removed by one thread at a
    time, and readers take a copy.
    """

    def __init__(self) -> None:
        self._waiting: SimpleQueue[Lease | None] = SimpleQueue()
        self._leases: dict[Key, Lease] = {}
        self._attempts: dict[Key, Attempt] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def add(self, lease: Lease) -> None:
        """Take a newly claimed job in hand; it waits behind those that came before."""
        self._leases[lease.claim.key] = lease
        self._waiting.put(lease)

    def take(self, timeout: float | None = None) -> Lease | None:
        """Wait for a job to run; None when there will be no more. Raise Empty at a timeout."""
        return self._waiting.get(timeout=timeout)

    def start(self, attempt: Attempt) -> None:
        """Note that a job runs."""
        self._attempts[attempt.claim.key] = attempt

    def drop(self, claim: Claim) -> None:
        """Let go of a job that is finished, or lost."""
        self._attempts.pop(claim.key, None)
        self._leases.pop(claim.key, None)

    def leases(self) -> list[Lease]:
        """Return the leases to be extended."""
        return list(self._leases.values())

    def running(self) -> list[Attempt]:
        """Return the attempts that run."""
        return list(self._attempts.values())

    def count(self, queue_name: str) -> int:
        """Return how many jobs of one queue are in hand."""
        return sum(lease.claim.queue_name == queue_name for lease in self.leases())

    def waiting_since(self) -> float | None:
        """Return when the oldest waiting job was claimed (monotonic); None when none waits."""
        running = self._attempts
        times = [lease.claimed for lease in self.leases() if lease.claim.key not in running]
        return min(times, default=None)

    def take_back(self, queue_names: Collection[str] | None = None) -> list[Lease]:
        """Take jobs from the line that no thread has started, of these queues or all of them."""
        leases: list[Lease] = []
        for lease in self._take_line():
            if queue_names is None or lease.claim.queue_name in queue_names:
                leases.append(lease)
                self.drop(lease.claim)
            else:
                self._waiting.put(lease)
        return leases

    def _take_line(self) -> list[Lease]:
        line: list[Lease] = []
        while True:
            try:
                lease = self._waiting.get_nowait()
            except Empty:
                return line
            if lease is not None:
                line.append(lease)

    def close(self, threads: int) -> None:
        """Tell the threads that there will be no more jobs."""
        for _ in range(threads):
            self._waiting.put(None)
