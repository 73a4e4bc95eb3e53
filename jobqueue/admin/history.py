"""The attempts of one job, as a table on its page."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.utils.safestring import SafeString

from jobqueue.admin import display, payloads
from jobqueue.models import Attempt
from jobqueue.states import Outcome

#: The table holds the newest attempts; a link leads to the others.
MOST_ATTEMPTS = 50


class Row(NamedTuple):
    """One line of the table."""

    attempt: Attempt
    started: SafeString
    outcome: SafeString
    duration: str
    url: str
    #: Empty where there is none; for those who may not see it, a text that says so.
    traceback: str
    #: The newest failure is what one came for.
    is_open: bool


class History(NamedTuple):
    """The newest attempts of a job; ``url`` leads to all of them."""

    rows: list[Row]
    has_more: bool
    url: str


def history(request: HttpRequest, site: AdminSite, row: Model) -> History:
    """Read the newest attempts of a job or dead letter, newest first."""
    attempts = Attempt.objects.using(row._state.db).of(row.pk).reverse()
    found = list(attempts[: MOST_ATTEMPTS + 1])
    may_view = display.may_view(request, site, Attempt)
    newest = next((each for each in found if each.traceback), None)
    if not payloads.may_see(request):
        for each in found:
            each.traceback = each.traceback and str(payloads.WITHHELD)
    return History(
        rows=[_row(each, site if may_view else None, newest) for each in found[:MOST_ATTEMPTS]],
        has_more=len(found) > MOST_ATTEMPTS,
        url=display.list_url(site, Attempt, job=row.pk) if may_view else "",
    )


def _row(attempt: Attempt, site: AdminSite | None, newest: Any) -> Row:
    return Row(
        attempt=attempt,
        started=display.moment(attempt.started_at),
        outcome=display.badge(attempt.outcome, Outcome),
        duration=display.duration(attempt.duration),
        url=display.change_url(site, Attempt, attempt.pk) if site else "",
        traceback=attempt.traceback,
        is_open=attempt is newest,
    )
