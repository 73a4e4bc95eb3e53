"""The names of the sets that the lifecycle, the admin and the figures speak of."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.conf import settings
from django.db import connections
from django.db.models import (
    DateTimeField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    Model,
    OuterRef,
    Q,
    QuerySet,
    Value,
)
from django.db.models.functions import Now

from jobqueue.states import FINISHED, BulkState, Status

if TYPE_CHECKING:
    from jobqueue.models import (  # noqa: F401 - named in quotes
        Attempt,
        BulkOperation,
        DeadLetter,
        Job,
        OperationLog,
        Queue,
        Replay,
        Worker,
    )


def ago(span: timedelta) -> ExpressionWrapper[Any]:
    """The instant ``span`` before now, by the database's clock."""
    return ExpressionWrapper(Now() - Value(span), output_field=DateTimeField())


def from_now(span: timedelta) -> ExpressionWrapper[Any]:
    """The instant ``span`` after now, by the database's clock."""
    return ExpressionWrapper(Now() + Value(span), output_field=DateTimeField())


def as_kept(instant: datetime, *, using: str) -> datetime:
    """Return an instant as this database takes it: one that keeps no zones is told it in UTC."""
    if instant.tzinfo is None or settings.USE_TZ or connections[using].features.supports_timezones:
        return instant
    return instant.astimezone(UTC).replace(tzinfo=None)


class JobQuerySet(QuerySet["Job"]):
    """Sets of live jobs."""

    def pending(self) -> JobQuerySet:
        """Jobs that can run now."""
        return self.filter(status=Status.PENDING)

    def scheduled(self) -> JobQuerySet:
        """Jobs that wait for their time: delayed, or between two attempts."""
        return self.filter(status=Status.SCHEDULED)

    def due(self) -> JobQuerySet:
        """Scheduled jobs whose time has come."""
        # A sum, as stored: SQLite compares text, and Now() alone has fewer digits there.
        return self.scheduled().filter(run_after__lte=from_now(timedelta(0)))

    def claimed(self) -> JobQuerySet:
        """Jobs that some worker holds or held."""
        return self.filter(status=Status.CLAIMED)

    def in_flight(self) -> JobQuerySet:
        """Claimed jobs whose lease still runs."""
        return self.claimed().filter(claimed_until__gt=Now())

    def expired(self) -> JobQuerySet:
        """Claimed jobs whose lease has run out: lost, until a worker rescues them."""
        return self.claimed().filter(claimed_until__lte=Now())

    def finished(self) -> JobQuerySet:
        """Succeeded and cancelled jobs."""
        return self.filter(status__in=FINISHED)

    def finished_before(self, span: timedelta) -> JobQuerySet:
        """Finished jobs that ended more than ``span`` ago."""
        return self.finished().filter(finished_at__lt=ago(span))

    def with_time_left(self) -> JobQuerySet:
        """Annotate ``time_left`` with what is left of the lease by the database's clock."""
        left = ExpressionWrapper(F("claimed_until") - Now(), output_field=DurationField())
        return self.annotate(time_left=left)


class AttemptQuerySet(QuerySet["Attempt"]):
    """Sets of attempts."""

    def of(self, job_id: int) -> AttemptQuerySet:
        """The attempts of one job, oldest first."""
        return self.filter(job_id=job_id).order_by("number")

    def orphaned_before(self, span: timedelta) -> AttemptQuerySet:
        """Attempts more than ``span`` old whose job is neither live nor a dead letter any more."""
        return self.filter(_has_no_job(self.model), finished_at__lt=ago(span))


def _has_no_job(model: type[Model]) -> Q:
    """Rows about a job that is neither live nor a dead letter any more."""
    job: Any = model._meta.get_field("job").related_model
    letter = apps.get_model("jobqueue", "DeadLetter")
    return Q(
        ~Exists(job._base_manager.filter(pk=OuterRef("job_id"))),
        ~Exists(letter._base_manager.filter(pk=OuterRef("job_id"))),
    )


class ReplayQuerySet(QuerySet["Replay"]):
    """Sets of replays."""

    def of(self, job_id: int) -> ReplayQuerySet:
        """The replays of one job, the newest first."""
        return self.filter(job_id=job_id).order_by("-pk")

    def orphaned_before(self, span: timedelta) -> ReplayQuerySet:
        """Replays more than ``span`` ago whose job is neither live nor a dead letter any more."""
        return self.filter(_has_no_job(self.model), replayed_at__lt=ago(span))


class DeadLetterQuerySet(QuerySet["DeadLetter"]):
    """Sets of dead letters."""

    def open(self) -> DeadLetterQuerySet:
        """Dead letters that nobody has dealt with."""
        return self.filter(discarded_at__isnull=True)

    def discarded(self) -> DeadLetterQuerySet:
        """Dead letters that were discarded: kept, and marked."""
        return self.filter(discarded_at__isnull=False)

    def died_before(self, span: timedelta) -> DeadLetterQuerySet:
        """Dead letters more than ``span`` old."""
        return self.filter(died_at__lt=ago(span))


class WorkerQuerySet(QuerySet["Worker"]):
    """Sets of worker processes."""

    def silent_for(self, span: timedelta) -> WorkerQuerySet:
        """Workers whose last heartbeat is more than ``span`` ago."""
        return self.filter(heartbeat_at__lt=ago(span))


class QueueQuerySet(QuerySet["Queue"]):
    """Sets of queues."""

    def paused(self) -> QueueQuerySet:
        """Queues of which no job is claimed now."""
        lasts = Q(paused_until__isnull=True) | Q(paused_until__gt=Now())
        return self.filter(lasts, paused_at__isnull=False)


class BulkOperationQuerySet(QuerySet["BulkOperation"]):
    """Sets of bulk operations."""

    def running(self) -> BulkOperationQuerySet:
        """Operations that workers carry out."""
        return self.filter(state=BulkState.RUNNING)


class OperationLogQuerySet(QuerySet["OperationLog"]):
    """Sets of lines of the audit; they are only ever added."""

    def of(self, model: type[Model], pk: Any) -> OperationLogQuerySet:
        """What was done to one row, the newest first."""
        return self.of_any([model], pk)

    def of_any(self, models: Iterable[type[Model]], pk: Any) -> OperationLogQuerySet:
        """What was done to rows of these models with this key, the newest first."""
        kinds = [model._meta.model_name for model in models]
        return self.filter(target_type__in=kinds, target_id=str(pk)).order_by("-pk")

    def update(self, **kwargs: Any) -> int:
        """Refuse it."""
        raise TypeError("lines of the operation log are never changed")

    def delete(self) -> tuple[int, dict[str, int]]:
        """Refuse it."""
        raise TypeError("lines of the operation log are never deleted")
