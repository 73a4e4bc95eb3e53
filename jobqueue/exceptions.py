"""What can go wrong, one sentence each."""

from __future__ import annotations

from datetime import timedelta

#: No span is longer: every database and every calendar must be able to add it to now.
LONGEST = timedelta(days=3650)


class JobQueueError(Exception):
    """Every error that jobqueue itself raises derives from this one."""


class InvalidTask(JobQueueError):
    """A function cannot be registered as a task: the message says which, and why."""


class UnknownTask(JobQueueError, LookupError):
    """No task is registered under the name that a job carries."""


class InvalidJob(JobQueueError, ValueError):
    """A job cannot be enqueued as asked: the message names the argument; nothing was written."""


class InvalidPayload(InvalidJob):
    """An argument holds a value that the database could not keep."""


class InvalidPayloadType(InvalidPayload, TypeError):
    """An argument holds a value that JSON has no type for."""


class InvalidArguments(InvalidPayload, TypeError):
    """The arguments do not fit the signature of the task's function."""


class InvalidPause(JobQueueError, ValueError):
    """A queue cannot be paused as asked: the message names the argument; nothing was written."""


class InvalidOperation(JobQueueError, ValueError):
    """A bulk operation cannot be carried out as asked; nothing was written."""


class DeletionIsOff(JobQueueError):
    """Dead letters are deleted for ever only where DELETE_DEAD_LETTERS is on."""


class LeaseLost(JobQueueError):
    """The lease on the job ended, and its outcome is no longer this worker's to record."""


class WorkerLives(JobQueueError):
    """The leases of a worker cannot be released all at once: it was heard of a moment ago."""


class PayloadRefused(JobQueueError):
    """The stored payload cannot be read, or does not fit the signature of its task."""


class UnsupportedVersion(JobQueueError):
    """The job's payload has a version that the registered task cannot read."""


class NotAuthorised(JobQueueError):
    """Who asked for the job may not, or no longer, do what it does."""


class TimedOut(JobQueueError):
    """The attempt ran for longer than its task's timeout."""


class LeakedTransaction(JobQueueError):
    """The handler returned with a transaction still open; it was rolled back."""


class Retry(Exception):
    """Raised by a handler: this attempt failed, try again after ``delay``.

    ``delay`` is a timedelta or a number of seconds (as in a Retry-After header); None, the
    default, leaves it to the task's backoff. Counts as a failed attempt.
    """

    def __init__(self, message: str = "", *, delay: timedelta | float | None = None) -> None:
        super().__init__(message or "the handler asked for a retry")
        self.delay = as_timedelta(delay)


class Discard(Exception):
    """Raised by a handler: trying again is pointless, dead-letter the job with this reason."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "the handler discarded the job")


class Snooze(Exception):
    """Raised by a handler: not now, come back after ``delay``; not a failure (after Oban's snooze).

    ``delay`` is a timedelta or a number of seconds. The attempt is recorded, and the job gets
    one more on top of its budget.
    """

    def __init__(self, delay: timedelta | float) -> None:
        super().__init__(f"snoozed for {delay}")
        self.delay = as_timedelta(delay)


def as_timedelta(delay: timedelta | float | None) -> timedelta | None:
    """Read a span given as a timedelta or in seconds; a negative one means at once."""
    if delay is None:
        return None
    if not isinstance(delay, timedelta):
        delay = timedelta(seconds=max(min(delay, LONGEST.total_seconds()), 0))
    return max(min(delay, LONGEST), timedelta(0))
