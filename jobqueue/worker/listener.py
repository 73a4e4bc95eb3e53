"""Hear of new jobs on PostgreSQL's notification channel, so that an idle worker need not wait.

Polling stays the truth: a notification that is missed, or a pooler that passes none on, costs a
poll's latency and nothing else.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Any

from django.db import Error, NotSupportedError, connections

from jobqueue import logs
from jobqueue.worker.threads import Pause

CHANNEL = "jobqueue"
#: How long the thread waits before it sees whether it should end, in seconds.
TICK = 1.0
#: How long its own notification may take before the listener is taken for deaf, in seconds.
HEARD_WITHIN = 10.0
#: When a deaf listener tries again, in seconds: a pooler may have been set up differently.
DEAF_FOR = 600.0
#: How often a connection that only waits is tried, in seconds: it would not notice its own end.
TRIED_EVERY = 30.0


class Listener:
    """A thread with a connection of its own that passes on the names of queues with new jobs.

    ``on_news`` gets None when it begins to listen: what came before went unheard.
    """

    def __init__(self, *, using: str, on_news: Callable[[str | None], None]) -> None:
        self.using = using
        #: Whether notifications would reach this worker now; a notification of its own has.
        self.is_listening = False
        self._on_news = on_news
        self._own_channel = f"{CHANNEL}_{secrets.token_hex(8)}"
        self._closed = Event()
        self._pause = Pause()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.set()

    def work(self) -> None:
        """Listen until closed, on a new connection whenever the last one broke.

        Ends at once where the database or its driver cannot notify.
        """
        pause = 0.0
        while self._is_possible() and not self._closed.wait(pause):
            pause = self._try()

    def _is_possible(self) -> bool:
        """Whether this is PostgreSQL, through psycopg 3.2 or later."""
        connection: Any = connections[self.using]
        return connection.vendor == "postgresql" and hasattr(connection.Database, "Capabilities")

    def _try(self) -> float:
        """Listen while it is of use; return how long to wait then, in seconds."""
        try:
            self._listen()
        except NotSupportedError:
            pass  # by the pooler
        except (Error, OSError) as error:
            logs.problem("worker.listener_failed", error)
            return self._pause.next()
        finally:
            self.is_listening = False
            connections.close_all()
        if not self._closed.is_set():
            logs.event(logging.INFO, "worker.listener_deaf", again_in_s=DEAF_FOR)
        return DEAF_FOR

    def _listen(self) -> None:
        """Pass on what is heard until closed; return early when not even our own call is heard."""
        self._execute(f"LISTEN {CHANNEL}; LISTEN {self._own_channel}")
        self._call_itself()
        called = tried = monotonic()
        while not self._closed.is_set():
            self._hear()
            if not self.is_listening and monotonic() > called + HEARD_WITHIN:
                # It was the pooler's session that listened, most likely the one that we get now.
                self._execute(f"UNLISTEN {CHANNEL}; UNLISTEN {self._own_channel}")
                return
            if monotonic() > tried + TRIED_EVERY:
                self._execute("SELECT 1")
                tried = monotonic()

    def _execute(self, statement: str) -> None:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement)

    def _call_itself(self) -> None:
        """Notify this listener alone.

        On another connection: behind a pooler in transaction mode, a statement on our own may get
        the session that listens, and its answer would bring what never arrives between statements.
        """
        other = connections[self.using].copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, '')", [self._own_channel])
        finally:
            other.close()

    def _hear(self) -> None:
        """Wait for a moment, and pass on what is heard meanwhile."""
        connection: Any = connections[self.using]
        with connection.wrap_database_errors:
            for notification in connection.connection.notifies(timeout=TICK):
                if notification.channel == self._own_channel:
                    self.is_listening = True
                    self._pause.reset()
                    self._on_news(None)
                else:
                    self._on_news(notification.payload)
