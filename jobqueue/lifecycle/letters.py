"""What people do to dead letters: replay, discard, restore, delete for ever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Now

from jobqueue import conf, failpoints, options
from jobqueue.exceptions import DeletionIsOff
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.lifecycle.audit import Actor, record
from jobqueue.models import MAX_REASON, DeadLetter
from jobqueue.options import MAX_ACTOR
from jobqueue.payload import clean_text
from jobqueue.stores.base import ReplayDeed

_NOBODY = Actor("", "")

#: Who and why, and where: what the operation log is told beside the letters.
Log = dict[str, Any]


@failpoints.around
def replay(
    letter_ids: Iterable[int],
    *,
    target_queue: str = "",
    operation: int | None = None,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> list[int]:
    """Turn open dead letters into pending jobs of the same id; return the ids replayed by this.

    A job goes on as one story: its attempts keep counting and its fence keeps growing, with a fresh
    budget on top. Of two replays of one letter at the same time, one gets it. The jobs go to
    ``target_queue``, or else to the queue that each came from. Raise InvalidJob, before any SQL,
    for a name that can be no queue's.
    """
    if target_queue:
        options.check_queue_name(target_queue)
    using = alias(using)
    deed = replay_deed(target_queue, operation, by, reason)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    log["after"] = {"queue": target_queue} if target_queue else None
    return _do("replay", letter_ids, partial(move_back, deed=deed, using=using), log)


def replay_deed(
    target_queue: str, operation: int | None, by: Actor | None, reason: str
) -> ReplayDeed:
    """Return what is written down of a replay, with what no database stores made visible."""
    who = by or _NOBODY
    name, why = clean_text(who.name, limit=MAX_ACTOR), clean_text(reason, limit=MAX_REASON)
    return ReplayDeed(target_queue, who.id[:MAX_ACTOR], name, why, operation)


def move_back(
    letter_ids: Sequence[int], deed: ReplayDeed, *, keeps_payload: bool = False, using: str
) -> list[int]:
    """Move open dead letters back to the jobs, in the caller's transaction; return which."""
    letters = DeadLetter.objects.using(using).open().filter(pk__in=letter_ids).order_by("pk")
    found = dict(store(using).lock(letters).values_list("pk", "queue_name"))
    if ids := list(found):
        store(using).tell_of_replay(ids, deed, keeps_payload=keeps_payload)
        store(using).revive(ids, queue_name=deed.queue_name)
        DeadLetter.objects.using(using).filter(pk__in=ids).delete()
        store(using).wake({deed.queue_name} if deed.queue_name else set(found.values()))
    return ids


@failpoints.around
def discard(
    letter_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Mark open dead letters as dealt with; return how many. They stay, and can be restored."""
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    mark = partial(mark_discarded, by=by, reason=reason, using=using)
    return len(_do("discard", letter_ids, mark, log))


def mark_discarded(
    letter_ids: Sequence[int], *, by: Actor | None, reason: str, using: str
) -> list[int]:
    """Mark open dead letters as discarded, in the caller's transaction; return which."""
    letters = DeadLetter.objects.using(using)
    ids = _locked(letters.open().filter(pk__in=letter_ids), using)
    letters.filter(pk__in=ids).update(
        discarded_at=Now(),
        discarded_by=clean_text((by or _NOBODY).name, limit=MAX_ACTOR),
        discard_reason=clean_text(reason, limit=MAX_REASON),
    )
    return ids


@failpoints.around
def restore(
    letter_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Make discarded dead letters open again; return how many."""
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    return len(_do("restore", letter_ids, partial(_unmark, using=using), log))


def _unmark(letter_ids: Sequence[int], *, using: str) -> list[int]:
    letters = DeadLetter.objects.using(using)
    ids = _locked(letters.discarded().filter(pk__in=letter_ids), using)
    letters.filter(pk__in=ids).update(discarded_at=None, discarded_by="", discard_reason="")
    return ids


@failpoints.around
def delete_letters(
    letter_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Delete discarded dead letters for ever; return how many. Their attempts stay until pruned.

    Raise DeletionIsOff unless DELETE_DEAD_LETTERS is on.
    """
    if not conf.get().DELETE_DEAD_LETTERS:
        raise DeletionIsOff("set DELETE_DEAD_LETTERS to delete dead letters for ever")
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    return len(_do("delete", letter_ids, partial(_delete, using=using), log))


def _delete(letter_ids: Sequence[int], *, using: str) -> list[int]:
    letters = DeadLetter.objects.using(using)
    ids = _locked(letters.discarded().filter(pk__in=letter_ids), using)
    letters.filter(pk__in=ids).delete()
    return ids


def _do(
    action: str, letter_ids: Iterable[int], change: Callable[[list[int]], list[int]], log: Log
) -> list[int]:
    """Change letters a batch at a time, each with its lines in the operation log; return which."""
    changed: list[int] = []
    for batch in batches(letter_ids):
        with store(log["using"]).transaction():
            ids = change(batch)
            record(action, DeadLetter, ids, **log)
        changed += ids
    return changed


def _locked(letters: QuerySet[DeadLetter], using: str) -> list[Any]:
    """Lock letters in the order of their ids: two that lock in one order never wait in a ring."""
    return list(store(using).lock(letters.order_by("pk")).values_list("pk", flat=True))
