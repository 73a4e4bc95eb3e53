"""What the pages of jobs and of dead letters have in common: both are one request."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import display, filters, payloads
from jobqueue.admin.actions import OperatedAdmin
from jobqueue.admin.base import M
from jobqueue.admin.history import history
from jobqueue.models import DeadLetter, Job


class RequestAdmin(OperatedAdmin[M]):
    """Shows a request: its task, its payload with what is sensitive masked, and its attempts."""

    deferred: ClassVar[tuple[str, ...]] = ("args", "kwargs", "trace")
    shows_deeds = True
    #: What the same request is, once it is not this any more.
    other_model: ClassVar[type[Job | DeadLetter]]
    # Only makes the search box appear: get_search_results() is ours.
    search_fields = ("pk__exact",)

    payload_fieldset = (_("Payload"), {"fields": ["arguments", "keyword_arguments", "version"]})
    origin_fieldset = (
        _("Origin"),
        {"fields": [("enqueued_at", "actor", "correlation_id"), "trace_headers"]},
    )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find whole matches of a number or a name; a part would read every row."""
        term = search_term.strip()
        if not term:
            return queryset, False
        return queryset.filter(self.matches(term)), False

    def matches(self, term: str) -> Q:
        """Return what a search looks for: a number or a correlation id."""
        pk = filters.read_key(term)
        by_number = Q() if pk is None else Q(pk=pk)
        return Q(correlation_id=term) | by_number

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> HttpResponse:
        """Show the row; when it has become the other thing meanwhile, lead there."""
        url = self.other_url(request, self.read_pk(object_id))
        if url:
            return HttpResponseRedirect(url)
        return super().change_view(request, object_id, form_url, extra_context)

    def other_url(self, request: HttpRequest, pk: Any) -> str:
        """Return the page of the other thing with this number; empty when there is none to see."""
        if not display.may_view(request, self.admin_site, self.other_model):
            return ""
        if not self.other_model._default_manager.filter(pk=pk).exists():
            return ""
        return display.change_url(self.admin_site, self.other_model, pk)

    def url_after(self, request: HttpRequest, pk: Any) -> str:
        """Return where to go after an operation: to what has become of the row."""
        return self.other_url(request, pk) or super().url_after(request, pk)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons and the attempts."""
        row = context["original"]
        extra = {
            "buttons": self.buttons(request, row),
            "history": history(request, self.admin_site, row),
        }
        return super().render_change_form(request, context | extra, *args, **kwargs)

    @admin.display(description=_("task"))
    def task_name(self, row: Any) -> Any:
        """Return the task, marked when it is not registered."""
        return display.task_name(row.task)

    @admin.display(description=_("attempts"))
    def tries(self, row: Any) -> str:
        """Return how many attempts there were, of how many."""
        return f"{row.attempts} / {row.max_attempts}"

    @admin.display(description=_("arguments"))
    def arguments(self, row: Any) -> Any:
        """Return the positional arguments; those with a sensitive name are masked."""
        names = payloads.argument_names(row.task)
        return display.preformatted(payloads.shown(row, "args", names))

    @admin.display(description=_("keyword arguments"))
    def keyword_arguments(self, row: Any) -> Any:
        """Return the keyword arguments; those with a sensitive name are masked."""
        return display.preformatted(payloads.shown(row, "kwargs"))

    @admin.display(description=_("trace headers"))
    def trace_headers(self, row: Any) -> Any:
        """Return the trace headers, masked like the payload."""
        return display.preformatted(payloads.shown(row, "trace"))
