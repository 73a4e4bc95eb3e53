"""A database of the bench's own, made fresh and dropped in the end."""

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
        _move_to(name)
        call_command("migrate", verbosity=0, interactive=False)
        yield name
    finally:
        _move_to(usual)
        _drop(name)


def empty() -> None:
    """Delete what the last measurement left, rows and dead rows."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("TRUNCATE jobqueue_job, jobqueue_attempt, jobqueue_deadletter")
    else:
        for model in (Job, Attempt, DeadLetter):
            model.objects.all().delete()


def version() -> str:
    """Return the name and version of the database server."""
    connection.ensure_connection()
    numbers = ".".join(map(str, connection.get_database_version()))
    return f"{connection.display_name} {numbers}"


def _move_to(name: str) -> None:
    connection.close()
    connection.settings_dict["NAME"] = name


def _create(name: str) -> None:
    if connection.vendor != "sqlite":
        _execute(f"CREATE DATABASE {connection.ops.quote_name(name)}")


def _drop(name: str) -> None:
    if connection.vendor == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(name + suffix).unlink(missing_ok=True)
        return
    force = " WITH (FORCE)" if connection.vendor == "postgresql" else ""
    _execute(f"DROP DATABASE IF EXISTS {connection.ops.quote_name(name)}{force}")


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
