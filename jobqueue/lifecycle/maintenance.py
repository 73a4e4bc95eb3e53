"""What every worker does for all jobs, now and then: promote, rescue, prune."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import partial
from itertools import repeat
from typing import Any

from django.db.models import BooleanField, ExpressionWrapper, Max, Min, Q, QuerySet

from jobqueue import conf, failpoints
from jobqueue.claims import Failure, Settlement
from jobqueue.lifecycle.alias import BATCH, alias, store
from jobqueue.lifecycle.settling import lost, settle
from jobqueue.measures import KEPT, SAMPLES_KEPT
from jobqueue.models import Attempt, DeadLetter, Job, Replay, Rollup, Sample
from jobqueue.querysets import ago
from jobqueue.stores.base import Expired, Look

#: So many ids beyond the last old row may be looked through in vain.
STRIDE = 100_000


def look(*, using: str | None = None) -> Look:
    """Return which queues have pending jobs, and whether anything is to be promoted or rescued."""
    return store(using).look()


@failpoints.around
def promote(*, limit: int = BATCH, using: str | None = None) -> Counter[str]:
    """Make scheduled jobs that are due pending; return how many of each queue."""
    return Counter(store(using).promote(limit=limit))


@failpoints.around
def rescue(*, limit: int = BATCH, using: str | None = None) -> int:
    """Take over jobs whose lease has run out; return how many.

    The lost attempt is recorded. The job is pending again at once, since its lease was delay
    enough, or out of attempts and dead.
    """
    with store(using).transaction():
        expired = store(using).lock_expired(limit=limit)
        return len(settle([_lost(each) for each in expired], using=using)) if expired else 0


def _lost(expired: Expired) -> Settlement:
    message = f"worker {expired.claim.claimed_by} let its lease run out"
    return lost(expired, Failure(error_class="LeaseLost", message=message, fingerprint="lost"))


@failpoints.around
def prune(
    *, dry_run: bool = False, most_batches: int | None = None, using: str | None = None
) -> dict[str, int]:
    """Delete what is older than the KEEP settings, a batch and a transaction at a time.

    Return how many jobs, dead letters, attempts, replays and figures went, or with ``dry_run``
    would go.
    ``most_batches`` bounds how many batches of each kind one call deletes.
    """
    using = alias(using)
    act = _count if dry_run else partial(_delete, using=using, most_batches=most_batches)
    keep, counts = conf.get(), {}
    jobs = Job.objects.using(using).finished_before(keep.KEEP_SUCCEEDED)
    counts["jobs"] = act(jobs, order="finished_at")
    if keep.KEEP_DEAD_LETTERS is not None:
        letters = DeadLetter.objects.using(using).died_before(keep.KEEP_DEAD_LETTERS)
        counts["dead letters"] = act(letters, order="died_at")
    old = _old(Attempt.objects.using(using), "finished_at", keep.KEEP_ATTEMPTS)
    counts["attempts"] = act(old.orphaned_before(keep.KEEP_ATTEMPTS), order="pk")
    old = _old(Replay.objects.using(using), "replayed_at", keep.KEEP_ATTEMPTS)
    counts["replays"] = act(old.orphaned_before(keep.KEEP_ATTEMPTS), order="pk")
    rollups = Rollup.objects.using(using)
    counts["rollups"] = sum(
        act(rollups.filter(span=span, start__lt=ago(age)), order="start")
        for span, age in KEPT.items()
    )
    samples = Sample.objects.using(using).filter(minute__lt=ago(SAMPLES_KEPT))
    counts["samples"] = act(samples, order="minute")
    return counts


def _old(rows: Any, field: str, span: timedelta) -> Any:
    """Leave out most of what is young, where no index tells: ids grow as time goes on.

    Every worker asks once a minute, and would read the whole table to find nothing.
    """
    is_old = ExpressionWrapper(Q(**{f"{field}__lt": ago(span)}), output_field=BooleanField())
    ends = rows.aggregate(first=Min("pk"), last=Max("pk"))
    low, high = ends["first"] or 0, ends["last"] or 0
    while high - low > STRIDE:
        middle = (low + high) // 2
        if rows.filter(pk__gte=middle).order_by("pk").values_list(is_old, flat=True).first():
            low = middle
        else:
            high = middle
    return rows.filter(pk__lte=high)


def _count(rows: QuerySet[Any], **_: Any) -> int:
    return rows.count()


def _delete(rows: QuerySet[Any], *, order: str, using: str, most_batches: int | None) -> int:
    """Delete rows in the order of an indexed column, going on where the last batch ended."""
    deleted, last = 0, None
    for _ in repeat(None) if most_batches is None else repeat(None, most_batches):
        rest = rows if last is None else rows.filter(**{f"{order}__gte": last})
        with store(using).transaction():
            locked = store(using).lock(rest.order_by(order), skip_locked=True)
            batch = list(locked.values_list("pk", order)[:BATCH])
            if batch:
                deleted += rows.filter(pk__in=[pk for pk, _ in batch]).delete()[0]
                last = batch[-1][1]
        if len(batch) < BATCH:
            break
    return deleted
