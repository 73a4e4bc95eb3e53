"""What a running handler knows of its job, and what the jobs it enqueues inherit."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta

from jobqueue.claims import Claim, Lease
from jobqueue.exceptions import LeaseLost


@dataclass(frozen=True, slots=True)
class JobContext:
    """Handed to a task with ``takes_context=True`` as its first argument, ``context``."""

    claim: Claim
    lease: Lease
    #: When the attempt times out, on the clock of ``time.monotonic()``; None without a timeout.
    deadline: float | None
    _extend: Callable[[Lease], bool]

    @property
    def job_id(self) -> int:
        """The job's primary key; it stays the same through retries, dead-lettering and replay."""
        return self.claim.id

    @property
    def attempt(self) -> int:
        """The number of this attempt, 1 for the first."""
        return self.claim.attempts

    @property
    def max_attempts(self) -> int:
        """The number of the last attempt that the job will get."""
        return self.claim.max_attempts

    @property
    def correlation_id(self) -> str:
        """What ties this job to what caused it; the jobs that it enqueues inherit it."""
        return self.claim.correlation_id or f"job-{self.claim.id}"

    @property
    def actor(self) -> str:
        """Who asked for the job, as given to ``using(actor=...)``; empty when nobody was named."""
        return self.claim.actor

    @property
    def trace(self) -> dict[str, str]:
        """The trace headers given to ``using(trace=...)``, or inherited; empty without."""
        headers: dict[str, str] = json.loads(self.claim.trace) if self.claim.trace else {}
        return headers

    @property
    def idempotency_key(self) -> str:
        """A key that is the same for every attempt, for services that drop duplicates by key."""
        return f"{self.claim.task}:{self.claim.id}"

    @property
    def time_left(self) -> timedelta | None:
        """The time until the attempt times out; None without a timeout."""
        if self.deadline is None:
            return None
        return timedelta(seconds=max(self.deadline - time.monotonic(), 0.0))

    @property
    def lease_lost(self) -> bool:
        """Whether the lease is known to be lost: what is done from here on may be done twice."""
        return self.lease.lost or time.monotonic() >= self.lease.ends

    @property
    def cancel_requested(self) -> bool:
        """Whether someone asked for the job to be cancelled; seen with the next heartbeat."""
        return self.lease.cancel_requested

    def extend_lease(self) -> None:
        """Extend the lease now, not with the next heartbeat; raise LeaseLost if it is gone."""
        if not self._extend(self.lease):
            raise LeaseLost(f"the lease on job {self.job_id} is held by someone else")


#: The context of the job that runs in this thread or async task; None outside a job.
current: ContextVar[JobContext | None] = ContextVar("jobqueue_current", default=None)


def inherited_trace() -> str | None:
    """Return the trace headers, as JSON, that a job enqueued here takes over."""
    context = current.get()
    return context.claim.trace if context else None


def inherited_correlation_id() -> str:
    """Return the correlation id that a job enqueued here takes over; empty outside a job."""
    context = current.get()
    return context.correlation_id if context else ""
