"""Measure the queue on this machine."""

from __future__ import annotations

import json
import os
import platform
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import Error, connection

import jobqueue
from demo_project.orders.bench.database import own_database, version
from demo_project.orders.bench.figures import Figure, markdown, table
from demo_project.orders.bench.parts import PARTS
from demo_project.orders.bench.scale import BIG, Scale
from demo_project.orders.bench.worker import WorkerFailed


class Command(BaseCommand):
    """Parse, measure each part, print."""

    help = (
        "Measures the queue in a database of its own, beside what the database alone would do. "
        "The server and the worker share this machine, so leave it to them."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add, usual = parser.add_argument, Scale()
        add("--only", default=",".join(PARTS), help="parts, of: %(default)s")
        add("--all", action="store_true", help=f"at full size: {_told(BIG)}")
        add("--jobs", type=int, help=f"how many are drained (default: {usual.jobs})")
        add("--rows", type=int, help=f"how many lie in the table (default: {usual.rows})")
        add("--dead", type=int, help=f"dead letters, for the admin (default: {usual.dead})")
        add("--passing", type=int, help=f"under an open snapshot (default: {usual.passing})")
        add("--samples", type=int, help=f"of the pickup latency (default: {usual.samples})")
        add("--seconds", type=float, help=f"one turn of producers (default: {usual.seconds:g})")
        add("--producers", type=int, help=f"at once (default: {usual.producers})")
        add("--rounds", type=int, help=f"turns; the median counts (default: {usual.rounds})")
        add("--json", type=Path, metavar="FILE", help="also write the figures there")
        add("--markdown", action="store_true", help="print the table for a document")

    def handle(self, *args: Any, **options: Any) -> None:
        """Measure and print."""
        scale, parts = _scale(options), _parts(options["only"])
        settings.DEBUG = False  # which would keep every statement in memory
        try:
            with own_database():
                environment = describe(scale)
                figures = list(self.measure(parts, scale))
        except (Error, WorkerFailed) as error:
            raise CommandError(f"The bench did not work: {error}") from error
        self.report(environment, figures, as_markdown=options["markdown"])
        if options["json"]:
            record = {**environment, "figures": [figure.as_dict() for figure in figures]}
            options["json"].write_text(json.dumps(record, indent=2) + "\n")

    def measure(self, parts: list[str], scale: Scale) -> Iterator[Figure]:
        """Measure each part, and say which."""
        for name in parts:
            part = PARTS[name]
            if part.needs_postgresql and connection.vendor != "postgresql":
                self.stderr.write(f"skipped: {name}, which is measured on PostgreSQL only")
                continue
            self.stderr.write(f"measuring: {name}")
            yield from part.measure(scale)

    def report(
        self, environment: dict[str, Any], figures: list[Figure], *, as_markdown: bool
    ) -> None:
        """Print the figures."""
        self.stdout.write(", ".join(f"{name} {value}" for name, value in environment.items()))
        self.stdout.write("")
        for line in markdown(figures) if as_markdown else table(figures):
            self.stdout.write(line)


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise CommandError(f"--only knows {', '.join(PARTS)}, not {unknown[0]!r}")
    return parts


def _scale(options: dict[str, Any]) -> Scale:
    base = BIG if options["all"] else Scale()
    names = [field.name for field in fields(Scale)]
    given = {name: options[name] for name in names if options[name] is not None}
    try:
        return Scale(**asdict(base) | given)
    except ValueError as error:
        raise CommandError(str(error)) from error


def _told(scale: Scale) -> str:
    return ", ".join(f"--{name} {value:g}" for name, value in asdict(scale).items())


def describe(scale: Scale) -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "database": version(),
        "Python": platform.python_version(),
        "Django": django.get_version(),
        "jobqueue": jobqueue.__version__,
        "cores": os.cpu_count(),
        "load before": round(os.getloadavg()[0], 1),  # what else ran takes its share
        **asdict(scale),
    }
