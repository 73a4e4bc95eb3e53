"""Jobs: what waits, what runs and under whose lease; cancel and run now."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin import display, filters, payloads
from jobqueue.admin.common import RequestAdmin, payload_search
from jobqueue.admin.job_operations import CANCEL, MOVE, PRIORITISE, RUN_NOW
from jobqueue.admin.workers import heartbeat, with_heartbeat_age
from jobqueue.models import DeadLetter, Job, Worker
from jobqueue.states import FINISHED, Status
from jobqueue.stats import age_of

#: The lists of one status: what comes next, or what ended last, stands first. Without these the
#: database might look for a few old rows through all the newer ones.
ORDERS: dict[str, tuple[str, ...]] = {
    Status.PENDING: ("queue_name", "-priority", "run_after", "pk"),
    Status.SCHEDULED: ("run_after", "pk"),
    Status.SUCCEEDED: ("-finished_at", "-pk"),
    Status.CANCELLED: ("-finished_at", "-pk"),
}


def time_left(job: Any) -> Any:
    """Return how much of a lease is left by the database's clock."""
    span = display.span(job.time_left)
    if job.time_left and job.time_left <= timedelta(0):
        return display.warning(_("expired %(span)s ago") % {"span": span})
    if job.cancel_requested:
        return display.mark("cancelled", "⊘", _("%(span)s left, asked to stop") % {"span": span})
    return _("%(span)s left") % {"span": span}


@admin.register(Job)
class JobAdmin(RequestAdmin[Job]):
    """Jobs, with the lease as the database's clock sees it."""

    list_display = ("id", "task_name", "queue_name", "standing", "tries", "due", "lease")
    list_filter = (
        filters.StatusFilter,
        filters.LeaseFilter,
        filters.QueueFilter,
        filters.EnqueuedFilter,
        filters.TaskFilter,
        filters.HolderFilter,
    )
    deferred = (*RequestAdmin.deferred, "result")
    search_help_text = payload_search(
        gettext_lazy("A job's number, a correlation id or the name of a worker.")
    )
    other_model = DeadLetter
    shows_figures = True
    operations = (RUN_NOW, MOVE, PRIORITISE, CANCEL)
    actions = ("cancel", "run_now", "move", "prioritise", "export_csv")
    exported = (
        *("id", "task", "status", "queue_name", "priority", "enqueued_at", "run_after"),
        *("finished_at", "attempts", "max_attempts", "replays", "losses", "claimed_by"),
        *("claimed_at", "claimed_until", "cancel_requested", "actor", "correlation_id"),
        "last_error",
    )
    exported_json = ("args", "kwargs", "trace", "result")
    empty_text = gettext_lazy(
        "No jobs. What a task's enqueue() writes appears here once its transaction commits."
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Job]:
        """Add what is left of each lease, and how long it has been due, by the database's clock."""
        jobs: Any = super().get_queryset(request)
        return jobs.with_time_left().annotate(  # type: ignore[no-any-return]
            age=age_of(F("run_after")), has_worker_page=self.is_visible(request, Worker)
        )

    def get_ordering(self, request: HttpRequest) -> tuple[str, ...]:
        """Return the order of the index that finds jobs of the status that is asked for."""
        return ORDERS.get(request.GET.get("status", ""), self.ordering)

    def search_through(
        self, rows: QuerySet[Any], parameters: Mapping[str, Any]
    ) -> tuple[QuerySet[Any], str]:
        """Return it: what is not finished has an index, and so has the line of each queue."""
        indexed, statuses = {"status", "lease", "worker"}, parameters.get("status", [])
        if set(FINISHED) & {*statuses}:
            return rows.finished(), "finished_at"  # type: ignore[attr-defined]
        if Status.PENDING in statuses:
            indexed.add("queue")
        return rows, "" if parameters.keys() <= indexed else "pk"

    def matches(self, term: str) -> Q:
        """Return what a search looks for: also the holder of a lease."""
        return super().matches(term) | Q(claimed_by=term, status=Status.CLAIMED)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show a lease only where there is one."""
        lease = ["holder", ("time_left", "claimed_at", "claimed_until")]
        return [
            (None, {"fields": ["task_name", ("standing", "queue_name", "priority", "run_after")]}),
            *([(_("Lease"), {"fields": lease})] if obj and obj.claimed_by else []),
            (
                _("Progress"),
                {"fields": [("tries", "replays", "losses", "fence", "finished_at"), "last_error"]},
            ),
            self.payload_fieldset,
            (_("Result"), {"fields": ["result_text"]}),
            self.origin_fieldset,
        ]

    @admin.display(description=gettext_lazy("status"))
    def standing(self, job: Job) -> Any:
        """Return the status as a word with its symbol."""
        return display.badge(job.status, Status)

    @admin.display(description=gettext_lazy("run after"))
    def due(self, job: Any) -> Any:
        """Return when the job may run, seen from now."""
        return display.when(job.run_after, job.age)

    @admin.display(description=gettext_lazy("lease"))
    def lease(self, job: Any) -> Any:
        """Return who holds the job, and how much time is left."""
        if not job.claimed_by:
            return display.NOTHING
        return format_html("{}<br>{}", job.claimed_by, self.time_left(job))

    @admin.display(description=gettext_lazy("time left"))
    def time_left(self, job: Any) -> Any:
        """Return how much of the lease is left by the database's clock."""
        return time_left(job)

    @admin.display(description=gettext_lazy("held by"))
    def holder(self, job: Any) -> Any:
        """Return the worker that holds the job, and whether it still lives."""
        workers = with_heartbeat_age(Worker.objects.using(job._state.db))
        worker = workers.filter(name=job.claimed_by).first()
        if not worker:
            return format_html(
                "{} {}", job.claimed_by, display.warning(_("no such worker any more"))
            )
        name = self.link_to(Worker, worker.pk, worker) if job.has_worker_page else worker
        return format_html("{} {}", name, heartbeat(worker))

    @admin.display(description=gettext_lazy("result"))
    def result_text(self, job: Job) -> Any:
        """Return what the task returned, masked like the payload."""
        return display.preformatted(payloads.shown(job, "result"))

    @admin.action(permissions=["cancel"], description=gettext_lazy("Cancel selected jobs"))
    def cancel(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Cancel jobs, after a question."""
        return self.operate_on_selected(request, queryset, CANCEL)

    @admin.action(permissions=["run_now"], description=gettext_lazy("Run selected jobs now"))
    def run_now(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Make scheduled jobs due."""
        return self.operate_on_selected(request, queryset, RUN_NOW)

    @admin.action(
        permissions=["move"], description=gettext_lazy("Move selected jobs to another queue")
    )
    def move(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Move jobs that wait, after asking where to."""
        return self.operate_on_selected(request, queryset, MOVE)

    @admin.action(
        permissions=["prioritise"], description=gettext_lazy("Change priority of selected jobs")
    )
    def prioritise(self, request: HttpRequest, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Change the priority of jobs that wait, after asking for it."""
        return self.operate_on_selected(request, queryset, PRIORITISE)

    def has_move_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may move jobs."""
        return self.may(request, MOVE)

    def has_prioritise_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may change priorities."""
        return self.may(request, PRIORITISE)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may cancel jobs."""
        return self.may(request, CANCEL)

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may run scheduled jobs now."""
        return self.may(request, RUN_NOW)
