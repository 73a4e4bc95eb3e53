"""Field failures of other queues that no module of one verb tells: outages, locks, odd handlers."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from django.db import Error, close_old_connections, connection, connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper

from demo_project.database import CHECKOUT
from jobqueue import conf, enqueue_many, lifecycle
from jobqueue.claims import Claim, Turn
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.querysets import from_now
from jobqueue.states import Outcome, Reason, Status
from jobqueue.stores.generic import GenericStore
from jobqueue.stores.sqlite import SQLiteStore
from jobqueue.worker import executor
from jobqueue.worker.executor import Executor
from jobqueue.worker.hand import Hand
from jobqueue.worker.settler import Settler
from tests import tasks, verbs
from tests.factories import JobFactory
from tests.in_process import run_until_empty, running_worker
from tests.models import Mark
from tests.processes import (
    PATIENCE,
    Gate,
    Marks,
    OtherConnection,
    WorkerProcess,
    manage,
    process_environment,
    wait_for_lock_wait,
    wait_until,
)
from tests.proxy import Proxy
from tests.test_worker_database import execute
from tests.test_worker_drain import SOON, processor_seconds
from tests.test_worker_lease import QUICK, outcomes, succeeded

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., WorkerProcess]
MINUTE = timedelta(minutes=1)
TERM = signal.SIGTERM


@pytest.fixture
def proxy(transactional_db: None) -> Iterator[Proxy]:
    """A way to the database that the test can cut."""
    proxy = Proxy()
    yield proxy
    proxy.cut()


def numbers(job_id: int) -> list[str]:
    return list(Attempt.objects.of(job_id).values_list("outcome", flat=True))


@pytest.mark.postgresql
class TestAnOutage:
    """The server is gone for a while; what ran goes on, and what was done is recorded."""

    def test_shorter_than_the_lease_costs_nothing_and_deafens_nobody(
        self, worker_process: StartWorker, proxy: Proxy, marks: Marks, gate: Gate, tmp_path: Path
    ) -> None:
        """C-12, C-49: one worker in the middle of a job, which ends meanwhile, and two idle."""
        job = tasks.hold.enqueue(gate=gate.path, marks=marks.path, key="first")
        options = ("--concurrency", "1", *QUICK)
        workers = [
            worker_process("--name", name, *options, DATABASE_URL=proxy.url) for name in "abc"
        ]
        [started] = marks.wait_for("start")
        proxy.cut()
        for worker in workers:
            worker.wait_for_line("worker.database_away")
        gate.open()
        [busy] = [worker for worker in workers if worker.pid == started["pid"]]
        busy.wait_for_line("worker.settle_failed")
        later = [tasks.leave_mark.enqueue(str(n), marks=marks.path) for n in range(9)]
        proxy.restore()
        wait_until(succeeded(job, *later))
        assert [outcome for _, outcome, _ in outcomes(job)] == [Outcome.SUCCEEDED]
        assert len(marks.read("run")) == len(later)

        another = Gate(tmp_path / "another")
        held = [
            tasks.hold.enqueue(gate=another.path, marks=marks.path, key="again") for _ in workers
        ]
        starts = marks.wait_for("start", count=len(workers), key="again")
        assert {mark["pid"] for mark in starts} == {worker.pid for worker in workers}
        another.open()
        wait_until(succeeded(*held))
        for worker in workers:
            worker.signal(TERM)
            assert worker.wait() == 0

    @pytest.mark.parametrize(
        "seconds",
        [pytest.param(60, marks=pytest.mark.chaos), pytest.param(300, marks=pytest.mark.soak)],
    )
    def test_of_minutes_is_waited_out_in_quiet(
        self, seconds: int, worker_process: StartWorker, proxy: Proxy
    ) -> None:
        """C-49, C-50: few lines, no processor, and the next job within the longest pause."""
        worker = worker_process("--concurrency", "4", *QUICK, DATABASE_URL=proxy.url)
        first = tasks.noop.enqueue()
        wait_until(succeeded(first))
        proxy.cut()
        worker.wait_for_line("worker.database_away")
        lines, computed, ends = len(worker.lines), processor_seconds(worker.pid), monotonic()
        ends += seconds
        wait_until(lambda: monotonic() > ends, timeout=seconds + PATIENCE)
        assert len(worker.lines) - lines < 50 * seconds / 60
        assert processor_seconds(worker.pid) - computed < 0.05 * seconds
        job = tasks.noop.enqueue()
        proxy.restore()
        worker.wait_for_line("job.succeeded", f"job={job.pk} ")
        proxy.cut()
        worker.signal(TERM)
        assert worker.wait(timeout=SOON) == 0


@pytest.mark.postgresql
class TestACommitWhoseAnswerIsLost:
    """C-74: the caller cannot know; the library never sends an insert again by itself."""

    @pytest.fixture
    def caller(self, proxy: Proxy, second_connection: OtherConnection) -> OtherConnection:
        """A connection through the proxy, which is open already."""
        second_connection.run(proxy.redirect)
        second_connection.run(Job.objects.count)
        return second_connection

    @staticmethod
    def enqueue_with_a_row() -> None:
        with transaction.atomic():
            Mark.objects.create(key="order")
            tasks.noop.enqueue()

    def test_leaves_job_and_row_together_and_a_repeated_request_makes_two(
        self, caller: OtherConnection, proxy: Proxy
    ) -> None:
        proxy.lose_the_answer_to(b"COMMIT")
        with pytest.raises(Error):
            caller.run(self.enqueue_with_a_row)
        assert (Job.objects.count(), Mark.objects.count()) == (1, 1)
        caller.run(close_old_connections)
        caller.run(self.enqueue_with_a_row)
        assert (Job.objects.count(), Mark.objects.count()) == (2, 2)

    @pytest.mark.parametrize("count", [1, 3, 200])
    def test_is_not_answered_by_another_insert(
        self, count: int, caller: OtherConnection, proxy: Proxy
    ) -> None:
        """One by one, many in one statement, and many by COPY."""
        calls = [tasks.noop.bind() for _ in range(count)]
        enqueue = partial(enqueue_many, calls) if count > 1 else tasks.noop.enqueue
        proxy.lose_the_answer_to(b"pg_notify")
        with pytest.raises(Error):
            caller.run(enqueue)
        assert Job.objects.count() == count


class TestManyWorkersAtOnce:
    def test_drain_a_busy_queue_without_deadlock_and_each_job_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C-54, C-55: claims, acks, retries, heartbeats, promotion, cancels and bulk inserts."""
        before = deadlocks()
        ids = enqueue_many(tasks.noop.bind() for _ in range(100))
        ids += enqueue_many(tasks.slow.bind(1.5) for _ in range(4))
        again = enqueue_many(tasks.fail_until.bind(2) for _ in range(60))
        cancelled = enqueue_many(tasks.noop.using(run_after=MINUTE).bind() for _ in range(20))
        options: dict[str, Any] = {"concurrency": 3, "lease": timedelta(seconds=3)}
        with (
            running_worker(name="a", **options),
            running_worker(name="b", **options),
            running_worker(name="c", **options),
        ):
            for _ in range(10):
                ids += enqueue_many(tasks.noop.bind() for _ in range(10))
                lifecycle.cancel(cancelled[:2])
                del cancelled[:2]
            wait_until(lambda: all_succeeded([*ids, *again]))
        attempts = dict(Job.objects.values_list("pk", "attempts"))
        assert {attempts[pk] for pk in ids} == {1}
        assert {attempts[pk] for pk in again} == {2}
        assert Attempt.objects.count() == len(ids) + 2 * len(again)
        assert not [record for record in caplog.records if record.levelname == "ERROR"]
        assert "worker." not in "".join(
            record.getMessage() for record in caplog.records if record.levelname == "WARNING"
        )
        assert deadlocks() == before


@pytest.mark.postgresql
class TestRepeatableRead:
    """C-56: as the server's default, it makes a row that has changed an error."""

    def test_is_no_reason_to_lose_an_ack(self, second_connection: OtherConnection) -> None:
        JobFactory()
        claimed = verbs.claim_one()
        second_connection.run(execute, "SET default_transaction_isolation = 'repeatable read'")
        with transaction.atomic():
            lifecycle.extend([verbs.lease_on(claimed)])
            settling = second_connection.start(lifecycle.settle, [verbs.succeeded(claimed)])
            wait_for_lock_wait()
        assert settling.result(PATIENCE) == {claimed.id}
        assert verbs.outcomes(claimed.id) == ["succeeded"]

    def test_still_refuses_a_stale_token(self, second_connection: OtherConnection) -> None:
        JobFactory()
        stale = verbs.claim_one()
        verbs.expire(stale.id)
        second_connection.run(execute, "SET default_transaction_isolation = 'repeatable read'")
        with transaction.atomic():
            lifecycle.rescue()
            verbs.claim(1, worker="worker-b")
            settling = second_connection.start(lifecycle.settle, [verbs.succeeded(stale)])
            wait_for_lock_wait()
        assert settling.result(PATIENCE) == set()
        assert verbs.outcomes(stale.id) == ["lost"]

    @pytest.mark.chaos
    def test_is_no_reason_for_a_worker_to_pause(self, worker_process: StartWorker) -> None:
        ids = enqueue_many(tasks.noop.bind() for _ in range(600))
        ids += enqueue_many(tasks.fail_until.bind(2) for _ in range(100))
        isolation = "-c default_transaction_isolation=repeatable\\ read"
        workers = [
            worker_process("--concurrency", "4", *QUICK, ready=False, PGOPTIONS=isolation)
            for _ in range(3)
        ]
        wait_until(lambda: all_succeeded(ids))
        assert Attempt.objects.count() == len(ids) + 100
        assert set(Attempt.objects.values_list("outcome", flat=True)) == {"failed", "succeeded"}
        for worker in workers:
            assert not worker.lines_with("worker.database_away")
            assert not worker.lines_with("worker.settle_failed")


def all_succeeded(ids: list[int]) -> bool:
    return Job.objects.filter(status=Status.SUCCEEDED).count() == len(ids)


def deadlocks() -> int:
    """Return how often PostgreSQL found a deadlock in this database."""
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return int(cursor.fetchone()[0])


@pytest.mark.postgresql
class TestClaimsAboveAFloor:
    def test_never_wait_for_each_other(self, second_connection: OtherConnection) -> None:
        """C-55, C-58: where the last claim ended as anywhere else."""
        jobs = JobFactory.create_batch(5)

        def claim(limit: int) -> list[Claim]:
            floors = {0: (jobs[0].run_after - MINUTE, 0)}
            return lifecycle.claim([Turn("default", limit, floors)], worker="w", lease=MINUTE)

        with transaction.atomic():
            ours = claim(2)
            theirs = second_connection.run(claim, 9)
        assert [claimed.id for claimed in (*ours, *theirs)] == [job.pk for job in jobs]


@pytest.mark.postgresql
class TestTheGenericStore:
    """C-57: on a database that can lock rows, with and without SKIP LOCKED."""

    def claim(self, limit: int) -> list[int]:
        store, turns = GenericStore("default"), [Turn("default", limit)]
        return [each.id for each in store.claim(turns, worker="w", lease=60.0, leases={})]

    def test_skips_what_others_have_locked(self, second_connection: OtherConnection) -> None:
        jobs = JobFactory.create_batch(5)
        with transaction.atomic():
            ours = self.claim(2)
            theirs = second_connection.run(self.claim, 9)
        assert [*ours, *theirs] == [job.pk for job in jobs]

    def test_waits_where_nothing_can_be_skipped_and_misses_no_job(
        self, second_connection: OtherConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        features = type(connection.features)
        monkeypatch.setattr(features, "has_select_for_update_skip_locked", False)
        jobs = JobFactory.create_batch(5)
        with transaction.atomic():
            ours = self.claim(2)
            waiting = second_connection.start(self.claim, 9)
            wait_for_lock_wait()
        assert [*ours, *waiting.result(PATIENCE)] == [job.pk for job in jobs]
        assert set(Job.objects.values_list("attempts", flat=True)) == {1}


class TestSQLite:
    def test_takes_the_write_lock_before_it_reads(
        self, tmp_path: Path, second_connection: OtherConnection
    ) -> None:
        """C-59: a transaction that reads first and writes later would fail at once."""
        file = tmp_path / "lite.sqlite3"
        block = SQLiteStore("default").transaction()
        second_connection.run(use_sqlite, file)
        second_connection.run(block.__enter__)
        other = sqlite3.connect(file, timeout=0)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
        second_connection.run(block.__exit__, None, None, None)
        other.execute("BEGIN IMMEDIATE")
        other.close()

    @pytest.mark.chaos
    @pytest.mark.parametrize("mode", ["WAL", "DELETE"])
    def test_is_shared_by_two_workers_and_a_site_that_writes(
        self, mode: str, tmp_path: Path
    ) -> None:
        """C-59: in WAL and in rollback mode, with a database of its own."""
        file = tmp_path / "shared.sqlite3"
        url = f"sqlite:///{file}?init_command=PRAGMA%20journal_mode%3D{mode}%3B"
        ran = manage("migrate", "-v0", "--run-syncdb", DATABASE_URL=url)
        assert ran.returncode == 0, ran.stderr
        ran = manage("shell", "-v0", "-c", FILL_SQLITE, DATABASE_URL=url)
        assert ran.returncode == 0, ran.stderr
        logs = [tmp_path / f"worker-{number}.log" for number in range(2)]
        workers = [
            WorkerProcess("--until-empty", log=log, session=log.stem, DATABASE_URL=url)
            for log in logs
        ]
        site = sqlite3.connect(file, timeout=20, isolation_level=None)
        try:
            written = 0
            while busy := [each for each in workers if each.process.poll() is None]:
                with suppress(subprocess.TimeoutExpired):
                    busy[0].process.wait(0.05)  # twenty rows a second
                site.execute("INSERT INTO tests_mark (key, value) VALUES ('site', '')")
                written += 1
            assert [worker.wait() for worker in workers] == [0, 0], logs[0].read_text()
            rows = site.execute("SELECT status, attempts, count(*) FROM jobqueue_job GROUP BY 1, 2")
            assert rows.fetchall() == [("succeeded", 1, 400)]
            marks = dict(site.execute("SELECT key, count(*) FROM tests_mark GROUP BY 1"))
            assert marks == {"site": written, "plain": 200, "atomic": 200}
            assert written > 10
        finally:
            site.close()
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


def use_sqlite(file: Path) -> None:
    """Have this thread work on a SQLite database of its own, with Django's own options."""
    sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "OPTIONS": {}}
    settings = connections.settings["default"] | sqlite
    connections["default"] = DatabaseWrapper(settings, "default")


FILL_SQLITE = """
from jobqueue import enqueue_many
from tests import tasks
enqueue_many(tasks.leave_row.bind("plain") for _ in range(200))
enqueue_many(tasks.leave_row_atomically.bind("atomic") for _ in range(200))
"""


class TestFailures:
    def test_from_a_source_line_that_no_database_stores(self, tmp_path: Path) -> None:
        """C-17: the traceback shows the line, its NUL made visible."""
        source = tmp_path / "odd.py"
        source.write_text("raise ValueError('plain')  # a \0 here\n")
        job = tasks.fail_on_a_line_of.using(max_attempts=1).enqueue(str(source))
        run_until_empty()
        attempt = Attempt.objects.of(job.pk).get()
        assert "# a \\u0000 here" in attempt.traceback
        assert "\0" not in attempt.traceback
        assert verbs.where(job.pk) == "dead"

    @pytest.mark.parametrize("attempts", [15, 63, 1023, 1499])
    def test_for_the_thousandth_time_are_tried_again(self, attempts: int) -> None:
        """C-84: the time of the next attempt is between now and the cap."""
        JobFactory(
            task=tasks.fail_and_wait.name, attempts=attempts, fence=attempts, max_attempts=2000
        )
        assert verbs.run_next().status == Status.SCHEDULED
        later = Job.objects.scheduled().filter(run_after__gt=from_now(timedelta(0)))
        assert later.filter(run_after__lte=from_now(conf.get().BACKOFF.cap)).exists()  # type: ignore[attr-defined]


@pytest.mark.chaos
def test_poison_costs_its_neighbours_little_and_the_rest_of_the_fleet_nothing(
    worker_process: StartWorker, marks: Marks
) -> None:
    """C-04: it stops after its attempts; what shared its process is done soon after."""
    options = ("--processes", "2", "--concurrency", "2", "--lease", "1", *QUICK)
    parent = worker_process(*options, ready=False)
    wait_until(lambda: WorkerRow.objects.count() == 2)
    given: dict[str, Any] = {"marks": marks.path}
    quick = [tasks.slow.bind(0.05, **given) for _ in range(80)]
    poison = tasks.kill_self.using(max_attempts=3).bind(**given)
    ids = enqueue_many([*quick[:20], poison, *quick[20:]])
    killer = ids.pop(20)
    wait_until(DeadLetter.objects.filter(pk=killer, reason=Reason.WORKER_LOST).exists)
    wait_until(lambda: all_succeeded(ids))
    killed = marks.read("run")
    assert len(killed) == len({mark["pid"] for mark in killed}) == 3
    assert numbers(killer) == [Outcome.LOST] * 3
    first, second = killed[:2]
    meanwhile = [each for each in marks.read("end") if first["at"] < each["at"] < second["at"]]
    assert {each["pid"] for each in meanwhile} == {second["pid"]}
    spent = Attempt.objects.filter(job_id__in=ids).exclude(outcome=Outcome.SUCCEEDED)
    assert set(spent.values_list("number", "outcome")) <= {(1, "lost"), (2, "lost")}
    parent.signal(TERM)
    assert parent.wait() == 0


class TestThreadsThatOutliveTheirJob:
    @pytest.mark.parametrize("kind", ["thread", pytest.param("pool", marks=pytest.mark.chaos)])
    def test_do_not_keep_a_drained_worker(self, kind: str, worker_process: StartWorker) -> None:
        """Python itself would wait for them, in vain, until whoever stopped it loses patience."""
        job = tasks.leave_a_thread.enqueue(kind, 600)
        worker = worker_process(*QUICK)
        wait_until(succeeded(job))
        worker.signal(TERM)
        worker.wait_for_line("worker.threads_left", "threads=left-behind")
        assert worker.wait(timeout=SOON) == 0
        assert not Job.objects.claimed().exists()

    @pytest.mark.chaos
    def test_cost_nothing_if_they_end_by_themselves(self, worker_process: StartWorker) -> None:
        job = tasks.leave_a_thread.enqueue("thread", 0.5)
        worker = worker_process("--until-empty")
        assert worker.wait() == 0
        assert succeeded(job)()
        assert not worker.lines_with("worker.threads_left")


class TestHandlers:
    def test_in_async_code_that_overrun_are_cancelled(self, marks: Marks) -> None:
        job = tasks.overrun_in_async.using(max_attempts=2).enqueue(marks=marks.path)
        worker = run_until_empty()
        assert worker.exit_code == 0
        assert numbers(job.pk) == [Outcome.TIMED_OUT] * 2
        assert DeadLetter.objects.get(pk=job.pk).reason == Reason.TIMED_OUT

    def test_whose_program_a_ctrl_c_killed_have_failed(
        self, worker_process: StartWorker, marks: Marks
    ) -> None:
        """C-44: a terminal signals the whole group; the worker drains, its job is tried again."""
        job = tasks.run_a_program.enqueue(60, marks=marks.path)
        worker = worker_process(*QUICK)
        marks.wait_for("start")
        os.killpg(worker.pid, signal.SIGINT)
        assert worker.wait() == 0, worker.output
        attempt = Attempt.objects.of(job.pk).get()
        assert (attempt.outcome, attempt.error_class) == (
            Outcome.FAILED,
            "subprocess.CalledProcessError",
        )
        assert verbs.where(job.pk) == "scheduled"


class TestAStartThatComesTooLate:
    """A worker that stood still looks at its lease before it calls the handler."""

    @pytest.mark.parametrize(("span", "lost"), [(0.0, False), (60.0, True)])
    def test_is_none(self, span: float, lost: bool, marks: Marks) -> None:  # noqa: FBT001
        tasks.leave_mark.enqueue(marks=marks.path)
        lease = verbs.lease_on(verbs.claim_one(), span=span)
        lease.lost = lost
        hand, settler = Hand(), Settler(using="default", on_settled=lambda _: None)
        hand.add(lease)
        hand.close(1)
        finished: list[int] = []
        Executor(
            hand,
            settler,
            using="default",
            on_deadline=lambda: None,
            on_finish=lambda: finished.append(1),
        ).work()
        assert finished == [1]
        assert not marks.read()
        assert (len(hand), len(settler)) == (0, 0)


@pytest.mark.postgresql
def test_connections_are_few_and_fewer_when_there_is_nothing_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C-52: one for each thread that runs handlers, and four; those of idle threads are closed."""
    monkeypatch.setattr(executor, "IDLE", 0.5)
    before, most = connections_open(), 0
    with running_worker(concurrency=4):
        ids = enqueue_many(tasks.leave_row.bind(str(number)) for number in range(300))

        def is_done() -> bool:
            nonlocal most
            most = max(most, connections_open() - before)
            return all_succeeded(ids)

        wait_until(is_done)
        assert 1 < most <= 4 + 4 + 1  # and pruning, for as long as it takes
        wait_until(lambda: connections_open() - before <= 4)


def connections_open() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def can_unshare() -> bool:
    """Whether this user may have a process be PID 1, as a container does."""
    with suppress(OSError):
        return not subprocess.run([*AS_PID_1, "true"], capture_output=True, check=False).returncode
    return False


AS_PID_1 = ("unshare", "--pid", "--fork", "--kill-child")


@pytest.mark.skipif(not can_unshare(), reason="needs a PID namespace")
def test_as_pid_1_a_worker_hears_the_signal_and_drains(
    marks: Marks, gate: Gate, tmp_path: Path
) -> None:
    """C-41: as with the exec form of a container's command."""
    job = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
    command = [*AS_PID_1, sys.executable, str(CHECKOUT / "manage.py"), "runworker", *QUICK]
    log = tmp_path / "pid-1.log"
    with log.open("wb") as output:
        outer = subprocess.Popen(
            command, env=process_environment(), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        assert marks.wait_for("start")[0]["pid"] == 1
        [pid] = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        subprocess.run(["kill", "-TERM", pid], check=True)
        wait_until(lambda: "worker.draining" in log.read_text())
        gate.open()
        assert outer.wait(PATIENCE) == 0, log.read_text()
    finally:
        outer.kill()
        outer.wait()
    assert succeeded(job)()
    assert (
        '\nCMD ["python", "manage.py", "runworker"]\n'
        in (CHECKOUT / "docs" / "deployment.md").read_text()
    )
