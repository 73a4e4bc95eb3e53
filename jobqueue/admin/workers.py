"""Workers: who works, on what, and when each was last heard of."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.models import CHANGE
from django.db.models import Count, Exists, F, IntegerField, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import lifecycle, stats
from jobqueue.admin import display
from jobqueue.admin.actions import OperatedAdmin
from jobqueue.admin.operations import Operation
from jobqueue.models import Job, Lease, Worker
from jobqueue.querysets import ago
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


def _stale_with_leases() -> Q:
    held = Job.objects.claimed().filter(claimed_by=OuterRef("name"))
    return Q(Exists(held), heartbeat_at__lt=ago(stats.stale_after()))


def _release_all(worker_ids: Iterable[int], *, using: str, **given: Any) -> int:
    """Release the leases of each of the workers; return how many workers."""
    workers = Worker.objects.using(using).filter(pk__in=list(worker_ids))
    names = list(workers.order_by("pk").values_list("name", flat=True))
    for name in names:
        lifecycle.release_worker(name, using=using, **given)
    return len(names)


def _released(count: int) -> str:
    return ngettext(
        "%(count)s worker holds nothing any more: all its leases were released.",
        "%(count)s workers hold nothing any more: all their leases were released.",
        count,
    ) % {"count": count}


RELEASE_ALL = Operation(
    name="release_leases",
    model=Worker,
    permission="release_lease",
    label=gettext_lazy("Release all leases"),
    applies=_stale_with_leases,
    since="started_at",
    perform=_release_all,
    flag=CHANGE,
    log="All its leases were released.",
    done=_released,
    title=gettext_lazy("Release all leases of workers?"),
    question=gettext_lazy(
        "This is for a worker that is gone. Its leases end now, as if they had run out, and the "
        "attempts count as lost. Should it be cut off rather than dead, its handlers may still be "
        "running: what they report will be refused, and what they do may happen twice."
    ),
    is_destructive=True,
    unfit=gettext_lazy(
        "heard of a moment ago, so it lives and is to be stopped first, or without any lease"
    ),
    named_by=("name",),
)


@admin.register(Worker)
class WorkerAdmin(OperatedAdmin[Worker]):
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
    operations = (RELEASE_ALL,)
    actions = ("release_leases",)
    shows_figures = True
    shows_deeds = True
    empty_text = gettext_lazy("No worker is running. Start one: python manage.py runworker")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Worker]:
        """Add the age of the heartbeat and the leases held, by the database's clock."""
        workers: Any = with_heartbeat_age(super().get_queryset(request))
        return workers.annotate(  # type: ignore[no-any-return]
            leases_held=_leases_held(),
            has_list=self.is_visible(request, Job),
            has_leases=self.is_visible(request, Lease),
        )

    @admin.action(
        permissions=["release"],
        description=gettext_lazy("Release all leases of selected workers"),
    )
    def release_leases(
        self, request: HttpRequest, queryset: QuerySet[Worker]
    ) -> HttpResponse | None:
        """Release the leases of workers that are gone, after a question."""
        return self.operate_on_selected(request, queryset, RELEASE_ALL)

    def has_release_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may release leases."""
        return self.may(request, RELEASE_ALL)

    @admin.display(description=gettext_lazy("queues"))
    def served(self, worker: Worker) -> str:
        """Return the queues that the worker serves."""
        return ", ".join(worker.queues.replace(",", " ").split()) or _("all")

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
        if not (worker.leases_held and (worker.has_leases or worker.has_list)):
            return worker.leases_held
        page = Lease if worker.has_leases else Job
        url = display.list_url(self.admin_site, page, worker=worker.name)
        return display.link(url, worker.leases_held)
