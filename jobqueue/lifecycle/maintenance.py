"""What every worker does for all jobs, now and then: promote, rescue, prune."""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import repeat
from typing import Any

from django.db.models import QuerySet

from jobqueue import conf, failpoints
from jobqueue.claims import Failure, Settlement
from jobqueue.lifecycle.alias import BATCH, alias, store
from jobqueue.lifecycle.settling import lost, settle
from jobqueue.measures import KEPT, SAMPLES_KEPT
from jobqueue.models import Attempt, DeadLetter, Job, Replay, Rollup, Sample
from jobqueue.querysets import ago
from jobqueue.stores.base import Expired, Look


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
    attempts = Attempt.objects.using(using).orphaned_before(keep.KEEP_ATTEMPTS)
    counts["attempts"] = act(attempts, order="pk")
    replays = Replay.objects.using(using).orphaned_before(keep.KEEP_ATTEMPTS)
    counts["replays"] = act(replays, order="pk")
    rollups = Rollup.objects.using(using)
    counts["rollups"] = sum(
        act(rollups.filter(span=span, start__lt=ago(age)), order="start")
        for span, age in KEPT.items()
    )
    samples = Sample.objects.using(using).filter(minute__lt=ago(SAMPLES_KEPT))
    counts["samples"] = act(samples, order="minute")
    return counts


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
