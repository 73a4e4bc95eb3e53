"""The overview: what to look at first when something seems wrong, on one page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import stats
from jobqueue.admin import figures, panels, pictures
from jobqueue.admin.base import ReadOnlyAdmin
from jobqueue.models import Overview

SPANS = {
    "1h": (gettext_lazy("Last hour"), timedelta(hours=1)),
    "24h": (gettext_lazy("Last 24 hours"), timedelta(hours=24)),
}
#: So many queues are offered to choose from.
MOST_CHOICES = 20


class Choice(NamedTuple):
    """A link to the same page with something else chosen."""

    label: Any
    url: str
    is_current: bool


class Asked(NamedTuple):
    """What the address asks for."""

    span: str
    queue: str
    is_refreshing: bool

    @classmethod
    def of(cls, request: HttpRequest) -> Asked:
        """Read the address; what makes no sense there is not asked for."""
        span = request.GET.get("span", "")
        queue = request.GET.get("queue", "").replace("\0", "")
        return cls(span if span in SPANS else "1h", queue, request.GET.get("refresh") != "0")

    def url(self, **changes: Any) -> str:
        """Return the address that asks for something else in some respect."""
        asked = self._replace(**changes)
        parameters = {"span": asked.span, "queue": asked.queue, "refresh": "0"}
        if not asked.queue:
            del parameters["queue"]
        if asked.is_refreshing:
            del parameters["refresh"]
        return f"?{urlencode(parameters)}"


@admin.register(Overview)
class OverviewAdmin(ReadOnlyAdmin[Overview]):
    """One page instead of a list."""

    template: ClassVar[str] = "admin/jobqueue/overview.html"
    #: How often the page reloads itself while nobody does anything there, in seconds.
    refresh_every: ClassVar[int] = 10

    class Media:
        js: ClassVar = ("jobqueue/refresh.js",)

    def get_urls(self) -> list[URLPattern]:
        """Have the page in the place of the list, and nothing else."""
        name = f"{self.opts.app_label}_{self.opts.model_name}_changelist"
        return [path("", self.admin_site.admin_view(self.changelist_view), name=name)]

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show all that one should know, read with a number of queries that jobs do not change."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        context = {
            **self.admin_site.each_context(request),
            "title": _("Overview"),
            "opts": self.opts,
            "media": self.media,
            "now": timezone.now(),
            **self._panels(request, Asked.of(request)),
            **(extra_context or {}),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, self.template, context)

    def _panels(self, request: HttpRequest, asked: Asked) -> dict[str, Any]:
        strip = figures.strip(request, self.admin_site)
        queues = panels.queues(request, self.admin_site)
        label, span = SPANS[asked.span]
        points = stats.history(span=span, queue_name=asked.queue or None)
        tries = stats.tries(span=span)
        return {
            "strip": strip._replace(figures=[each for each in strip.figures if not each.is_alarm]),
            "alarms": panels.alarms(strip),
            "queues": queues,
            "may_pause": panels.may_pause(request),
            "history_title": _history_title(label, asked.queue),
            "spans": [_choice(asked, text, span=each) for each, (text, _span) in SPANS.items()],
            "choices": list(_queue_choices(asked, [row.name for row in queues])),
            "charts": pictures.draw(points, tries),
            "tasks_title": _("Tasks, %(span)s") % {"span": str(label).lower()},
            "tasks": panels.tasks(request, self.admin_site, span=span),
            "workers": panels.workers(request, self.admin_site),
            "is_refreshing": asked.is_refreshing,
            "refresh_every": self.refresh_every,
            "urls": {
                "same": asked.url(),
                "still": asked.url(is_refreshing=False),
                "moving": asked.url(is_refreshing=True),
            },
        }


def _history_title(label: Any, queue: str) -> str:
    if not queue:
        return _("%(span)s, all queues") % {"span": label}
    return _("%(span)s, queue %(queue)s") % {"span": label, "queue": queue}


def _choice(asked: Asked, label: Any, **changes: Any) -> Choice:
    return Choice(label, asked.url(**changes), asked._replace(**changes) == asked)


def _queue_choices(asked: Asked, names: list[str]) -> Iterator[Choice]:
    """Offer all queues together and each alone, where there are several."""
    if len(names) <= 1 and not asked.queue:
        return
    yield _choice(asked, _("All queues"), queue="")
    for name in names[:MOST_CHOICES]:
        yield _choice(asked, name, queue=name)
