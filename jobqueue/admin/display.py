"""How facts look in the admin; whatever comes from a row is escaped here."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.utils import quote
from django.db.models import Choices, Model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.timezone import template_localtime  # type: ignore[attr-defined]
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import registry
from jobqueue.states import BulkState, Outcome, Status, WorkerState

#: A figure is counted up to this and no further.
MOST_COUNTED = 100_000
#: There may be many queues: each is counted up to this.
MOST_OF_A_QUEUE = 10_000

#: What stands where there is nothing to show.
NOTHING = "-"
#: How much of a message is shown on one line.
MOST_OF_A_LINE = 120

#: What stands beside each word, so that no fact is told by colour alone.
SYMBOLS: dict[str, str] = {
    Status.SCHEDULED: "◷",
    Status.PENDING: "○",
    Status.CLAIMED: "▶",
    Status.CANCELLED: "⊘",
    Outcome.SUCCEEDED: "✓",
    Outcome.FAILED: "✗",
    Outcome.TIMED_OUT: "✗",
    Outcome.LOST: "✗",
    Outcome.SNOOZED: "◷",
    Outcome.INTERRUPTED: "⊘",
    WorkerState.RUNNING: "▶",
    WorkerState.DRAINING: "▽",
    BulkState.PAUSED: "‖",
    BulkState.DONE: "✓",
}
_UNITS = (
    (86_400, gettext_lazy("d")),
    (3_600, gettext_lazy("h")),
    (60, gettext_lazy("min")),
    (1, gettext_lazy("s")),
)


def badge(choice: str, choices: type[Choices]) -> SafeString:
    """Return a status, outcome or state as a word with its symbol."""
    label = dict(choices.choices).get(choice, choice)
    return mark(choice if choice in choices.values else "unknown", SYMBOLS.get(choice, "?"), label)


def mark(kind: str, symbol: str, text: Any) -> SafeString:
    """Return a short text with a symbol before it, in the colour of its kind."""
    return format_html(
        '<span class="jobqueue-mark jobqueue-{}">'
        '<span class="jobqueue-symbol" aria-hidden="true">{}</span> {}</span>',
        kind,
        symbol,
        text,
    )


def warning(text: Any) -> SafeString:
    """Return a short text marked as something to look into."""
    return mark("warning", "⚠", text)


def preformatted(text: str) -> SafeString | str:
    """Return text of several lines as it is; a dash for no text."""
    return format_html('<pre class="jobqueue-text">{}</pre>', text) if text else NOTHING


def one_line(text: str) -> str:
    """Return the start of a text, as much as fits on a line."""
    return Truncator(text).chars(MOST_OF_A_LINE - 1)


def error(error_class: str, message: str) -> SafeString | str:
    """Return an error in short: its class without the module, and the start of its message."""
    if not (error_class or message):
        return NOTHING
    return format_html(
        '<b title="{}">{}</b> {}',
        error_class,
        error_class.rpartition(".")[2],
        one_line(message),
    )


def task_name(name: str) -> SafeString:
    """Return the name of a task, marked when no task is registered under it here."""
    if name in registry.tasks:
        return format_html("{}", name)
    return format_html("{} {}", name, warning(_("not registered")))


def span(value: timedelta | None, *, units: int = 2) -> str:
    """Return a span in its largest units, such as "3 min 20 s"; a dash for None."""
    if value is None:
        return NOTHING
    rest = abs(int(value.total_seconds()))
    parts: list[str] = []
    for size, unit in _UNITS:
        amount, rest = divmod(rest, size)
        if amount or parts:
            parts.append(f"{amount} {unit}" if amount else "")
    return " ".join(filter(None, parts[:units])) or f"0 {_UNITS[-1][1]}"


def moment(instant: datetime) -> SafeString:
    """Return an instant to the second, as logs have it, in the time zone of the page."""
    here = template_localtime(instant)
    text = here.strftime("%Y-%m-%d %H:%M:%S")
    return format_html('<time datetime="{}">{}</time>', instant.isoformat(), text)


def when(instant: datetime, age: timedelta) -> SafeString:
    """Return how long ago something was, or when it will be; the instant is in the tooltip."""
    text = _("%(span)s ago") if age >= timedelta(0) else _("in %(span)s")
    return format_html(
        '<time datetime="{}" title="{}">{}</time>',
        instant.isoformat(),
        f"{template_localtime(instant):%Y-%m-%d %H:%M:%S %Z}".strip(),
        text % {"span": span(age, units=1)},
    )


def duration(value: timedelta) -> str:
    """Return how long something took: in milliseconds below a second."""
    if value < timedelta(seconds=1):
        return f"{value // timedelta(milliseconds=1)} ms"
    return span(value)


def capped(number: int) -> str:
    """Return a number that was counted no further than just beyond MOST_COUNTED."""
    return _capped(number, MOST_COUNTED)


def capped_of_a_queue(number: int) -> str:
    """Return a number that was counted no further than just beyond MOST_OF_A_QUEUE."""
    return _capped(number, MOST_OF_A_QUEUE)


def _capped(number: int, most: int) -> str:
    return f"{most:,}+" if number > most else f"{number:,}"


def may_view(request: HttpRequest, site: AdminSite, model: type[Model]) -> bool:
    """Tell whether this site has pages for the model and the user may open them."""
    return site.is_registered(model) and site.get_model_admin(model).has_view_permission(request)


def change_url(site: AdminSite, model: type[Model], pk: Any) -> str:
    """Return the address of a row's page."""
    return _url(site, model, "change", quote(pk))


def list_url(site: AdminSite, model: type[Model], **parameters: Any) -> str:
    """Return the address of a list, filtered by the parameters."""
    query = f"?{urlencode(parameters)}" if parameters else ""
    return _url(site, model, "changelist") + query


def _url(site: AdminSite, model: type[Model], page: str, *args: Any) -> str:
    opts = model._meta
    name = f"admin:{opts.app_label}_{opts.model_name}_{page}"
    return reverse(name, args=args, current_app=site.name)


def link(url: str, text: Any) -> SafeString:
    """Return a link."""
    return format_html('<a href="{}">{}</a>', url, text)
