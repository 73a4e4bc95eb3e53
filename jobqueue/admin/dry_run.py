"""What a bulk operation would do: how many letters, of which tasks, and whether they would run."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Count, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.utils.safestring import SafeString

from jobqueue.admin import display
from jobqueue.lifecycle.editing import why_unfit
from jobqueue.models import DeadLetter

#: Kinds of letters that are listed.
MOST_PARTS = 20
#: Payloads that are looked into: those of the newest letters.
SAMPLE = 200
#: Payloads that do not fit are named up to so many.
MOST_NAMED = 5
#: A longer payload is not looked into.
MOST_CHARACTERS = 100_000


class Part(NamedTuple):
    """Letters of one task that died of one kind of error."""

    task: SafeString
    error_class: str
    size: int


class Sample(NamedTuple):
    """Whether payloads still fit their tasks, found out for some."""

    size: int
    unfit: int
    named: list[tuple[int, str]]


class DryRun(NamedTuple):
    """What would be done; nothing is counted beyond what the admin counts."""

    size: int
    parts: list[Part]
    has_more_parts: bool
    sample: Sample | None


def count(letters: QuerySet[DeadLetter]) -> int:
    """Return how many there are, or one more than is counted."""
    return letters.order_by().values("pk")[: display.MOST_COUNTED + 1].count()


def look_into(letters: QuerySet[DeadLetter], *, checks_payloads: bool) -> DryRun:
    """Find out what there is, without locking or changing anything."""
    parts = _parts(letters)
    return DryRun(
        size=count(letters),
        parts=parts[:MOST_PARTS],
        has_more_parts=len(parts) > MOST_PARTS,
        sample=_sample(letters) if checks_payloads else None,
    )


def _parts(letters: QuerySet[DeadLetter]) -> list[Part]:
    newest = letters.order_by("-died_at", "-pk").values("pk")[: display.MOST_COUNTED]
    counted = DeadLetter.objects.using(letters.db).filter(pk__in=newest)
    groups = counted.values_list("task", "error_class").annotate(count=Count("pk"))
    rows = groups.order_by("-count", "task", "error_class")[: MOST_PARTS + 1]
    return [Part(display.task_name(task), error, number) for task, error, number in rows]


def _sample(letters: QuerySet[DeadLetter]) -> Sample:
    texts: list[Any] = [
        Left(Cast(name, TextField()), MOST_CHARACTERS + 1) for name in ("args", "kwargs")
    ]
    rows = letters.order_by("-died_at", "-pk").values_list("pk", "task", "version", *texts)
    size, unfit = 0, []
    for pk, task, version, args, kwargs in rows[:SAMPLE]:
        size += 1
        if max(len(args), len(kwargs)) > MOST_CHARACTERS:
            continue
        if why := why_unfit(task, version, args, kwargs):
            unfit.append((pk, why))
    return Sample(size, len(unfit), unfit[:MOST_NAMED])
