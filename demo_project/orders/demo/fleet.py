"""Real worker processes: started, killed, stopped, woken, replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Self

from django.conf import settings

from demo_project.orders.demo.evidence import End, Evidence

SIZE = 2
LEASE = 3.0  # seconds
#: So many replacements for workers that ended unasked; more means that something is broken.
MOST_REPLACEMENTS = 8
QUEUES = "mail,documents,poison,webhooks:6"
STOP_TIMEOUT = 20.0  # seconds


class Fleet:
    """The workers of one run; leaving the block ends every process, whatever state it is in."""

    def __init__(self, evidence: Evidence, *, webhook_url: str) -> None:
        self.evidence = evidence
        self.workers: list[Worker] = []
        self.replacements = 0
        self._environment = {
            **os.environ,
            "DEBUG": "0",
            "PYTHONUNBUFFERED": "1",
            "WEBHOOK_URL": webhook_url,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        running = self.running()
        for worker in running:
            worker.wake()
            worker.process.terminate()
        try:
            for worker in running:
                worker.wait(3)
        finally:
            self.ends()

    def start(self) -> Worker:
        """Start a worker."""
        name = f"{self.evidence.run}-w{len(self.workers) + 1:02}"
        worker = Worker(name, self._environment, self.evidence)
        self.workers.append(worker)
        return worker

    def running(self) -> list[Worker]:
        """Return the workers that run or are stopped."""
        return [worker for worker in self.workers if worker.is_running()]

    def replace_the_fallen(self) -> list[Worker]:
        """Start a worker for each that ended unasked; return those."""
        fallen = [worker for worker in self.workers if worker.has_fallen()]
        for worker in fallen:
            worker.was_replaced = True
            self.replacements += 1
            if self.replacements <= MOST_REPLACEMENTS:
                self.start()
        return fallen

    def is_exhausted(self) -> bool:
        """Whether so many workers ended unasked that something must be broken."""
        return self.replacements > MOST_REPLACEMENTS

    def last_words(self) -> str:
        """Return where the logs are, and the last line of each that says anything."""
        logs = ((worker.name, worker.log.read_text(errors="replace")) for worker in self.workers)
        last = [f"{name}: {text.splitlines()[-1]}" for name, text in logs if text.strip()]
        return "\n  ".join([f"the workers' logs are in {self.evidence.logs}", *last])

    def owner(self, claimed_by: str | None) -> Worker | None:
        """Return the running worker that goes by this name in the database."""
        owners = (each for each in self.running() if (claimed_by or "").startswith(each.name))
        return next(owners, None)

    def stop(self) -> None:
        """Ask every worker to drain, and wait until all have ended."""
        running = self.running()
        for worker in running:
            worker.terminate()
        for worker in running:
            worker.wait(STOP_TIMEOUT)

    def ends(self) -> list[End]:
        """Return how each process ended; kill those that still run."""
        return [worker.end() for worker in self.workers]


class Worker:
    """One ``manage.py runworker`` process and what we did to it."""

    def __init__(self, name: str, environment: dict[str, str], evidence: Evidence) -> None:
        self.name = name
        self.expected: int | None = None
        self.was_replaced = False
        self.log = evidence.logs / f"{name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which then ends its workers.
            self.process = subprocess.Popen(
                [*_command(), "runworker", *_options(name)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def is_running(self) -> bool:
        """Whether the process is there, even if it is stopped."""
        return self.process.poll() is None

    def has_fallen(self) -> bool:
        """Whether it ended though nobody asked it to, and nobody has noticed yet."""
        return not self.is_running() and self.expected is None and not self.was_replaced

    def kill(self) -> None:
        """End it without a chance to clean up (SIGKILL), and wait until it is gone."""
        self.expected = -signal.SIGKILL
        self.process.kill()
        self.process.wait()

    def terminate(self) -> None:
        """Ask it to drain (SIGTERM)."""
        self.expected = 0
        self.process.terminate()

    def freeze(self) -> None:
        """Stop it in its tracks (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Let it go on (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float) -> bool:
        """Wait until it has ended; return whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        return not self.is_running()

    def end(self) -> End:
        """Return how it ended; kill it if it has not."""
        if self.is_running():
            self.process.kill()
        return End(self.name, self.process.wait(), self.expected)


def _command() -> list[str]:
    return [sys.executable, str(settings.BASE_DIR / "manage.py")]


def _options(name: str) -> Iterable[Any]:
    return ("--name", name, "--queues", QUEUES, "--concurrency", "8", "--lease", str(LEASE))
