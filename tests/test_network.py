"""A network that is cut without a word: noticed in time, fenced in time, and healed from.

Cut in a namespace of the kernel's own: a proxy in the middle would go on acknowledging.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from django.core.management import call_command
from django.db import connection

from jobqueue.models import Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Outcome, Status
from tests import tasks
from tests.clusters import Cluster, default_database_at
from tests.processes import Gate, Marks, WorkerProcess, database_url, wait_until
from tests.test_worker_lease import QUICK, outcomes, succeeded

pytestmark = [
    pytest.mark.network,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        os.geteuid() != 0 or not shutil.which("ip"),
        reason="needs root and iproute2 for a network namespace",
    ),
]

StartWorker = Callable[..., WorkerProcess]
#: The documented options with the least values that they may have.
TIMEOUTS = {
    "connect_timeout": 2,
    "tcp_user_timeout": 1000,
    "keepalives": 1,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 2,
}


class Link:
    """Two ends of a cable: one here, the other in a network namespace."""

    def __init__(self) -> None:
        pid = os.getpid()
        self.namespace = f"jobqueue-{pid}"
        self._here, self._there = f"jq{pid}a", f"jq{pid}b"
        # Of the block that is set aside for tests of networks, a subnet for each process.
        self._network = f"198.18.{pid // 64 % 256}.{pid % 64 * 4}"
        start, _, last = self._network.rpartition(".")
        self.address, self._other_address = f"{start}.{int(last) + 1}", f"{start}.{int(last) + 2}"

    def create(self) -> None:
        inside = ("-n", self.namespace)
        ip("netns", "add", self.namespace)
        peer = ("peer", "name", self._there, "netns", self.namespace)
        ip("link", "add", self._here, "type", "veth", *peer)
        ip("addr", "add", f"{self.address}/30", "dev", self._here)
        ip(*inside, "addr", "add", f"{self._other_address}/30", "dev", self._there)
        ip(*inside, "link", "set", self._there, "up")
        self.heal()

    def delete(self) -> None:
        ip("netns", "delete", self.namespace)

    def cut(self) -> None:
        """Let every packet vanish, in both directions; nobody is told."""
        ip("link", "set", self._here, "down")

    def heal(self) -> None:
        ip("link", "set", self._here, "up")


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


@pytest.fixture(scope="module")
def cable() -> Iterator[Link]:
    if subprocess.run(["unshare", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("root may not make a network namespace here")
    link = Link()
    link.create()
    yield link
    link.delete()


@pytest.fixture(scope="module")
def cluster(cable: Link) -> Iterator[Cluster]:
    """A server that listens on the cable alone: a Unix socket would reach into the namespace."""
    server = Cluster(cable.address)
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def link(cable: Link, cluster: Cluster, worker_process: StartWorker) -> Iterator[Link]:
    """The cable, and an empty database at its end for the test and its workers."""
    cable.heal()
    with default_database_at(HOST=cluster.address, PORT=cluster.port, NAME="postgres"):
        call_command("migrate", run_syncdb=True, verbosity=0)
        call_command("flush", interactive=False, verbosity=0)
        yield cable
        cable.heal()


@pytest.fixture
def start_inside(link: Link, worker_process: StartWorker) -> StartWorker:
    """Start a worker at the far end of the cable, with the documented options."""
    url = database_url()
    url += ("&" if "?" in url else "?") + urlencode(TIMEOUTS)

    def start(*arguments: str, ready: bool = True) -> WorkerProcess:
        return worker_process(
            *("--name", "inside", *QUICK, *arguments),
            ready=ready,
            prefix=("ip", "netns", "exec", link.namespace),
            DATABASE_URL=url,
        )

    return start


def test_a_cut_that_outlasts_the_lease_is_noticed_fenced_and_healed_from(
    start_inside: StartWorker,
    worker_process: StartWorker,
    link: Link,
    marks: Marks,
    gate: Gate,
) -> None:
    """C-02, C-03, C-49: for handlers that work, that end, and that wait for the database."""
    ending = Gate(Path(f"{gate.path}.ending"))
    works = tasks.hold_until_lost.enqueue(gate=gate.path, marks=marks.path)
    ends = tasks.hold.enqueue(gate=ending.path, marks=marks.path)
    waits = tasks.wait_for_an_answer.enqueue(3600, marks=marks.path)
    inside = start_inside("--lease", "6")
    marks.wait_for("start", count=3)

    link.cut()
    inside.wait_for_line("worker.database_away")
    inside.wait_for_line("worker.heartbeat_failed")
    inside.wait_for_line("worker.listener_failed")
    marks.wait_for("cut off", job=waits.pk)  # rather than wait for its answer for ever
    ending.open()
    inside.wait_for_line("job.unrecorded", f"job={ends.pk} ", "the lease ended")
    [lost] = marks.wait_for("lost", attempt=1)
    assert inside.process.poll() is None

    heir = worker_process("--name", "heir", "--queues", "default", *QUICK)
    [taken_over] = marks.wait_for("start", job=works.pk, attempt=2)
    assert lost["lease_ended"] < taken_over["at"]
    wait_until(succeeded(ends, waits))
    row = Job.objects.filter(pk=works.pk).values_list("status", "claimed_by", "attempts", "fence")
    standing = row.get()
    assert standing[:3] == (Status.CLAIMED, "heir", 2)

    link.heal()
    Gate(Path(f"{gate.path}.1")).open()
    inside.wait_for_line("job.lease_lost", f"job={works.pk} ", "refused=succeeded")
    assert row.get() == standing
    Gate(Path(f"{gate.path}.2")).open()
    wait_until(succeeded(works))
    for job in (works, ends, waits):
        assert outcomes(job) == [(1, Outcome.LOST, "inside"), (2, Outcome.SUCCEEDED, "heir")]
    again = tasks.leave_mark.using(queue_name="inside").enqueue(marks=marks.path)
    assert marks.wait_for("run", job=again.pk)[0]["pid"] == inside.pid
    for worker in (heir, inside):
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0


def test_a_cut_that_ends_before_the_lease_costs_no_attempt(
    start_inside: StartWorker, link: Link, marks: Marks, gate: Gate
) -> None:
    """The outcome is kept, and recorded once the database can be reached."""
    job = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
    inside = start_inside("--lease", "60")
    marks.wait_for("start")
    link.cut()
    gate.open()
    inside.wait_for_line("worker.settle_failed")
    link.heal()
    wait_until(succeeded(job))
    assert outcomes(job) == [(1, Outcome.SUCCEEDED, "inside")]
    [end] = marks.read("end")
    assert end["lease_lost"] is False


def listening() -> set[int]:
    """Return the sessions whose last statement was LISTEN; of one cut off the server knows not."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN %'")
        return {pid for (pid,) in cursor.fetchall()}


def test_an_idle_worker_is_woken_again_after_it_was_cut_off(
    start_inside: StartWorker, link: Link, marks: Marks
) -> None:
    inside = start_inside("--poll-interval", "3600", "--lease", "3")
    wait_until(WorkerRow.objects.filter(listens=True).exists)
    before = listening()
    link.cut()
    inside.wait_for_line("worker.listener_failed")
    link.heal()
    wait_until(lambda: listening() - before, doing="the worker to listen on a new connection")
    job = tasks.leave_mark.enqueue(marks=marks.path)
    wait_until(succeeded(job))


def test_a_worker_that_is_cut_off_waits_and_can_be_stopped(
    start_inside: StartWorker, link: Link, marks: Marks
) -> None:
    job = tasks.leave_mark.enqueue(marks=marks.path)
    link.cut()
    patient, stopped = start_inside(ready=False), start_inside("--name", "stopped", ready=False)
    for worker in (patient, stopped):
        worker.wait_for_line("worker.database_away")
    stopped.signal(signal.SIGTERM)
    assert stopped.wait() == 0
    link.heal()
    assert marks.wait_for("run", job=job.pk)[0]["pid"] == patient.pid
