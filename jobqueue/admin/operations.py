"""What operators do to many rows: in batches, each committed together with its log entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from django.contrib.admin.models import LogEntry
from django.db import DataError, Error, IntegrityError, transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from jobqueue import lifecycle
from jobqueue.models import DeadLetter, Job

#: Rows in one transaction.
BATCH = 500
#: A run ends after this, says how far it came and can be repeated: web servers stop slow requests.
TIME_LIMIT = timedelta(seconds=20)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing that can be done to rows, through one function of the lifecycle."""

    name: str
    model: type[Job | DeadLetter]
    #: The codename of the permission that it needs.
    permission: str
    #: The label of its button.
    label: Any
    #: Which rows it can be done to.
    applies: Q
    #: The column that says since when a row is there: what came after the question is left alone.
    since: str
    #: The lifecycle's function: ids and ``using`` to how many, or which, were changed.
    perform: Callable[..., Any]
    #: LogEntry's flag and message.
    flag: int
    log: str
    #: From a number of rows to the message that says what was done.
    done: Callable[[int], str]
    #: What to ask first, if it cannot be undone: a heading and what would happen.
    title: Any = ""
    question: Any = ""

    def rows(self, using: str | None) -> QuerySet[Any]:
        """Return all the rows that it can be done to."""
        return self.model._default_manager.using(using).filter(self.applies)


@dataclass
class Tally:
    """What a run did."""

    seen: int = 0
    done: int = 0
    #: The rows that the database refused to change, and why.
    refused: list[tuple[int, str]] = field(default_factory=list)
    #: Why the run ended before it had seen all; empty when it did not.
    stopped: str = ""


def run(operation: Operation, rows: QuerySet[Any], *, user_id: Any) -> Tally:
    """Do it to all rows, batch by batch; each batch is done and logged, or not at all."""
    tally, deadline = Tally(), monotonic() + TIME_LIMIT.total_seconds()
    for ids in _batches(rows.using(lifecycle.alias())):
        if tally.seen and monotonic() >= deadline:
            tally.stopped = f"{TIME_LIMIT.seconds} s"
            break
        try:
            _run_batch(operation, ids, user_id, tally)
        except Error as error:
            tally.stopped = _explain(error)
            break
        tally.seen += len(ids)
    return tally


def now(rows: QuerySet[Any]) -> datetime | None:
    """Return the database's time; None when there are no rows to tell it by."""
    return rows.using(lifecycle.alias()).order_by().values_list(Now(), flat=True).first()


def _batches(rows: QuerySet[Any]) -> Iterator[list[int]]:
    """Yield the ids in order; what is done to one batch may take it out of the rows."""
    ids = rows.order_by("pk").values_list("pk", flat=True)
    batch = list(ids[:BATCH])
    while batch:
        yield batch
        batch = list(ids.filter(pk__gt=batch[-1])[:BATCH])


def _run_batch(operation: Operation, ids: Sequence[int], user_id: Any, tally: Tally) -> None:
    """Do it to one batch; where some rows are refused, to the others."""
    try:
        tally.done += _perform(operation, ids, user_id)
    except (DataError, IntegrityError) as error:
        if len(ids) == 1:
            tally.refused.append((ids[0], _explain(error)))
            return
        middle = len(ids) // 2
        for half in (ids[:middle], ids[middle:]):
            _run_batch(operation, half, user_id, tally)


def _perform(operation: Operation, ids: Sequence[int], user_id: Any) -> int:
    """Do it and log it in one transaction; the lock makes the log name exactly what is changed."""
    using = lifecycle.alias()
    with transaction.atomic(using=using):
        rows = operation.rows(using).filter(pk__in=ids).order_by("pk").only("pk", "task")
        locked = list(rows.select_for_update())
        if not locked:
            return 0
        changed = operation.perform([row.pk for row in locked], using=using)
        LogEntry.objects.log_actions(user_id, locked, operation.flag, operation.log)
    return changed if isinstance(changed, int) else len(changed)


def _explain(error: Error) -> str:
    """Return the first line of a database's message: the next ones may quote the row."""
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line:.200}"
