"""How many dead letters there are, and of which errors, counted no further than a limit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from django.db.models import Count, Max, Min, QuerySet
from django.db.models.functions import Left, Now
from django.utils.safestring import SafeString

from jobqueue import lifecycle
from jobqueue.admin import display
from jobqueue.models import DeadLetter


class Newest(NamedTuple):
    """The newest of some letters, as a range that an index has, and when that was found out."""

    letters: QuerySet[DeadLetter]
    #: How many, or one more than the limit.
    size: int
    is_capped: bool
    #: The database's time; None where there are no letters.
    now: Any


def newest(letters: QuerySet[DeadLetter], most: int) -> Newest:
    """Narrow letters down to about ``most`` of the newest."""
    some = letters.order_by("-died_at", "-pk").values("pk", "died_at")[: most + 1]
    found = some.aggregate(size=Count("pk"), since=Min("died_at"), now=Max(Now()))
    is_capped = found["size"] > most
    if is_capped:
        letters = letters.filter(died_at__gte=found["since"])
    return Newest(letters.order_by(), found["size"], is_capped, found["now"])


def errors(pks: Iterable[int]) -> dict[int, SafeString | str]:
    """Return what went wrong with some letters, on a line each."""
    summary = Left("message", display.MOST_OF_A_LINE)
    letters = DeadLetter.objects.using(lifecycle.alias()).filter(pk__in=list(pks))
    rows = letters.values_list("pk", "error_class", summary)
    return {pk: display.error(error_class, message) for pk, error_class, message in rows}
