"""What a worker costs that has nothing to do. On PostgreSQL only, apart from its memory."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from django.conf import settings
from django.db import connection

from demo_project.orders.bench import draining, worker
from demo_project.orders.bench.database import empty, moved_to
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale

#: How many times ``scale.seconds`` an idle worker is watched.
LONG = 6
BARELY_DJANGO = """
import django; django.setup()
from django.db import connection; connection.ensure_connection()
import os; from demo_project.orders.bench import worker; print(worker.peak_memory(os.getpid()))
"""


def measure_statements(scale: Scale) -> Iterator[Figure]:
    """Count the statements of an idle worker; each is a transaction of its own.

    A worker reports its transactions with some delay, but all of them when it ends. So two run,
    one for longer; what starting and stopping takes is the same for both.
    """
    empty()
    short, few = _idle(scale.seconds)
    long, many = _idle(scale.seconds * LONG)
    yield Figure(
        name="idle worker",
        value=(many - few) / (long - short),
        unit="statements/s",
        note=f"{many - few} transactions in {long - short:.1f} s",
    )


def _idle(seconds: float) -> tuple[float, int]:
    """Let a worker be idle; return for how long, and how many transactions it made in its life."""
    name = str(connection.settings_dict["NAME"])
    with moved_to("postgres"):  # whose transactions are not counted
        before = _transactions(name)
    with worker.started() as running:
        running.wait_for_start()
        since = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - since
    with moved_to("postgres"):
        return took, _transactions(name) - before


def _transactions(database: str) -> int:
    """Return how many transactions there were, once everybody has left and so reported all."""
    deadline = time.monotonic() + worker.START_TIMEOUT
    while _ask("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", database):
        if time.monotonic() > deadline:
            raise worker.WorkerFailed(f"somebody stays connected to {database}")
        time.sleep(0.05)
    return _ask(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s", database
    )


def _ask(question: str, database: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(question, [database])
        [(number,)] = cursor.fetchall()
        return int(number)


def measure_memory(scale: Scale) -> Iterator[Figure]:
    """Weigh a worker after work, beside a process that has only loaded Django and the project."""
    empty()
    with worker.waiting() as running:
        draining.rate(running, lambda: draining.load(scale.jobs))
        peak = worker.peak_memory(running.process.pid)
    if peak is None:
        return
    yield Figure(
        name="memory of a worker with 8 threads, at its peak",
        value=peak,
        unit="MB",
        limit=_barely_django(),
        limit_name="a process that has loaded Django and the project, and has connected",
    )


def _barely_django() -> float:
    return float(
        subprocess.check_output(
            [sys.executable, "-c", BARELY_DJANGO],
            cwd=settings.BASE_DIR,
            env=worker.environment(),
            text=True,
        )
    )
