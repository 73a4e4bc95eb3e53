"""A commit whose answer is lost: what it did is looked up, and not done twice or contradicted."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from django.db import connection

from jobqueue.states import Outcome
from tests import tasks
from tests.models import Mark
from tests.processes import WorkerProcess, database_url
from tests.proxy import connect_to_server
from tests.soundness import violations
from tests.test_worker_lease import QUICK, outcomes

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]

StartWorker = Callable[..., WorkerProcess]
#: What every statement says that settles a job.
SETTLES = b"INSERT INTO jobqueue_attempt"


class Wire:
    """A way to the server that breaks once, before or after the server did what it was told."""

    def __init__(self, breaks_at: Callable[[bytes, bytes], bool], *, delivered: bool) -> None:
        self.breaks_at = breaks_at
        self.delivered = delivered
        self.has_broken = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        """The database's URL by this way, unencrypted."""
        who, _, where = database_url().partition("@")
        port, name = self._listener.getsockname()[1], connection.settings_dict["NAME"]
        options = "&".join(filter(None, ["sslmode=disable", where.partition("?")[2]]))
        return f"{who}@127.0.0.1:{port}/{name}?{options}"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = connect_to_server()
                self._ends += [client, server]
                threading.Thread(target=self._carry, args=(client, server), daemon=True).start()

    def _carry(self, client: socket.socket, server: socket.socket) -> None:
        """Carry what is said on one connection, and break it where it is to break."""
        is_broken = threading.Event()
        threading.Thread(target=_answer, args=(server, client, is_broken), daemon=True).start()
        said = b""
        with suppress(OSError):
            while chunk := client.recv(65536):
                if not self.has_broken and self.breaks_at(said, chunk):
                    self.has_broken = True
                    is_broken.set()
                    if not self.delivered:
                        break
                said += chunk
                server.sendall(chunk)
        _shut(server)

    def close(self) -> None:
        self._listener.close()
        for end in self._ends:
            end.close()


def _answer(server: socket.socket, client: socket.socket, is_broken: threading.Event) -> None:
    with suppress(OSError):
        while (chunk := server.recv(65536)) and not is_broken.is_set():
            client.sendall(chunk)
    _shut(client)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire() -> Iterator[Callable[..., Wire]]:
    """Make ways to the server that break at a commit; closed at the end of the test."""
    wires: list[Wire] = []

    def make(breaks_at: Callable[[bytes, bytes], bool], *, delivered: bool) -> Wire:
        wires.append(Wire(breaks_at, delivered=delivered))
        return wires[-1]

    yield make
    for each in wires:
        each.close()


def commits_alone(said: bytes, chunk: bytes) -> bool:
    """Whether a settlement is sent, a statement that commits by itself."""
    return SETTLES in chunk


def commits_a_handler(said: bytes, chunk: bytes) -> bool:
    """Whether the COMMIT of an atomic task is sent."""
    return SETTLES in said and b"COMMIT" in chunk


class TestSettler:
    """C-15, C-16."""

    @pytest.mark.parametrize("delivered", [True, False])
    @pytest.mark.parametrize("kind", ["success", "failure"])
    def test_looks_up_what_became_of_an_outcome_and_records_it_once(
        self,
        kind: str,
        delivered: bool,  # noqa: FBT001 - a parameter of the test
        wire: Callable[..., Wire],
        worker_process: StartWorker,
    ) -> None:
        broken = wire(commits_alone, delivered=delivered)
        worker = worker_process("--name", "only", *QUICK, DATABASE_URL=broken.url)
        job = tasks.leave_row.enqueue("row") if kind == "success" else tasks.fail_until.enqueue(2)
        worker.wait_for_line("job.succeeded", f"job={job.pk} ")
        assert broken.has_broken
        assert len(worker.lines_with("worker.settle_failed")) == 1
        assert not worker.lines_with("job.lease_lost")
        ends = ["succeeded"] if kind == "success" else ["failed", "succeeded"]
        assert [outcome for _, outcome, _ in outcomes(job)] == ends
        assert len(worker.lines_with("job.retrying")) == len(ends) - 1
        assert Mark.objects.count() == (kind == "success")
        assert violations() == []


class TestAtomic:
    """C-15, C-16: the handler's own transaction is what records the outcome."""

    def test_whose_commit_was_done_has_succeeded_and_says_so(
        self, wire: Callable[..., Wire], worker_process: StartWorker
    ) -> None:
        broken = wire(commits_a_handler, delivered=True)
        worker = worker_process("--name", "only", *QUICK, DATABASE_URL=broken.url)
        job = tasks.leave_row_atomically.enqueue("row")
        worker.wait_for_line("job.succeeded", f"job={job.pk} ")
        assert broken.has_broken
        assert outcomes(job) == [(1, Outcome.SUCCEEDED, "only")]
        assert not worker.lines_with("job.lease_lost")
        assert not worker.lines_with("job.retrying")
        assert Mark.objects.count() == 1
        assert violations() == []

    def test_whose_commit_was_not_done_has_failed_and_is_tried_again(
        self, wire: Callable[..., Wire], worker_process: StartWorker
    ) -> None:
        broken = wire(commits_a_handler, delivered=False)
        worker = worker_process("--name", "only", *QUICK, DATABASE_URL=broken.url)
        job = tasks.leave_row_atomically.enqueue("row")
        worker.wait_for_line("job.succeeded", f"job={job.pk} ")
        assert broken.has_broken
        assert [outcome for _, outcome, _ in outcomes(job)] == [Outcome.FAILED, Outcome.SUCCEEDED]
        assert Mark.objects.count() == 1
        assert violations() == []
