"""What a worker shows of itself: alive while its threads go on, ready while it has a database."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from jobqueue.models import Worker as WorkerRow
from jobqueue.worker import Worker, health, pulse
from jobqueue.worker.claimer import Claimer
from jobqueue.worker.health import HeartbeatFile, WorkerVitals, shown
from jobqueue.worker.presence import Presence
from jobqueue.worker.probes import parse_address
from jobqueue.worker.reports import Reporter, Reports
from jobqueue.worker.supervisor import Supervisor
from tests import tasks
from tests.in_process import new_worker, running_worker
from tests.processes import (
    PATIENCE,
    Gate,
    Marks,
    OtherConnection,
    WorkerProcess,
    database_url,
    process_environment,
    wait_for_lock_wait,
    wait_until,
)
from tests.test_docs import blocks
from tests.test_house import CHECKOUT
from tests.test_worker_database import without_table

StartWorker = Callable[..., WorkerProcess]
database = pytest.mark.django_db(transaction=True)
QUICK = ("--poll-interval", "0.1")
HEALTH = ("--health", "127.0.0.1:0")
#: Long ago for a file that is touched every second.
STALE = 3600.0


def port_of(worker: WorkerProcess) -> int:
    line = worker.wait_for_line("worker.health_served")
    return int(line.rpartition(":")[2])


def ask(
    port: int, path: str, *, method: str = "GET", host: str = "127.0.0.1", timeout: float = PATIENCE
) -> tuple[HTTPResponse, str]:
    connection = HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return response, response.read().decode()
    finally:
        connection.close()


def answer(port: int, path: str) -> tuple[int, str]:
    response, text = ask(port, path)
    return response.status, text.strip()


def wait_for_answer(port: int, path: str, status: int, text: str = "") -> None:
    def found() -> bool:
        got = answer(port, path)
        return got[0] == status and text in got[1]

    wait_until(found, doing=f"{path} to answer {status} {text}")


def make_old(file: Path) -> None:
    then = time.time() - STALE
    os.utime(file, (then, then))


def is_fresh(file: Path) -> bool:
    return time.time() - file.stat().st_mtime < STALE / 2


def state_of(pid: int) -> str:
    """Return the state of a process as ps shows it; T: stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


OK = (200, "ok")


@database
class TestAWorker:
    def test_is_alive_and_ready_until_it_drains_and_alive_until_it_ends(
        self, worker_process: StartWorker, marks: Marks, gate: Gate, tmp_path: Path
    ) -> None:
        file = tmp_path / "alive"
        tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        worker = worker_process(*QUICK, *HEALTH, "--heartbeat-file", str(file))
        port = port_of(worker)
        assert answer(port, "/livez") == OK
        wait_for_answer(port, "/readyz", 200, "ok")
        make_old(file)
        wait_until(lambda: is_fresh(file))
        marks.wait_for("start")
        worker.signal(signal.SIGTERM)
        wait_for_answer(port, "/readyz", 503, "draining")
        assert answer(port, "/livez") == OK
        make_old(file)
        wait_until(lambda: is_fresh(file))
        gate.open()
        assert worker.wait() == 0
        assert not file.exists()
        with pytest.raises(ConnectionRefusedError):
            answer(port, "/livez")

    def test_that_stands_still_does_not_answer_and_its_file_ages(
        self, worker_process: StartWorker, tmp_path: Path
    ) -> None:
        file = tmp_path / "alive"
        worker = worker_process(*QUICK, *HEALTH, "--heartbeat-file", str(file))
        port = port_of(worker)
        worker.signal(signal.SIGSTOP)
        wait_until(lambda: state_of(worker.pid) == "T")
        make_old(file)
        with pytest.raises(TimeoutError):
            ask(port, "/livez", timeout=1.5)
        assert not is_fresh(file)
        worker.signal(signal.SIGCONT)
        wait_for_answer(port, "/livez", 200)
        wait_until(lambda: is_fresh(file))

    def test_that_waits_for_a_database_that_never_answers_is_alive_and_not_ready(
        self, worker_process: StartWorker, tmp_path: Path
    ) -> None:
        file = tmp_path / "alive"
        with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, says nothing
            url = f"postgres://nobody@127.0.0.1:{silent.getsockname()[1]}/nothing"
            worker = worker_process(
                *QUICK, *HEALTH, "--heartbeat-file", str(file), ready=False, DATABASE_URL=url
            )
            with silent.accept()[0]:  # the worker waits for us now
                port = port_of(worker)
                assert answer(port, "/livez") == OK
                assert answer(port, "/readyz") == (503, "the database has not answered yet")
                make_old(file)
                wait_until(lambda: is_fresh(file))
                worker.kill()
        assert file.exists(), "nobody was there to remove it"

    @pytest.mark.postgresql
    def test_that_loses_its_database_is_not_ready_until_it_is_back(
        self, worker_process: StartWorker
    ) -> None:
        worker = worker_process(*QUICK, *HEALTH)
        port = port_of(worker)
        wait_for_answer(port, "/readyz", 200)
        with without_table("jobqueue_job"):
            wait_for_answer(port, "/readyz", 503, "the database is away")
            assert answer(port, "/livez") == OK
        wait_for_answer(port, "/readyz", 200)


@contextmanager
def served(worker: Worker, address: str, capture: pytest.LogCaptureFixture) -> Iterator[int]:
    """Serve the health of a worker from this process; yield the port."""
    with (
        capture.at_level("INFO", logger="jobqueue"),
        shown(WorkerVitals(worker), address=address, failed=worker.fail),
    ):
        yield int(capture.messages[-1].rpartition(":")[2])


class TestTheAnswers:
    def test_are_plain_text_and_tell_nothing_else(self, caplog: pytest.LogCaptureFixture) -> None:
        with served(new_worker(), "127.0.0.1:0", caplog) as port:
            response, text = ask(port, "/livez?verbose=1")
            assert (response.status, text) == (200, "ok\n")
            assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
            assert response.headers["Server"] == "jobqueue"
            assert response.headers["Cache-Control"] == "no-store"
            response, text = ask(port, "/livez", method="HEAD")
            assert (response.status, text) == (200, "")
            response, text = ask(port, "/readyz", method="HEAD")
            assert (response.status, text) == (503, "")
            assert answer(port, "/readyz") == (503, "the database has not answered yet")

    @pytest.mark.parametrize("path", ["/", "/livez/", "/admin", "/../livez"])
    def test_know_no_other_path(self, path: str, caplog: pytest.LogCaptureFixture) -> None:
        with served(new_worker(), "127.0.0.1:0", caplog) as port:
            assert answer(port, path) == (404, "not found")

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "BREW"])
    def test_know_no_other_method(self, method: str, caplog: pytest.LogCaptureFixture) -> None:
        with served(new_worker(), "127.0.0.1:0", caplog) as port:
            response, text = ask(port, "/livez", method=method)
            assert (response.status, text) == (405, "method not allowed\n")
            assert response.headers["Allow"] == "GET, HEAD"

    def test_come_while_another_client_says_nothing(self, caplog: pytest.LogCaptureFixture) -> None:
        with (
            served(new_worker(), "127.0.0.1:0", caplog) as port,
            socket.create_connection(("127.0.0.1", port)),
        ):
            assert answer(port, "/livez") == OK

    def test_come_over_ipv6_too(self, caplog: pytest.LogCaptureFixture) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("this machine has no IPv6")
        with served(new_worker(), "[::1]:0", caplog) as port:
            assert "address=[::1]:" in caplog.messages[-1]
            response, _ = ask(port, "/livez", host="::1")
            assert response.status == 200


FORKING = """
import os, sys
import django
django.setup()
from jobqueue.worker.health import WorkerVitals, shown
from jobqueue.worker import Worker, WorkerOptions
worker = Worker(WorkerOptions())
with shown(WorkerVitals(worker), address=sys.argv[1], failed=worker.fail):
    if not os.fork():
        os.close(1)  # the test waits for its end
        sys.stdin.read()
        os._exit(0)
with shown(WorkerVitals(worker), address=sys.argv[1], failed=worker.fail):
    print("served again")
"""


class TestAPort:
    def test_is_not_kept_by_the_children_of_handlers(self) -> None:
        """C-34: they may outlive the worker, and the next one needs it."""
        with socket.create_server(("127.0.0.1", 0)) as probe:
            address = f"127.0.0.1:{probe.getsockname()[1]}"
        with subprocess.Popen(
            [sys.executable, "-c", FORKING, address],
            cwd=CHECKOUT,
            env=process_environment(DATABASE_URL="sqlite://:memory:"),
            stdin=subprocess.PIPE,  # the child lives until we close it
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "served again\n"


class TestAddresses:
    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:8001", ("127.0.0.1", 8001)),
            ("localhost:0", ("localhost", 0)),
            ("[::1]:65535", ("::1", 65535)),
        ],
    )
    def test_are_read(self, text: str, address: tuple[str, int]) -> None:
        assert parse_address(text) == address

    @pytest.mark.parametrize(
        "text",
        [
            *("", "8001", ":8001", "[]:8001", "::1:8001", "[::1]", "host:", "host:x", "host:-1"),
            *("host:65536", "host:²", "http://host:80", "host:80/livez"),
        ],
    )
    def test_are_refused_in_one_line_before_a_job_is_claimed(self, text: str) -> None:
        with pytest.raises(CommandError, match=r"is no address|stands a port") as caught:
            call_command("runworker", "--health", text, "--until-empty")
        assert "\n" not in str(caught.value)

    def test_that_are_taken_are_refused(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            with pytest.raises(CommandError, match=f"health {address}: Address already in use"):
                call_command("runworker", "--health", address, "--until-empty")

    def test_of_nobody_are_refused(self) -> None:
        with pytest.raises(CommandError, match=r"health nobody\.invalid:80: "):
            call_command("runworker", "--health", "nobody.invalid:80", "--until-empty")


class TestHeartbeatFiles:
    @pytest.mark.parametrize("name", ["", "missing/alive"])
    def test_that_cannot_be_written_are_refused(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(CommandError, match=r"heartbeat-file.*(Is a directory|No such file)"):
            call_command("runworker", "--heartbeat-file", str(tmp_path / name), "--until-empty")

    def test_are_removed_when_the_port_is_taken(self, tmp_path: Path) -> None:
        file = tmp_path / "alive"
        with socket.create_server(("127.0.0.1", 0)) as other:
            address = f"127.0.0.1:{other.getsockname()[1]}"
            with pytest.raises(CommandError, match="in use"):
                call_command("runworker", "--health", address, "--heartbeat-file", str(file))
        assert not file.exists()

    def test_are_made_anew_if_they_vanish_and_missed_with_one_line(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = tmp_path / "run"
        folder.mkdir()
        sign = HeartbeatFile(folder / "alive")
        for _ in range(2):
            (folder / "alive").unlink()
            sign.show(is_alive=True, is_ready=False)
            assert (folder / "alive").exists()
            (folder / "alive").unlink()
            folder.rmdir()
            sign.show(is_alive=True, is_ready=False)
            sign.show(is_alive=True, is_ready=False)
            folder.mkdir()
            (folder / "alive").touch()
        assert [message.split()[0] for message in caplog.messages] == [
            "worker.heartbeat_file_failed"
        ] * 2

    def test_pass_and_fail_the_documented_probe(self, tmp_path: Path) -> None:
        page = "\n".join(blocks(CHECKOUT / "docs" / "deployment.md", "yaml"))
        [line] = [line for line in page.splitlines() if "-mmin" in line]
        file = tmp_path / "alive"
        assert "/tmp/jobqueue.alive" in line
        probe = line.strip().removeprefix("- ").replace("/tmp/jobqueue.alive", str(file))

        def code() -> int:
            return subprocess.run(["sh", "-c", probe], check=False, capture_output=True).returncode

        assert code() != 0
        file.touch()
        assert code() == 0
        make_old(file)
        assert code() != 0


@pytest.fixture
def release() -> Iterator[Event]:
    """What a wedged thread waits for; set at the end in any case."""
    event = Event()
    yield event
    event.set()


@database
class TestAThreadThatIsStuck:
    def wedge(self, name: str, release: Event, monkeypatch: pytest.MonkeyPatch) -> Event:
        """Let one thread of the workers wait outside the database, as for a pipe that is full.

        Return what says that it does: until then a slow machine may stop it elsewhere.
        """
        reached = Event()
        owner, method = {
            "main": (Claimer, "look"),
            "heartbeat": (Presence, "beat_if_due"),
            "settle": (Worker, "_settled"),
        }[name]
        usual = getattr(owner, method)

        def stuck(*args: Any) -> Any:
            reached.set()
            release.wait(PATIENCE)
            return usual(*args)

        monkeypatch.setattr(owner, method, stuck)
        return reached

    @pytest.mark.parametrize("name", ["main", "heartbeat", "settle"])
    def test_shows(
        self, name: str, release: Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(pulse, "PATIENCE", 0.5)
        monkeypatch.setattr(health, "TICK", 0.1)
        is_stuck = self.wedge(name, release, monkeypatch)
        tasks.noop.enqueue()
        with running_worker() as worker:
            assert is_stuck.wait(PATIENCE)
            vitals = WorkerVitals(worker)
            expected = f"the {name} thread makes no progress"
            wait_until(lambda: vitals.not_alive() == expected, doing=expected)
            wait_until(lambda: vitals.not_ready() == expected)
            file, seen = tmp_path / "alive", _Seen()
            with shown(vitals, file=str(file), signs=[seen], failed=worker.fail):
                make_old(file)
                before = len(seen.told)
                wait_until(lambda: len(seen.told) >= before + 2)
                assert seen.told[-1] == (False, False)
                assert not is_fresh(file)
                release.set()
                wait_until(lambda: not vitals.not_alive())
                wait_until(lambda: is_fresh(file))

    @pytest.mark.postgresql
    def test_in_the_database_does_not(
        self, second_connection: OtherConnection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As when DDL holds a lock, or a network is cut without a reset."""
        monkeypatch.setattr(pulse, "PATIENCE", 0.2)
        monkeypatch.setattr(health, "LATELY", 0.2)
        with running_worker() as worker:
            vitals = WorkerVitals(worker)
            wait_until(lambda: not vitals.not_ready())
            second_connection.begin()
            second_connection.run(_execute, "LOCK TABLE jobqueue_job IN ACCESS EXCLUSIVE MODE")
            wait_for_lock_wait()
            wait_until(lambda: "has not answered for" in vitals.not_ready())
            overdue = worker.pulse._due + pulse.PATIENCE
            wait_until(lambda: time.monotonic() > overdue)
            assert not worker.pulse.has_stopped()
            second_connection.roll_back()
            wait_until(lambda: not vitals.not_ready())


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


class _Seen:
    """A sign that keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[tuple[bool, bool]] = []

    def show(self, *, is_alive: bool, is_ready: bool) -> None:
        self.told.append((is_alive, is_ready))


class TestReports:
    def test_say_how_the_worker_is(self) -> None:
        reports = Reports()
        reporter = Reporter(os.dup(reports.writer))
        assert (reports.is_ready, reports.has_stopped) == (False, False)
        for is_alive, is_ready in [(True, False), (True, True), (False, False), (True, True)]:
            reporter.show(is_alive=is_alive, is_ready=is_ready)
            reports.read()
            assert (reports.is_ready, reports.has_stopped) == (is_ready, not is_alive)
        reports.close_writer()
        reports.close()

    def test_do_not_hold_up_a_worker_whose_parent_does_not_read(self) -> None:
        reports = Reports()
        reporter = Reporter(reports.writer)
        for _ in range(100_000):  # more than a pipe holds
            reporter.show(is_alive=True, is_ready=True)
        reports.close_writer()
        reports.close()
        reporter.show(is_alive=True, is_ready=True)


@database
class TestAParent:
    def test_is_ready_when_all_of_its_workers_are(
        self, worker_process: StartWorker, tmp_path: Path
    ) -> None:
        file = tmp_path / "alive"
        parent = worker_process(
            *QUICK, *HEALTH, "--processes", "2", "--heartbeat-file", str(file), ready=False
        )
        port = port_of(parent)
        assert answer(port, "/livez") == OK
        wait_for_answer(port, "/readyz", 200)
        victim = WorkerRow.objects.order_by("pk")[0].pid
        os.kill(victim, signal.SIGKILL)
        wait_for_answer(port, "/readyz", 503, "1 of 2 workers are ready")
        assert answer(port, "/livez") == OK
        make_old(file)
        wait_until(lambda: is_fresh(file))
        parent.signal(signal.SIGTERM)
        assert parent.wait() == 0, parent.output
        assert not file.exists()

    @pytest.mark.chaos
    def test_is_not_alive_while_one_of_its_workers_stands_still(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pulse, "PATIENCE", 1.5)
        monkeypatch.setenv("DATABASE_URL", database_url())
        parent = Supervisor(
            ["-v0", *QUICK], processes=1, name="", ends=False, asks_for_reports=True
        )
        thread = Thread(target=parent.run, daemon=True)
        thread.start()
        try:
            wait_until(lambda: not parent.not_ready())
            pid = WorkerRow.objects.get().pid
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: parent.not_alive() == "worker 0 makes no progress")
            os.kill(pid, signal.SIGCONT)
            wait_until(lambda: not parent.not_alive())
        finally:
            parent.request_stop()
            thread.join(PATIENCE)
        assert not thread.is_alive()
        assert parent.not_ready() == "draining"
