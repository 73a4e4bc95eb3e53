"""Carry out bulk operations, a batch at a time.

What is to be done is a row. A batch is one transaction, in which the row is locked, what it says is
looked at anew, letters are dealt with, and its ``position`` moves past them. So it does not matter
which workers do it, or when one of them dies: what is committed is done, and counted, once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import (
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    transaction,
)
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Now
from django.utils.dateparse import parse_datetime

from jobqueue import authorisation, failpoints, logs
from jobqueue.exceptions import NotAuthorised
from jobqueue.lifecycle.alias import alias, store
from jobqueue.lifecycle.audit import Actor, record
from jobqueue.lifecycle.letters import mark_discarded, move_back, replay_deed
from jobqueue.models import MAX_LAST_ERROR, BulkOperation, DeadLetter
from jobqueue.payload import clean_text
from jobqueue.querysets import as_kept
from jobqueue.states import BulkKind, BulkState

#: Letters in one transaction.
BATCH = 500
#: Batches of an operation with a rate are at least so far apart, in seconds.
TICK = 0.25
#: What a rate would have allowed in the last seconds is caught up on, and no more than that.
CATCH_UP = 2.0
#: How long to leave an operation alone of which another worker does a batch, in seconds.
BUSY = 1.0
#: So many operations are looked at; those asked for later wait for one of these to end.
MOST_AT_ONCE = 100

#: The bounds of a rate, in letters a second.
SLOWEST, FASTEST = 0.01, 10_000

#: What goes away by itself: the database is away or busy, or had to choose whose work to undo.
_PASSING = (OperationalError, InterfaceError, InternalError)

#: What a filter can name, with the look-up that it stands for.
FILTERS = {
    "task": "task",
    "queue_name": "queue_name",
    "reason": "reason",
    "fingerprint": "fingerprint",
    "died_since": "died_at__gte",
}
_PERMISSIONS = {BulkKind.REPLAY: "replay_deadletter", BulkKind.DISCARD: "discard_deadletter"}


def permission(kind: str) -> str:
    """Return the permission that it takes to do something to dead letters."""
    return f"{DeadLetter._meta.app_label}.{_PERMISSIONS[BulkKind(kind)]}"


def _matching(operation: BulkOperation, *, using: str) -> QuerySet[DeadLetter]:
    """Return the open dead letters that an operation is for and has not passed by."""
    letters = DeadLetter.objects.using(using).open().filter(died_at__lte=operation.until)
    filters = dict(operation.filters)
    if instant := parse_datetime(filters.pop("died_since", "")):
        letters = letters.filter(died_at__gte=as_kept(instant, using=using))
    letters = letters.filter(**{FILTERS[name]: value for name, value in filters.items()})
    return letters.filter(pk__gt=operation.position).order_by("pk")


class Allowance(NamedTuple):
    """How many letters may be dealt with now, and in how many seconds there will be more."""

    letters: int
    wait: float
    #: What a batch is dated back by, so that no part of a letter is lost.
    rest: timedelta = timedelta(0)


def allowance(rate: float | None, elapsed: timedelta | None) -> Allowance:
    """Reckon what a rate allows so long after the last batch; None: this is the first."""
    if rate is None:
        return Allowance(BATCH, 0.0)
    rate = min(max(rate, SLOWEST), FASTEST)  # the row may have been written by hand
    due = max(TICK, 1 / rate)  # a slow rate has to be waited for until it allows one letter
    seconds = due if elapsed is None else min(elapsed.total_seconds(), max(CATCH_UP, due))
    if seconds + 1e-6 < due:
        return Allowance(0, due - seconds)
    count = min(int(rate * seconds + 1e-6), BATCH)
    rest = max(seconds - count / rate, 0.0)
    return Allowance(count, max(due - rest, 0.0), timedelta(seconds=rest))


@failpoints.around
def advance(*, using: str | None = None) -> float | None:
    """Carry out a batch of a bulk operation; return in how many seconds there may be more to do.

    None: no operation is running. Operations take turns; of each, one worker does a batch at a
    time. What has been paused, cancelled or forbidden meanwhile is not carried out.
    """
    using, waits = alias(using), []
    running = _running(using).values_list("pk", "rate", "rested")
    for pk, rate, elapsed in list(running[:MOST_AT_ONCE]):
        due = allowance(rate, elapsed)
        if not due.letters:
            waits.append(due.wait)
        elif (wait := _take_turn(pk, using)) is None:
            waits.append(BUSY)
        else:
            return wait
    return min(waits, default=None)


def _running(using: str) -> QuerySet[Any]:
    """Return the running operations, the longest rested first, with the database's time."""
    rested = ExpressionWrapper(Now() - F("advanced_at"), output_field=DurationField())
    rows = BulkOperation.objects.using(using).running().annotate(rested=rested, now=Now())
    return rows.order_by(F("advanced_at").asc(nulls_first=True), "pk")


def _take_turn(pk: int, using: str) -> float | None:
    """Do a batch of one operation, or end it where it would fail every time.

    Whatever is wrong with it is its own affair: workers and other operations go on.
    """
    try:
        return _advance(pk, using)
    except _PASSING:
        with suppress(Error):  # the others have their turns before it is tried again
            BulkOperation.objects.using(using).filter(pk=pk).update(advanced_at=Now())
        raise
    except Exception as error:  # noqa: BLE001 - to look at rights runs the project's code
        logs.event(logging.ERROR, "bulk.failed", with_traceback=True, operation=pk)
        _fail(pk, _explain(error), using)
        return 0.0


def _fail(pk: int, why: str, using: str) -> None:
    with store(using).transaction():
        if operation := store(using).lock(_running(using).filter(pk=pk)).first():
            _end(operation, BulkState.FAILED, using=using, last_error=why)


def _advance(pk: int, using: str) -> float | None:
    """Do a batch of one operation; None when another worker does, or it runs no more."""
    with store(using).transaction():
        rows = store(using).lock(_running(using).filter(pk=pk), skip_locked=True)
        operation = rows.first()
        if operation is None:
            return None
        due = allowance(operation.rate, operation.rested)
        if not due.letters:
            return due.wait
        if why := _forbidden(operation):
            _end(operation, BulkState.FAILED, using=using, last_error=why)
            return 0.0
        is_done = _do_batch(operation, due.letters, using)
        _note(operation, using, advanced_at=operation.now - due.rest)
        if is_done:
            _end(operation, BulkState.DONE, using=using)
        return due.wait


def _forbidden(operation: BulkOperation) -> str:
    """Return why the actor may not do this any more; what no user asked for is the project's."""
    needed = permission(operation.kind)
    if operation.actor_id:
        try:
            authorisation.check(needed, operation.actor_id)
        except NotAuthorised:
            return f"{operation.actor} does not hold {needed} any more"
    return ""


def _do_batch(operation: BulkOperation, most: int, using: str) -> bool:
    """Deal with the next letters, and count; return whether these were the last."""
    letters = _matching(operation, using=using)
    if operation.ids is None:
        ids = passed = list(letters.values_list("pk", flat=True)[:most])
    else:  # of thousands that were picked, no more are sent along than this batch is for
        passed = [pk for pk in operation.ids if pk > operation.position][:most]
        ids = list(letters.filter(pk__in=passed).values_list("pk", flat=True))
    if ids:
        _do(operation, ids, using)
    if passed:
        operation.position = passed[-1]
    return len(passed) < most


def _do(operation: BulkOperation, ids: Sequence[int], using: str) -> None:
    """Deal with letters; where the database refuses some, with the others."""
    try:
        with transaction.atomic(using=using):  # a savepoint: the count goes on
            done = _perform(operation, ids, using)
    except (DataError, IntegrityError) as error:
        if len(ids) == 1:
            operation.refused += 1
            operation.last_error = f"letter {ids[0]}: {_explain(error)}"
            return
        middle = len(ids) // 2
        _do(operation, ids[:middle], using)
        _do(operation, ids[middle:], using)
    else:
        operation.done += len(done)


def _perform(operation: BulkOperation, ids: Sequence[int], using: str) -> list[int]:
    by = Actor(operation.actor_id, operation.actor)
    if operation.kind == BulkKind.DISCARD:
        return mark_discarded(ids, by=by, reason=operation.reason, using=using)
    deed = replay_deed(operation.target_queue, operation.pk, by, operation.reason)
    return move_back(ids, deed, using=using)


def _note(operation: BulkOperation, using: str, **changes: Any) -> None:
    """Write down how far the operation has come."""
    counted = ("position", "done", "refused", "last_error")
    changes = {name: getattr(operation, name) for name in counted} | changes
    BulkOperation.objects.using(using).filter(pk=operation.pk).update(**changes)


def _end(operation: BulkOperation, state: BulkState, *, using: str, last_error: str = "") -> None:
    if last_error:
        operation.last_error = clean_text(last_error, limit=MAX_LAST_ERROR)
    _note(operation, using, state=state, finished_at=Now())
    by = Actor(operation.actor_id, operation.actor) if operation.actor_id else None
    tell(f"{operation.kind} {state}", operation, by=by, state=state, using=using)


def tell(
    action: str,
    operation: BulkOperation,
    *,
    by: Actor | None,
    state: str,
    reason: str = "",
    before: Any = None,
    using: str,
) -> None:
    """Add a line about a bulk operation to the audit, with its filter and its counts."""
    after = {
        "state": state,
        "expected": operation.expected,
        "done": operation.done,
        "refused": operation.refused,
    }
    if operation.last_error:
        after["last_error"] = operation.last_error
    which = {"filters": operation.filters}
    if operation.ids is not None:
        which["ids"] = operation.ids
    record(
        action,
        BulkOperation,
        [operation.pk],
        by=by,
        reason=reason or operation.reason,
        filters=which,
        before=before,
        after=after,
        correlation_id=f"bulk-{operation.pk}",
        using=using,
    )


def _explain(error: Exception) -> str:
    """Return the first line of a message: in a database's, the next ones may quote the row."""
    first_line = str(error).partition("\n")[0]
    return clean_text(f"{type(error).__name__}: {first_line}", limit=300)
