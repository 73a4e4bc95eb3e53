"""Everything that is ever said to the database about jobs, a sentence each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from django.db import connections, transaction
from django.db.models import DurationField, ExpressionWrapper, F, Model, QuerySet, TextField
from django.db.models.functions import Cast, Now

from jobqueue.claims import Claim, JobRequest, Key, Lease, Settlement, Turn
from jobqueue.models import DeadLetter, Job

M = TypeVar("M", bound=Model)

#: What a job and its dead letter have in common; ``last_error`` is written anew.
MOVED = [
    field.name
    for field in DeadLetter._meta.concrete_fields
    if field.name in {other.name for other in Job._meta.concrete_fields} - {"last_error"}
]
_REVIVED_ANEW = {
    *("run_after", "max_attempts", "attempts_forgiven", "replays", "losses", "queue_name")
}
_SAME = ", ".join(name for name in MOVED if name not in _REVIVED_ANEW)
# What is not named has its default: pending, due now.
REVIVE = f"""
INSERT INTO jobqueue_job ({_SAME}, last_error, queue_name,
    max_attempts, attempts_forgiven, replays)
SELECT {_SAME}, last_error, COALESCE(NULLIF(%s, ''), queue_name),
    attempts + max_attempts - attempts_forgiven, attempts, replays + 1
FROM jobqueue_deadletter"""

#: Tells of a replay; the payload goes along where it is about to be edited, unread like all else.
TELL_OF_REPLAY = """
INSERT INTO jobqueue_replay (
    job_id, fence, died_at, death_reason, fingerprint, last_error, from_queue, to_queue,
    actor_id, actor, reason, operation_id{payload})
SELECT id, fence, died_at, reason, fingerprint, last_error, queue_name,
    COALESCE(NULLIF(%s, ''), queue_name), %s, %s, %s, CAST(%s AS bigint){payload}
FROM jobqueue_deadletter"""

# The payload goes from column to column, unread: what cannot be read can be moved.
MOVE = f"""
INSERT INTO jobqueue_deadletter
    ({", ".join(MOVED)}, last_error, reason, error_class, message, fingerprint)
SELECT {", ".join(MOVED)}, last_error, %s, %s, %s, %s
FROM jobqueue_job WHERE id = %s"""


class Inserted(NamedTuple):
    """What the database decided about a new job."""

    id: int
    status: str
    run_after: datetime
    enqueued_at: datetime


class ReplayDeed(NamedTuple):
    """Where replayed letters go (empty: to their own queue), who wants it, and why."""

    queue_name: str = ""
    actor_id: str = ""
    actor: str = ""
    reason: str = ""
    operation_id: int | None = None


class Expired(NamedTuple):
    """A claim whose lease has run out; the ages are in seconds, by the database's clock."""

    claim: Claim
    claimed_ago: float
    #: Below zero for a lease that still runs: people may end it early.
    expired_ago: float


class Look(NamedTuple):
    """What there is to do for workers."""

    queue_names: Collection[str]  # those with pending jobs, but for paused ones
    paused: Collection[str]  # with jobs or without
    has_due: bool  # scheduled jobs whose time has come
    has_expired: bool  # claims whose lease has run out
    has_operations: bool  # bulk operations to be carried out


#: A payload is read as text, so that one that is unreadable condemns only its own job.
JSON = ("args", "kwargs", "trace")
CLAIM = [
    *(Cast(name, TextField()) if name in JSON else name for name in Claim._fields[:-1]),
    ExpressionWrapper(F("claimed_at") - F("run_after"), output_field=DurationField()),  # waited
]


def as_claim(row: Sequence[Any]) -> Claim:
    """Return the claim that a row of these columns tells of."""
    *same, waited = row
    return Claim._make([*same, waited.total_seconds()])


def read_claimed(rows: QuerySet[Job]) -> list[Expired]:
    """Return the claims of claimed jobs, with how long ago each lease began and ended."""
    found = rows.values_list(*CLAIM, _since("claimed_at"), _since("claimed_until"))
    return [
        Expired(as_claim(row[:-2]), row[-2].total_seconds(), row[-1].total_seconds())
        for row in found
    ]


def _since(field: str) -> ExpressionWrapper[Any]:
    return ExpressionWrapper(Now() - F(field), output_field=DurationField())


class Store(ABC):
    """The statements for one database; each is one transaction unless the caller has one open."""

    def __init__(self, using: str) -> None:
        self.using = using

    def transaction(self) -> AbstractContextManager[None]:
        """Open a transaction that may read before it writes."""
        return transaction.atomic(using=self.using)

    def lock(self, rows: QuerySet[M], *, skip_locked: bool = False) -> QuerySet[M]:
        """Lock rows as they are read; where rows cannot be locked the transaction has it all."""
        features = connections[self.using].features
        if not features.has_select_for_update:
            return rows
        skip_locked = skip_locked and features.has_select_for_update_skip_locked
        return rows.select_for_update(skip_locked=skip_locked)

    def lock_claimed(self, ids: Collection[int]) -> list[Expired]:
        """Lock and return claims of these jobs, whether their lease has run out or not."""
        claimed = Job.objects.using(self.using).claimed().filter(pk__in=ids)
        return read_claimed(self.lock(claimed.order_by("pk")))

    def revive(self, ids: Sequence[int], *, queue_name: str = "") -> None:
        """Copy dead letters back to the jobs, under their ids, due now and with a fresh budget.

        They go to the queue named, or back to their own. The payload goes from column to column,
        unread: a letter that cannot be read can be moved.
        """
        self._for_letters(REVIVE, [queue_name], ids)

    def tell_of_replay(
        self, ids: Sequence[int], deed: ReplayDeed, *, keeps_payload: bool = False
    ) -> None:
        """Write down that dead letters are about to be replayed, with their payload if asked to."""
        payload = ", args, kwargs" if keeps_payload else ""
        self._for_letters(TELL_OF_REPLAY.format(payload=payload), deed, ids)

    def _for_letters(self, statement: str, given: Sequence[Any], ids: Sequence[int]) -> None:
        marks = ", ".join(["%s"] * len(ids))
        with connections[self.using].cursor() as cursor:
            cursor.execute(f"{statement} WHERE id IN ({marks})", [*given, *ids])

    @abstractmethod
    def insert(self, request: JobRequest) -> Inserted:
        """Write one job; due at once it is pending, otherwise scheduled."""

    @abstractmethod
    def insert_many(self, requests: Sequence[JobRequest]) -> list[int]:
        """Write jobs and return their ids in the order given."""

    @abstractmethod
    def claim(
        self, turns: Sequence[Turn], *, worker: str, lease: float, leases: Mapping[str, float]
    ) -> list[Claim]:
        """Take pending jobs of each queue that is not paused, best first; count an attempt of each.

        ``lease`` is in seconds; ``leases`` has the tasks with one of their own. The jobs of one
        queue come in their order; which queue comes first is open. A store may ignore floors.
        """

    @abstractmethod
    def extend(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        """Let leases end their span from now; return those extended, with "cancel requested"."""

    @abstractmethod
    def held(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        """Return the claims whose fence holds, with "cancel requested"; lock and change nothing."""

    # The next four settle claims whose fence still holds, each with its attempt, and return those
    # that were settled. The others lost their lease, and nothing was written for them.

    def acknowledge(self, settlements: Sequence[Settlement]) -> set[Key]:
        """Settle successes that have nothing to tell: the plain case may have a short cut."""
        return self.settle(settlements)

    @abstractmethod
    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        """Give claimed jobs their next status: succeeded, or once more pending or scheduled.

        A settlement that would have the job tried again becomes one that cancels it, where that was
        asked for meanwhile; its ``status`` then says so.
        """

    @abstractmethod
    def bury(self, settlements: Sequence[Settlement]) -> set[Key]:
        """Move claimed jobs to the dead letters, with the reason."""

    @abstractmethod
    def delete(self, settlements: Sequence[Settlement]) -> set[Key]:
        """Delete claimed jobs that succeeded, where succeeded jobs are not kept."""

    @abstractmethod
    def promote(self, *, limit: int) -> list[str]:
        """Make scheduled jobs that are due pending, the longest due first; return their queues."""

    @abstractmethod
    def lock_expired(self, *, limit: int) -> list[Expired]:
        """Lock and return claims whose lease has run out, skipping what others have locked."""

    @abstractmethod
    def wake(self, queue_names: Collection[str]) -> None:
        """Tell idle workers that jobs of these queues can run, once this is committed."""

    @abstractmethod
    def look(self) -> Look:
        """Return what there is to do, without locking or changing anything."""
