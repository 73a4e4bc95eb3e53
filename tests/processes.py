"""Real worker processes, second connections, and waiting for facts with a bound."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

from django.db import connection, connections, transaction

from demo_project.database import CHECKOUT, POSTGRESQL_OPTIONS, SQLITE_OPTIONS

P = ParamSpec("P")
T = TypeVar("T")

#: The patience of every wait here: far more than any of them needs, so that a slow machine passes.
PATIENCE = 30.0
#: Warnings are errors in the workers too; that threads and fork() go badly together we know.
WARNINGS = "error,ignore:This process:DeprecationWarning"


def wait_until(fact: Callable[[], T], *, timeout: float = PATIENCE, doing: str = "") -> T:
    """Return what ``fact`` returns once that is true; fail when it is not within ``timeout``."""
    deadline = time.monotonic() + timeout
    while not (found := fact()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain for {doing or fact}: {found!r}")
        time.sleep(0.02)
    return found


def database_url() -> str:
    """Return the URL of the database that the test runs on, for a process of its own."""
    config = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{quote(str(config['NAME']))}" + _query(config, SQLITE_OPTIONS)
    user, password, host = (quote(config[key], safe="") for key in ("USER", "PASSWORD", "HOST"))
    port = f":{config['PORT']}" if config["PORT"] else ""
    address = f"{user}:{password}@{host}{port}/{config['NAME']}"
    return f"postgres://{address}" + _query(config, POSTGRESQL_OPTIONS)


def _query(config: Mapping[str, Any], usual: Mapping[str, Any]) -> str:
    own = {key: value for key, value in config["OPTIONS"].items() if usual.get(key) != value}
    return f"?{urlencode(own)}" if own else ""


def process_environment(**extra: str) -> dict[str, str]:
    """Return the environment of a process that works on the test's database."""
    inherited = {key: value for key, value in os.environ.items() if key != "DATABASE_NAME"}
    return inherited | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONUNBUFFERED": "1",
        "PYTHONWARNINGS": WARNINGS,
        **extra,
    }


def manage(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a management command to its end, in a process of its own."""
    return subprocess.run(
        [sys.executable, str(CHECKOUT / "manage.py"), *arguments],
        cwd=CHECKOUT,
        env=process_environment(**extra),
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )


class WorkerProcess:
    """A real ``manage.py runworker``; its log is a file, so that it never waits for a reader."""

    def __init__(
        self, *arguments: str, log: Path, session: str, prefix: Sequence[str] = (), **extra: str
    ) -> None:
        self.log = log
        #: What PostgreSQL calls the connections of this process.
        self.session = session
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [*prefix, sys.executable, str(CHECKOUT / "manage.py"), "runworker", *arguments],
                cwd=CHECKOUT,
                env=process_environment(
                    **{"DJANGO_SETTINGS_MODULE": "tests.worker_settings"} | extra, PGAPPNAME=session
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # A group of its own, so that none of its children outlives the test.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def lines_with(self, *texts: str) -> list[str]:
        """Return the lines of the log so far that hold all of ``texts``."""
        return [line for line in self.lines if all(text in line for text in texts)]

    def wait_for_line(self, *texts: str, timeout: float = PATIENCE) -> str:
        """Return the first line with all of ``texts``; fail if the worker ends without one."""

        def found() -> list[str]:
            has_ended = self.process.poll() is not None
            lines = self.lines_with(*texts)
            assert lines or not has_ended, f"ended without a line with {texts}:\n{self.output}"
            return lines

        try:
            return wait_until(found, timeout=timeout)[0]
        except AssertionError as error:
            raise AssertionError(
                f"{error}\n{texts} not in the worker's log:\n{self.output}"
            ) from None

    def signal(self, signum: int) -> None:
        """Send a signal to the worker process, and to none of its children."""
        self.process.send_signal(signum)

    def wait(self, timeout: float = PATIENCE) -> int:
        """Return the exit code once the worker has ended; negative when a signal ended it."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s:\n{self.output}") from None

    def kill(self) -> int:
        """Kill the worker at once, as a lost machine would; return the exit code."""
        self.signal(signal.SIGKILL)
        return self.wait()

    def clean_up(self) -> None:
        """Kill what is left of the worker and its children; wait until its connections are gone."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        if connection.vendor == "postgresql":
            wait_until(lambda: not sessions(self.session), doing="the worker's connections to end")


def sessions(name: str) -> int:
    """Return how many connections of that name PostgreSQL has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name])
        return int(cursor.fetchone()[0])


def terminate_sessions(name: str) -> int:
    """Let PostgreSQL cut the connections of that name; return how many there were."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE application_name = %s",
            [name],
        )
        return int(cursor.fetchone()[0])


def lock_waits(*, using: str = "default") -> int:
    """Return how many sessions of this database wait for a lock that another one holds."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        return int(cursor.fetchone()[0])


def wait_for_lock_wait(*, using: str = "default") -> None:
    """Wait until a session of this database really waits for a lock that another one holds."""
    wait_until(lambda: lock_waits(using=using), doing="a lock wait in pg_stat_activity")


class OtherConnection:
    """A thread with a connection of its own: the second of a test that needs two."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "other-connection")
        self._block: transaction.Atomic | None = None

    def start(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start ``function`` there and do not wait for it, since it may wait for a lock."""
        return self._thread.submit(function, *args, **kwargs)

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``function`` there and return what it returns."""
        return self.start(function, *args, **kwargs).result(PATIENCE)

    def begin(self) -> None:
        """Open a transaction that what is run there from now on is part of."""
        self._block = transaction.atomic()
        self.run(self._block.__enter__)

    def commit(self) -> None:
        """Commit the transaction."""
        assert self._block is not None
        block, self._block = self._block, None
        self.run(block.__exit__, None, None, None)

    def roll_back(self) -> None:
        """Roll the transaction back."""
        self.run(transaction.set_rollback, True)
        self.commit()

    def close(self) -> None:
        """Roll back what is open, close the connection and end the thread."""
        if self._block:
            self.roll_back()
        self.run(connections.close_all)
        self._thread.shutdown()


class Marks:
    """A file to which handlers append what they do, one JSON object a line, each synced to disk.

    It says what really happened whatever became of the database, and outlives a killed worker.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """What handlers are given, see ``tests.tasks``."""
        return str(self._path)

    def read(self, event: str | None = None, **fields: object) -> list[dict[str, Any]]:
        """Return the marks in the order of writing, of one event and with these fields if given."""
        if not self._path.exists():
            return []
        wanted = fields | ({"event": event} if event else {})
        # A worker may be killed in the middle of a line.
        lines = self._path.read_text().split("\n")[:-1]
        return [mark for mark in map(json.loads, lines) if wanted.items() <= mark.items()]

    def wait_for(self, event: str, *, count: int = 1, **fields: object) -> list[dict[str, Any]]:
        """Return the marks of ``event`` once there are ``count``."""

        def found() -> list[dict[str, Any]]:
            marks = self.read(event, **fields)
            return marks if len(marks) >= count else []

        return wait_until(found, doing=f"{count} marks of {event} {fields or ''}")


class Gate:
    """A file that handlers wait for, so that a test decides when they go on."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> str:
        """What handlers are given, see ``tests.tasks``."""
        return str(self._path)

    def open(self) -> None:
        """Let every handler go on that waits here, now or later."""
        self._path.touch()
