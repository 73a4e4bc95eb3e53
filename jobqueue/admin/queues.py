"""Queues: how each is, and whether it is paused; pause and resume."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied
from django.db import router, transaction
from django.db.models import BooleanField, Exists, OuterRef, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from jobqueue import lifecycle, stats
from jobqueue.admin import display, operations, pauses
from jobqueue.admin.base import OrderedChangeList, ReadOnlyAdmin
from jobqueue.exceptions import InvalidJob
from jobqueue.models import DeadLetter, Job, Lease, Overview, Queue
from jobqueue.options import check_queue_name
from jobqueue.states import Status


def figures_by_name() -> dict[str, Any]:
    """Return the figures of each queue."""
    return pauses.by_name(stats.by_queue(limit=display.MOST_OF_A_QUEUE + 1))


class QueueList(OrderedChangeList):
    """Queues with their figures beside them, read once for all."""

    def get_results(self, request: HttpRequest) -> None:
        """Read the page, then the figures."""
        super().get_results(request)
        found = figures_by_name()
        self.result_list = list(self.result_list)
        for queue in self.result_list:
            queue.figures = found.get(queue.name)


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin[Queue]):
    """Queues that workers have seen, or that somebody has paused."""

    ordering = ("name",)
    list_display = ("name", "condition", "oldest", "dead_letters", "depth", "in_flight", "expired")
    fields = ("name", "condition", ("oldest", "dead_letters"), ("depth", "in_flight", "expired"))
    shows_figures = True
    shows_deeds = True
    empty_text = gettext_lazy(
        "No queues. Workers write down which they see; a queue needs no row to be used."
    )
    pause_template: ClassVar[str] = "admin/jobqueue/pause.html"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Queue]:
        """Add whether each is paused now, by the database's clock, and what the user may open."""
        paused = Queue.objects.paused().filter(pk=OuterRef("pk"))
        return (
            super()
            .get_queryset(request)
            .annotate(
                is_paused=Exists(paused, output_field=BooleanField()),
                has_jobs=self.is_visible(request, Job),
                has_leases=self.is_visible(request, Lease),
                has_letters=self.is_visible(request, DeadLetter),
            )
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list with the figures."""
        return QueueList

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> Queue | None:
        """Return the queue with its figures."""
        queue: Any = super().get_object(request, object_id, from_field)
        if queue is not None:
            queue.figures = figures_by_name().get(queue.name)
        return queue  # type: ignore[no-any-return]

    @admin.display(description=gettext_lazy("state"))
    def condition(self, queue: Any) -> SafeString:
        """Return whether the queue is paused, and if so by whom and why."""
        return condition(queue if queue.is_paused else None)

    @admin.display(description=gettext_lazy("pending"))
    def depth(self, queue: Any) -> Any:
        """Return how many jobs wait, with a link to them."""
        return self._count(queue, "depth", status=Status.PENDING)

    @admin.display(description=gettext_lazy("oldest waits"))
    def oldest(self, queue: Any) -> str:
        """Return how long the oldest job has been due."""
        return display.span(queue.figures.oldest_age) if queue.figures else display.NOTHING

    @admin.display(description=gettext_lazy("in flight"))
    def in_flight(self, queue: Any) -> Any:
        """Return how many jobs workers hold."""
        return self._count(queue, "in_flight", lease="running")

    @admin.display(description=gettext_lazy("expired leases"))
    def expired(self, queue: Any) -> Any:
        """Return how many leases have run out."""
        return self._count(queue, "expired", lease="expired")

    @admin.display(description=gettext_lazy("dead letters"))
    def dead_letters(self, queue: Any) -> Any:
        """Return how many dead letters there are, with a link to them."""
        if not queue.figures:
            return display.NOTHING
        text = display.capped_of_a_queue(queue.figures.dead_letters)
        if not (queue.has_letters and queue.figures.dead_letters):
            return text
        return display.link(display.list_url(self.admin_site, DeadLetter, queue=queue.name), text)

    def _count(self, queue: Any, name: str, **parameters: Any) -> Any:
        if not queue.figures:
            return display.NOTHING
        number = getattr(queue.figures, name)
        page = Lease if "lease" in parameters and queue.has_leases else Job
        if not (number and (page is Lease or queue.has_jobs)):
            return display.capped_of_a_queue(number)
        url = display.list_url(self.admin_site, page, queue=queue.name, **parameters)
        return display.link(url, display.capped_of_a_queue(number))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what the user may do."""
        queue = context["original"]
        may = self.has_pause_permission(request)
        extra = {
            "controls": controls(self.admin_site, queue.name, is_paused=queue.is_paused)
            if may
            else []
        }
        return super().render_change_form(request, context | extra, *args, **kwargs)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may pause and resume queues."""
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.pause_queue"))

    def get_urls(self) -> list[URLPattern]:
        """Add the addresses at which a queue is paused and resumed, whether it has a row or not."""
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        view = self.admin_site.admin_view
        return [
            path("<path:object_id>/pause/", view(self.pause_view), name=f"{name}_pause"),
            path("<path:object_id>/resume/", view(self.resume_view), name=f"{name}_resume"),
            *super().get_urls(),
        ]

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def pause_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask why and for how long, then pause."""
        name = self._named(request, object_id)
        form = pauses.PauseForm(request.POST or None)
        if request.method == "POST" and form.is_valid():
            reason = form.cleaned_data["reason"]
            pause = partial(lifecycle.pause, name, until=form.until(), reason=reason)
            self._do(request, name, pause, f"Paused: {reason}")
            self.message_user(request, _("Queue %(name)s is paused.") % {"name": name})
            return HttpResponseRedirect(self._back(request, name))
        return self._ask(request, name, form)

    @method_decorator(require_POST)
    def resume_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Resume, whatever the reason."""
        name = self._named(request, object_id)
        if self._do(request, name, partial(lifecycle.resume, name), "Resumed."):
            self.message_user(request, _("Queue %(name)s goes on.") % {"name": name})
        else:
            text = _("Queue %(name)s was not paused.") % {"name": name}
            self.message_user(request, text, messages.WARNING)
        return HttpResponseRedirect(self._back(request, name))

    def _named(self, request: HttpRequest, object_id: str) -> str:
        """Return which queue it is about, for who may pause one and sees a page that shows it."""
        pages = (Queue, Overview)
        sees = any(display.may_view(request, self.admin_site, page) for page in pages)
        if not (sees and self.has_pause_permission(request)):
            raise PermissionDenied
        name = unquote(object_id)
        if not can_be_paused(name):
            raise Http404
        return name

    def _do(self, request: HttpRequest, name: str, verb: Any, log: str) -> Any:
        """Do it, and log it for the user, in one transaction."""
        using = lifecycle.alias()
        given = {
            "by": operations.actor(request),
            "correlation_id": operations.new_correlation_id(),
        }
        with transaction.atomic(using=using):
            done = verb(**given, using=using)
            if done is not False:
                user_id: Any = request.user.pk
                queue = Queue.objects.using(using).get(pk=name)
                LogEntry.objects.log_actions(user_id, [queue], CHANGE, log)
        return done

    def _back(self, request: HttpRequest, name: str) -> str:
        if request.GET.get("from") == "overview" and display.may_view(
            request, self.admin_site, Overview
        ):
            return display.list_url(self.admin_site, Overview)
        if display.may_view(request, self.admin_site, Queue):
            return display.change_url(self.admin_site, Queue, name)
        return display.list_url(self.admin_site, Overview)

    def _ask(self, request: HttpRequest, name: str, form: pauses.PauseForm) -> HttpResponse:
        using = router.db_for_read(Job)
        paused = Queue.objects.using(using).paused().filter(pk=name).first()
        back = self._back(request, name)
        is_of_row = back == display.change_url(self.admin_site, Queue, name)
        return self.page(
            request,
            self.pause_template,
            _("Pause queue %(name)s") % {"name": name},
            under=[(name, back)] if is_of_row else [],
            form=form,
            paused=pauses.line(paused) if paused else "",
            back=back,
        )


def condition(paused: Queue | None) -> SafeString:
    """Return whether a queue is paused, given its row if it is."""
    if paused:
        return display.mark("warning", "‖", pauses.line(paused))
    return display.mark("running", "▶", _("open"))


def can_be_paused(name: str) -> bool:
    """Whether it can be the name of a queue; SQL can put in other ones."""
    try:
        check_queue_name(name)
    except InvalidJob:
        return False
    return True


def controls(
    site: Any, name: str, *, is_paused: bool, back: str = ""
) -> list[tuple[str, str, bool]]:
    """Return what can be done to a queue: the label, the address, and whether it is a POST."""
    if not can_be_paused(name):
        return []
    pause = (_("Pause…"), pauses.url(site, "pause", name, back=back), False)
    resume = (_("Resume"), pauses.url(site, "resume", name, back=back), True)
    return [resume] if is_paused else [pause]
