"""What people do to jobs that are not dead: cancel, run now, move, change the priority."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from django.db.models import Q
from django.db.models.functions import Now

from jobqueue import failpoints
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.lifecycle.audit import Actor, Change, record_each
from jobqueue.models import Job
from jobqueue.options import check_priority, check_queue_name
from jobqueue.querysets import JobQuerySet
from jobqueue.states import Status

WAITING = (Status.SCHEDULED, Status.PENDING)
_CANCELLABLE = Q(status__in=WAITING) | Q(status=Status.CLAIMED, cancel_requested=False)

#: Writes what became of each job into the operation log.
Log = Callable[[Mapping[int, Change]], None]


def _log(action: str, *, by: Actor | None, reason: str, correlation_id: str, using: str) -> Log:
    return partial(
        record_each,
        action,
        Job,
        by=by,
        reason=reason,
        correlation_id=correlation_id,
        using=using,
    )


@failpoints.around
def cancel(
    job_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Cancel jobs; return how many there were to cancel.

    One that waits is cancelled at once. One that runs is asked to stop: its handler sees
    ``context.cancel_requested``, and whatever it does, no further attempt starts.
    """
    using = alias(using)
    log = _log("cancel", by=by, reason=reason, correlation_id=correlation_id, using=using)
    return sum(_cancel(batch, using, log) for batch in batches(job_ids))


def _cancel(job_ids: list[int], using: str, log: Log) -> int:
    with store(using).transaction():
        rows = _jobs(using, job_ids).filter(_CANCELLABLE)
        found = dict(store(using).lock(rows.order_by("pk")).values_list("pk", "status"))
        running = [pk for pk, status in found.items() if status == Status.CLAIMED]
        _jobs(using, running).update(cancel_requested=True)
        waiting = _jobs(using, found.keys() - set(running))
        waiting.update(status=Status.CANCELLED, finished_at=Now())
        log({pk: _cancelled(status) for pk, status in found.items()})
    return len(found)


def _cancelled(status: str) -> Change:
    if status == Status.CLAIMED:
        return Change({"cancel_requested": False}, {"cancel_requested": True})
    return Change({"status": status}, {"status": Status.CANCELLED})


def _jobs(using: str, job_ids: Iterable[int]) -> JobQuerySet:
    return Job.objects.using(using).filter(pk__in=job_ids)


@failpoints.around
def run_now(
    job_ids: Iterable[int],
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Make scheduled jobs pending without waiting for their time; return how many."""
    using = alias(using)
    log = _log("run_now", by=by, reason=reason, correlation_id=correlation_id, using=using)
    return sum(_run_now(batch, using, log) for batch in batches(job_ids))


def _run_now(job_ids: list[int], using: str, log: Log) -> int:
    with store(using).transaction():
        rows = store(using).lock(_jobs(using, job_ids).scheduled().order_by("pk"))
        found = list(rows.values_list("pk", "queue_name", "run_after"))
        changed = _jobs(using, [pk for pk, *_ in found])
        changed.update(status=Status.PENDING, run_after=Now())
        after = {"status": Status.PENDING}
        log(
            {
                pk: Change({"status": Status.SCHEDULED, "run_after": due.isoformat()}, after)
                for pk, _, due in found
            }
        )
        store(using).wake({queue_name for _, queue_name, _ in found})
    return len(found)


@failpoints.around
def move(
    job_ids: Iterable[int],
    queue_name: str,
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Move jobs that wait to another queue; return how many. One that runs stays where it is.

    Raise InvalidJob for a name that no job could be enqueued with.
    """
    check_queue_name(queue_name)
    using = alias(using)
    log = _log("move", by=by, reason=reason, correlation_id=correlation_id, using=using)
    return sum(_move(batch, queue_name, using, log) for batch in batches(job_ids))


def _move(job_ids: list[int], queue_name: str, using: str, log: Log) -> int:
    with store(using).transaction():
        rows = _jobs(using, job_ids).filter(status__in=WAITING).exclude(queue_name=queue_name)
        found = list(
            store(using).lock(rows.order_by("pk")).values_list("pk", "queue_name", "status")
        )
        _jobs(using, [pk for pk, *_ in found]).update(queue_name=queue_name)
        after = {"queue_name": queue_name}
        log({pk: Change({"queue_name": before}, after) for pk, before, _ in found})
        if any(status == Status.PENDING for *_, status in found):
            store(using).wake([queue_name])
    return len(found)


@failpoints.around
def prioritise(
    job_ids: Iterable[int],
    priority: int,
    *,
    by: Actor | None = None,
    reason: str = "",
    correlation_id: str = "",
    using: str | None = None,
) -> int:
    """Give jobs that wait another priority, -100 to 100; return how many.

    Raise InvalidJob for a priority that no job could be enqueued with.
    """
    check_priority(priority)
    using = alias(using)
    log = _log("prioritise", by=by, reason=reason, correlation_id=correlation_id, using=using)
    return sum(_prioritise(batch, priority, using, log) for batch in batches(job_ids))


def _prioritise(job_ids: list[int], priority: int, using: str, log: Log) -> int:
    with store(using).transaction():
        rows = _jobs(using, job_ids).filter(status__in=WAITING).exclude(priority=priority)
        found = dict(store(using).lock(rows.order_by("pk")).values_list("pk", "priority"))
        _jobs(using, found).update(priority=priority)
        after = {"priority": priority}
        log({pk: Change({"priority": before}, after) for pk, before in found.items()})
    return len(found)
