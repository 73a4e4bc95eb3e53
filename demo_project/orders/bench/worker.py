"""A real worker process with default settings, at work on the bench's database."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.db import connection

from jobqueue.models import Job, Worker
from jobqueue.states import Status

START_TIMEOUT = 60.0  # seconds
LONGEST_DRAIN = 900.0  # seconds
OPEN = (Status.SCHEDULED, Status.PENDING, Status.CLAIMED)


class WorkerFailed(Exception):
    """The worker process did not do what it was started for."""


def environment() -> dict[str, str]:
    """Return the environment of a child that is to use the bench's database."""
    name = str(connection.settings_dict["NAME"])
    own = {"DATABASE_NAME": name, "DEBUG": "0", "DJANGO_SETTINGS_MODULE": "demo_project.settings"}
    return os.environ | own


@dataclass(frozen=True)
class Running:
    """A worker process, or the parent of several, and the file that it logs to."""

    process: subprocess.Popen[bytes]
    log: Path

    def wait_for(self, is_so: Callable[[], bool], seconds: float) -> None:
        """Wait for a fact; raise WorkerFailed when it takes too long, or the worker has ended."""
        deadline = time.monotonic() + seconds
        while not is_so():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise WorkerFailed(f"the worker ended or hung; it said: {self.said()[-500:]}")
            time.sleep(0.05)

    def wait_for_start(self) -> None:
        """Wait for the worker's word that it has started, without a look at the database."""
        self.wait_for(lambda: "worker.started" in self.said(), START_TIMEOUT)

    def said(self) -> str:
        """Return what the worker has logged."""
        return self.log.read_text(errors="replace").strip()

    def wait_for_the_last(self, *, after: int) -> None:
        """Wait until every job with a higher id than ``after`` is settled for good.

        The newest is looked at first: it is among the last to be done, so the look costs nothing.
        """
        unsettled = Job.objects.filter(pk__gt=after, status__in=OPEN).order_by("-pk")
        self.wait_for(lambda: unsettled.values_list("pk").first() is None, LONGEST_DRAIN)


@contextmanager
def started(*, processes: int = 1) -> Iterator[Running]:
    """Run a worker, or a parent of several, within the block."""
    options = ["--processes", str(processes)] if processes > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "worker.log"
        process = _start(options, log)
        try:
            yield Running(process, log)
        finally:
            _end(process)


def _start(options: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, str(settings.BASE_DIR / "manage.py"), "runworker", *options],
            cwd=settings.BASE_DIR,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


@contextmanager
def waiting(*, processes: int = 1) -> Iterator[Running]:
    """Run a worker within the block, which begins when it waits for jobs."""
    with started(processes=processes) as running:
        running.wait_for(lambda: _are_there(processes), START_TIMEOUT)
        yield running


def _are_there(processes: int) -> bool:
    """Whether so many workers wait; on PostgreSQL they have then asked to be notified."""
    waits = {"listens": True} if connection.vendor == "postgresql" else {}
    return Worker.objects.filter(**waits).count() == processes


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def peak_memory(pid: int) -> float | None:
    """Return the most memory that a process ever held, in MB; None where Linux does not say."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return None
    found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
    return int(found[1]) / 1024 if found else None
