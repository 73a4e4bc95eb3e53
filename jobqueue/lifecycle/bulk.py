"""Operations on many dead letters: people ask for them, pause and cancel them; workers do them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db.models.functions import Now
from django.utils.dateparse import parse_datetime

from jobqueue import options
from jobqueue.exceptions import InvalidJob, InvalidOperation
from jobqueue.lifecycle.advancing import (
    FASTEST,
    FILTERS,
    SLOWEST,
    advance,
    permission,
    tell,
)
from jobqueue.lifecycle.alias import alias, store
from jobqueue.lifecycle.audit import Actor
from jobqueue.models import MAX_REASON, MAX_TASK_NAME, BulkOperation
from jobqueue.options import MAX_ACTOR
from jobqueue.payload import clean_text
from jobqueue.querysets import as_kept, from_now
from jobqueue.states import BulkKind, BulkState

__all__ = [
    "FASTEST",
    "MOST_IDS",
    "SLOWEST",
    "advance",
    "ask",
    "cancel",
    "pause",
    "permission",
    "proceed",
]

#: So many letters can be named one by one; more of them need a filter.
MOST_IDS = 10_000


def ask(
    kind: str,
    *,
    expected: int,
    filters: Mapping[str, Any] | None = None,
    ids: Collection[int] | None = None,
    until: datetime | None = None,
    rate: float | None = None,
    target_queue: str = "",
    by: Actor | None = None,
    reason: str = "",
    using: str | None = None,
) -> BulkOperation:
    """Have workers replay or discard the open dead letters that match, or those of these ids.

    ``rate`` is in letters a second, 0.01 to 10,000; None: as fast as it goes. ``expected`` is how
    many letters there seem to be. Letters that die after ``until``, or from now on, are left alone.
    Raise InvalidOperation, before any SQL, for what cannot be carried out.
    """
    filters = _as_texts(filters or {})
    _check(kind, ids, rate, target_queue)
    if until is not None:
        _check_instant("until", until)
    using, who = alias(using), by or Actor("", "")
    with store(using).transaction():
        operation = BulkOperation.objects.using(using).create(
            kind=kind,
            filters=filters,
            ids=None if ids is None else sorted(set(ids)),
            until=as_kept(until, using=using) if until else from_now(timedelta(0)),
            expected=expected,
            rate=rate,
            target_queue=target_queue,
            actor_id=who.id[:MAX_ACTOR],
            actor=clean_text(who.name, limit=MAX_ACTOR),
            reason=clean_text(reason, limit=MAX_REASON),
        )
        operation.refresh_from_db()
        tell(f"ask {kind}", operation, by=by, state=operation.state, using=using)
    return operation


def _as_texts(filters: Mapping[str, Any]) -> dict[str, str]:
    """Return filters as an operation keeps them; workers must be able to carry them out."""
    if unknown := sorted(set(filters) - set(FILTERS)):
        raise InvalidOperation(f"there is no filter {unknown[0]!r}, only {', '.join(FILTERS)}")
    texts = dict(filters)
    if "died_since" in texts:
        texts["died_since"] = _check_instant("died_since", texts["died_since"]).isoformat()
    for name, text in texts.items():
        if not isinstance(text, str) or text != clean_text(text, limit=MAX_TASK_NAME):
            raise InvalidOperation(
                f"{name} is no text that a dead letter could have: {text!r:.100}"
            )
    return texts


def _check_instant(name: str, given: Any) -> datetime:
    try:
        instant = parse_datetime(given) if isinstance(given, str) else given
    except ValueError:
        instant = None
    if not isinstance(instant, datetime):
        raise InvalidOperation(f"{name} must be a datetime, not {given!r:.100}")
    if settings.USE_TZ and instant.utcoffset() is None:
        raise InvalidOperation(f"{name} {instant.isoformat()} is naive; give it a time zone")
    return instant


def _check(kind: str, ids: Collection[int] | None, rate: float | None, target_queue: str) -> None:
    if kind not in BulkKind.values:
        raise InvalidOperation(f"{kind!r:.50} is none of {', '.join(BulkKind.values)}")
    if ids is not None and len(ids) > MOST_IDS:
        raise InvalidOperation(f"more than {MOST_IDS:,} letters: use a filter that says which")
    if rate is not None and not SLOWEST <= rate <= FASTEST:
        raise InvalidOperation(
            f"rate must be {SLOWEST} to {FASTEST:,} letters a second, not {rate!r:.50}"
        )
    if target_queue and kind != BulkKind.REPLAY:
        raise InvalidOperation("only replayed jobs go to a queue")
    if target_queue:
        try:
            options.check_queue_name(target_queue)
        except InvalidJob as error:
            raise InvalidOperation(str(error)) from None


def pause(
    operation_id: int, *, by: Actor | None = None, reason: str = "", using: str | None = None
) -> bool:
    """Let workers leave a running operation alone; return whether it was running."""
    return _turn(operation_id, "pause", by=by, reason=reason, using=alias(using))


def proceed(
    operation_id: int, *, by: Actor | None = None, reason: str = "", using: str | None = None
) -> bool:
    """Let workers go on with a paused operation; return whether it was paused."""
    return _turn(operation_id, "proceed", by=by, reason=reason, using=alias(using))


def cancel(
    operation_id: int, *, by: Actor | None = None, reason: str = "", using: str | None = None
) -> bool:
    """End an operation where it is; return whether there was one to end. What is done stays."""
    return _turn(operation_id, "cancel", by=by, reason=reason, using=alias(using))


#: What can be said to an operation: in which states, and what it changes.
_TURNS: dict[str, tuple[tuple[BulkState, ...], dict[str, Any]]] = {
    "pause": ((BulkState.RUNNING,), {"state": BulkState.PAUSED}),
    # The rate is reckoned anew: what the pause would have allowed is not made up for.
    "proceed": ((BulkState.PAUSED,), {"state": BulkState.RUNNING, "advanced_at": Now()}),
    "cancel": (
        (BulkState.RUNNING, BulkState.PAUSED),
        {"state": BulkState.CANCELLED, "finished_at": Now()},
    ),
}


def turns(state: str) -> list[str]:
    """Return what can be said to an operation in this state."""
    return [name for name, (states, _) in _TURNS.items() if state in states]


def _turn(pk: int, name: str, *, by: Actor | None, reason: str, using: str) -> bool:
    states, changes = _TURNS[name]
    with store(using).transaction():
        rows = BulkOperation.objects.using(using).filter(pk=pk)
        operation = store(using).lock(rows.filter(state__in=states)).first()
        if operation is None:
            return False
        rows.update(**changes)
        tell(
            f"{name} {operation.kind}",
            operation,
            by=by,
            state=str(changes["state"]),
            reason=reason,
            before={"state": operation.state},
            using=using,
        )
    return True
