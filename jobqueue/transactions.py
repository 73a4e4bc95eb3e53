"""What a handler may leave behind on a database connection, and how it is cleared away."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from jobqueue.exceptions import LeakedTransaction


@contextmanager
def none_left_open() -> Iterator[None]:
    """Raise LeakedTransaction when the block returns with a transaction that it did not find open.

    The transaction is rolled back, with the locks it holds, by dropping its connection.
    """
    before = {connection.alias: _depth(connection) for connection in open_connections()}
    yield
    leaked = [
        connection.alias
        for connection in open_connections()
        if _depth(connection) > before.get(connection.alias, 0)
    ]
    for alias in leaked:
        drop(alias)
    if leaked:
        raise LeakedTransaction(
            f"the handler left a transaction open on {', '.join(map(repr, leaked))}; "
            "it was rolled back"
        )


def drop(alias: str) -> None:
    """Close a connection whatever state it is in, and let the next query open a new one."""
    connection: Any = connections[alias]
    raw, connection.connection = connection.connection, None
    del connections[alias]
    if raw is not None:
        raw.close()


def open_connections() -> list[Any]:
    """Return this thread's connections that are connected."""
    return [each for each in connections.all(initialized_only=True) if each.connection is not None]


def _depth(connection: Any) -> int:
    """Return how many transactions and savepoints are open, counting those opened by hand."""
    if connection.in_atomic_block:
        return 1 + len(connection.savepoint_ids)
    return 1 if not connection.get_autocommit() or _in_raw_transaction(connection) else 0


def _in_raw_transaction(connection: Any) -> bool:
    raw = connection.connection
    if connection.vendor == "postgresql":
        return not raw.closed and bool(raw.info.transaction_status)  # 0 is IDLE
    return bool(getattr(raw, "in_transaction", False))
