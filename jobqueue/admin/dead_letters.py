"""Dead letters: what gave up, and why; what can be done about one, many, or all of an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import F, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import conf
from jobqueue.admin import display, filters, letter_filters
from jobqueue.admin.bulk_asking import BulkAdmin
from jobqueue.admin.common import RequestAdmin, payload_search
from jobqueue.admin.editing import EditedAdmin
from jobqueue.admin.groups import GroupedAdmin
from jobqueue.admin.letter_operations import DELETE, DISCARD, REPLAY, RESTORE
from jobqueue.models import DeadLetter, Job
from jobqueue.states import BulkKind, Reason
from jobqueue.stats import age_of


@admin.register(DeadLetter)
class DeadLetterAdmin(
    GroupedAdmin[DeadLetter],
    BulkAdmin[DeadLetter],
    EditedAdmin[DeadLetter],
    RequestAdmin[DeadLetter],
):
    """Dead letters, each with what went wrong and everything that was tried."""

    ordering = ("-died_at", "-pk")
    list_display = ("id", "task_name", "queue_name", "why", "error", "died")
    list_filter = (
        letter_filters.DiscardedFilter,
        filters.ReasonFilter,
        filters.QueueFilter,
        filters.DiedFilter,
        filters.TaskFilter,
        filters.FingerprintFilter,
        letter_filters.PickedFilter,
    )
    deferred = (*RequestAdmin.deferred, "message")
    search_help_text = payload_search(gettext_lazy("A job's number or a correlation id."))
    other_model = Job
    shows_figures = True
    change_list_template = "admin/jobqueue/letters.html"
    operations = (REPLAY, DISCARD, RESTORE, DELETE)
    actions = ("replay", "discard", "restore", "delete_for_ever", "export_csv")
    exported = (
        *("id", "task", "queue_name", "priority", "enqueued_at", "died_at", "reason"),
        *("error_class", "message", "fingerprint", "attempts", "replays", "losses", "actor"),
        *("correlation_id", "discarded_at", "discarded_by", "discard_reason"),
    )
    exported_json = ("args", "kwargs", "trace")
    empty_text = gettext_lazy(
        "No dead letters. A job lands here when it has used up its attempts, or when trying again "
        "is pointless."
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Say that it was discarded, and by whom, only where it was."""
        discarded = {"fields": [("discarded_at", "discarded_by"), "discard_reason"]}
        return [
            (None, {"fields": ["task_name", ("queue_name", "priority", "died_at")]}),
            *([(_("Discarded"), discarded)] if obj and obj.discarded_at else []),
            (
                _("Why it gave up"),
                {
                    "fields": [
                        "why",
                        ("error_class", "same_error"),
                        "whole_message",
                        ("tries", "replays", "losses", "fence"),
                    ]
                },
            ),
            self.payload_fieldset,
            self.origin_fieldset,
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        """Add the start of the message, and how long ago it died by the database's clock."""
        letters = super().get_queryset(request)
        return letters.annotate(
            summary=Left("message", display.MOST_OF_A_LINE), age=age_of(F("died_at"))
        )

    @admin.display(description=gettext_lazy("died"))
    def died(self, letter: Any) -> Any:
        """Return how long ago the job gave up."""
        return display.when(letter.died_at, letter.age)

    @admin.display(description=gettext_lazy("reason"))
    def why(self, letter: DeadLetter) -> Any:
        """Return the reason as a word with a symbol."""
        return display.mark("dead", "✗", dict(Reason.choices).get(letter.reason, letter.reason))

    @admin.display(description=gettext_lazy("error"))
    def error(self, letter: Any) -> Any:
        """Return the class of the error and the start of its message."""
        return display.error(letter.error_class, letter.summary)

    @admin.display(description=gettext_lazy("message"))
    def whole_message(self, letter: DeadLetter) -> Any:
        """Return the whole message."""
        return display.preformatted(letter.message)

    @admin.display(description=gettext_lazy("error fingerprint"))
    def same_error(self, letter: DeadLetter) -> Any:
        """Return the fingerprint, with a link to the dead letters of the same error."""
        if not letter.fingerprint:
            return display.NOTHING
        url = display.list_url(self.admin_site, DeadLetter, fingerprint=letter.fingerprint)
        return display.link(url, letter.fingerprint)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list, with a way to the groups."""
        tabs = {
            "groups_url": self.groups_url,
            "list_url": display.list_url(self.admin_site, DeadLetter),
        }
        return super().changelist_view(request, tabs | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the way to edit an open letter."""
        letter = context["original"]
        if letter.discarded_at is None and self.may_edit(request):
            context["controls"] = [(_("Edit and replay"), self.edit_url(letter.pk), False)]
        return super().render_change_form(request, context, *args, **kwargs)

    def group_urls(self, request: HttpRequest, fingerprint: str) -> Mapping[str, str]:
        """Return where a whole group can be replayed or discarded by those who may."""
        return {
            f"{kind}_url": self.bulk_url(kind, fingerprint=fingerprint)
            if self.may_do(request, kind)
            else ""
            for kind in BulkKind.values
        }

    @admin.action(permissions=["replay"], description=gettext_lazy("Replay selected dead letters…"))
    def replay(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse:
        """Ask how and why, and have workers make dead letters pending jobs again."""
        return self.ask_for_selected(request, BulkKind.REPLAY)

    @admin.action(
        permissions=["discard"], description=gettext_lazy("Discard selected dead letters…")
    )
    def discard(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse:
        """Ask how and why, and have workers mark dead letters as dealt with."""
        return self.ask_for_selected(request, BulkKind.DISCARD)

    @admin.action(
        permissions=["restore"], description=gettext_lazy("Restore selected dead letters")
    )
    def restore(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Make discarded dead letters open again."""
        return self.operate_on_selected(request, queryset, RESTORE)

    @admin.action(
        permissions=["delete_for_ever"],
        description=gettext_lazy("Delete selected dead letters for ever"),
    )
    def delete_for_ever(
        self, request: HttpRequest, queryset: QuerySet[DeadLetter]
    ) -> HttpResponse | None:
        """Delete discarded dead letters, after a question."""
        return self.operate_on_selected(request, queryset, DELETE)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may replay dead letters."""
        return self.may(request, REPLAY)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may discard dead letters."""
        return self.may(request, DISCARD)

    def has_restore_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may restore dead letters, and the list may hold any."""
        return self.may(request, RESTORE) and _lists_discarded(request)

    def has_delete_for_ever_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may delete dead letters, if the project has that switched on."""
        is_on = conf.get().DELETE_DEAD_LETTERS and _lists_discarded(request)
        return self.may(request, DELETE) and is_on


def _lists_discarded(request: HttpRequest) -> bool:
    return request.GET.get("discarded", "") in ("yes", "any")
