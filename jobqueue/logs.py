"""The only module that writes log lines of jobs: ``event key=value ...``, never a payload."""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from jobqueue import signals
from jobqueue.claims import Claim, Settlement
from jobqueue.states import Outcome

logger = logging.getLogger("jobqueue")

_LEVELS = {0: logging.ERROR, 1: logging.INFO}


def show_in_foreground(verbosity: int) -> None:
    """Let a worker in the foreground be seen: stock logging shows nothing of an app at INFO.

    Does nothing where the project's LOGGING has handlers for this logger, or for the root logger.
    """
    if logger.hasHandlers():
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))


@receiver(signals.started, dispatch_uid="jobqueue.logs")
def _started(claim: Claim, **_: Any) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        _write(logging.DEBUG, "job.started", claim)


@receiver(signals.settled, dispatch_uid="jobqueue.logs")
def _settled(settlement: Settlement, **_: Any) -> None:
    level = logging.INFO
    if settlement.status is None:
        level = logging.ERROR
    elif settlement.outcome in (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.LOST):
        level = logging.WARNING
    if logger.isEnabledFor(level):
        _write(level, _event(settlement), settlement.claim, **_details(settlement))


@receiver(signals.lease_lost, dispatch_uid="jobqueue.logs")
def _lease_lost(settlement: Settlement, **_: Any) -> None:
    details = {"refused": settlement.outcome.value, **_details(settlement)}
    _write(logging.WARNING, "job.lease_lost", settlement.claim, **details)


@receiver(signals.worker_started, dispatch_uid="jobqueue.logs")
def _worker_started(worker: Any, **_: Any) -> None:
    logger.info("worker.started worker=%s", worker.options.name)


@receiver(signals.worker_draining, dispatch_uid="jobqueue.logs")
def _worker_draining(worker: Any, **_: Any) -> None:
    logger.info(
        "worker.draining worker=%s running=%s", worker.options.name, len(worker.hand.running())
    )


@receiver(signals.worker_stopped, dispatch_uid="jobqueue.logs")
def _worker_stopped(worker: Any, **_: Any) -> None:
    logger.info("worker.stopped worker=%s exit_code=%s", worker.options.name, worker.exit_code)


def _event(settlement: Settlement) -> str:
    if settlement.status is None:
        return "job.dead"
    if settlement.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return "job.retrying"
    return f"job.{settlement.outcome.value}"


def _details(settlement: Settlement) -> dict[str, Any]:
    details: dict[str, Any] = {"duration_ms": round(settlement.duration * 1000)}
    if settlement.delay is not None:
        details["retry_in_s"] = round(settlement.delay.total_seconds(), 1)
    if settlement.reason is not None:
        details["reason"] = settlement.reason.value
    if settlement.failure.error_class:
        details["err"] = settlement.failure.error_class
    return details


def _write(level: int, event: str, claim: Claim, **details: Any) -> None:
    """Log one line; its values are also fields of the record, for structured handlers.

    The record goes to the handlers by hand: a worker writes many, and looking for the calling
    frame, which is always this one, would double their cost.
    """
    fields = {
        "job": claim.id,
        "task": claim.task,
        "queue": claim.queue_name,
        "attempt": f"{claim.attempts}/{claim.max_attempts}",
        "worker": claim.claimed_by,
        "correlation_id": claim.correlation_id or f"job-{claim.id}",
        **details,
    }
    line = " ".join([event, *[f"{key}={value}" for key, value in fields.items()]])
    if not line.isprintable():  # a row may have been put in by SQL: no line breaks, no escapes
        line = line.encode("unicode_escape").decode()
    extra = {"event": event, "fields": fields}
    logger.handle(logger.makeRecord(logger.name, level, __file__, 0, line, (), None, extra=extra))
