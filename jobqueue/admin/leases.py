"""Leases: every claimed job with who holds it, since when, and for how much longer."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import CHANGE
from django.contrib.admin.views.main import ChangeList
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import conf, lifecycle, registry, stats
from jobqueue.admin import display, filters
from jobqueue.admin.base import OrderedChangeList
from jobqueue.admin.common import RequestAdmin
from jobqueue.admin.jobs import time_left
from jobqueue.admin.operations import DeedForm, Operation
from jobqueue.admin.workers import heartbeat, with_heartbeat_age
from jobqueue.models import DeadLetter, Job, Lease, Worker
from jobqueue.states import Status


def _extended(count: int) -> str:
    return ngettext("%(count)s lease was extended.", "%(count)s leases were extended.", count) % {
        "count": count
    }


def _released(count: int) -> str:
    return ngettext(
        "%(count)s lease was released: its holder is fenced.",
        "%(count)s leases were released: their holders are fenced.",
        count,
    ) % {"count": count}


def _read_minutes(text: str) -> timedelta:
    return timedelta(minutes=int(text))


class ExtendForm(DeedForm):
    """Asks for how long."""

    by_span = forms.TypedChoiceField(
        label=gettext_lazy("For at least"),
        choices=[
            ("5", gettext_lazy("5 minutes from now")),
            ("30", gettext_lazy("30 minutes from now")),
            ("120", gettext_lazy("2 hours from now")),
        ],
        coerce=_read_minutes,
    )


EXTEND = Operation(
    name="extend",
    model=Lease,
    permission="extend_lease",
    label=gettext_lazy("Extend"),
    applies=Q(status=Status.CLAIMED),
    since="claimed_at",
    perform=lifecycle.extend_leases,
    flag=CHANGE,
    log="Lease extended by {by_span}.",
    done=_extended,
    title=gettext_lazy("Extend leases?"),
    question=gettext_lazy(
        "Until then no other worker takes the job over, even if its holder is gone. Its holder "
        "goes on extending the lease as always; no lease becomes shorter."
    ),
    form=ExtendForm,
    unfit=gettext_lazy("not held by a worker any more"),
)
RELEASE = Operation(
    name="release",
    model=Lease,
    permission="release_lease",
    label=gettext_lazy("Release now"),
    applies=Q(status=Status.CLAIMED),
    since="claimed_at",
    perform=lifecycle.release_leases,
    flag=CHANGE,
    log="Lease released.",
    done=_released,
    title=gettext_lazy("Release leases now?"),
    question=gettext_lazy(
        "The lease ends now, as if it had run out. Its holder is fenced: whatever it reports will "
        "be refused. But the handler may still be running, and nothing stops it: what it does may "
        "happen twice. The attempt counts as lost. The job is pending again at once, or a dead "
        "letter if that was its last attempt."
    ),
    is_destructive=True,
    unfit=gettext_lazy("not held by a worker any more"),
)


class LeaseChangeList(OrderedChangeList):
    """The list, with what is known of the holders and the tasks of the page's rows."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then what belongs to it in two look-ups."""
        super().get_results(request)
        self.result_list = list(self.result_list)
        add_facts(self.result_list)


def add_facts(leases: Iterable[Any]) -> None:
    """Tell each lease who its worker is, and how long its task usually runs."""
    leases = list(leases)
    if not leases:
        return
    using = leases[0]._state.db
    names = {each.claimed_by for each in leases}
    workers = with_heartbeat_age(Worker.objects.using(using)).filter(name__in=names)
    known = {worker.name: worker for worker in workers}
    usual = stats.usual_run_time({each.task for each in leases}, using=using)
    for each in leases:
        each.worker, each.usual = known.get(each.claimed_by), usual.get(each.task)


@admin.register(Lease)
class LeaseAdmin(RequestAdmin[Lease]):
    """Leases, those that have run out first, by the database's clock."""

    ordering = ("claimed_until", "pk")
    list_display = (
        "id",
        "task_name",
        "left",
        "share",
        "holder",
        "since",
        "queue_name",
    )
    list_filter = (
        filters.LeaseFilter,
        filters.QueueFilter,
        filters.TaskFilter,
        filters.HolderFilter,
    )
    deferred = (*RequestAdmin.deferred, "result")
    search_help_text = gettext_lazy("A job's number, a correlation id or the name of a worker.")
    shows_figures = True
    operations = (EXTEND, RELEASE)
    actions = ("extend", "release", "export_csv")
    exported = (
        *("id", "task", "queue_name", "priority", "claimed_by", "claimed_at", "claimed_until"),
        *("attempts", "max_attempts", "cancel_requested", "correlation_id"),
    )
    empty_text = gettext_lazy(
        "No leases. Each job that a worker has claimed is here until it is settled."
    )
    fieldsets = (
        (None, {"fields": ["job", "task_name", ("queue_name", "priority", "tries")]}),
        (
            gettext_lazy("Lease"),
            {
                "fields": [
                    "holder",
                    ("left", "claimed_until"),
                    ("held_for", "last_extension"),
                    "share",
                ]
            },
        ),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lease]:
        """Take claimed jobs only, with what is left of each lease by the database's clock."""
        leases: Any = super().get_queryset(request)
        claimed: QuerySet[Lease] = leases.claimed().with_time_left()
        return claimed.annotate(
            has_worker_page=self.is_visible(request, Worker),
            has_job_page=self.is_visible(request, Job),
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that looks up the holders of a page at once."""
        return LeaseChangeList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Lease | None:
        """Return the lease with what is known of its holder."""
        lease = super().get_object(request, object_id, from_field)
        if lease is not None:
            add_facts([lease])
        return lease

    def matches(self, term: str) -> Q:
        """Return what a search looks for: also the holder."""
        return super().matches(term) | Q(claimed_by=term)

    def other_url(self, request: HttpRequest, pk: Any) -> str:
        """Return the page of the job, or of the dead letter, once nobody holds it."""
        if self.get_queryset(request).filter(pk=pk).exists():
            return ""
        for model in (Job, DeadLetter):
            may_view = display.may_view(request, self.admin_site, model)
            if may_view and model._default_manager.filter(pk=pk).exists():
                return display.change_url(self.admin_site, model, pk)
        return ""

    @admin.display(description=gettext_lazy("job"))
    def job(self, lease: Any) -> Any:
        """Return the job's number, with a link to it."""
        return self.link_to(Job, lease.pk, lease.pk) if lease.has_job_page else lease.pk

    @admin.display(description=gettext_lazy("held by"))
    def holder(self, lease: Any) -> Any:
        """Return the worker, where it runs, and whether it still lives."""
        worker = lease.worker
        if worker is None:
            gone = display.warning(_("no such worker any more"))
            return format_html("{}<br>{}", lease.claimed_by, gone)
        name = self.link_to(Worker, worker.pk, worker) if lease.has_worker_page else worker
        where = _("%(host)s, process %(pid)s") % {"host": worker.host, "pid": worker.pid}
        return format_html("{}<br>{}<br>{}", name, where, heartbeat(worker))

    @admin.display(description=gettext_lazy("since"))
    def since(self, lease: Any) -> Any:
        """Return how long ago the job was claimed, and the lease last extended."""
        extended = format_html(_("extended: {}"), self.last_extension(lease))
        return format_html("{}<br>{}", self.held_for(lease), extended)

    @admin.display(description=gettext_lazy("claimed"))
    def held_for(self, lease: Any) -> Any:
        """Return how long ago the job was claimed."""
        return display.when(lease.claimed_at, _now(lease) - lease.claimed_at)

    @admin.display(description=gettext_lazy("last extended"))
    def last_extension(self, lease: Any) -> Any:
        """Return how long ago the lease was last extended, as far as its end tells."""
        extended = lease.claimed_until - _span(lease)
        now = _now(lease)
        if extended > now:
            return _("by an operator") if _own_span(lease) else _("unknown")
        if extended <= lease.claimed_at:
            return _("not yet")
        return display.when(extended, now - extended)

    @admin.display(description=gettext_lazy("time left"))
    def left(self, lease: Any) -> Any:
        """Return how much of the lease is left by the database's clock."""
        return time_left(lease)

    @admin.display(description=gettext_lazy("of the usual run"))
    def share(self, lease: Any) -> Any:
        """Return how long the job has been held, in parts of what 95 % of its task's runs take."""
        if not lease.usual:
            return display.NOTHING
        held = (_now(lease) - lease.claimed_at).total_seconds()
        share, usual = held / lease.usual, display.duration(timedelta(seconds=lease.usual))
        if share > 2:  # noqa: PLR2004 - twice
            return display.warning(f"{share:,.0f} times {usual}")
        return _("%(percent)s %% of %(usual)s") % {"percent": f"{share:.0%}"[:-1], "usual": usual}

    @admin.action(permissions=["extend"], description=gettext_lazy("Extend selected leases"))
    def extend(self, request: HttpRequest, queryset: QuerySet[Lease]) -> HttpResponse | None:
        """Extend leases, after asking for how long."""
        return self.operate_on_selected(request, queryset, EXTEND)

    @admin.action(permissions=["release"], description=gettext_lazy("Release selected leases now"))
    def release(self, request: HttpRequest, queryset: QuerySet[Lease]) -> HttpResponse | None:
        """Release leases, after a question."""
        return self.operate_on_selected(request, queryset, RELEASE)

    def has_extend_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may extend leases."""
        return self.may(request, EXTEND)

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may release leases."""
        return self.may(request, RELEASE)


def _now(lease: Any) -> Any:
    """Return the database's now, as it was when the lease was read."""
    return lease.claimed_until - lease.time_left


def _span(lease: Any) -> timedelta:
    """Return how long each extension of the lease lasts."""
    return _own_span(lease) or conf.get().LEASE


def _own_span(lease: Any) -> timedelta | None:
    """Return what the task says, or the worker; None where neither says anything any more."""
    seconds = registry.leases().get(lease.task)
    if seconds is not None:
        return timedelta(seconds=seconds)
    return lease.worker.lease if lease.worker else None
