"""The values that pass between the worker, the lifecycle and the stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from jobqueue.states import Outcome, Reason, Status


class JobRequest(NamedTuple):
    """One validated job on its way into the table; ``args`` and ``kwargs`` are JSON text."""

    task: str
    args: str
    kwargs: str
    version: int
    queue_name: str
    priority: int
    max_attempts: int
    run_at: Any  # an aware datetime, or None
    run_in: float | None  # seconds from the database's now
    correlation_id: str
    actor: str
    trace: str | None


#: A job's id and the fence of one claim of it.
Key = tuple[int, int]


class Claim(NamedTuple):
    """What a worker holds of a job: enough to run it and, by ``fence``, to settle it."""

    id: int
    fence: int
    task: str
    args: str
    kwargs: str
    version: int
    queue_name: str
    priority: int
    run_after: Any  # as the store reads it; only good as a floor
    attempts: int
    max_attempts: int
    attempts_forgiven: int
    losses: int
    claimed_by: str
    correlation_id: str
    actor: str
    trace: str | None
    #: How long it had been due when it was claimed, in seconds by the database's clock.
    waited: float = 0.0

    @property
    def key(self) -> Key:
        """What tells this claim from every other, also from another claim of the same job."""
        return self.id, self.fence

    @property
    def has_attempts_left(self) -> bool:
        """Whether the job may be tried again should this attempt fail."""
        return self.attempts < self.max_attempts

    @property
    def tries(self) -> int:
        """The number of this attempt within its budget: snoozes and earlier lives do not count."""
        return max(self.attempts - self.attempts_forgiven, 1)


#: Where a worker's last claim from a queue ended, by priority: the (run_after, id) of the last job.
Floors = Mapping[int, tuple[Any, int]]


class Turn(NamedTuple):
    """A queue's turn in a claim: where to look for jobs, and how many may be taken there.

    With floors, jobs below them and other priorities are left to a claim without.
    """

    queue_name: str
    limit: int
    floors: Floors = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong, as text that every database can store."""

    error_class: str = ""
    message: str = ""
    traceback: str = ""
    fingerprint: str = ""


NO_FAILURE = Failure()


@dataclass(slots=True)
class Settlement:
    """What became of a claim: decided by the runner, written by the store if the fence holds.

    ``status`` is where the job goes; None means to the dead letters, for ``reason``. ``started``
    and ``finished`` are on this process's monotonic clock: the statement that records them turns
    them into the database's time by their age.

    ``doubted`` is what may have been recorded instead, by a commit of which no answer came.
    """

    claim: Claim
    outcome: Outcome
    status: Status | None
    reason: Reason | None = None
    delay: timedelta | None = None
    result: str | None = None
    failure: Failure = NO_FAILURE
    started: float = 0.0  # time.monotonic() of this process
    finished: float = 0.0
    doubted: Settlement | None = None

    @property
    def duration(self) -> float:
        """How long the attempt ran, in seconds."""
        return self.finished - self.started


@dataclass(slots=True)
class Lease:
    """The lease on one claim as this process knows it, on its monotonic clock.

    ``ends`` is counted from before the claim was sent, so it is never later than the database's
    ``claimed_until``.
    """

    claim: Claim
    span: float  # seconds
    claimed: float  # time.monotonic(), as are the next
    ends: float
    lost: bool = False
    cancel_requested: bool = False
