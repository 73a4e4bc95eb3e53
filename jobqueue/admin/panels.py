"""The parts of the overview, each as rows of text, with links to what the user may open."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.db.models import Model
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobqueue import stats
from jobqueue.admin import display, pictures
from jobqueue.admin.figures import Figure, Strip
from jobqueue.admin.queues import controls
from jobqueue.models import Attempt, DeadLetter, Job, Lease, Queue, Worker
from jobqueue.states import Status, WorkerState

#: The least share that is shown in percent.
LEAST = 0.01
#: From when on the oldest age, and the share of attempts that fail, are red: as in the alert rules.
TOO_OLD = timedelta(minutes=5)
TOO_MANY_FAIL, FEWEST_ENDED = 0.2, 10


class Links:
    """Addresses of pages, where the user may open them; empty where not."""

    def __init__(self, request: HttpRequest, site: AdminSite) -> None:
        self.request = request
        self.site = site

    def to_list(self, model: type[Model], **parameters: Any) -> str:
        """Return the address of a filtered list."""
        return display.list_url(self.site, model, **parameters) if self.may(model) else ""

    def to_row(self, model: type[Model], pk: Any) -> str:
        """Return the address of a row's page."""
        return display.change_url(self.site, model, pk) if self.may(model) else ""

    def to_leases(self, **parameters: Any) -> str:
        """Return the address of leases; of claimed jobs for who may see only those."""
        return self.to_list(Lease, **parameters) or self.to_list(Job, **parameters)

    def may(self, model: type[Model]) -> bool:
        """Tell whether the user may open pages of the model."""
        return display.may_view(self.request, self.site, model)


class QueueRow(NamedTuple):
    """One queue; ``controls`` is what the user may do to it."""

    name: str
    url: str
    found: stats.QueueFigures
    figures: list[Figure]
    controls: list[tuple[str, str, bool]]
    #: Lead to what waits, and to what has died.
    waiting_url: str
    letters_url: str


class TaskRow(NamedTuple):
    """One task, and how near its runs come to their lease."""

    task: str
    url: str
    cells: list[str]
    share: Any


class WorkerRow(NamedTuple):
    """One worker."""

    worker: Worker
    url: str
    state: Any
    heartbeat: Any
    held: int
    held_url: str
    load: int


def alarms(strip: Strip, queues: list[QueueRow]) -> list[Figure]:
    """Return the two figures that wake people up, each with the queue to look at first."""
    oldest, letters = (figure for figure in strip.figures if figure.is_alarm)
    is_late = any(_is_late(each.found) for each in queues)
    return [
        oldest._replace(is_bad=oldest.is_alarming or is_late, note=_oldest_note(queues)),
        letters._replace(is_bad=letters.is_alarming, note=_letters_note(queues)),
    ]


def _is_late(queue: stats.QueueFigures) -> bool:
    """Whether users wait for what nobody has held back on purpose."""
    return not queue.paused and (queue.oldest_age or timedelta(0)) > TOO_OLD


def _oldest_note(queues: list[QueueRow]) -> Any:
    waiting = [each for each in queues if each.found.oldest_age is not None]
    if not waiting:
        return _("no job waits")
    waiting.sort(key=lambda each: each.found.oldest_age or timedelta(0), reverse=True)
    first, active = waiting[0], next((each for each in waiting if not each.found.paused), None)
    text = _("in {queue}")
    if first.found.paused:
        text = (
            _("in {queue}, which is paused; {age} in {other}")
            if active
            else _("in {queue}, which is paused")
        )
    return format_html(
        text,
        queue=_named(first.name, first.waiting_url),
        age=display.span(active.found.oldest_age) if active else "",
        other=_named(active.name, active.waiting_url) if active else "",
    )


def _letters_note(queues: list[QueueRow]) -> Any:
    dead = [each for each in queues if each.found.dead_letters]
    if not dead:
        return _("nothing has given up")
    first = max(dead, key=lambda each: each.found.dead_letters)
    text = _("most of them in {queue}") if len(dead) > 1 else _("in {queue}")
    return format_html(text, queue=_named(first.name, first.letters_url))


def _named(name: str, url: str) -> Any:
    return display.link(url, name) if url else name


def may_pause(request: HttpRequest, site: AdminSite) -> bool:
    """Tell whether the user may pause and resume queues, and this site has the pages for it."""
    user: Any = request.user
    may = user.has_perm(f"{Queue._meta.app_label}.pause_queue")
    return bool(may) and site.is_registered(Queue)


def queues(request: HttpRequest, site: AdminSite) -> list[QueueRow]:
    """Return the queues, by name."""
    links, may = Links(request, site), may_pause(request, site)
    found = stats.by_queue(limit=display.MOST_OF_A_QUEUE + 1)
    names = [each.name for each in found]
    known = set(Queue.objects.filter(pk__in=names).values_list("pk", flat=True))
    return [
        QueueRow(
            each.name,
            links.to_row(Queue, each.name) if each.name in known else "",
            each,
            list(_figures(each, links)),
            controls(site, each.name, is_paused=bool(each.paused), back="overview") if may else [],
            links.to_list(Job, queue=each.name, status=Status.PENDING),
            links.to_list(DeadLetter, queue=each.name),
        )
        for each in found
    ]


def depth(queue: stats.QueueFigures) -> str:
    """Return how many jobs are pending: counted, or about as many as the database believes."""
    if queue.depth > display.MOST_OF_A_QUEUE:
        estimate = stats.estimated_depth(queue.name) or 0
        if estimate > queue.depth:
            return _("about %(count)s") % {"count": f"{estimate:,}"}
    return display.capped_of_a_queue(queue.depth)


def _figures(queue: stats.QueueFigures, links: Links) -> Iterator[Figure]:
    """Yield what stands beside a queue's name."""
    name, counted = queue.name, display.capped_of_a_queue
    ended = queue.succeeded + queue.retried + queue.died
    failed = queue.retried + queue.died
    yield Figure("", display.span(queue.oldest_age), is_bad=_is_late(queue))
    dead = links.to_list(DeadLetter, queue=name) if queue.dead_letters else ""
    yield Figure("", counted(queue.dead_letters), dead, is_bad=queue.dead_letters > 0)
    waiting = links.to_list(Job, queue=name, status=Status.PENDING)
    yield Figure("", depth(queue), waiting if queue.depth else "")
    running = links.to_leases(queue=name, lease="running")
    yield Figure("", counted(queue.in_flight), running if queue.in_flight else "")
    expired = links.to_leases(queue=name, lease="expired") if queue.expired else ""
    yield Figure("", counted(queue.expired), expired, is_bad=queue.expired > 0)
    for count in (queue.claimed, ended, queue.succeeded):
        yield Figure("", pictures.short(count / queue.minutes))
    is_bad = ended >= FEWEST_ENDED and failed / ended > TOO_MANY_FAIL
    yield Figure("", percent(failed / ended) if ended else display.NOTHING, is_bad=is_bad)


def tasks(request: HttpRequest, site: AdminSite, *, span: timedelta) -> list[TaskRow]:
    """Return what was run, those nearest to their lease first."""
    links = Links(request, site)
    found = stats.by_task(span=span)
    found.sort(key=lambda each: (-(each.share or 0), each.task))
    return [
        TaskRow(each.task, links.to_list(Attempt, task=each.task), _cells(each), _share(each))
        for each in found
    ]


def _cells(task: stats.TaskFigures) -> list[str]:
    spans = [_span(seconds) for seconds in (task.p50, task.p95, task.p99)]
    counts = (task.runs, task.retried, task.died)
    return [*(f"{count:,}" for count in counts), *spans, display.span(task.lease)]


def _span(seconds: float | None) -> str:
    return display.NOTHING if seconds is None else pictures.span(seconds)


def _share(task: stats.TaskFigures) -> Any:
    if task.share is None:
        return display.NOTHING
    text = percent(task.share)
    if not task.is_near_lease:
        return text
    if task.share > 1:
        return display.warning(_("%(share)s: longer than its lease") % {"share": text})
    return display.warning(_("%(share)s: near its lease") % {"share": text})


def workers(request: HttpRequest, site: AdminSite) -> list[WorkerRow]:
    """Return the workers, those that went silent included."""
    links = Links(request, site)
    return [
        WorkerRow(
            each.worker,
            links.to_row(Worker, each.worker.pk),
            _state(each),
            _heartbeat(each),
            each.held,
            links.to_leases(worker=each.worker.name) if each.held else "",
            round(100 * each.load),
        )
        for each in stats.workers()
    ]


def _state(worker: stats.WorkerFigures) -> Any:
    if worker.is_stale:
        return display.warning(_("stale"))
    return display.badge(worker.worker.state, WorkerState)


def _heartbeat(worker: stats.WorkerFigures) -> Any:
    text = _("%(span)s ago") % {"span": display.span(worker.heartbeat_age)}
    if worker.is_stale:
        return text
    return display.mark("running", "♥", text)


def percent(share: float) -> str:
    """Return a share in percent; what is not nothing is not called 0 %."""
    return "<1 %" if 0 < share < LEAST else f"{share:.0%}".replace("%", " %")
