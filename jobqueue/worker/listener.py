"""Hear of new jobs on PostgreSQL's notification channel, so that an idle worker need not wait.

Polling stays the truth: a notification that is missed, or a pooler that passes none on, costs a
poll's latency and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from time import sleep
from typing import Any

from django.db import Error, close_old_connections, connections

from jobqueue import logs
from jobqueue.worker.threads import Pause

CHANNEL = "jobqueue"
#: How long the thread waits before it sees whether it should end, in seconds.
TICK = 1.0


class Listener:
    """A thread with a connection of its own that passes on the names of queues with new jobs."""

    def __init__(self, *, using: str, on_news: Callable[[str], None]) -> None:
        self.using = using
        #: Whether notifications would reach this worker now.
        self.is_listening = False
        self._on_news = on_news
        self._is_closed = False

    def close(self) -> None:
        """Let the thread end."""
        self._is_closed = True

    def work(self) -> None:
        """Listen until closed, on a new connection whenever the last one broke.

        Ends at once where the database or its driver cannot notify.
        """
        pause = Pause()
        while not self._is_closed and self._is_possible():
            try:
                self._listen()
            except (Error, OSError) as error:
                self.is_listening = False
                close_old_connections()
                logs.problem("worker.listener_failed", error)
                sleep(pause.next())

    def _is_possible(self) -> bool:
        """Whether this is PostgreSQL, through psycopg 3.2 or later."""
        connection: Any = connections[self.using]
        return connection.vendor == "postgresql" and hasattr(connection.Database, "Capabilities")

    def _listen(self) -> None:
        connection: Any = connections[self.using]
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self.is_listening = True
        with connection.wrap_database_errors:
            while not self._is_closed:
                for notification in connection.connection.notifies(timeout=TICK):
                    self._on_news(notification.payload)
