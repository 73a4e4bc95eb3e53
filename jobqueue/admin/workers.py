"""Workers: who works, on what, and when each was last heard of."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count, F, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import stats
from jobqueue.admin import display
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.models import Job, Worker
from jobqueue.states import WorkerState


def with_heartbeat_age(workers: QuerySet[Worker]) -> QuerySet[Any]:
    """Add how long ago each worker was heard of, by the database's clock."""
    return workers.annotate(heartbeat_age=stats.age_of(F("heartbeat_at")))


def heartbeat(worker: Any) -> SafeString:
    """Return how long ago the worker was heard of; marked when it counts as gone."""
    age: timedelta = worker.heartbeat_age
    text = _("heartbeat %(span)s ago") % {"span": display.span(age)}
    if age <= stats.stale_after():
        return display.mark("running", "♥", text)
    return display.warning(_("stale: %(heartbeat)s") % {"heartbeat": text})


def _leases_held() -> Coalesce:
    held = Job.objects.claimed().filter(claimed_by=OuterRef("name")).order_by()
    counted = held.values("claimed_by").annotate(count=Count("pk")).values("count")
    return Coalesce(Subquery(counted, output_field=IntegerField()), 0)


@admin.register(Worker)
class WorkerAdmin(ReadOnlyAdmin[Worker]):
    """Worker processes, as each wrote itself down."""

    list_display = (
        "name",
        "host",
        "pid",
        "served",
        "concurrency",
        "condition",
        "last_heard",
        "leases",
    )
    fields = (
        "name",
        ("host", "pid"),
        ("served", "concurrency", "leases"),
        ("condition", "started_at", "last_heard"),
    )
    shows_figures = True
    shows_deeds = True
    empty_text = gettext_lazy("No worker is running. Start one: python manage.py runworker")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Add the age of the heartbeat and the leases held, by the database's clock."""
        workers: Any = with_heartbeat_age(super().get_queryset(request))
        return workers.annotate(  # type: ignore[no-any-return]
            leases_held=_leases_held(), has_list=self.is_visible(request, Job)
        )

    @admin.display(description=gettext_lazy("queues"))
    def served(self, worker: Worker) -> str:
        """Return the queues that the worker serves."""
        return worker.queues or _("all")

    @admin.display(description=gettext_lazy("state"))
    def condition(self, worker: Worker) -> SafeString:
        """Return the state as a word with its symbol."""
        return display.badge(worker.state, WorkerState)

    @admin.display(description=gettext_lazy("last heard of"))
    def last_heard(self, worker: Worker) -> SafeString:
        """Return how long ago the worker was heard of."""
        return heartbeat(worker)

    @admin.display(description=gettext_lazy("leases held"))
    def leases(self, worker: Any) -> Any:
        """Return how many jobs the worker holds, with a link to them."""
        if not (worker.has_list and worker.leases_held):
            return worker.leases_held
        url = display.list_url(self.admin_site, Job, worker=worker.name)
        return display.link(url, worker.leases_held)
