"""The store in the ORM's own words, for every database without hand-written statements."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.models import Case, Exists, F, QuerySet, Value, When
from django.db.models.functions import Greatest, Least, Now

from jobqueue.claims import Claim, JobRequest, Key, Lease, Settlement, Turn
from jobqueue.models import MAX_LAST_ERROR, Attempt, BulkOperation, Job, Queue
from jobqueue.querysets import JobQuerySet, QueueQuerySet, ago, as_kept, from_now
from jobqueue.states import Outcome, Status
from jobqueue.stores.base import (
    CLAIM,
    JSON,
    MOVE,
    Expired,
    Inserted,
    Look,
    Store,
    as_claim,
    read_claimed,
)

_FORGIVEN = (Outcome.SNOOZED, Outcome.INTERRUPTED)
#: What a new row holds anyway: given as values, since Django compiles a default for each row.
_COLUMNS: list[Any] = list(Job._meta.concrete_fields)
_DEFAULTS = {
    field.attname: field.db_default for field in _COLUMNS if isinstance(field.db_default, str | int)
}


class GenericStore(Store):
    """Any database that Django supports; safe for several workers where rows can be locked."""

    def _jobs(self) -> JobQuerySet:
        return Job.objects.using(self.using)

    def _paused(self) -> QueueQuerySet:
        return Queue.objects.using(self.using).paused()

    def insert(self, request: JobRequest) -> Inserted:
        [pk] = self.insert_many([request])
        decided = self._jobs().values_list("pk", "status", "run_after", "enqueued_at")
        return Inserted._make(decided.get(pk=pk))

    def insert_many(self, requests: Sequence[JobRequest]) -> list[int]:
        with self.transaction():
            jobs = self._jobs().bulk_create(
                _as_job(request, using=self.using) for request in requests
            )
            later = [job.pk for job in jobs if job.status == Status.SCHEDULED]
            if later:  # the database's clock decides whether they really are
                self._jobs().due().filter(pk__in=later).update(status=Status.PENDING)
        return [job.pk for job in jobs]

    def claim(
        self, turns: Sequence[Turn], *, worker: str, lease: float, leases: Mapping[str, float]
    ) -> list[Claim]:
        with self.transaction():
            rows = [row for turn in turns for row in self._lock_best(turn)]
            for span, ids in _by_span(rows, lease, leases).items():
                self._jobs().filter(pk__in=ids).update(
                    status=Status.CLAIMED,
                    attempts=F("attempts") + 1,
                    fence=F("fence") + 1,
                    claimed_by=worker,
                    claimed_at=Now(),
                    claimed_until=from_now(timedelta(seconds=span)),
                )
            return self._read_claims([row["pk"] for row in rows])

    def _lock_best(self, turn: Turn) -> list[Any]:
        is_paused = Exists(self._paused().filter(name=turn.queue_name))
        best = self._jobs().pending().filter(~is_paused, queue_name=turn.queue_name)
        best = best.order_by("-priority", "run_after", "id")
        return list(self.lock(best, skip_locked=True).values("pk", "task")[: turn.limit])

    def _read_claims(self, ids: Sequence[int]) -> list[Claim]:
        claimed = self._jobs().filter(pk__in=ids).order_by("-priority", "run_after", "id")
        return [as_claim(row) for row in claimed.values_list(*CLAIM)]

    def extend(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        held: dict[Key, bool] = {}
        with self.transaction():
            for lease in sorted(leases, key=lambda lease: lease.claim.id):
                ours = self._fenced(lease.claim)
                ends = from_now(timedelta(seconds=lease.span))
                if ours.update(claimed_until=Greatest("claimed_until", ends)):
                    held |= _asked(ours)
        return held

    def held(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        held: dict[Key, bool] = {}
        for lease in leases:
            held |= _asked(self._fenced(lease.claim))
        return held

    def _fenced(self, claim: Claim) -> JobQuerySet:
        return self._jobs().filter(
            pk=claim.id, fence=claim.fence, claimed_until__isnull=False, status=Status.CLAIMED
        )

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        with self.transaction():
            return {each.claim.key for each in settlements if self._settle(each)}

    def _settle(self, settlement: Settlement) -> bool:
        if not self._fenced(settlement.claim).update(**_changes(settlement)):
            return False
        if self._jobs().filter(pk=settlement.claim.id, status=Status.CANCELLED).exists():
            settlement.status = Status.CANCELLED
        self._record([settlement])
        return True

    def bury(self, settlements: Sequence[Settlement]) -> set[Key]:
        with self.transaction():
            return {each.claim.key for each in settlements if self._bury(each)}

    def _bury(self, settlement: Settlement) -> bool:
        ours = self._fenced(settlement.claim)
        # A write comes first: SQLite cannot turn a read transaction into a write transaction.
        if not ours.update(last_error=settlement.failure.message[:MAX_LAST_ERROR]):
            return False
        failure = settlement.failure
        letter = [settlement.reason, failure.error_class, failure.message, failure.fingerprint]
        with connections[self.using].cursor() as cursor:
            cursor.execute(MOVE, [*letter, settlement.claim.id])
        self._record([settlement])
        ours.delete()
        return True

    def delete(self, settlements: Sequence[Settlement]) -> set[Key]:
        with self.transaction():
            gone = [each for each in settlements if self._fenced(each.claim).delete()[0]]
            self._record(gone)
        return {each.claim.key for each in gone}

    def _record(self, settlements: Sequence[Settlement]) -> None:
        Attempt.objects.using(self.using).bulk_create(
            _as_attempt(each) for each in settlements if each.outcome != Outcome.RELEASED
        )

    def promote(self, *, limit: int) -> list[str]:
        with self.transaction():
            due = self.lock(self._jobs().due().order_by("run_after"), skip_locked=True)
            rows = list(due.values_list("pk", "queue_name")[:limit])
            self._jobs().filter(pk__in=[pk for pk, _ in rows]).update(status=Status.PENDING)
        return [queue_name for _, queue_name in rows]

    def lock_expired(self, *, limit: int) -> list[Expired]:
        expired = self.lock(self._jobs().expired().order_by("pk"), skip_locked=True)
        return read_claimed(expired[:limit])

    def wake(self, queue_names: Collection[str]) -> None:
        """Do nothing: workers poll."""

    def look(self) -> Look:
        # The queues last: what an operation's end or a promotion has just made pending is seen.
        running = BulkOperation.objects.using(self.using).running()
        due, expired, operations = self._any(self._jobs().due(), self._jobs().expired(), running)
        pending = self._jobs().pending().order_by("queue_name")
        paused = set(self._paused().values_list("name", flat=True))
        names = pending.values_list("queue_name", flat=True).distinct()
        return Look(
            queue_names=[name for name in names if name not in paused],
            paused=paused,
            has_due=due,
            has_expired=expired,
            has_operations=operations,
        )

    def _any(self, *sets: QuerySet[Any]) -> list[bool]:
        """Return, by one statement, of which sets there is a row."""
        parts = [rows.order_by().values("pk").query.get_compiler(self.using) for rows in sets]
        compiled = [part.as_sql() for part in parts]
        statement = ", ".join(f"EXISTS ({text})" for text, _ in compiled)
        with connections[self.using].cursor() as cursor:
            parameters = [each for _, given in compiled for each in given]
            cursor.execute(f"SELECT {statement}", parameters)
            return [bool(found) for found in cursor.fetchone()]


def _as_job(request: JobRequest, *, using: str) -> Job:
    given = request._asdict()
    run_at, run_in = given.pop("run_at"), given.pop("run_in")
    for name in JSON:
        given[name] = None if given[name] is None else json.loads(given[name])
    job = Job(**_DEFAULTS | given)
    if run_at is not None:
        job.status, job.run_after = Status.SCHEDULED, as_kept(run_at, using=using)
    elif run_in is not None:
        job.status, job.run_after = Status.SCHEDULED, from_now(timedelta(seconds=run_in))
    return job


def _asked(jobs: JobQuerySet) -> dict[Key, bool]:
    rows = jobs.values_list("pk", "fence", "cancel_requested")
    return {(pk, fence): asked for pk, fence, asked in rows}


def _by_span(
    rows: Iterable[Mapping[str, Any]], lease: float, leases: Mapping[str, float]
) -> dict[float, list[int]]:
    ids: dict[float, list[int]] = defaultdict(list)
    for row in rows:
        ids[leases.get(row["task"], lease)].append(row["pk"])
    return ids


def _changes(settlement: Settlement) -> dict[str, Any]:
    """Return what a settlement changes in its job; see SETTLE in the PostgreSQL statements."""
    changes: dict[str, Any] = {
        "status": settlement.status,
        "claimed_by": None,
        "claimed_at": None,
        "claimed_until": None,
    }
    if settlement.status == Status.SUCCEEDED:
        changes["finished_at"] = Now()
    else:
        changes["status"] = Case(
            When(cancel_requested=True, then=Value(Status.CANCELLED)),
            default=Value(settlement.status),
        )
        changes["finished_at"] = Case(When(cancel_requested=True, then=Now()), default=None)
    if settlement.result is not None:
        changes["result"] = json.loads(settlement.result)
    if settlement.delay is not None:
        changes["run_after"] = from_now(settlement.delay)
    if settlement.outcome == Outcome.RELEASED:
        changes["attempts"] = F("attempts") - 1
    if settlement.outcome == Outcome.LOST:
        changes["losses"] = Least(F("losses") + 1, 1000)
    elif settlement.outcome != Outcome.RELEASED:
        changes["losses"] = 0
    if settlement.outcome in _FORGIVEN:
        changes["max_attempts"] = F("max_attempts") + 1
        changes["attempts_forgiven"] = F("attempts_forgiven") + 1
    if settlement.failure.message:
        changes["last_error"] = settlement.failure.message[:MAX_LAST_ERROR]
    return changes


def _as_attempt(settlement: Settlement) -> Attempt:
    now = time.monotonic()
    claim, failure = settlement.claim, settlement.failure
    return Attempt(
        job_id=claim.id,
        number=claim.attempts,
        fence=claim.fence,
        task=claim.task,
        queue_name=claim.queue_name,
        worker=claim.claimed_by,
        started_at=ago(timedelta(seconds=now - settlement.started)),
        finished_at=ago(timedelta(seconds=now - settlement.finished)),
        outcome=settlement.outcome,
        error_class=failure.error_class,
        message=failure.message,
        traceback=failure.traceback,
        fingerprint=failure.fingerprint,
    )
