"""What a handler may leave behind on a database connection, and how it is cleared away."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.db import connections


def depths() -> dict[str, int]:
    """Return how deep in transactions this thread is, for each alias that has one open."""
    found = {connection.alias: _depth(connection) for connection in open_connections()}
    return {alias: depth for alias, depth in found.items() if depth}


def drop_leaked(before: Mapping[str, int]) -> list[str]:
    """Roll back transactions that were opened since ``before``; return their aliases.

    That drops the connection, and with it every lock and setting of the transaction.
    """
    leaked = [alias for alias, depth in depths().items() if depth > before.get(alias, 0)]
    for alias in leaked:
        _drop(alias)
    return leaked


def open_connections() -> list[Any]:
    """Return this thread's connections that are connected."""
    return [each for each in connections.all(initialized_only=True) if each.connection is not None]


def _drop(alias: str) -> None:
    """Close a connection whatever state it is in, and let the next query open a new one.

    Django's object stays, since others hold on to it: a test runner closes it at the end.
    """
    connection: Any = connections[alias]
    connection.in_atomic_block = connection.needs_rollback = False
    connection.savepoint_ids, connection.atomic_blocks = [], []
    with suppress(connection.Database.Error):
        connection.connection.rollback()
    connection.close()
    if connection.connection is not None:  # a SQLite database in memory ends at its connection
        connection.set_autocommit(True)


def _depth(connection: Any) -> int:
    """Return how many transactions and savepoints are open, counting those opened by hand."""
    if connection.in_atomic_block:
        return 1 + len(connection.savepoint_ids)
    if is_closed(connection):
        return 0
    return 1 if not connection.autocommit or _is_in_raw_transaction(connection) else 0


def _is_in_raw_transaction(connection: Any) -> bool:
    if connection.vendor == "postgresql":
        return bool(connection.connection.info.transaction_status)  # 0 is IDLE
    return bool(getattr(connection.connection, "in_transaction", False))


def is_closed(connection: Any) -> bool:
    """Whether somebody closed the driver's connection behind Django's back."""
    raw = connection.connection
    if hasattr(raw, "closed"):
        return bool(raw.closed)
    try:
        getattr(raw, "in_transaction", None)
    except connection.Database.Error:  # how SQLite says it
        return True
    return False
