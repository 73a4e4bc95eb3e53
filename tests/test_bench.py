"""The bench measures real work in a database of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection
from django.db.models import Count

from demo_project.database import CHECKOUT
from demo_project.orders.bench import ballast, bare, draining, variety, worker
from demo_project.orders.bench.database import SUFFIX
from demo_project.orders.bench.figures import Figure, markdown, table
from demo_project.orders.bench.parts import PARTS
from demo_project.orders.bench.scale import take_turns
from jobqueue.models import Attempt, Job

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


SMALL = {
    "jobs": 40,
    "rows": 100,
    "dead": 20,
    "passing": 40,
    "samples": 2,
    "seconds": 0.2,
    "producers": 2,
    "rounds": 1,
}
#: What each part measures, by the beginnings of the names; on PostgreSQL alone from "idle" on.
FIGURES = {
    "drain": ["no-op drain, one process"],
    "processes": ["no-op drain, two processes"],
    "enqueue": ["enqueue, one by one"],
    "bulk": ["enqueue_many"],
    "latency": ["pickup latency, p50", "pickup latency, p95"],
    "queues": ["drain, 32 queues and 8 priorities"],
    "failures": ["drain, every second attempt fails"],
    "memory": ["memory of a worker with 8 threads, at its peak"],
    "idle": ["idle worker"],
    "producers": ["enqueue by 2 producers, one busy worker", "the same with a NOTIFY"],
    "ballast": ["drain, 100 pending", "drain, 100 succeeded", "drain, 100 scheduled"],
    "horizon": ["drain under an open snapshot, the last quarter of 40"],
    "buffers": ["shared buffers of a claim of 100, 100 pending"],
    "admin": ["admin: job_changelist", "admin: deadletter_change", "admin: worker_changelist"],
    "wal": ["WAL of a job with 100 bytes of payload"],
}
ON_POSTGRESQL_ALONE = ["idle", "producers", "ballast", "horizon", "buffers", "wal", "admin"]


#: The parts that share their means with the rest; the rest takes a minute of starting workers.
QUICK = ["drain", "enqueue", "bulk", "buffers", "wal"]


class TestTheBench:
    @pytest.mark.parametrize(
        "parts", [QUICK, pytest.param(list(PARTS), marks=pytest.mark.soak)], ids=["quick", "all"]
    )
    def test_measures_each_part_and_leaves_nothing(
        self, parts: list[str], database: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "figures.json"
        scale = [word for name, number in SMALL.items() for word in (f"--{name}", str(number))]

        result = bench(database, *scale, "--only", ",".join(parts), "--json", str(file))

        assert result.returncode == 0, result.stderr
        record = json.loads(file.read_text())
        assert record.items() >= SMALL.items()
        names = [figure["name"] for figure in record["figures"]]
        assert all(name in result.stdout for name in names)
        skipped = [] if connection.vendor == "postgresql" else ON_POSTGRESQL_ALONE
        assert [name for name in PARTS if f"skipped: {name}," in result.stderr] == [
            name for name in PARTS if name in skipped and name in parts
        ]
        for part, beginnings in FIGURES.items():
            for beginning in beginnings:
                found = any(name.startswith(beginning) for name in names)
                assert found == (part in parts and part not in skipped), beginning
        assert not [name for name in names_of_databases(database) if database + SUFFIX in name]

    def test_has_no_part_that_the_test_above_forgets(self) -> None:
        assert set(FIGURES) == set(PARTS)
        needy = {name for name, part in PARTS.items() if part.needs_postgresql}
        assert needy == set(ON_POSTGRESQL_ALONE)

    def test_refuses_a_part_that_it_does_not_know(self) -> None:
        with pytest.raises(CommandError, match="'speed'"):
            call_command("bench", only="drain,speed")

    @pytest.mark.parametrize("name", SMALL)
    def test_refuses_to_measure_nothing(self, name: str) -> None:
        with pytest.raises(CommandError, match=f"--{name} must be more than 0"):
            call_command("bench", **{name: 0})


@pytest.mark.django_db
class TestARate:
    """A drain that was not whole is no figure."""

    def test_counts_what_was_loaded(self) -> None:
        before = draining.newest()
        assert draining.load(3) == 3
        assert Job.objects.filter(pk__gt=before, task=draining.tasks.noop.name).count() == 3

    def test_is_refused_when_attempts_are_missing(self) -> None:
        running = Mock(spec=worker.Running)  # a worker that is said to be done and did nothing
        with pytest.raises(worker.WorkerFailed, match="to make 3 attempts and made 0"):
            draining.rate(running, lambda: draining.load(3))

    def test_spreads_jobs_over_every_queue_and_priority(self) -> None:
        lanes = variety.QUEUES * variety.PRIORITIES
        assert variety._load_many(2 * lanes) == 2 * lanes
        numbers = Job.objects.values_list("queue_name", "priority").annotate(Count("pk"))
        assert len(numbers) == lanes
        assert {number for _, _, number in numbers} == {2}

    def test_counts_the_failed_attempts_too(self) -> None:
        assert variety._load_stumbling(3, times=1) == 6


@pytest.mark.django_db
class TestBallast:
    @pytest.mark.parametrize(
        ("kind", "status", "priority"),
        [
            ("pending behind", "pending", -10),
            ("succeeded and kept, with their attempts", "succeeded", 0),
            ("scheduled for next week, with better priority", "scheduled", 10),
        ],
    )
    def test_is_what_its_name_says(self, kind: str, status: str, priority: int) -> None:
        if connection.vendor != "postgresql":
            pytest.skip("generate_series is PostgreSQL's")
        ballast.insert(ballast.KINDS[kind], 7)
        assert Job.objects.filter(status=status, priority=priority).count() == 7
        assert Attempt.objects.count() == (7 if status == "succeeded" else 0)


class TestTheTable:
    RATE = Figure(name="drain", value=500.0, unit="jobs/s", limit=2000.0, limit_name="bare")
    TIME = Figure(name="pickup", value=3.0, unit="ms", limit=2.0, limit_name="NOTIFY")
    ALONE = Figure(name="alone", value=1.0, unit="ms", note="nothing stands beside it")

    def test_shows_each_figure_beside_its_limit(self) -> None:
        header, *rows, empty, note = table([self.RATE, self.TIME, self.ALONE])
        assert header.split() == ["measured", "beside", "ratio", "which", "is"]
        assert rows[0].split() == ["drain", "500", "jobs/s", "2,000", "jobs/s", "0.25", "bare"]
        assert rows[1].split() == ["pickup", "3.00", "ms", "2.00", "ms", "1.50", "NOTIFY"]
        assert rows[2].split() == ["alone", "1.00", "ms"]
        assert (empty, note) == ("", "alone: nothing stands beside it")

    def test_is_there_for_documents_too(self) -> None:
        header, rule, rate, alone = markdown([self.RATE, self.ALONE])
        assert header == "| figure | measured | beside | ratio | which is |"
        assert rule.count("|") == header.count("|")
        assert rate == "| drain | 500 jobs/s | 2,000 jobs/s | 0.25 | bare |"
        assert alone == "| alone | 1.00 ms |  |  |  |"


class TestTakingTurns:
    def test_gives_the_median_of_each(self) -> None:
        one, other = iter([1.0, 9.0, 2.0]), iter([3.0, 4.0, 5.0])
        ways = {"one": lambda: next(one), "other": lambda: next(other)}
        assert take_turns(ways, 3) == {"one": 2.0, "other": 4.0}
