"""What people do to leases that workers hold: give them more time, or end them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from django.db.models.functions import Greatest

from jobqueue import conf, failpoints
from jobqueue.claims import Failure
from jobqueue.exceptions import WorkerLives
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.lifecycle.audit import Actor, Change, record, record_each
from jobqueue.lifecycle.settling import lost, settle
from jobqueue.models import MAX_REASON, Job, Worker
from jobqueue.querysets import JobQuerySet, from_now
from jobqueue.states import Status

#: Who and why, and where: what the operation log is told beside the change.
Log = dict[str, Any]


@failpoints.around
def extend_leases(
    job_ids: Iterable[int],
    by_span: timedelta,
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Let leases end no sooner than ``by_span`` from now; return how many there were.

    No lease becomes shorter, and what its worker extends meanwhile is not cut short either.
    """
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    return sum(_extend(batch, by_span, using, log) for batch in batches(job_ids))


def _extend(job_ids: list[int], by_span: timedelta, using: str, log: Log) -> int:
    with store(using).transaction():
        ends = _ends(store(using).lock(_claimed(using, job_ids)))
        extended = _claimed(using, ends)
        extended.update(claimed_until=Greatest("claimed_until", from_now(by_span)))
        after = _ends(extended)
        changes = {pk: Change(before, after[pk]) for pk, before in ends.items()}
        record_each("extend_lease", Job, changes, **log)
    return len(ends)


def _claimed(using: str, job_ids: Iterable[int]) -> JobQuerySet:
    return Job.objects.using(using).claimed().filter(pk__in=job_ids).order_by("pk")


def _ends(jobs: QuerySet[Job]) -> dict[int, dict[str, str]]:
    rows = jobs.values_list("pk", "claimed_until")
    return {
        pk: {"claimed_until": until.isoformat(timespec="seconds")} for pk, until in rows if until
    }


@failpoints.around
def release_leases(
    job_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """End leases now, as if they had run out; return how many.

    The holder is fenced: its outcome will be refused. What its handler does meanwhile may happen
    twice. The attempt counts, and is recorded as lost; after the last one the job is dead.
    """
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    return sum(_release(batch, log) for batch in batches(job_ids))


def _release(job_ids: list[int], log: Log) -> int:
    using = log["using"]
    with store(using).transaction():
        expired = store(using).lock_claimed(job_ids)
        if not expired:
            return 0
        before = _ends(_claimed(using, [each.claim.id for each in expired]))
        failure = _told(log["by"], log["reason"])
        settlements = [lost(each, failure) for each in expired]
        settled = settle(settlements, using=using)
        changes = {
            each.claim.id: Change(
                {"claimed_by": each.claim.claimed_by, **before[each.claim.id]},
                {"status": each.status or "dead"},
            )
            for each in settlements
            if each.claim.id in settled
        }
        record_each("release_lease", Job, changes, **log)
        store(using).wake(
            {each.claim.queue_name for each in settlements if each.status == Status.PENDING}
        )
    return len(settled)


def _told(by: Actor | None, reason: str) -> Failure:
    """Return what the attempt tells of why it ended."""
    who = f"{by.name} released its lease" if by else "its lease was released"
    message = f"{who}: {reason}" if reason else who
    return Failure("LeaseReleased", message[:MAX_REASON], fingerprint="lost")


@failpoints.around
def release_worker(
    name: str,
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """End all leases of a worker that is gone; return how many.

    Raise WorkerLives for one that was heard of a moment ago.
    """
    using = alias(using)
    log: Log = {"by": by, "reason": reason, "correlation_id": correlation_id, "using": using}
    held = Job.objects.using(using).claimed().filter(claimed_by=name)
    with store(using).transaction():
        _refuse_if_alive(name, using)
        ids = list(held.order_by("pk").values_list("pk", flat=True))
        released = sum(_release(batch, log) for batch in batches(ids))
        workers = Worker.objects.using(using).filter(name=name).values_list("pk", flat=True)
        record("release_worker", Worker, list(workers), after={"leases": released}, **log)
    return released


def _refuse_if_alive(name: str, using: str) -> None:
    """Lock the worker's row, so that it cannot come back to life meanwhile."""
    workers = Worker.objects.using(using).filter(name=name)
    known = store(using).lock(workers).values_list("pk", flat=True)
    silent = workers.silent_for(conf.get().LEASE)
    if list(known) and not silent.exists():
        raise WorkerLives(f"worker {name} was heard of less than {conf.get().LEASE} ago")
