"""A real worker process with default settings, at work on the bench's database."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import connection

from jobqueue.models import Worker

START_TIMEOUT = 30.0  # seconds
DRAIN_TIMEOUT = 600.0  # seconds


class WorkerFailed(Exception):
    """The worker process did not do what it was started for."""


def drain() -> float:
    """Run a worker until nothing is left to do; return how many seconds the process took."""
    before = time.monotonic()
    process = _start("--until-empty")
    try:
        code = process.wait(DRAIN_TIMEOUT)
    except subprocess.TimeoutExpired:
        _end(process)
        raise WorkerFailed(f"the worker was not done after {DRAIN_TIMEOUT:.0f} s") from None
    if code:
        raise WorkerFailed(f"the worker ended with exit code {code}")
    return time.monotonic() - before


@contextmanager
def idle() -> Iterator[None]:
    """Keep a worker waiting for jobs within the block."""
    process = _start()
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not Worker.objects.filter(pid=process.pid).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise WorkerFailed("the worker did not report for duty")
            time.sleep(0.02)
        yield
    finally:
        _end(process)


def _start(*options: str) -> subprocess.Popen[bytes]:
    name = str(connection.settings_dict["NAME"])
    return subprocess.Popen(
        [sys.executable, str(settings.BASE_DIR / "manage.py"), "runworker", *options],
        env={**os.environ, "DATABASE_NAME": name, "DEBUG": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
