"""Bulk operations: how far each has come, who wants it and why; pause, proceed, cancel."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import F, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_POST

from jobqueue import lifecycle
from jobqueue.admin import display, filters, operations
from jobqueue.admin.actions import Button
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.lifecycle import bulk
from jobqueue.models import BulkOperation
from jobqueue.states import BulkKind, BulkState
from jobqueue.stats import age_of

#: What can be said to an operation, with its function, its button and what is said then.
TURNS: dict[str, tuple[Any, Any, Any]] = {
    "pause": (bulk.pause, gettext_lazy("Pause"), gettext_lazy("The operation is paused.")),
    "proceed": (bulk.proceed, gettext_lazy("Proceed"), gettext_lazy("The operation goes on.")),
    "cancel": (
        bulk.cancel,
        gettext_lazy("Cancel the rest"),
        gettext_lazy("The operation is cancelled. What was done stays done."),
    ),
}


class BulkStateFilter(filters.ChoiceFilter):
    """Operations by state."""

    title = gettext_lazy("state")
    parameter_name = column = "state"
    choices_of = BulkState


class BulkKindFilter(filters.ChoiceFilter):
    """Operations by what they do."""

    title = gettext_lazy("kind")
    parameter_name = column = "kind"
    choices_of = BulkKind


@admin.register(BulkOperation)
class BulkOperationAdmin(ReadOnlyAdmin[BulkOperation]):
    """Bulk operations, each with its progress."""

    list_display = ("id", "kind", "standing", "progress", "actor", "reason", "asked")
    list_filter = (BulkStateFilter, BulkKindFilter)
    deferred = ("ids",)
    shows_deeds = True
    change_form_template = "admin/jobqueue/bulkoperation.html"
    empty_text = gettext_lazy(
        "No bulk operations. Replay or discard many dead letters from their list or their groups."
    )

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        """Show an error only where there was one."""
        return [
            (None, {"fields": [("kind", "standing"), "progress", "speed"]}),
            (
                _("Who and why"),
                {"fields": [("actor", "created_at", "finished_at"), "reason"]},
            ),
            (_("Which letters"), {"fields": ["which", "until", "target"]}),
            *([(_("Trouble"), {"fields": ["last_error"]})] if obj and obj.last_error else []),
        ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[BulkOperation]:
        """Add how long ago it was asked for, by the database's clock."""
        return super().get_queryset(request).annotate(age=age_of(F("created_at")))

    def get_urls(self) -> list[URLPattern]:
        """Add an address for each thing that can be said to an operation."""
        own = [
            path(
                f"<path:object_id>/{name}/",
                self.admin_site.admin_view(partial(self.turn, name=name)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{name}",
            )
            for name in TURNS
        ]
        return [*own, *super().get_urls()]

    @method_decorator(require_POST)
    def turn(self, request: HttpRequest, object_id: str, *, name: str) -> HttpResponse:
        """Pause an operation, let it proceed, or cancel it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        operation = self._read(request, object_id)
        if not self._may(request, operation):
            raise PermissionDenied
        act, _label, said = TURNS[name]
        using, user_id = lifecycle.alias(), cast(int, request.user.pk)
        with transaction.atomic(using=using):
            done = act(operation.pk, by=operations.actor(request), using=using)
            if done:
                log = {"pause": "Paused.", "proceed": "Let proceed.", "cancel": "Cancelled."}
                LogEntry.objects.log_actions(user_id, [operation], CHANGE, log[name])
        if done:
            self.message_user(request, said, messages.SUCCESS)
        else:
            self.message_user(request, _("It is no longer in a state for this."), messages.WARNING)
        return HttpResponseRedirect(
            display.change_url(self.admin_site, BulkOperation, operation.pk)
        )

    def _read(self, request: HttpRequest, object_id: str) -> BulkOperation:
        try:
            operation = self.get_object(request, object_id)
        except ValidationError:
            operation = None
        if operation is None:
            raise Http404
        return operation

    def _may(self, request: HttpRequest, operation: BulkOperation) -> bool:
        user: Any = request.user
        return bool(user.has_perm(bulk.permission(operation.kind)))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons for those who may."""
        operation = context["original"]
        if self._may(request, operation):
            context["buttons"] = [
                Button(TURNS[name][1], self._turn_url(name, operation.pk), name == "cancel")
                for name in bulk.turns(operation.state)
            ]
        context["is_running"] = operation.state == BulkState.RUNNING
        return super().render_change_form(request, context, *args, **kwargs)

    def _turn_url(self, name: str, pk: Any) -> str:
        full = f"admin:{self.opts.app_label}_{self.opts.model_name}_{name}"
        return reverse(full, args=[quote(pk)], current_app=self.admin_site.name)

    @admin.display(description=gettext_lazy("state"))
    def standing(self, operation: BulkOperation) -> SafeString:
        """Return the state as a word with its symbol."""
        return display.badge(operation.state, BulkState)

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, operation: BulkOperation) -> SafeString:
        """Return how many letters were dealt with, of how many, as a bar and in numbers."""
        seen, expected = operation.done + operation.refused, operation.expected
        text = _("%(done)s of %(expected)s done") % {
            "done": f"{operation.done:,}",
            "expected": display.capped(expected),
        }
        if operation.refused:
            refused = _("%(count)s refused") % {"count": f"{operation.refused:,}"}
            text = f"{text}, {refused}"
        most = max(expected, seen, 1) if operation.state != BulkState.DONE else max(seen, 1)
        value = most if operation.state == BulkState.DONE else seen
        bar = '<progress class="jobqueue-progress" max="{}" value="{}" aria-label="{}"></progress>'
        return format_html(bar + " {}", most, value, text, text)

    @admin.display(description=gettext_lazy("speed"))
    def speed(self, operation: BulkOperation) -> str:
        """Return the rate, and how long the rest takes at it."""
        if operation.rate is None:
            return _("as fast as it goes")
        left = max(operation.expected - operation.done - operation.refused, 0)
        text = _("%(rate)g letters a second") % {"rate": operation.rate}
        if operation.state != BulkState.RUNNING or not left:
            return text
        return _("%(text)s, about %(count)s s to go") % {
            "text": text,
            "count": f"{max(round(left / operation.rate), 1):,}",
        }

    @admin.display(description=gettext_lazy("asked for"))
    def asked(self, operation: Any) -> SafeString:
        """Return how long ago it was asked for."""
        return display.when(operation.created_at, operation.age)

    @admin.display(description=gettext_lazy("letters"))
    def which(self, operation: BulkOperation) -> str:
        """Return the filters, or how many letters were picked."""
        if operation.ids is not None:
            return _("%(count)s picked one by one") % {"count": f"{len(operation.ids):,}"}
        words = [f"{name}: {value or '-'}" for name, value in operation.filters.items()]
        return ", ".join(words) or _("all open dead letters")

    @admin.display(description=gettext_lazy("target queue"))
    def target(self, operation: BulkOperation) -> str:
        """Return where replayed jobs go."""
        if operation.kind != BulkKind.REPLAY:
            return display.NOTHING
        return operation.target_queue or _("each to the queue that it came from")
