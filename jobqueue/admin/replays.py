"""The earlier replays of one job, as a table on its page."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.contrib.admin import AdminSite
from django.db.models import TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.safestring import SafeString

from jobqueue import registry
from jobqueue.admin import display, payloads
from jobqueue.models import BulkOperation, Replay
from jobqueue.states import Reason

#: The table holds the newest.
MOST_REPLAYS = 20


class Line(NamedTuple):
    """One replay; the texts are of the payload that it was edited from."""

    at: SafeString
    actor: str
    reason: str
    death: Any
    error: str
    queues: str
    is_edited: bool
    args: str
    kwargs: str
    operation: Any


class Replays(NamedTuple):
    """The newest replays of a job."""

    lines: list[Line]
    has_more: bool


def replays(request: HttpRequest, site: AdminSite, row: Any) -> Replays | None:
    """Read the newest replays of a job or dead letter; None for who may not see them."""
    user: Any = request.user
    opts = Replay._meta
    if not user.has_perm(f"{opts.app_label}.view_{opts.model_name}"):
        return None
    texts: dict[str, Any] = {
        f"{name}_text": Left(Cast(name, TextField()), payloads.MOST_CHARACTERS + 1)
        for name in ("args", "kwargs")
    }
    found = Replay.objects.using(row._state.db).of(row.pk).defer("args", "kwargs").annotate(**texts)
    some: list[Any] = list(found[: MOST_REPLAYS + 1])
    sees_payload = payloads.may_see(request)
    lines = [_line(each, request, site, row, sees=sees_payload) for each in some[:MOST_REPLAYS]]
    return Replays(lines, len(some) > MOST_REPLAYS)


def _line(replay: Any, request: HttpRequest, site: AdminSite, row: Any, *, sees: bool) -> Line:
    is_edited = replay.args_text is not None
    names = payloads.argument_names(row.task) if row.task in registry.tasks else ()
    return Line(
        at=display.moment(replay.replayed_at),
        actor=replay.actor,
        reason=replay.reason,
        death=dict(Reason.choices).get(replay.death_reason, replay.death_reason),
        error=replay.last_error,
        queues=" → ".join(dict.fromkeys((replay.from_queue, replay.to_queue))),
        is_edited=is_edited,
        args=_text(replay.args_text, names, sees=sees) if is_edited else "",
        kwargs=_text(replay.kwargs_text, (), sees=sees) if is_edited else "",
        operation=_operation(request, site, replay.operation_id),
    )


def _text(stored: str, names: Any, *, sees: bool) -> str:
    return payloads.as_text(stored, names) if sees else str(payloads.WITHHELD)


def _operation(request: HttpRequest, site: AdminSite, pk: Any) -> Any:
    if pk is None or not display.may_view(request, site, BulkOperation):
        return pk
    return display.link(display.change_url(site, BulkOperation, pk), pk)
