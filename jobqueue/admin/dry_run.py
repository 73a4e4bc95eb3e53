"""What a bulk operation would do: how many letters, of which tasks, and whether they would run."""

from __future__ import annotations

from typing import Any, NamedTuple

from django.db.models import Count, Max, QuerySet, TextField
from django.db.models.functions import Cast, Left
from django.utils.safestring import SafeString

from jobqueue.admin import display, samples
from jobqueue.admin.samples import Newest
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
    """Letters of one task that died of one error."""

    task: SafeString
    error: SafeString | str
    size: int


class Sample(NamedTuple):
    """Whether payloads still fit their tasks, found out for some."""

    size: int
    unfit: int
    named: list[tuple[int, str]]


class DryRun(NamedTuple):
    """What would be done; no letters are looked into beyond those that the admin counts."""

    parts: list[Part]
    has_more_parts: bool
    sample: Sample | None


def look_into(found: Newest, *, checks_payloads: bool, quotes_payloads: bool) -> DryRun:
    """Find out what there is, without locking or changing anything.

    Why a payload does not fit may quote it.
    """
    parts = _parts(found.letters)
    return DryRun(
        parts=parts[:MOST_PARTS],
        has_more_parts=len(parts) > MOST_PARTS,
        sample=_sample(found.letters, quotes=quotes_payloads) if checks_payloads else None,
    )


def _parts(letters: QuerySet[DeadLetter]) -> list[Part]:
    counted = letters.values("task", "fingerprint").annotate(count=Count("pk"), sample=Max("pk"))
    rows = list(counted.order_by("-count", "task", "fingerprint")[: MOST_PARTS + 1])
    errors = samples.errors(row["sample"] for row in rows)
    return [
        Part(
            display.task_name(row["task"]),
            errors.get(row["sample"], display.NOTHING),
            row["count"],
        )
        for row in rows
    ]


def _sample(letters: QuerySet[DeadLetter], *, quotes: bool) -> Sample:
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
    return Sample(size, len(unfit), unfit[:MOST_NAMED] if quotes else [])
