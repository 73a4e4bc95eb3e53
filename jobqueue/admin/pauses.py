"""How a pause is asked for and shown: the form, and the red line on every page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django import forms
from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.contrib.admin.widgets import AdminTextInputWidget
from django.db import router
from django.http import HttpRequest
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.admin import display
from jobqueue.models import MAX_REASON, Job, Queue

#: So many paused queues are named on a page.
MOST_NAMED = 10
#: For how long, by the number of minutes; empty: until somebody resumes the queue.
SPANS = {
    "": gettext_lazy("until somebody resumes it"),
    "15": gettext_lazy("for 15 minutes"),
    "60": gettext_lazy("for 1 hour"),
    "240": gettext_lazy("for 4 hours"),
    "1440": gettext_lazy("for 1 day"),
}


class PauseForm(forms.Form):
    """Why a queue is paused, and for how long."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=MAX_REASON,
        widget=AdminTextInputWidget(attrs={"size": 60}),
        help_text=gettext_lazy("Everybody who opens a page of the job queue reads it."),
    )
    minutes = forms.ChoiceField(
        label=gettext_lazy("How long"), choices=list(SPANS.items()), required=False
    )

    def until(self) -> timedelta | None:
        """Return for how long; None until somebody resumes the queue."""
        minutes = self.cleaned_data["minutes"]
        return timedelta(minutes=int(minutes)) if minutes else None


def lines(request: HttpRequest, site: AdminSite) -> list[SafeString]:
    """Return a line for each paused queue, to stand in red above a page."""
    queues = Queue.objects.using(router.db_for_read(Job)).paused().order_by("paused_at", "name")
    found = list(queues[: MOST_NAMED + 1])
    may_open = display.may_view(request, site, Queue)
    named = [line(queue, site if may_open else None) for queue in found[:MOST_NAMED]]
    if len(found) > MOST_NAMED:
        named.append(format_html("{}", _("More queues are paused.")))
    return named


def line(queue: Queue, site: AdminSite | None = None) -> SafeString:
    """Return who has paused a queue, since when, until when and why."""
    name: Any = queue.name
    if site:
        name = display.link(display.change_url(site, Queue, queue.name), queue.name)
    text = _("Queue {name} is paused since {since} by {who}: {why}")
    if queue.paused_until:
        text = _("Queue {name} is paused since {since} until {until} by {who}: {why}")
    return format_html(
        text,
        name=name,
        since=_moment(queue.paused_at),
        until=_moment(queue.paused_until),
        who=queue.paused_by or _("the project's own code"),
        why=queue.pause_reason or _("no reason given"),
    )


def _moment(instant: Any) -> str:
    return date_format(template_localtime(instant), "DATETIME_FORMAT") if instant else ""


def url(site: AdminSite, verb: str, name: str, *, back: str = "") -> str:
    """Return the address at which a queue is paused or resumed."""
    opts = Queue._meta
    address = reverse(
        f"admin:{opts.app_label}_{opts.model_name}_{verb}",
        args=[quote(name)],
        current_app=site.name,
    )
    return f"{address}?from={back}" if back else address


def by_name(queues: Sequence[Any]) -> dict[str, Any]:
    """Return figures of queues by their name."""
    return {queue.name: queue for queue in queues}
