"""The options of a task and of a call: what each may be, checked before anything is written."""

from __future__ import annotations

import inspect
import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from jobqueue.exceptions import LONGEST, InvalidJob, InvalidTask

if TYPE_CHECKING:
    from jobqueue.registry import Task

MIN_PRIORITY, MAX_PRIORITY = -100, 100
MAX_ATTEMPTS = 100_000
MAX_NAME = 64
MAX_ACTOR = 150
MAX_SPAN = LONGEST
#: The shortest lease: one that can be extended in time, twice, on a busy database.
MIN_LEASE = timedelta(seconds=1)
MIN_YEAR, MAX_YEAR = 1001, 9998  # MySQL's, less a year for the way to another time zone

# Lower case only: MySQL's collations would treat "Mail" and "mail" as one queue.
_QUEUE_NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]*")
_TEXT = re.compile(r"[^\x00-\x1f\x7f\ud800-\udfff]*")


def check_task(task: Task[..., Any]) -> None:
    """Raise InvalidTask, or InvalidJob for what a call may set, when an option makes no sense."""
    check_queue_name(task.queue_name)
    check_priority(task.priority)
    if task.max_attempts is not None:
        _check_integer("max_attempts", task.max_attempts, 1, MAX_ATTEMPTS)
    _check_integer("version", task.version, 1, 32_767)
    _check_span(task, "lease", MIN_LEASE)
    _check_span(task, "timeout", timedelta(microseconds=1))
    _check_run_after(task.run_after)
    _check_text("actor", task.actor, MAX_ACTOR)
    _check_text("correlation_id", task.correlation_id, MAX_NAME)
    _check_exceptions(task)
    if task.takes_context:
        _check_takes_context(task)


def check_queue_name(name: Any) -> None:
    """Raise InvalidJob unless ``name`` can name a queue on every database and command line."""
    if type(name) is not str or not _QUEUE_NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise InvalidJob(
            f"queue_name {name!r:.100} is not valid: up to {MAX_NAME} lower-case letters, "
            "digits, '_', '.' and '-'"
        )


def check_priority(priority: Any) -> None:
    """Raise InvalidJob unless a job can have this priority."""
    _check_integer("priority", priority, MIN_PRIORITY, MAX_PRIORITY)


def read_actor(actor: Any) -> str:
    """Return how an actor is stored: a user by its primary key, a string as it is."""
    if isinstance(actor, str):
        return actor
    key = getattr(actor, "pk", None)
    if key is None:
        raise InvalidJob(f"actor {actor!r:.100} is neither a string nor a saved user")
    return str(key)


def _check_integer(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidJob(
            f"{name} must be a whole number from {least} to {most:,}, not {value!r:.100}"
        )


def _check_text(name: str, value: Any, limit: int) -> None:
    if type(value) is not str or len(value) > limit or not _TEXT.fullmatch(value):
        raise InvalidJob(
            f"{name} must be text of up to {limit} characters without control characters, "
            f"not {value!r:.100}"
        )


def _check_span(task: Task[..., Any], name: str, least: timedelta) -> None:
    span = getattr(task, name)
    if span is None:
        return
    if type(span) is not timedelta or not least <= span <= MAX_SPAN:
        raise InvalidTask(
            f"{name} of {task.name} must be a timedelta of at least {least.total_seconds():g} s, "
            f"not {span!r:.100}"
        )


def _check_run_after(value: Any) -> None:
    if value is None:
        return
    if isinstance(value, timedelta):
        if abs(value) > MAX_SPAN:
            raise InvalidJob(f"run_after is more than {MAX_SPAN.days} days away: {value}")
    elif not isinstance(value, datetime):
        raise InvalidJob(f"run_after must be a datetime or a timedelta, not {value!r:.100}")
    elif value.utcoffset() is None:
        raise InvalidJob(f"run_after {value.isoformat()} is naive; give it a time zone")
    elif not MIN_YEAR <= value.year <= MAX_YEAR:
        raise InvalidJob(f"run_after {value.isoformat()} is a year that not every database keeps")


def _check_exceptions(task: Task[..., Any]) -> None:
    for name in ("retry_on", "give_up_on"):
        for kind in getattr(task, name):
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise InvalidTask(f"{name} of {task.name} takes exception classes, not {kind!r}")


def _check_takes_context(task: Task[..., Any]) -> None:
    parameters = list(inspect.signature(task.function).parameters)
    if parameters[:1] != ["context"]:
        raise InvalidTask(f"{task.name} has takes_context=True; name its first argument 'context'")
