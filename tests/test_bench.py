"""The bench measures real work in a database of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection

from demo_project.database import CHECKOUT
from demo_project.orders.bench import bare
from demo_project.orders.bench.database import SUFFIX
from demo_project.orders.bench.figures import Figure, table

PATIENCE = 240.0


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """The name of a database beside which the bench makes its own."""
    name = f"test_bench_{os.getpid()}"
    if connection.vendor == "sqlite":
        yield str(tmp_path / "own.sqlite3")
        return
    if connection.vendor != "postgresql":
        pytest.skip("the database is made on PostgreSQL and SQLite only")
    with bare.connect() as psycopg:
        psycopg.execute(f'CREATE DATABASE "{name}"')
        yield name
        psycopg.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def names_of_databases(database: str) -> list[str]:
    if connection.vendor == "sqlite":
        return [str(path) for path in Path(database).parent.iterdir()]
    with bare.connect() as psycopg:
        return [name for (name,) in psycopg.execute("SELECT datname FROM pg_database").fetchall()]


def bench(database: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    own = {"DATABASE_NAME": database, "DJANGO_SETTINGS_MODULE": "demo_project.settings"}
    return subprocess.run(
        [sys.executable, str(CHECKOUT / "manage.py"), "bench", *arguments],
        cwd=CHECKOUT,
        env=os.environ | own,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class TestTheBench:
    def test_measures_everything_and_leaves_nothing(self, database: str, tmp_path: Path) -> None:
        file = tmp_path / "figures.json"

        result = bench(database, "--jobs", "5", "--json", str(file))

        assert result.returncode == 0, result.stderr
        record = json.loads(file.read_text())
        figures = {figure["name"]: figure for figure in record["figures"]}
        assert {"no-op drain, one process", "enqueue_many", "pickup latency, p95"} <= set(figures)
        assert all(name in result.stdout for name in figures)
        on_postgresql = connection.vendor == "postgresql"
        assert all((each["limit"] is not None) == on_postgresql for each in record["figures"])
        assert ("measured on PostgreSQL only" in result.stdout) != on_postgresql
        assert database + SUFFIX not in names_of_databases(database)

    def test_refuses_a_part_that_it_does_not_know(self) -> None:
        with pytest.raises(CommandError, match="'speed'"):
            call_command("bench", only="drain,speed")


class TestTheTable:
    def test_shows_each_figure_beside_its_limit(self) -> None:
        rate = Figure(name="drain", value=500.0, unit="jobs/s", limit=2000.0, limit_name="bare")
        time = Figure(name="pickup", value=3.0, unit="ms", limit=2.0, limit_name="NOTIFY")
        alone = Figure(name="alone", value=1.0, unit="ms", note="no limit is known")
        header, *rows, empty, note = table([rate, time, alone])
        assert header.split() == ["measured", "limit", "ratio", "the", "limit", "is"]
        assert rows[0].split() == ["drain", "500", "jobs/s", "2,000", "jobs/s", "25%", "bare"]
        assert rows[1].split() == ["pickup", "3.00", "ms", "2.00", "ms", "1.5", "x", "NOTIFY"]
        assert rows[2].split() == ["alone", "1.00", "ms"]
        assert (empty, note) == ("", "alone: no limit is known")
