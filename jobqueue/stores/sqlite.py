"""The store for SQLite: one writer at a time, told so from the start of each transaction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections, transaction

from jobqueue.stores.generic import GenericStore


class SQLiteStore(GenericStore):
    """SQLite 3.35 and later."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Begin with the write lock: a read transaction that wants it later fails at once.

        ``BEGIN IMMEDIATE`` waits for the lock for as long as the connection's ``timeout`` says.
        """
        connection = connections[self.using]
        connection.ensure_connection()  # connecting sets the mode
        mode = connection.transaction_mode  # type: ignore[attr-defined]
        connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
        try:
            with transaction.atomic(using=self.using):
                yield
        finally:
            connection.transaction_mode = mode  # type: ignore[attr-defined]
