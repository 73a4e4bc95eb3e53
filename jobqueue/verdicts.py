"""What follows from an exception: retry, snooze or dead letter, and why."""

from __future__ import annotations

import logging
from datetime import timedelta
from time import monotonic
from typing import Any

from jobqueue import conf, failures, logs
from jobqueue.backoff import Exponential, delay_after
from jobqueue.claims import Claim, Settlement
from jobqueue.exceptions import (
    Discard,
    NotAuthorised,
    PayloadRefused,
    Retry,
    Snooze,
    TimedOut,
    UnknownTask,
    UnsupportedVersion,
)
from jobqueue.registry import Task
from jobqueue.states import Outcome, Reason, Status

#: Errors for which another attempt would change nothing.
_FINAL: dict[type[BaseException], Reason] = {
    Discard: Reason.DISCARDED,
    PayloadRefused: Reason.INVALID_PAYLOAD,
    NotAuthorised: Reason.NOT_AUTHORISED,
}
#: Why a job is dead when its last attempt ended like this; otherwise its attempts are exhausted.
_LAST_STRAW: dict[type[BaseException], Reason] = {
    TimedOut: Reason.TIMED_OUT,
    UnknownTask: Reason.UNKNOWN_TASK,
    UnsupportedVersion: Reason.UNSUPPORTED_VERSION,
}


def failed(
    claim: Claim, task: Task[..., Any] | None, error: BaseException, *, started: float
) -> Settlement:
    """Return the settlement of an attempt that ended with ``error``."""
    if isinstance(error, Snooze):
        return Settlement(
            claim,
            Outcome.SNOOZED,
            Status.SCHEDULED,
            delay=error.delay,
            started=started,
            finished=monotonic(),
        )
    reason = _reason(claim, task, error)
    return Settlement(
        claim,
        Outcome.TIMED_OUT if isinstance(error, TimedOut) else Outcome.FAILED,
        status=Status.SCHEDULED if reason is None else None,
        reason=reason,
        delay=_delay(claim, task, error) if reason is None else None,
        failure=failures.describe(error),
        started=started,
        finished=monotonic(),
    )


def _reason(claim: Claim, task: Task[..., Any] | None, error: BaseException) -> Reason | None:
    """Return why the job gives up, or None when it is tried again."""
    for kind, reason in _FINAL.items():
        if isinstance(error, kind):
            return reason
    if isinstance(error, UnsupportedVersion) and task and claim.version < task.version:
        return Reason.UNSUPPORTED_VERSION  # no deploy will bring the old code back
    if task and not _is_retried(task, error):
        return Reason.NOT_RETRYABLE
    if claim.has_attempts_left:
        return None
    return _LAST_STRAW.get(type(error), Reason.ATTEMPTS_EXHAUSTED)


def _is_retried(task: Task[..., Any], error: BaseException) -> bool:
    if isinstance(error, Retry | TimedOut | UnsupportedVersion):
        return True
    if task.give_up_on and isinstance(error, task.give_up_on):
        return False
    return not task.retry_on or isinstance(error, task.retry_on)


def _delay(claim: Claim, task: Task[..., Any] | None, error: BaseException) -> timedelta:
    if isinstance(error, UnknownTask | UnsupportedVersion):
        return conf.get().UNKNOWN_TASK_DELAY
    if isinstance(error, Retry) and error.delay is not None:
        return error.delay
    backoff = (task.backoff if task else None) or conf.get().BACKOFF
    try:
        return delay_after(claim.tries, backoff)
    except Exception:  # noqa: BLE001 - a project's function must not cost the job its outcome
        told = {"job": claim.id, "task": claim.task}
        logs.event(logging.ERROR, "job.backoff_failed", **told, with_traceback=True)
        return delay_after(claim.tries, Exponential())
