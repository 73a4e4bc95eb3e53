"""What keeps a scrape from taking long, whatever the database does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from django.db import OperationalError, connections, transaction

#: How long the database may take for one statement, in milliseconds (PostgreSQL).
STATEMENT_MS = 2000


class Deadline:
    """Lets no statement begin when the time is over; Prometheus itself waits ten seconds."""

    def __init__(self, seconds: float) -> None:
        self._ends_at = monotonic() + seconds

    def __call__(self, execute: Callable[..., Any], *statement: Any) -> Any:
        """Run a statement, as a wrapper of Django's."""
        if monotonic() > self._ends_at:
            raise OperationalError("the scrape took too long")
        return execute(*statement)


@contextmanager
def within(deadline: Deadline, alias: str) -> Iterator[None]:
    """Bound the statements of a block, and let none of its failures spoil the connection."""
    connection = connections[alias]
    with connection.execute_wrapper(deadline):
        if connection.vendor != "postgresql":
            # No transaction: it might take SQLite's write lock, or wait for it.
            yield
            return
        with transaction.atomic(using=alias):
            with connection.cursor() as cursor:
                cursor.execute(
                    "SELECT set_config('statement_timeout', %s, true)", [str(STATEMENT_MS)]
                )
            yield
