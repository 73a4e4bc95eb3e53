"""Find out whether a worker could start, without starting one."""

from __future__ import annotations

from typing import NamedTuple

from django.core import checks
from django.db import Error, connections
from django.db.migrations.executor import MigrationExecutor

from jobqueue import registry

APP = "jobqueue"


class Finding(NamedTuple):
    """What was looked at, how it is, and whether a worker can live with it."""

    subject: str
    text: str
    is_good: bool


def findings(using: str) -> list[Finding]:
    """Look at everything that a worker needs."""
    found = [_system_checks(using), _tasks(), _database(using)]
    return [*found, _migrations(using)] if found[-1].is_good else found


def _system_checks(using: str) -> Finding:
    messages = checks.run_checks(tags=[APP], databases=[using])
    serious = [
        message for message in messages if message.is_serious() and not message.is_silenced()
    ]
    text = "; ".join(f"{message.id} {message.msg}" for message in serious)
    return Finding("system checks", text or "no errors", not serious)


def _tasks() -> Finding:
    names = {task.name for task in registry.tasks.values()}
    if not names:
        return Finding("tasks", "none: no installed app has a module tasks.py with one", False)
    return Finding("tasks", f"{len(names)} found", True)


def _database(using: str) -> Finding:
    try:
        with connections[using].cursor() as cursor:
            cursor.execute("SELECT 1")
    except Error as error:
        return Finding("database", f"{using}: {_first_line(error)}", False)
    return Finding("database", f"{using} answers", True)


def _migrations(using: str) -> Finding:
    try:
        executor = MigrationExecutor(connections[using])
        wanted = executor.loader.graph.leaf_nodes(APP)
        plan = executor.migration_plan(wanted)
    except Error as error:
        return Finding("migrations", _first_line(error), False)
    missing = [migration.name for migration, _ in plan if migration.app_label == APP]
    if missing:
        return Finding("migrations", f"not applied: {', '.join(missing)}; run migrate", False)
    return Finding("migrations", "all applied", True)


def _first_line(error: Error) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
