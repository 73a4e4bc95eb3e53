"""What operators do to many rows: in batches, each committed together with its log entries."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from django import forms
from django.contrib.admin.models import LogEntry
from django.db import DataError, Error, IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_aware
from django.utils.translation import gettext_lazy as _

from jobqueue import lifecycle
from jobqueue.lifecycle import Actor
from jobqueue.models import MAX_REASON

#: Rows in one transaction.
BATCH = 500
#: A run ends after this, says how far it came and can be repeated: web servers stop slow requests.
TIME_LIMIT = timedelta(seconds=20)
#: No question is older; and not every database has all the years that a form may name.
LONG_AGO = timedelta(days=3650)


class DeedForm(forms.Form):
    """What a confirmation asks for: why; what else an operation needs is in a form of its own."""

    reason = forms.CharField(
        label=_("Reason"),
        help_text=_("Optional; kept in the operation log."),
        max_length=MAX_REASON,
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.order_fields([name for name in self.fields if name != "reason"])


UNFIT = _("no longer there, or no longer in a state for this")


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that can be done to rows, through one function of the lifecycle."""

    name: str
    model: type[Any]
    #: The codename of the permission that it needs.
    permission: str
    #: The label of its button.
    label: Any
    #: Which rows it can be done to; a function where that depends on the settings.
    applies: Q | Callable[[], Q]
    #: The column that says since when a row is there: what came after the question is left alone.
    since: str
    #: The lifecycle's function: ids, ``using``, who, why and the values of the form to how many,
    #: or which, were changed.
    perform: Callable[..., Any]
    #: LogEntry's flag and message; the message may name values of the form.
    flag: int
    log: str
    #: From a number of rows to the message that says what was done.
    done: Callable[[int], str]
    #: What to ask first, if it cannot be undone or needs a value: a heading and what would happen.
    title: Any = ""
    question: Any = ""
    #: What the question asks for.
    form: type[DeedForm] = DeedForm
    is_destructive: bool = False
    #: Why a row is left as it is.
    unfit: Any = UNFIT
    #: The columns that a row's name takes.
    named_by: Sequence[str] = ("task",)

    def among(self, rows: QuerySet[Any]) -> QuerySet[Any]:
        """Return those of the rows that it can be done to."""
        return rows.filter(self.applies() if callable(self.applies) else self.applies)

    def rows(self, using: str | None) -> QuerySet[Any]:
        """Return all the rows that it can be done to."""
        return self.among(self.model._default_manager.using(using))


def new_correlation_id() -> str:
    """Return an id for all that one request does."""
    return f"op-{secrets.token_hex(8)}"


@dataclass(frozen=True, kw_only=True)
class Order:
    """Who wants something done, why, and with which values."""

    user_id: Any
    by: Actor
    reason: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    #: The same for all that one request does.
    correlation_id: str = field(default_factory=new_correlation_id)

    @classmethod
    def of(cls, request: HttpRequest, form: DeedForm) -> Order:
        """Return what the user of the request asks for in a valid form."""
        values = dict(form.cleaned_data)
        reason = values.pop("reason", "")
        user_id = request.user.pk
        return cls(user_id=user_id, by=actor(request), reason=reason, values=values)


def actor(request: HttpRequest) -> Actor:
    """Return the user of a request as the operation log remembers them."""
    return Actor(str(request.user.pk), request.user.get_username())


@dataclass
class Tally:
    """What a run did."""

    seen: int = 0
    done: int = 0
    #: The rows that the database refused to change, and why.
    refused: list[tuple[int, str]] = field(default_factory=list)
    #: Why the run ended before it had seen all; empty when it did not.
    stopped: str = ""


def run(operation: Operation, rows: QuerySet[Any], order: Order) -> Tally:
    """Do it to all rows, batch by batch; each batch is done and logged, or not at all."""
    tally, deadline = Tally(), monotonic() + TIME_LIMIT.total_seconds()
    for ids in _batches(rows.using(lifecycle.alias())):
        if tally.seen and monotonic() >= deadline:
            tally.stopped = f"{TIME_LIMIT.seconds} s"
            break
        try:
            _run_batch(operation, ids, order, tally)
        except Error as error:
            tally.stopped = explain(error)
            break
        tally.seen += len(ids)
    return tally


def now(rows: QuerySet[Any]) -> datetime | None:
    """Return the database's time; None when there are no rows to tell it by."""
    return rows.using(lifecycle.alias()).order_by().values_list(Now(), flat=True).first()


def read_until(text: str, now: datetime) -> datetime:
    """Return when a question was asked, as its form brings it back; never what is yet to come."""
    try:
        asked = parse_datetime(text)
    except ValueError:
        return now
    if asked is None or is_aware(asked) is not is_aware(now):
        return now
    return min(max(asked, now - LONG_AGO), now)


def _batches(rows: QuerySet[Any]) -> Iterator[list[int]]:
    """Yield the ids in order; what is done to one batch may take it out of the rows."""
    ids = rows.order_by("pk").values_list("pk", flat=True)
    batch = list(ids[:BATCH])
    while batch:
        yield batch
        batch = list(ids.filter(pk__gt=batch[-1])[:BATCH])


def _run_batch(operation: Operation, ids: Sequence[int], order: Order, tally: Tally) -> None:
    """Do it to one batch; where some rows are refused, to the others."""
    try:
        tally.done += _perform(operation, ids, order)
    except (DataError, IntegrityError) as error:
        if len(ids) == 1:
            tally.refused.append((ids[0], explain(error)))
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            _run_batch(operation, half, order, tally)


def _perform(operation: Operation, ids: Sequence[int], order: Order) -> int:
    """Do it and log it in one transaction; the lock makes the log name exactly what is changed."""
    using = lifecycle.alias()
    with transaction.atomic(using=using):
        rows = (
            operation.rows(using).filter(pk__in=ids).order_by("pk").only("pk", *operation.named_by)
        )
        locked = list(rows.select_for_update())
        if not locked:
            return 0
        changed = operation.perform(
            [row.pk for row in locked],
            **order.values,
            by=order.by,
            reason=order.reason,
            correlation_id=order.correlation_id,
            using=using,
        )
        message = operation.log.format(**order.values)
        LogEntry.objects.log_actions(order.user_id, locked, operation.flag, message)
    return changed if isinstance(changed, int) else len(changed)


def explain(error: Error) -> str:
    """Return the first line of a database's message: the next ones may quote the row."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line:.200}"
