"""Attempts: the ledger of every try, whatever has become of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Exists, F, OuterRef, QuerySet, Value
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin import display, filters, payloads
from jobqueue.admin.export import ExportedAdmin
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome
from jobqueue.stats import age_of


@admin.register(Attempt)
class AttemptAdmin(ExportedAdmin[Attempt]):
    """Attempts, each with a link to its job or to the dead letter that it has become."""

    list_display = (
        "job_number",
        "number",
        "task_name",
        "ending",
        "worker",
        "ended",
        "error",
    )
    list_display_links = ("number",)
    list_filter = (
        filters.OutcomeFilter,
        filters.EndedFilter,
        filters.TaskFilter,
        filters.JobFilter,
        filters.FingerprintFilter,
    )
    deferred = ("traceback", "message")
    actions = ("export_csv",)
    exported = (
        *("id", "job_id", "number", "fence", "task", "queue_name", "worker", "started_at"),
        *("finished_at", "outcome", "error_class", "message", "fingerprint"),
    )
    exported_text = ("traceback",)
    empty_text = gettext_lazy("No attempts. Each is written here when it ends.")

    fieldsets = (
        (
            None,
            {"fields": ["task_name", ("ending", "job_number", "number", "queue_name", "fence")]},
        ),
        (gettext_lazy("Run"), {"fields": ["worker", ("started_at", "finished_at", "took")]}),
        (
            gettext_lazy("Error"),
            {"fields": [("error_class", "same_error"), "whole_message", "whole_traceback"]},
        ),
    )

    def search_through(
        self, rows: QuerySet[Any], parameters: Mapping[str, Any]
    ) -> tuple[QuerySet[Any], str]:
        """Return it: an index finds attempts by their job, and by nothing else."""
        return rows, "" if "job" in parameters or not parameters else "pk"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Attempt]:
        """Add the start of the message, and which page of the job the user may open."""
        return (
            super()
            .get_queryset(request)
            .annotate(
                summary=Left("message", display.MOST_OF_A_LINE),
                age=age_of(F("finished_at")),
                has_job_page=self._has_page(request, Job),
                has_letter_page=self._has_page(request, DeadLetter),
                sees_payload=Value(payloads.may_see(request)),
            )
        )

    def _has_page(self, request: HttpRequest, model: type[Job | DeadLetter]) -> Exists | Value:
        is_there = Exists(model._default_manager.filter(pk=OuterRef("job_id")))
        return is_there if display.may_view(request, self.admin_site, model) else Value(False)

    @admin.display(description=gettext_lazy("job"))
    def job_number(self, attempt: Any) -> Any:
        """Return the job's number, with a link to the job or the dead letter that it is now."""
        if attempt.has_job_page:
            return self.link_to(Job, attempt.job_id, attempt.job_id)
        if attempt.has_letter_page:
            text = _("%(pk)s (dead)") % {"pk": attempt.job_id}
            return self.link_to(DeadLetter, attempt.job_id, text)
        return attempt.job_id

    @admin.display(description=gettext_lazy("task"))
    def task_name(self, attempt: Attempt) -> SafeString:
        """Return the task, marked when it is not registered."""
        return display.task_name(attempt.task)

    @admin.display(description=gettext_lazy("outcome"))
    def ending(self, attempt: Attempt) -> SafeString:
        """Return the outcome as a word with its symbol."""
        return display.badge(attempt.outcome, Outcome)

    @admin.display(description=gettext_lazy("ended"))
    def ended(self, attempt: Any) -> SafeString:
        """Return how long ago the attempt ended, and how long it ran."""
        took = _("took %(span)s") % {"span": display.duration(attempt.duration)}
        return format_html("{}<br>{}", display.when(attempt.finished_at, attempt.age), took)

    @admin.display(description=gettext_lazy("took"))
    def took(self, attempt: Attempt) -> str:
        """Return how long the attempt ran."""
        return display.duration(attempt.duration)

    @admin.display(description=gettext_lazy("error"))
    def error(self, attempt: Any) -> Any:
        """Return the class of the error and the start of its message."""
        return display.error(attempt.error_class, attempt.summary)

    @admin.display(description=gettext_lazy("message"))
    def whole_message(self, attempt: Attempt) -> Any:
        """Return the whole message."""
        return display.preformatted(attempt.message)

    @admin.display(description=gettext_lazy("traceback"))
    def whole_traceback(self, attempt: Any) -> Any:
        """Return the traceback, for those who may see payloads."""
        text = attempt.traceback if attempt.sees_payload else str(payloads.WITHHELD)
        return display.preformatted(text)

    @admin.display(description=gettext_lazy("error fingerprint"))
    def same_error(self, attempt: Attempt) -> Any:
        """Return the fingerprint, with a link to the attempts that ended in the same error."""
        if not attempt.fingerprint:
            return display.NOTHING
        url = display.list_url(self.admin_site, Attempt, fingerprint=attempt.fingerprint)
        return display.link(url, attempt.fingerprint)
