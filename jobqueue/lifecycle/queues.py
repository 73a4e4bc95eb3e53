"""What people do to queues: pause and resume. The claim itself looks whether a queue is paused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobqueue import failpoints
from jobqueue.exceptions import InvalidPause
from jobqueue.lifecycle import audit
from jobqueue.lifecycle.alias import alias, store
from jobqueue.lifecycle.audit import Actor
from jobqueue.models import MAX_REASON, Queue
from jobqueue.options import MAX_ACTOR, MAX_SPAN, MAX_YEAR, MIN_YEAR, check_queue_name
from jobqueue.payload import clean_text
from jobqueue.querysets import as_kept, from_now

NOW = timedelta(0)
NOT_PAUSED: dict[str, Any] = {
    "paused_at": None,
    "paused_until": None,
    "paused_by": "",
    "pause_reason": "",
}


@failpoints.around
def pause(
    name: str,
    *,
    by: Actor | None = None,
    reason: str = "",
    until: datetime | timedelta | None = None,
    using: str | None = None,
    correlation_id: str = "",
) -> None:
    """Have no job of the queue claimed any more, until it is resumed or ``until`` has come.

    Its jobs stay pending, and what runs goes on. A pause replaces an earlier one. Raise InvalidJob
    for a name that is none, InvalidPause for an ``until`` that makes no sense.
    """
    check_queue_name(name)
    _check_until(until)
    using = alias(using)
    with store(using).transaction():
        Queue.objects.using(using).bulk_create([Queue(name=name)], ignore_conflicts=True)
        before = _lock(name, using)
        _change(
            name,
            using,
            paused_at=from_now(NOW),
            paused_until=_as_kept(until, using),
            paused_by=clean_text(by.name if by else "", limit=MAX_ACTOR),
            pause_reason=clean_text(reason, limit=MAX_REASON),
        )
        audit.record(
            "pause",
            Queue,
            [name],
            by=by,
            using=using,
            reason=reason,
            before=before,
            after=_state(name, using),
            correlation_id=correlation_id,
        )


@failpoints.around
def resume(
    name: str,
    *,
    by: Actor | None = None,
    reason: str = "",
    using: str | None = None,
    correlation_id: str = "",
) -> bool:
    """Let jobs of the queue be claimed again; return whether it was paused."""
    check_queue_name(name)
    using = alias(using)
    with store(using).transaction():
        before = _lock(name, using)
        if not Queue.objects.using(using).paused().filter(pk=name).exists():
            return False
        _change(name, using, **NOT_PAUSED)
        store(using).wake([name])
        audit.record(
            "resume",
            Queue,
            [name],
            by=by,
            using=using,
            reason=reason,
            before=before,
            after=_state(name, using),
            correlation_id=correlation_id,
        )
        return True


def _lock(name: str, using: str) -> dict[str, Any]:
    """Lock the queue's row, if there is one; return what it says of a pause."""
    list(store(using).lock(Queue.objects.using(using).filter(pk=name)))
    return _state(name, using)


def _change(name: str, using: str, **columns: Any) -> None:
    Queue.objects.using(using).filter(pk=name).update(**columns)


def _state(name: str, using: str) -> dict[str, Any]:
    """Return what the queue's row says of a pause, as the operation log keeps it."""
    rows = Queue.objects.using(using).filter(pk=name)
    state = rows.values(*NOT_PAUSED).first() or NOT_PAUSED
    return {
        key: each.isoformat() if isinstance(each, datetime) else each for key, each in state.items()
    }


def _check_until(until: Any) -> None:
    if until is None:
        return
    if isinstance(until, timedelta):
        if not NOW < until <= MAX_SPAN:
            raise InvalidPause(f"until must be a span of up to {MAX_SPAN.days} days, not {until}")
    elif not isinstance(until, datetime):
        raise InvalidPause(f"until must be a datetime or a timedelta, not {until!r:.100}")
    elif until.utcoffset() is None:
        raise InvalidPause(f"until {until.isoformat()} is naive; give it a time zone")
    elif not MIN_YEAR <= until.year <= MAX_YEAR:
        raise InvalidPause(f"until {until.isoformat()} is a year that not every database keeps")
    elif until <= datetime.now(UTC):
        raise InvalidPause(f"until {until.isoformat()} has passed")


def _as_kept(until: datetime | timedelta | None, using: str) -> Any:
    if isinstance(until, timedelta):
        return from_now(until)
    return until and as_kept(until, using=using)
