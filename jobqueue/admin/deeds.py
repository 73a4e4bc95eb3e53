"""What operators did to one row, as a table on its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.utils.safestring import SafeString

from jobqueue.admin import display, payloads
from jobqueue.models import DeadLetter, Job, OperationLog

#: A job and its dead letter have one number, and one story.
_WORK = (Job, DeadLetter)
#: The table holds the newest lines; a link leads to the others.
MOST_LINES = 20


class Line(NamedTuple):
    """One thing that was done."""

    at: SafeString
    actor: str
    action: str
    reason: str
    changes: list[str]
    url: str


class Deeds(NamedTuple):
    """The newest things that were done to a row; ``url`` leads to all of them."""

    lines: list[Line]
    has_more: bool
    url: str


def deeds(request: HttpRequest, site: AdminSite, row: Model) -> Deeds | None:
    """Read the newest lines of the log about a row; None for who may not see the log."""
    if not display.may_view(request, site, OperationLog):
        return None
    # A proxy's rows are logged under the name of what they are.
    model: Any = row._meta.concrete_model
    models = _WORK if model in _WORK else (model,)
    log = OperationLog.objects.using(row._state.db).of_any(models, row.pk)
    found = list(log[: MOST_LINES + 1])
    search = row.pk if model in _WORK else f"{model._meta.model_name}:{row.pk}"
    return Deeds(
        lines=[_line(each, site) for each in found[:MOST_LINES]],
        has_more=len(found) > MOST_LINES,
        url=display.list_url(site, OperationLog, q=search),
    )


def _line(entry: OperationLog, site: AdminSite) -> Line:
    return Line(
        at=display.moment(entry.at),
        actor=entry.actor,
        action=entry.action,
        reason=entry.reason,
        changes=_changes(entry),
        url=display.change_url(site, OperationLog, entry.pk),
    )


def _changes(entry: OperationLog) -> list[str]:
    return list(changes(payloads.masked(entry.before), payloads.masked(entry.after)))


def changes(before: Any, after: Any) -> Iterator[str]:
    """Yield what was changed from what to what, a short text for each name."""
    before, after = (each if isinstance(each, dict) else {} for each in (before, after))
    for name in [*before, *(name for name in after if name not in before)]:
        old, new = (_short(each[name]) if name in each else "" for each in (before, after))
        yield f"{name}: {' → '.join(filter(None, (old, new)))}"


def _short(value: Any) -> str:
    return display.one_line("-" if value is None else str(value))
