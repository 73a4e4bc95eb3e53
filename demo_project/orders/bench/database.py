"""Databases of the bench's own, made fresh and dropped in the end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.core.management import call_command
from django.db import connection

from jobqueue.models import Attempt, DeadLetter, Job

SUFFIX = "_bench"


@contextmanager
def own_database() -> Iterator[str]:
    """Move the default connection to a new database within the block, and give its name."""
    usual = str(connection.settings_dict["NAME"])
    name = usual + SUFFIX
    _drop(name)
    _create(name)
    try:
        with moved_to(name):
            call_command("migrate", verbosity=0, interactive=False)
            yield name
    finally:
        _drop(name)


@contextmanager
def another_database(suffix: str) -> Iterator[str]:
    """Make one more database like the bench's own, empty, and drop it after the block.

    On PostgreSQL only. Nobody may be connected to the bench's own meanwhile.
    """
    empty()
    own = str(connection.settings_dict["NAME"])
    name = f"{own}_{suffix}"
    with moved_to("postgres"):
        _drop(name)
        _create(name, like=own)
    try:
        yield name
    finally:
        with moved_to("postgres"):
            _drop(name)


@contextmanager
def moved_to(name: str) -> Iterator[None]:
    """Let the default connection lead to another database within the block."""
    before = str(connection.settings_dict["NAME"])
    _move_to(name)
    try:
        yield
    finally:
        _move_to(before)


def empty() -> None:
    """Delete what the last measurement left, rows and dead rows."""
    if connection.vendor == "postgresql":
        execute("TRUNCATE jobqueue_job, jobqueue_attempt, jobqueue_deadletter")
    else:
        for model in (Job, Attempt, DeadLetter):
            model.objects.all().delete()


def execute(statement: str) -> None:
    """Execute a statement that returns nothing."""
    with connection.cursor() as cursor:
        cursor.execute(statement)


def version() -> str:
    """Return the name and version of the database server."""
    connection.ensure_connection()
    numbers = ".".join(map(str, connection.get_database_version()))
    return f"{connection.display_name} {numbers}"


def _move_to(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


def _create(name: str, *, like: str = "") -> None:
    if connection.vendor != "sqlite":
        quote = connection.ops.quote_name
        template = f" TEMPLATE {quote(like)}" if like else ""
        execute(f"CREATE DATABASE {quote(name)}{template}")


def _drop(name: str) -> None:
    if connection.vendor == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(name + suffix).unlink(missing_ok=True)
        return
    force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
    execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}{force}")
