"""Measure the queue on this machine."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connection

import jobqueue
from demo_project.orders.bench import draining, enqueueing, latency
from demo_project.orders.bench.database import own_database, version
from demo_project.orders.bench.figures import Figure, table
from demo_project.orders.bench.worker import WorkerFailed

#: One by one is slow, and each is like the other.
SINGLE_PART = 10

PARTS: dict[str, Callable[[int], Iterator[Figure]]] = {
    "drain": draining.measure,
    "enqueue": lambda jobs: enqueueing.measure_single(max(jobs // SINGLE_PART, 1)),
    "bulk": enqueueing.measure_bulk,
    "latency": latency.measure,
}


class Command(BaseCommand):
    """Parse, measure each part, print."""

    help = (
        "Measures the queue in a database of its own, beside what the database alone would do. "
        "The server and the worker share this machine, so leave it to them."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--jobs", type=int, default=20_000, help="how many (default: 20000)")
        parser.add_argument("--only", default=",".join(PARTS), help="parts, of: %(default)s")
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="also write the figures there"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure and print."""
        parts = options["only"].split(",")
        if unknown := sorted(set(parts) - set(PARTS)):
            raise CommandError(f"--only knows {', '.join(PARTS)}, not {unknown[0]!r}")
        if options["jobs"] < 1:
            raise CommandError("--jobs must be at least 1")
        settings.DEBUG = False  # which would keep every statement in memory
        try:
            with own_database():
                environment = describe()
                figures = self.measure(parts, options["jobs"])
        except (Error, WorkerFailed) as error:
            raise CommandError(f"The bench did not work: {error}") from error
        self.report(environment, figures)
        if options["json"]:
            record = {**environment, "figures": [figure.as_dict() for figure in figures]}
            options["json"].write_text(json.dumps(record, indent=2) + "\n")

    def measure(self, parts: list[str], jobs: int) -> list[Figure]:
        """Measure each part, and say which."""
        figures: list[Figure] = []
        for part in parts:
            self.stderr.write(f"measuring: {part}")
            figures += PARTS[part](jobs)
        return figures

    def report(self, environment: dict[str, Any], figures: list[Figure]) -> None:
        """Print the figures."""
        self.stdout.write(", ".join(f"{name} {value}" for name, value in environment.items()))
        self.stdout.write("")
        for line in table(figures):
            self.stdout.write(line)
        if connection.vendor != "postgresql":
            self.stdout.write("The limits are measured on PostgreSQL only.")


def describe() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "database": version(),
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "jobqueue": jobqueue.__version__,
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 1),  # what else ran takes its share
    }
