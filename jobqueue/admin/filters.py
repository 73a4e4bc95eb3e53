"""Filters whose choices never scan a table: from code, or from a bounded sample of rows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any, ClassVar

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue import registry
from jobqueue.querysets import ago
from jobqueue.states import Outcome, Reason, Status

#: Names are looked for in this many of the newest and of the oldest rows.
SAMPLE = 500
#: A number of so many digits fits into a column of 64 bits.
MOST_DIGITS = 18

#: What an address says where a column is empty.
NONE = "-"

_Lookups = Iterable[tuple[str, Any]]


class ExactFilter(SimpleListFilter):
    """Rows whose column equals the value in the address; offers the value in use, if any.

    Without choices of its own it shows only while it is used: for links from other pages.
    """

    column: ClassVar[str]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer what can be filtered by."""
        value = self.value()
        return [(value, value)] if value else []

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows with the value; none for what no database can hold."""
        value = self.value()
        if not value:
            return queryset
        return queryset.none() if "\0" in value else queryset.filter(**{self.column: value})


class ChoiceFilter(ExactFilter):
    """Rows by a column that has choices."""

    choices_of: ClassVar[Any]

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer every choice."""
        return list(self.choices_of.choices)


class NameFilter(ExactFilter):
    """Rows by a name that tasks or rows bring with them, so that no longer used ones are found."""

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer the names in use by code, those in a sample of rows, and the one in use here."""
        rows = model_admin.get_queryset(request)
        names = {*self.known_names(), *sample(rows, self.column), self.value() or ""}
        return [(name, name) for name in sorted(names) if name]

    def known_names(self) -> Iterable[str]:
        """Return the names that the code knows of."""
        raise NotImplementedError


def sample(rows: QuerySet[Any], column: str) -> set[str]:
    """Return the values of a column in the newest and the oldest rows."""
    values = rows.order_by("pk").values_list(column, flat=True)
    return {*values[:SAMPLE], *values.reverse()[:SAMPLE]}


class TaskFilter(NameFilter):
    """Rows by task."""

    title = _("task")
    parameter_name = column = "task"

    def known_names(self) -> Iterable[str]:
        """Return the names of the registered tasks."""
        return registry.tasks


class QueueFilter(NameFilter):
    """Rows by queue."""

    title = _("queue")
    parameter_name = "queue"
    column = "queue_name"

    def known_names(self) -> Iterable[str]:
        """Return the queues of the registered tasks."""
        return {task.queue_name for task in registry.tasks.values()}


class StatusFilter(ChoiceFilter):
    """Jobs by status."""

    title = _("status")
    parameter_name = column = "status"
    choices_of = Status


class OutcomeFilter(ChoiceFilter):
    """Attempts by outcome."""

    title = _("outcome")
    parameter_name = column = "outcome"
    choices_of = Outcome


class ReasonFilter(ChoiceFilter):
    """Dead letters by reason."""

    title = _("reason")
    parameter_name = column = "reason"
    choices_of = Reason


class LeaseFilter(SimpleListFilter):
    """Claimed jobs by whether their lease still runs."""

    title = _("lease")
    parameter_name = "lease"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer both."""
        return [("running", _("running")), ("expired", _("expired"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs whose lease runs, or has run out."""
        if self.value() == "running":
            return queryset.in_flight()  # type: ignore[attr-defined,no-any-return]
        if self.value() == "expired":
            return queryset.expired()  # type: ignore[attr-defined,no-any-return]
        return queryset


class HolderFilter(ExactFilter):
    """Jobs held by one worker."""

    title = _("held by")
    parameter_name = "worker"
    column = "claimed_by"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the jobs; only claimed ones have a holder, and those have an index."""
        held = queryset.filter(status=Status.CLAIMED) if self.value() else queryset
        return super().queryset(request, held)


class JobFilter(ExactFilter):
    """Attempts of one job."""

    title = _("job")
    parameter_name = "job"
    column = "job_id"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the attempts of the job; none when the value is no number."""
        value = self.value()
        if value and read_key(value) is None:
            return queryset.none()
        return super().queryset(request, queryset)


class FingerprintFilter(ExactFilter):
    """Dead letters and attempts that ended in the same error."""

    title = _("error fingerprint")
    parameter_name = column = "fingerprint"

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows; also those of no fingerprint, which an empty value does not ask for."""
        if self.value() == NONE:
            return queryset.filter(fingerprint="")
        return super().queryset(request, queryset)


class RecentFilter(SimpleListFilter):
    """Rows of the last hour, day or week, by the database's clock."""

    column: ClassVar[str]
    spans: ClassVar[dict[str | None, tuple[Any, timedelta]]] = {
        "1h": (_("the last hour"), timedelta(hours=1)),
        "3h": (_("the last 3 hours"), timedelta(hours=3)),
        "24h": (_("the last 24 hours"), timedelta(hours=24)),
        "3d": (_("the last 3 days"), timedelta(days=3)),
        "7d": (_("the last 7 days"), timedelta(days=7)),
    }

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer the fixed spans."""
        return [(str(key), label) for key, (label, _span) in self.spans.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of the span."""
        value = self.value()
        if value not in self.spans:
            return queryset
        _label, span = self.spans[value]
        return queryset.filter(**{f"{self.column}__gte": ago(span)})


class EnqueuedFilter(RecentFilter):
    """Jobs by when they were enqueued."""

    title = _("time enqueued")
    parameter_name = "enqueued"
    column = "enqueued_at"


class DiedFilter(RecentFilter):
    """Dead letters by when they died."""

    title = _("time of death")
    parameter_name = "died"
    column = "died_at"


class EndedFilter(RecentFilter):
    """Attempts by when they ended."""

    title = _("time ended")
    parameter_name = "ended"
    column = "finished_at"


def parameters(filters: Iterable[Any]) -> set[str]:
    """Return the parameters that our filters understand."""
    return {each.parameter_name for each in filters if hasattr(each, "parameter_name")}


def columns(filters: Iterable[Any]) -> set[str]:
    """Return the columns that a project's own filters name, as Django's do."""
    named = (each[0] if isinstance(each, list | tuple) else each for each in filters)
    return {each for each in named if isinstance(each, str)}


def read_key(text: str) -> int | None:
    """Return the primary key that a text names; None when no column could hold it."""
    is_key = text.isdecimal() and len(text) <= MOST_DIGITS
    return int(text) if is_key else None
