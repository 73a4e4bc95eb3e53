"""What the pages of jobs and of dead letters have in common: both are one request."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin, messages
from django.db.models import Q, QuerySet, Value
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.functional import lazy
from django.utils.text import format_lazy
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import conf
from jobqueue.admin import display, filters, payloads, search
from jobqueue.admin.actions import OperatedAdmin
from jobqueue.admin.base import M
from jobqueue.admin.export import ExportedAdmin
from jobqueue.admin.history import history
from jobqueue.admin.replays import replays
from jobqueue.models import DeadLetter, Job


def _scan_limit() -> str:
    return f"{conf.get().ADMIN_SCAN_LIMIT:,}"


def payload_search(what: Any) -> Any:
    """Return a help text for the search: what it finds beside payloads, and in how many rows."""
    text = gettext_lazy(
        "{what} In the payloads of the newest {limit}: args.NAME:VALUE, kwargs.KEY.KEY:VALUE."
    )
    return format_lazy(text, what=what, limit=lazy(_scan_limit, str)())


class RequestAdmin(OperatedAdmin[M], ExportedAdmin[M]):
    """Shows a request: its task, its payload with what is sensitive masked, and its attempts."""

    deferred: ClassVar[tuple[str, ...]] = ("args", "kwargs", "trace")
    shows_deeds = True
    #: What the same request is, once it is not this any more.
    other_model: ClassVar[type[Job | DeadLetter]]
    # Only makes the search box appear: get_search_results() is ours.
    search_fields = ("pk__exact",)

    payload_fieldset = (
        gettext_lazy("Payload"),
        {"fields": ["arguments", "keyword_arguments", "version"]},
    )
    origin_fieldset = (
        gettext_lazy("Origin"),
        {"fields": [("enqueued_at", "actor", "correlation_id"), "trace_headers"]},
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """Tell, as a column of each row, whether the user may see its payload."""
        rows: Any = super().get_queryset(request)
        return rows.annotate(  # type: ignore[no-any-return]
            sees_payload=Value(payloads.may_see(request))
        )

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find whole matches of a number or a name, or of one place in the payload.

        A part would read every row; and of payloads only those of the newest rows are read.
        """
        text = search_term.strip()
        if not text:
            return queryset, False
        if not search.is_of_payloads(text):
            return queryset.filter(self.matches(text)), False
        try:
            return self._search_payloads(request, queryset, text), False
        except search.SearchError as error:
            self.message_user(request, str(error), messages.ERROR)
            return queryset.none(), False

    def _search_payloads(
        self, request: HttpRequest, queryset: QuerySet[Any], text: str
    ) -> QuerySet[Any]:
        if not payloads.may_see(request):
            raise search.SearchError(
                _("To search payloads needs the permission jobqueue.view_payload.")
            )
        rows = search.newest(queryset)
        for term in search.read(text):
            rows = rows.filter(self.matches(term) if isinstance(term, str) else search.holds(term))
        return rows

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
        """Add the attempts and the replays."""
        row = context["original"]
        extra = {
            "history": history(request, self.admin_site, row),
            "replays": replays(request, self.admin_site, row),
        }
        return super().render_change_form(request, context | extra, *args, **kwargs)

    @admin.display(description=gettext_lazy("task"))
    def task_name(self, row: Any) -> Any:
        """Return the task, marked when it is not registered."""
        return display.task_name(row.task)

    @admin.display(description=gettext_lazy("attempts"))
    def tries(self, row: Any) -> str:
        """Return how many attempts there were, of how many."""
        return f"{row.attempts} / {row.max_attempts}"

    @admin.display(description=gettext_lazy("arguments"))
    def arguments(self, row: Any) -> Any:
        """Return the positional arguments; those with a sensitive name are masked."""
        names = payloads.argument_names(row.task)
        return display.preformatted(payloads.shown(row, "args", names))

    @admin.display(description=gettext_lazy("keyword arguments"))
    def keyword_arguments(self, row: Any) -> Any:
        """Return the keyword arguments; those with a sensitive name are masked."""
        return display.preformatted(payloads.shown(row, "kwargs"))

    @admin.display(description=gettext_lazy("trace headers"))
    def trace_headers(self, row: Any) -> Any:
        """Return the trace headers, masked like the payload."""
        return display.preformatted(payloads.shown(row, "trace"))
