"""Run attempts, one a thread."""

from __future__ import annotations

from collections.abc import Callable
from queue import Empty
from threading import Thread
from time import monotonic

from django.db import connections

from jobqueue.claims import Lease
from jobqueue.runner import Attempt
from jobqueue.worker.connections import ThreadConnections
from jobqueue.worker.hand import Hand
from jobqueue.worker.settler import Settler
from jobqueue.worker.threads import start_thread

#: A thread without work for so long, in seconds, closes its connections.
IDLE = 30.0


class Executor:
    """The threads that call handlers."""

    def __init__(
        self,
        hand: Hand,
        settler: Settler,
        *,
        using: str,
        on_deadline: Callable[[], None],
        on_finish: Callable[[], None],
    ) -> None:
        self.hand = hand
        self.settler = settler
        self.using = using
        self._on_deadline = on_deadline
        self._on_finish = on_finish
        self.threads: list[Thread] = []

    def start(self, concurrency: int, *, failed: Callable[[], None]) -> None:
        """Start the threads."""
        for number in range(concurrency):
            self.threads.append(start_thread(f"run-{number}", self.work, failed=failed))

    def work(self) -> None:
        """Run jobs until there will be no more."""
        kept = ThreadConnections()
        while lease := self._take():
            if lease.lost or monotonic() >= lease.ends:
                self.hand.drop(lease.claim)  # this process stood still: the job is another's
            else:
                self._run(lease, kept)
            self._on_finish()

    def _take(self) -> Lease | None:
        try:
            return self.hand.take(timeout=IDLE)
        except Empty:
            connections.close_all()
            return self.hand.take()

    def _run(self, lease: Lease, kept: ThreadConnections) -> None:
        attempt = Attempt(
            lease, using=self.using, on_deadline=self._on_deadline, in_transactions={}
        )
        self.hand.start(attempt)
        kept.before_job()
        settlement = attempt.run()
        kept.after_job()
        if not (attempt.is_settled or attempt.is_abandoned):
            self.settler.put(lease, settlement)
        self.hand.drop(lease.claim)
