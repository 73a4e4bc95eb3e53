"""Carry out bulk operations beside the jobs, for as long as there are any."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from time import monotonic

from django.db import connections

from jobqueue import lifecycle, logs
from jobqueue.worker.threads import Pause

#: The longest rest while operations run: another may be asked for meanwhile. In seconds.
MOST_REST = 1.0


class Operator:
    """A thread of every worker; it rests, without a connection, until it is told of work."""

    def __init__(self, *, using: str) -> None:
        self.using = using
        #: Whether it has been told of work and has not come to the end of it.
        self.is_at_work = False
        self._calls: SimpleQueue[bool] = SimpleQueue()  # True: there is work; False: the end
        self._pause = Pause()

    def poke(self) -> None:
        """Say that there is work."""
        if not self.is_at_work:
            self.is_at_work = True
            self._calls.put(True)

    def close(self) -> None:
        """Let the thread end, after the batch that it is at."""
        self._calls.put(False)

    def work(self) -> None:
        """Carry out what there is whenever told to, until closed."""
        while self._calls.get():
            rest: float | None = 0.0
            while rest is not None:
                if self._is_closed_within(min(rest, MOST_REST)):
                    return
                rest = self._advance()
            self.is_at_work = False
            connections.close_all()

    def _is_closed_within(self, seconds: float) -> bool:
        try:
            return not self._calls.get(timeout=seconds)
        except Empty:
            return False

    def _advance(self) -> float | None:
        """Do a batch; return how long to rest. An error undid the batch, which is tried again.

        A rest is no shorter than the batch: on SQLite nobody else writes while one is carried out.
        """
        began = monotonic()
        try:
            rest = lifecycle.bulk.advance(using=self.using)
        except Exception as error:  # noqa: BLE001 - an operation's fault must not end the worker
            connections.close_all()
            pause = self._pause.next()
            logs.problem("worker.bulk_failed", error, retry_in_s=round(pause, 1))
            return pause
        self._pause.reset()
        return None if rest is None else max(rest, monotonic() - began)
