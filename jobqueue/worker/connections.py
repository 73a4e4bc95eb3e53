"""The database connections of the threads that call handlers."""

from __future__ import annotations

import os
from collections.abc import Callable
from time import monotonic
from typing import Any

from django.db import connections

from jobqueue.transactions import is_closed, open_connections

#: A connection that was not tried for longer, in seconds, is tried before a handler gets it.
TRUSTED_FOR = 5.0


class ThreadConnections:
    """Keeps one thread's connections between jobs, usable and without traces of the last job.

    Django's own rule closes them after each request where CONN_MAX_AGE is 0, which would be a new
    connection for each job. They are kept while the thread has work, for as long as a CONN_MAX_AGE
    above 0 allows, and are closed when it is idle; those of a pool go back to it after each job.
    """

    def __init__(self) -> None:
        self._last_tried = monotonic()

    def before_job(self) -> None:
        """Close what may have been cut off, if only while jobs ran that did not use it."""
        if monotonic() - self._last_tried > TRUSTED_FOR:
            _close_those(lambda connection: not connection.is_usable())
            self._last_tried = monotonic()

    def after_job(self) -> None:
        """Close what the job broke, or what has served long enough."""
        _close_those(_has_served)


def _close_those(is_due: Callable[[Any], bool]) -> None:
    for connection in open_connections():
        connection.queries_log.clear()  # grows for ever under DEBUG
        connection.health_check_done = False  # CONN_HEALTH_CHECKS: once a job, as once a request
        if is_due(connection):
            connection.close()


def _has_served(connection: Any) -> bool:
    if is_closed(connection) or connection.settings_dict["OPTIONS"].get("pool"):
        return True
    if connection.errors_occurred:
        connection.errors_occurred = False
        return not connection.is_usable()
    max_age = connection.settings_dict["CONN_MAX_AGE"]
    return bool(max_age) and monotonic() >= connection.close_at


#: What a forked child took over: held, since closing it would end the parent's session.
_of_the_parent: list[Any] = []


def keep_from_children() -> None:
    """Let the children that handlers fork open connections of their own."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forget)


def _forget() -> None:
    taken_over = open_connections()
    for connection in taken_over:
        _of_the_parent.append(connection.connection)
        del connections[connection.alias]
    taken_over.clear()
