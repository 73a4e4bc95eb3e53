"""The only module that writes log lines: ``event key=value ...``, never a payload."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Container, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, TextIO

from django.dispatch import receiver

from jobqueue import signals
from jobqueue.claims import Claim, Key, Settlement
from jobqueue.states import Outcome, Status

logger = logging.getLogger("jobqueue")

_LEVELS = {0: logging.ERROR, 1: logging.INFO}
_MAX_ERROR = 200


def show_in_foreground(verbosity: int) -> None:
    """Let a worker in the foreground be seen: stock logging shows nothing of an app at INFO.

    Does nothing where the project's LOGGING has handlers for this logger, or for the root logger.
    """
    if logger.hasHandlers():
        return
    handler = ForegroundHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS.get(verbosity, logging.DEBUG))


class ForegroundHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error, and what belongs :meth:`together` with one call.

    Each call gives the interpreter away, to a thread that may keep it for milliseconds.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = []
        self._collects_for: int | None = None

    @contextmanager
    def together(self) -> Iterator[None]:
        """Keep the lines of this thread until the end of the block."""
        self._collects_for = threading.get_ident()
        try:
            yield
        finally:
            self._collects_for = None
            self.flush()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, after those that are kept; or keep it, too."""
        try:
            self._lines.append(f"{self.format(record)}\n")
        except Exception:  # noqa: BLE001 - as in logging's own handlers
            self.handleError(record)
        if self._collects_for != threading.get_ident():
            self.flush()

    def flush(self) -> None:
        """Write what is kept, whoever keeps it."""
        self.acquire()
        try:
            text, self._lines = "".join(self._lines), []
            with suppress(OSError, ValueError):  # whoever watched has gone
                self.stream.write(text)
                super().flush()
        finally:
            self.release()


class _Formatter(logging.Formatter):
    """What logging would write, for less: a worker writes thousands of lines in a second."""

    _second = 0
    _text = ""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, by the long way only where a traceback follows."""
        if record.exc_info or record.stack_info:
            return super().format(record)
        return f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        """Return the time as logging does, to the millisecond; written out once a second."""
        second = int(record.created)
        if second != self._second:
            self._text = super().formatTime(record, datefmt or "%Y-%m-%d %H:%M:%S")
            self._second = second
        return f"{self._text},{int(record.msecs):03d}"


def event(level: int, name: str, *, with_traceback: bool = False, **fields: Any) -> None:
    """Log one line; its values are also ``record.fields``, for structured handlers.

    The record goes to the handlers by hand: a worker writes many, and looking for the calling
    frame, which is always this one, would double their cost.
    """
    if not logger.isEnabledFor(level):
        return
    line = " ".join([name, *[f"{key}={value}" for key, value in fields.items()]])
    if not line.isprintable():  # a row may have been put in by SQL: no line breaks, no escapes
        line = line.encode("unicode_escape").decode()
    exc_info = sys.exc_info() if with_traceback else None
    extra = {"event": name, "fields": fields}
    record = logger.makeRecord(logger.name, level, __file__, 0, line, (), exc_info, extra=extra)
    try:
        logger.handle(record)
    except Exception:  # noqa: BLE001 - a filter's fault must not change what becomes of a job
        logging.Handler().handleError(record)


def problem(name: str, error: BaseException, **fields: Any) -> None:
    """Log at WARNING what went wrong and is tried again: the first line of what the error says."""
    said = next(iter(str(error).strip().splitlines()), type(error).__name__)
    event(logging.WARNING, name, **fields, err=said[:_MAX_ERROR])


def started(claim: Claim) -> None:
    """Say at DEBUG that a handler is about to be called."""
    if logger.isEnabledFor(logging.DEBUG):
        event(logging.DEBUG, "job.started", **_identity(claim))


def ended(settlements: Iterable[Settlement], *, recorded: Container[Key]) -> None:
    """Say what became of each claim, or that its lease was lost and the outcome refused."""
    with ExitStack() as stack:
        for handler in logger.handlers:
            if isinstance(handler, ForegroundHandler):
                stack.enter_context(handler.together())
        for settlement in settlements:
            held = settlement.claim.key in recorded
            (_settled if held else _lease_lost)(settlement)


def _settled(settlement: Settlement) -> None:
    name, level = _happened(settlement)
    if logger.isEnabledFor(level):
        event(level, name, **_identity(settlement.claim), **_details(settlement))


def _lease_lost(settlement: Settlement) -> None:
    refused = {"refused": settlement.outcome.value}
    told = _identity(settlement.claim) | refused | _details(settlement)
    event(logging.WARNING, "job.lease_lost", **told)


@receiver(signals.worker_started, dispatch_uid="jobqueue.logs")
def _worker_started(worker: Any, **_: Any) -> None:
    event(logging.INFO, "worker.started", worker=worker.options.name)


@receiver(signals.worker_draining, dispatch_uid="jobqueue.logs")
def _worker_draining(worker: Any, **_: Any) -> None:
    running = len(worker.hand.running())
    event(logging.INFO, "worker.draining", worker=worker.options.name, running=running)


@receiver(signals.worker_stopped, dispatch_uid="jobqueue.logs")
def _worker_stopped(worker: Any, **_: Any) -> None:
    name, code = worker.options.name, worker.exit_code
    event(logging.INFO, "worker.stopped", worker=name, exit_code=code)


def _happened(settlement: Settlement) -> tuple[str, int]:
    if settlement.status is None:
        return "job.dead", logging.ERROR
    if settlement.status == Status.CANCELLED:
        return "job.cancelled", logging.INFO
    if settlement.outcome == Outcome.LOST:
        return "job.lost", logging.WARNING
    if settlement.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        return "job.retrying", logging.WARNING
    return f"job.{settlement.outcome.value}", logging.INFO


def _identity(claim: Claim) -> dict[str, Any]:
    return {
        "job": claim.id,
        "task": claim.task,
        "queue": claim.queue_name,
        "attempt": f"{claim.attempts}/{claim.max_attempts}",
        "worker": claim.claimed_by,
        "correlation_id": claim.correlation_id or f"job-{claim.id}",
    }


def _details(settlement: Settlement) -> dict[str, Any]:
    details: dict[str, Any] = {"duration_ms": round(settlement.duration * 1000)}
    if settlement.delay is not None and settlement.status == Status.SCHEDULED:
        details["retry_in_s"] = round(settlement.delay.total_seconds(), 1)
    if settlement.reason is not None:
        details["reason"] = settlement.reason.value
    if settlement.failure.error_class:
        details["err"] = settlement.failure.error_class
    return details
