"""What a handler may leave behind on a database connection, and how it is cleared away."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver


class _OfThisThread(threading.local):
    """The connections that this thread has opened.

    Django's own handler is asked once a thread: to ask it after each job would take longer than
    most of what is done there.
    """

    def __init__(self) -> None:
        self.opened: list[Any] = list(connections.all(initialized_only=True))


_ours = _OfThisThread()


@receiver(connection_created, dispatch_uid="jobqueue.transactions")
def _note(connection: Any, **_: Any) -> None:
    if connection not in open_connections():  # which lets go of those that are closed
        _ours.opened.append(connection)


def open_connections() -> list[Any]:
    """Return this thread's connections that are connected: the list itself, to be read."""
    _ours.opened = [each for each in _ours.opened if each.connection is not None]
    return _ours.opened


def depths() -> dict[str, int]:
    """Return how deep in transactions this thread is, for each alias that has one open."""
    return {each.alias: depth for each in open_connections() if (depth := _depth(each))}


def drop_leaked(before: Mapping[str, int]) -> list[str]:
    """Roll back transactions that were opened since ``before``; return their aliases.

    That drops the connection, and with it every lock and setting of the transaction.
    """
    leaked = [each for each in open_connections() if _depth(each) > before.get(each.alias, 0)]
    for connection in leaked:
        _drop(connection)
    return [connection.alias for connection in leaked]


def _drop(connection: Any) -> None:
    """Close a connection whatever state it is in, and let the next query open a new one.

    Django's object stays, since others hold on to it: a test runner closes it at the end.
    """
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
        raw = connection.connection
        told_by = getattr(raw, "pgconn", None) or raw.info  # psycopg 3's own is quicker to ask
        return bool(told_by.transaction_status)  # 0 is IDLE
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
