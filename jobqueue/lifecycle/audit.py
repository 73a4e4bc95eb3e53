"""The operation log: who did what to which rows, written with the change itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db.models import Model

from jobqueue.models import MAX_REASON, OperationLog
from jobqueue.options import MAX_ACTOR
from jobqueue.payload import clean_text

#: So many rows, as can be picked by hand, get a line each; more of them share one.
MOST_LINES = 100


class Actor(NamedTuple):
    """Who does something: the primary key of a user as text, and a name to remember them by."""

    id: str
    name: str


def record(
    action: str,
    model: type[Model],
    keys: Sequence[Any],
    *,
    by: Actor | None,
    using: str,
    reason: str = "",
    filters: Mapping[str, Any] | None = None,
    before: Any = None,
    after: Any = None,
    correlation_id: str = "",
) -> None:
    """Add to the operation log what is done in the caller's transaction.

    Without an actor it was the project's own code, and nothing is written: its log is the
    project's affair.
    """
    if by is None or not keys:
        return
    line = _line(action, model, by=by, reason=reason, correlation_id=correlation_id)
    line |= {"before": before, "after": after}
    if len(keys) <= MOST_LINES:
        lines = [OperationLog(target_id=str(key), targets=filters, **line) for key in keys]
    else:
        targets = {"filters": filters or {}, "ids": list(keys)}
        lines = [OperationLog(targets=targets, count=len(keys), **line)]
    OperationLog.objects.using(using).bulk_create(lines)


class Change(NamedTuple):
    """What a row was, and what it is now: the few names that changed."""

    before: dict[str, Any]
    after: dict[str, Any]


def record_each(
    action: str,
    model: type[Model],
    changes: Mapping[Any, Change],
    *,
    by: Actor | None,
    using: str,
    reason: str = "",
    correlation_id: str = "",
) -> None:
    """Do as :func:`record` does, for rows that were not all the same before or after."""
    if by is None or not changes:
        return
    line = _line(action, model, by=by, reason=reason, correlation_id=correlation_id)
    if len(changes) <= MOST_LINES:
        lines = [
            OperationLog(target_id=str(key), **line, **change._asdict())
            for key, change in changes.items()
        ]
    else:
        line["before"] = {str(key): change.before for key, change in changes.items()}
        line["after"] = {str(key): change.after for key, change in changes.items()}
        lines = [OperationLog(targets={"ids": list(changes)}, count=len(changes), **line)]
    OperationLog.objects.using(using).bulk_create(lines)


def _line(
    action: str, model: type[Model], *, by: Actor, reason: str, correlation_id: str
) -> dict[str, Any]:
    return {
        "actor_id": by.id[:MAX_ACTOR],
        "actor": clean_text(by.name, limit=MAX_ACTOR),
        "action": action,
        "target_type": model._meta.model_name,
        "reason": clean_text(reason, limit=MAX_REASON),
        "correlation_id": correlation_id,
    }
