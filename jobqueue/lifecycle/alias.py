"""Which database holds the jobs, and how much of it one statement touches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from django.db import router

from jobqueue import stores
from jobqueue.models import Job
from jobqueue.stores.base import Store

T = TypeVar("T")

#: Rows in one statement, for what may touch many.
BATCH = 1000


def alias(using: str | None = None) -> str:
    """Return the database alias given, or the one that the routers write jobs to."""
    return using or router.db_for_write(Job)


def store(using: str | None = None) -> Store:
    """Return the statements for that database."""
    return stores.get(alias(using))


def batches(items: Iterable[T], most: int | None = None) -> Iterator[list[T]]:
    """Cut ``items`` into lists of at most so many, or of BATCH."""
    rest = iter(items)
    while batch := list(islice(rest, most or BATCH)):
        yield batch
