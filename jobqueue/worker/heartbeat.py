"""Keep the leases of what waits and runs, watch its time limits, and show that the worker lives."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from time import monotonic

from django.db import Error, close_old_connections, reset_queries

from jobqueue import lifecycle, logs, verdicts
from jobqueue.claims import Lease
from jobqueue.exceptions import TimedOut
from jobqueue.runner import Attempt
from jobqueue.worker.hand import Hand
from jobqueue.worker.presence import Presence
from jobqueue.worker.pulse import Pulse
from jobqueue.worker.settler import Settler
from jobqueue.worker.threads import Pause

#: The longest between two looks at what there is to do, in seconds.
TICK = 1.0
#: How long a handler may go on after it was told that its time is over, in seconds.
GRACE = 5.0
#: How soon a lease is extended again whose row was locked just now, in seconds.
SKIPPED = 0.2
#: The parts of a lease that may pass before it is extended: two more tries fit in what is left.
THIRD = 1 / 3


class Step:
    """What is done in the database over and over; when it fails, again after a growing pause.

    The heartbeat goes on without the database: the leases end by themselves if it stays away.
    """

    def __init__(self, work: Callable[[], None], *, longest: float = Pause.LONGEST) -> None:
        self._work = work
        self._pause = Pause(longest=longest)
        #: When to try again after a failure, on the monotonic clock.
        self.not_before = 0.0

    def do(self) -> None:
        """Do it, unless it failed just now."""
        if monotonic() < self.not_before:
            return
        try:
            self._work()
        except Error as error:
            close_old_connections()
            self.not_before = monotonic() + self._pause.next()
            logs.problem("worker.heartbeat_failed", error)
        else:
            self._pause.reset()


class Heartbeat:
    """The thread that extends leases and ends attempts that take too long."""

    def __init__(
        self,
        hand: Hand,
        settler: Settler,
        presence: Presence,
        *,
        using: str,
        on_stuck: Callable[[], None],
    ) -> None:
        self.hand = hand
        self.settler = settler
        self.presence = presence
        self.using = using
        self._on_stuck = on_stuck
        self.pulse = Pulse("heartbeat")
        self._pokes: SimpleQueue[bool] = SimpleQueue()
        # Seldom tried, a short lease that is claimed after an outage would end unextended.
        self._extend = Step(self._extend_due, longest=TICK)
        self._beat = Step(presence.beat_if_due)

    def poke(self) -> None:
        """Look again now: a deadline may be nearer than the next tick."""
        self._pokes.put(True)

    def close(self) -> None:
        """Let the thread end."""
        self._pokes.put(False)

    def work(self) -> None:
        """Beat until closed."""
        while self._rest():
            self.pulse.beat()
            reset_queries()  # grow for ever under DEBUG
            self._end_overdue()
            self._extend.do()
            self._beat.do()

    def _rest(self) -> bool:
        """Wait until something is due; return False when closed."""
        seconds = max(self._next_due() - monotonic(), 0.01)
        self.pulse.beat(rests=seconds)
        try:
            return self._pokes.get(timeout=seconds)
        except Empty:
            return True

    def _next_due(self) -> float:
        deadlines = [attempt.deadline for attempt in self.hand.running() if attempt.deadline]
        extensions = [_extension_due(lease) for lease in self.hand.leases() if not lease.lost]
        due = [max(extension, self._extend.not_before) for extension in extensions]
        return min([monotonic() + TICK, *deadlines, *due])

    def _extend_due(self) -> None:
        now = monotonic()
        due = [
            lease for lease in self.hand.leases() if not lease.lost and _extension_due(lease) <= now
        ]
        if due:
            lifecycle.extend(due, using=self.using)
            self._extend.not_before = now + SKIPPED  # what was locked is still due

    def _end_overdue(self) -> None:
        now = monotonic()
        for attempt in self.hand.running():
            if attempt.deadline is None or now < attempt.deadline:
                continue
            if not attempt.was_interrupted:
                attempt.interrupt()
                attempt.deadline = now + GRACE
            elif not attempt.is_abandoned:
                self._abandon(attempt)

    def _abandon(self, attempt: Attempt) -> None:
        """Record the time-out of a handler that cannot be stopped; the process must be replaced."""
        attempt.is_abandoned = True
        claim = attempt.claim
        logs.event(logging.ERROR, "worker.handler_stuck", job=claim.id, task=claim.task)
        error = TimedOut("the handler ran past its timeout and could not be interrupted")
        verdict = verdicts.failed(attempt.claim, attempt.task, error, started=attempt.started)
        self.settler.put(attempt.lease, replace(verdict, doubted=attempt.doubted))
        self.hand.drop(attempt.claim)
        self._on_stuck()


def _extension_due(lease: Lease) -> float:
    return lease.ends - lease.span * (1 - THIRD)
