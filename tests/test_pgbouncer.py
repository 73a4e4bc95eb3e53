"""PgBouncer in transaction mode: nothing of the queue needs a session, and wake-ups do without."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from django.db import connection, transaction

from jobqueue import enqueue_many, lifecycle
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome, Status
from tests import tasks
from tests.clusters import default_database_at, free_port
from tests.factories import JobFactory
from tests.in_process import run_until_empty, running_worker
from tests.models import Mark
from tests.processes import Gate, Marks, WorkerProcess, wait_until
from tests.test_worker_lease import QUICK, outcomes, succeeded

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.defpath}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.network,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(PGBOUNCER is None, reason="needs PgBouncer"),
]

StartWorker = Callable[..., WorkerProcess]
#: Fewer sessions than a worker has connections, so that they do have to share.
SESSIONS = 3
LEASE = timedelta(seconds=1)
CONFIG = """
[databases]
* = {server}

[pgbouncer]
pool_mode = {mode}
default_pool_size = {size}
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
"""


@contextmanager
def pooler(mode: str, size: int) -> Iterator[None]:
    """Have the test and its workers reach the database through PgBouncer meanwhile."""
    config, port = connection.settings_dict, free_port()
    folder = Path(tempfile.mkdtemp(prefix="jobqueue-pooler-"))
    server = f"host={config['HOST'] or '127.0.0.1'} port={config['PORT'] or 5432}"
    text = CONFIG.format(server=server, mode=mode, size=size, port=port, folder=folder)
    (folder / "config").write_text(text)
    (folder / "users").write_text(f'"{config["USER"]}" "{config["PASSWORD"]}"\n')
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [str(PGBOUNCER), str(folder / "config")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            **_as_someone_else(folder, config["HOST"]),
        )
    try:
        with default_database_at(HOST="127.0.0.1", PORT=port):
            wait_until(_answers, doing="PgBouncer to answer")
            yield
    finally:
        process.kill()
        process.wait()
        print((folder / "log").read_text())  # pytest shows it when the test failed
        shutil.rmtree(folder)


def _as_someone_else(folder: Path, socket: str) -> dict[str, int]:
    """Return what makes the pooler run as whoever may reach the socket: it refuses to be root."""
    if os.geteuid() != 0:
        return {}
    owner = Path(socket).stat().st_uid if socket.startswith("/") else 0
    user = pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")
    for path in (folder, *folder.iterdir()):
        os.chown(path, user.pw_uid, user.pw_gid)
    return {"user": user.pw_uid, "group": user.pw_gid}


def _answers() -> bool:
    try:
        connection.ensure_connection()
    except Exception:  # noqa: BLE001 - it only starts
        return False
    return True


@pytest.fixture
def transaction_pooler(worker_process: StartWorker) -> Iterator[None]:
    with pooler("transaction", SESSIONS):
        yield


@pytest.fixture
def session_pooler(worker_process: StartWorker) -> Iterator[None]:
    with pooler("session", 20):
        yield


@pytest.mark.usefixtures("transaction_pooler")
class TestTransactionMode:
    """C-51."""

    def test_is_what_these_tests_run_in(self) -> None:
        """A second client gets the session that the first one used, and its backend."""
        config = connection.settings_dict
        address = {"host": config["HOST"], "port": config["PORT"], "user": config["USER"]}
        query = "SELECT pg_backend_pid()"
        with (
            psycopg.connect(**address, dbname=config["NAME"], autocommit=True) as one,
            psycopg.connect(**address, dbname=config["NAME"], autocommit=True) as two,
        ):
            assert one.execute(query).fetchone() == two.execute(query).fetchone()

    def test_enqueues_one_or_many_with_the_transaction_or_not_at_all(self) -> None:
        with transaction.atomic():
            tasks.leave_row.enqueue("one")
            enqueue_many([tasks.leave_row.bind(str(number)) for number in range(3)])
            copied = enqueue_many([tasks.leave_row.bind(str(number)) for number in range(2000)])
        with transaction.atomic():
            tasks.leave_row.enqueue("not at all")
            enqueue_many([tasks.leave_row.bind(str(number)) for number in range(2000)])
            transaction.set_rollback(True)
        assert Job.objects.count() == 2004
        assert copied == sorted(copied)

    def test_settles_in_every_way(self) -> None:
        acked, atomic = tasks.leave_row.enqueue("ack"), tasks.leave_row_atomically.enqueue("atomic")
        undone = tasks.leave_row_then_fail.using(max_attempts=2).enqueue("undone")
        retried, snoozed = tasks.fail_until.enqueue(2), tasks.snooze.enqueue(0.0)
        delayed = tasks.leave_row.using(run_after=timedelta(seconds=0.5)).enqueue("delayed")
        cancelled = tasks.leave_row.using(run_after=timedelta(hours=1)).enqueue("cancelled")
        assert lifecycle.cancel([cancelled.pk]) == 1
        with running_worker():
            wait_until(succeeded(acked, atomic, retried, snoozed, delayed))
            wait_until(DeadLetter.objects.exists)
        keys = set(Mark.objects.values_list("key", flat=True))
        assert keys == {"ack", "atomic", "delayed"}
        assert [outcome for _, outcome, _ in outcomes(undone)] == [Outcome.FAILED] * 2
        assert [outcome for _, outcome, _ in outcomes(retried)] == [
            Outcome.FAILED, Outcome.SUCCEEDED,
        ]  # fmt: skip
        assert lifecycle.replay([undone.pk]) == [undone.pk]
        run_until_empty()
        assert Attempt.objects.of(undone.pk).count() == 4
        assert DeadLetter.objects.filter(pk=undone.pk, replays=1).exists()
        assert Job.objects.get(pk=cancelled.pk).status == Status.CANCELLED

    def test_extends_leases_rescues_lost_ones_and_tells_of_a_cancellation(
        self, marks: Marks, gate: Gate
    ) -> None:
        lost = JobFactory(claimed=True, lease_left=-LEASE, task=tasks.noop.name)
        held = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        asked = tasks.hold_until_cancelled.enqueue(marks=marks.path)
        with running_worker(lease=LEASE, concurrency=3):
            marks.wait_for("start", count=2)
            wait_until(succeeded(lost))
            first = Job.objects.get(pk=held.pk).claimed_until
            wait_until(lambda: Job.objects.get(pk=held.pk).claimed_until > first + 2 * LEASE)
            assert lifecycle.cancel([asked.pk]) == 1
            wait_until(succeeded(asked))
            gate.open()
            wait_until(succeeded(held))
        assert [number for number, _, _ in outcomes(held)] == [1]
        assert [outcome for _, outcome, _ in outcomes(lost)] == [Outcome.LOST, Outcome.SUCCEEDED]

    def test_two_workers_drain_a_backlog_each_job_once_on_a_few_sessions(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        enqueue_many([tasks.leave_row.bind(str(number)) for number in range(1000)])
        options = ("--until-empty", "--concurrency", "4", *QUICK)
        workers = [worker_process("--name", name, *options) for name in ("one", "two")]
        name = connection.settings_dict["NAME"]
        assert 0 < sessions_of(name) <= SESSIONS
        assert [worker.wait(timeout=60) for worker in workers] == [0, 0]
        assert Job.objects.filter(status=Status.SUCCEEDED).count() == 1000
        assert Mark.objects.count() == 1000
        assert Attempt.objects.filter(outcome=Outcome.SUCCEEDED).count() == 1000

    def test_knows_that_it_hears_nothing_polls_and_drains(
        self, worker_process: StartWorker, marks: Marks, gate: Gate
    ) -> None:
        worker = worker_process(*QUICK)
        worker.wait_for_line("worker.listener_deaf")
        wait_until(WorkerRow.objects.exists)
        job = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        marks.wait_for("start")
        assert not WorkerRow.objects.filter(listens=True).exists()
        assert not worker.lines_with("worker.listener_failed")
        worker.signal(signal.SIGTERM)
        worker.wait_for_line("worker.draining")
        gate.open()
        assert worker.wait() == 0
        assert succeeded(job)()
        assert not WorkerRow.objects.exists()


def sessions_of(database: str) -> int:
    """Return how many sessions PostgreSQL has on a database."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = %s", [database])
        return int(cursor.fetchone()[0])


@pytest.mark.usefixtures("session_pooler")
def test_in_session_mode_a_worker_is_woken(worker_process: StartWorker, marks: Marks) -> None:
    worker_process("--poll-interval", "3600")
    wait_until(WorkerRow.objects.filter(listens=True).exists)
    job = tasks.leave_mark.enqueue(marks=marks.path)
    wait_until(succeeded(job))
