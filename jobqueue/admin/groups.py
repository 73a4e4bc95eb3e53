"""Dead letters by error: how many died of the same, since when, and whether it goes on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django.core.exceptions import PermissionDenied
from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import TruncHour
from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.views.decorators.http import require_safe

from jobqueue import lifecycle
from jobqueue.admin import display, figures, filters, samples
from jobqueue.admin.base import M, ReadOnlyAdmin
from jobqueue.admin.sparkline import sparkline
from jobqueue.models import DeadLetter
from jobqueue.querysets import ago

#: The newest letters are grouped, and no more than so many.
MOST_LETTERS = 100_000
MOST_GROUPS = 100
#: A group's tasks are named up to so many.
MOST_TASKS = 5
HOURS = 24


class Group(NamedTuple):
    """Dead letters of the same error."""

    fingerprint: str
    size: str
    error: SafeString | str
    tasks: list[SafeString]
    more_tasks: int
    first: SafeString
    last: SafeString
    recent: SafeString
    url: str
    replay_url: str
    discard_url: str


class Groups(NamedTuple):
    """The largest groups of the newest letters, and whether there are more of either."""

    groups: list[Group]
    has_more_letters: bool
    has_more_groups: bool


class GroupedAdmin(ReadOnlyAdmin[M]):
    """Has a page of groups beside the list."""

    def get_urls(self) -> list[URLPattern]:
        """Add the page, before what takes any text for a row's key."""
        view = self.admin_site.admin_view(self.groups_view)
        return [path("groups/", view, name=self.groups_name), *super().get_urls()]

    @property
    def groups_name(self) -> str:
        """The name of the page's address."""
        return f"{self.opts.app_label}_{self.opts.model_name}_groups"

    @property
    def groups_url(self) -> str:
        """The address of the page."""
        return reverse(f"admin:{self.groups_name}", current_app=self.admin_site.name)

    def group_urls(self, request: HttpRequest, fingerprint: str) -> Mapping[str, str]:
        """Return the addresses of what can be done to a whole group, by the names in Group."""
        raise NotImplementedError

    @method_decorator(require_safe)
    def groups_view(self, request: HttpRequest) -> HttpResponse:
        """Show the groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return self.page(
            request,
            "admin/jobqueue/groups.html",
            _("Dead letters by error"),
            strip=figures.strip(request, self.admin_site),
            found=self._find_groups(request),
            most_letters=MOST_LETTERS,
            empty_text=self.empty_text,
            groups_url=self.groups_url,
            list_url=display.list_url(self.admin_site, self.model),
            is_by_error=True,
        )

    def _find_groups(self, request: HttpRequest) -> Groups:
        letters: Any = self.get_queryset(request).using(lifecycle.alias())
        found = samples.newest(letters.open(), MOST_LETTERS)
        counted = found.letters.values("fingerprint").annotate(
            count=Count("pk"), first=Min("died_at"), last=Max("died_at"), sample=Max("pk")
        )
        rows = list(counted.order_by("-count", "-last", "fingerprint")[: MOST_GROUPS + 1])
        groups = list(self._read_groups(request, found, rows[:MOST_GROUPS]))
        return Groups(groups, found.is_capped, len(rows) > MOST_GROUPS)

    def _read_groups(
        self, request: HttpRequest, found: samples.Newest, rows: list[Any]
    ) -> Iterator[Group]:
        """Yield the groups, with what a few more statements tell of all of them together."""
        now, these = found.now, found.letters
        if len(rows) == MOST_GROUPS:  # otherwise these are all of them
            these = these.filter(fingerprint__in=[row["fingerprint"] for row in rows])
        tasks, hours = _tasks(these), _hours(these, now)
        errors = samples.errors(row["sample"] for row in rows)
        for row in rows:
            fingerprint, named = row["fingerprint"], tasks[row["fingerprint"]]
            given = fingerprint or filters.NONE
            yield Group(
                fingerprint=fingerprint,
                size=f"{row['count']:,}",
                error=errors.get(row["sample"], display.NOTHING),
                tasks=[display.task_name(name) for name in named[:MOST_TASKS]],
                more_tasks=max(len(named) - MOST_TASKS, 0),
                first=display.when(row["first"], now - row["first"]),
                last=display.when(row["last"], now - row["last"]),
                recent=_picture(hours[fingerprint]),
                url=display.list_url(self.admin_site, DeadLetter, fingerprint=given),
                **self.group_urls(request, given),
            )


def _tasks(letters: QuerySet[DeadLetter]) -> dict[str, list[str]]:
    """Return the tasks of each group, the most frequent first."""
    found: dict[str, list[str]] = defaultdict(list)
    rows = letters.values("fingerprint", "task").annotate(count=Count("pk"))
    for row in rows.order_by("-count", "task"):
        found[row["fingerprint"]].append(row["task"])
    return found


def _hours(letters: QuerySet[DeadLetter], now: datetime | None) -> dict[str, list[int]]:
    """Return how many of each group died in each of the last hours, the oldest first."""
    found: dict[str, list[int]] = defaultdict(lambda: [0] * HOURS)
    if now is None:
        return found
    recent = letters.filter(died_at__gte=ago(timedelta(hours=HOURS)))
    by_hour = recent.annotate(hour=TruncHour("died_at", **_in_utc(now)))
    for row in by_hour.values("fingerprint", "hour").annotate(count=Count("pk")).order_by():
        place = HOURS - 1 - (_hour(now) - row["hour"]) // timedelta(hours=1)
        found[row["fingerprint"]][min(max(place, 0), HOURS - 1)] += row["count"]
    return found


def _in_utc(now: datetime) -> dict[str, Any]:
    """Return what keeps hours from being cut in half by a time zone."""
    return {"tzinfo": UTC} if now.tzinfo else {}


def _hour(instant: datetime) -> datetime:
    return instant.replace(minute=0, second=0, microsecond=0)


def _picture(hours: list[int]) -> SafeString:
    title = _("Deaths in each of the last %(hours)s hours: %(counts)s") % {
        "hours": len(hours),
        "counts": ", ".join(map(str, hours)),
    }
    return sparkline(hours, title)
