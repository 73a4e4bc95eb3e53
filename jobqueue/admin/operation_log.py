"""What operators did: the audit, to be read and never changed."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import F, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from jobqueue.admin import deeds, display, filters, payloads, search
from jobqueue.admin.export import ExportedAdmin
from jobqueue.models import BulkOperation, DeadLetter, Job, OperationLog, Queue, Worker
from jobqueue.states import BulkKind
from jobqueue.stats import age_of

#: What the lines are about, by the name that they have for it.
_TARGETS = {
    str(each._meta.model_name): each for each in (Job, DeadLetter, Queue, Worker, BulkOperation)
}
#: What was done so far; others are found in a sample of lines.
_ACTIONS = (
    *("cancel", "run_now", "move", "prioritise", "extend_lease", "release_lease"),
    *("release_worker", "replay", "discard", "restore", "delete", "pause", "resume", "export"),
    "replay edited",
    *(f"{verb} {kind}" for verb in ("ask", "pause", "proceed", "cancel") for kind in BulkKind),
)


class ActionFilter(filters.NameFilter):
    """Lines by what was done."""

    title = _("action")
    parameter_name = column = "action"

    def known_names(self) -> tuple[str, ...]:
        """Return the actions that there are."""
        return _ACTIONS


class TargetFilter(filters.NameFilter):
    """Lines by what it was done to."""

    title = _("kind of target")
    parameter_name = column = "target_type"

    def known_names(self) -> list[str]:
        """Return the models that operators act on."""
        return list(_TARGETS)


class ActorFilter(filters.NameFilter):
    """Lines by who did it."""

    title = _("actor")
    parameter_name = column = "actor"

    def known_names(self) -> tuple[str, ...]:
        """Return nobody: who has done something is found in a sample of lines."""
        return ()


class AtFilter(filters.RecentFilter):
    """Lines by when it was done."""

    title = _("time")
    parameter_name = column = "at"


@admin.register(OperationLog)
class OperationLogAdmin(ExportedAdmin[OperationLog]):
    """The lines, newest first; nobody may add, change or delete one."""

    list_display = ("id", "done", "actor", "action", "target", "changed", "reason")
    list_filter = (ActionFilter, TargetFilter, ActorFilter, AtFilter)
    deferred = ("targets",)
    actions = ("export_csv",)
    exported = (
        *("id", "at", "actor", "actor_id", "action", "target_type", "target_id", "count"),
        *("reason", "correlation_id"),
    )
    # Only makes the search box appear: get_search_results() is ours.
    search_fields = ("pk__exact",)
    search_help_text = _(
        "A target's number or name, also as job:42, or the correlation id of an operation."
    )
    empty_text = _("Nothing was done yet. Each action of an operator leaves a line here.")
    fieldsets = (
        (None, {"fields": [("at", "actor", "actor_id"), "action", "reason", "correlation"]}),
        (_("Target"), {"fields": [("target_type", "target", "count"), "which"]}),
        (_("Change"), {"fields": ["was", "became"]}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[OperationLog]:
        """Add how long ago each was done, by the database's clock."""
        pages = {f"sees_{name}": self.is_visible(request, each) for name, each in _TARGETS.items()}
        return super().get_queryset(request).annotate(age=age_of(F("at")), **pages)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find whole matches only; a part would read every line."""
        term = search_term.strip()
        if not term:
            return queryset, False
        kind, _colon, key = term.partition(":")
        if kind in _TARGETS and key:
            return queryset.filter(target_type=kind, target_id=key), False
        of_any = Q(target_type__in=list(_TARGETS), target_id=term)
        return search.newest(queryset).filter(of_any | Q(correlation_id=term)), False

    @admin.display(description=_("when"))
    def done(self, line: Any) -> Any:
        """Return how long ago it was done."""
        return display.when(line.at, line.age)

    @admin.display(description=_("target"))
    def target(self, line: OperationLog) -> Any:
        """Return what it was done to, with a link where the user may follow it."""
        if not line.target_id:
            return format_html("{} rows of {}", line.count, line.target_type)
        text = f"{line.target_type} {line.target_id}"
        if not getattr(line, f"sees_{line.target_type}", False):
            return text
        return self.link_to(_TARGETS[line.target_type], line.target_id, text)

    @admin.display(description=_("changed"))
    def changed(self, line: OperationLog) -> Any:
        """Return what was changed from what to what."""
        if line.count > 1:
            return display.NOTHING
        texts = list(deeds.changes(payloads.masked(line.before), payloads.masked(line.after)))
        return display.one_line("; ".join(texts)) or display.NOTHING

    @admin.display(description=_("correlation id"))
    def correlation(self, line: OperationLog) -> Any:
        """Return what ties together all that one request did, with a link to it."""
        if not line.correlation_id:
            return display.NOTHING
        url = display.list_url(self.admin_site, OperationLog, q=line.correlation_id)
        return display.link(url, line.correlation_id)

    @admin.display(description=_("which"))
    def which(self, line: OperationLog) -> Any:
        """Return the filter or the keys of many targets."""
        return _as_text(line.targets)

    @admin.display(description=_("before"))
    def was(self, line: OperationLog) -> Any:
        """Return what was there before."""
        return _as_text(line.before)

    @admin.display(description=_("after"))
    def became(self, line: OperationLog) -> Any:
        """Return what is there since."""
        return _as_text(line.after)


def _as_text(value: Any) -> Any:
    if value is None:
        return display.NOTHING
    return display.preformatted(json.dumps(payloads.masked(value), indent=2, ensure_ascii=False))
