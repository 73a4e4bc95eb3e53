"""The figures of the whole queue, as a strip above the lists."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobqueue import stats
from jobqueue.admin import display, pauses
from jobqueue.models import DeadLetter, Job, Lease, Worker
from jobqueue.states import Status


class Figure(NamedTuple):
    """One figure; ``url`` leads to the rows that it counts, where the user may see them."""

    label: str
    value: str
    url: str = ""
    is_bad: bool = False
    #: Whether it is one of the two that wake people up.
    is_alarm: bool = False
    #: Whether that should happen now.
    is_alarming: bool = False
    #: What stands beneath it where there is room: where to look first.
    note: Any = ""


class Strip(NamedTuple):
    """All figures, what is wrong if something is, and which queues are paused."""

    figures: list[Figure]
    warning: str
    pauses: list[SafeString]


def strip(request: HttpRequest, site: AdminSite) -> Strip:
    """Read the figures, each counted no further than the page shows."""
    found = stats.figures(limit=display.MOST_COUNTED + 1)
    paused = pauses.lines(request, site)
    return Strip(list(_figures(found, request, site)), _warning(found), paused)


def _figures(found: stats.Figures, request: HttpRequest, site: AdminSite) -> Iterator[Figure]:
    def url(model: type[Model], **parameters: Any) -> str:
        may_view = display.may_view(request, site, model)
        return display.list_url(site, model, **parameters) if may_view else ""

    def held(lease: str) -> str:
        return url(Lease, lease=lease) or url(Job, lease=lease)

    yield Figure(
        _("Oldest waits"),
        display.span(found.oldest_age),
        is_alarm=True,
        is_alarming=found.is_stuck,
    )
    letters = display.capped(found.dead_letters)
    yield Figure(
        _("Dead letters"),
        letters,
        url(DeadLetter) and _groups_url(site),
        is_alarm=True,
        is_alarming=found.dead_letters > 0,
    )
    yield Figure(_("Pending"), display.capped(found.depth), url(Job, status=Status.PENDING))
    yield Figure(_("In flight"), display.capped(found.in_flight), held("running"))
    yield Figure(
        _("Expired leases"),
        display.capped(found.expired),
        held("expired"),
        is_bad=found.expired > 0,
    )
    yield Figure(_("Live workers"), str(found.live_workers), url(Worker))


def _groups_url(site: AdminSite) -> str:
    """Return where dead letters are understood soonest: by error, where the site has that page."""
    admin = site.get_model_admin(DeadLetter)
    return str(getattr(admin, "groups_url", "")) or display.list_url(site, DeadLetter)


def _warning(found: stats.Figures) -> str:
    if not found.is_stuck:
        return ""
    return _(
        "Jobs are waiting and no worker has checked in for %(span)s. "
        "Start one: python manage.py runworker"
    ) % {"span": display.span(stats.stale_after())}
