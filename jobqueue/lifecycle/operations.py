"""What people do to dead letters: replay and discard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jobqueue import failpoints
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.lifecycle.audit import Actor, record
from jobqueue.models import DeadLetter


@failpoints.around
def replay(
    letter_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> list[int]:
    """Turn dead letters into pending jobs of the same id; return the ids that this call replayed.

    A job goes on as one story: its attempts keep counting and its fence keeps growing, with a fresh
    budget on top. Of two replays of one letter at the same time, one gets it.
    """
    log = {"by": by, "reason": reason, "correlation_id": correlation_id}
    return [pk for batch in batches(letter_ids) for pk in _replay(batch, alias(using), log)]


def _replay(letter_ids: list[int], using: str, log: dict[str, Any]) -> list[int]:
    with store(using).transaction():
        letters = DeadLetter.objects.using(using).filter(pk__in=letter_ids).order_by("pk")
        ids = list(store(using).lock(letters).values_list("pk", flat=True))
        if ids:
            store(using).revive(ids)
            DeadLetter.objects.using(using).filter(pk__in=ids).delete()
        record("replay", DeadLetter, ids, using=using, **log)
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
    """Delete dead letters; return how many. Their attempts stay until they are pruned."""
    log = {"by": by, "reason": reason, "correlation_id": correlation_id}
    return sum(_discard(batch, alias(using), log) for batch in batches(letter_ids))


def _discard(letter_ids: list[int], using: str, log: dict[str, Any]) -> int:
    with store(using).transaction():
        letters = DeadLetter.objects.using(using).filter(pk__in=letter_ids).order_by("pk")
        ids = list(store(using).lock(letters).values_list("pk", flat=True))
        record("discard", DeadLetter, ids, using=using, **log)
        return DeadLetter.objects.using(using).filter(pk__in=ids).delete()[0]
