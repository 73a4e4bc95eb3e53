"""Fixtures: real workers, second connections, and a test database for this run alone."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
import pytest_django
from django.db import connection

from demo_project.database import data_folder
from tests.processes import Gate, Marks, OtherConnection, WorkerProcess


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        type=Path,
        metavar="FOLDER",
        help="where test_admin_screenshots.py puts its pictures; docs/images is the docs' own",
    )


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_blocker: pytest_django.DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Name the test database so that worker processes reach it and other runs do not."""
    test = connection.settings_dict["TEST"]
    if connection.vendor == "sqlite":
        # In a file, since a database in memory ends at its process.
        test["NAME"] = str(tmp_path_factory.mktemp("database") / "test.sqlite3")
    elif _is_embedded() or "PYTEST_XDIST_WORKER" in os.environ:
        test["NAME"] = f"test_{connection.settings_dict['NAME']}_{os.getpid()}"
        if _is_embedded():
            with django_db_blocker.unblock():
                _drop_databases_of_killed_runs()


def _is_embedded() -> bool:
    """Whether the server is our own; pytest-xdist's workers are told of it as of any other."""
    return connection.settings_dict["HOST"] == str(data_folder())


def _drop_databases_of_killed_runs() -> None:
    import psutil  # comes with the embedded server

    with connection._nodb_cursor() as cursor:
        cursor.execute("SELECT datname FROM pg_database")
        for (name,) in cursor.fetchall():
            found = re.fullmatch(r"test_\w+_(\d+)", name)
            if found and not psutil.pid_exists(int(found[1])):
                cursor.execute(f'DROP DATABASE IF EXISTS "{name}"')


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only PostgreSQL can pass, where the tests run on another database."""
    if connection.vendor == "postgresql":
        return
    left_out = [item for item in items if item.get_closest_marker("postgresql")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def worker_process(
    transactional_db: None, tmp_path: Path
) -> Iterator[Callable[..., WorkerProcess]]:
    """Start real workers: ``worker_process("--queues", "mail", ready=True, LANG="C")``.

    ``ready`` waits until the worker says that it has started; ``prefix`` is a command that runs
    it; what is written in capitals goes into its environment. All of them are killed at the end of
    the test.
    """
    workers: list[WorkerProcess] = []
    numbers = count(1)

    def start(
        *arguments: str, ready: bool = True, prefix: Sequence[str] = (), **extra: str
    ) -> WorkerProcess:
        number = next(numbers)
        worker = WorkerProcess(
            *arguments,
            log=tmp_path / f"worker-{number}.log",
            session=f"worker-{number}-{os.getpid()}",
            prefix=prefix,
            **extra,
        )
        workers.append(worker)
        if ready:
            worker.wait_for_line("worker.started")
        return worker

    yield start
    for worker in workers:
        worker.clean_up()
        print(f"--- {worker.log.name}\n{worker.output}")  # pytest shows it when the test failed


@pytest.fixture
def second_connection(transactional_db: None) -> Iterator[OtherConnection]:
    """A second connection to the test's database, in a thread of its own."""
    other = OtherConnection()
    yield other
    other.close()


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    """A file for the marks of handlers."""
    return Marks(tmp_path / "marks.jsonl")


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """A gate at which handlers wait until the test opens it; open at the end in any case."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.open()
