"""The parent of ``--processes N``: keeps N workers alive, and passes on what it is told."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from jobqueue import logs
from jobqueue.worker.pulse import Pulse
from jobqueue.worker.reports import REPORTS_TO, Reports
from jobqueue.worker.stopping import signals_caught
from jobqueue.worker.threads import Pause

#: Set for the children: their standard input ends when the parent does.
SUPERVISED = "JOBQUEUE_SUPERVISED"
#: A child that ends sooner than this, in seconds, is replaced only after a pause.
TOO_SOON = 5.0
#: The options of the parent for which it has to know how its children are.
SHOWN = ("health", "heartbeat_file")
#: The exit code of a child that has run its number of jobs or grown too large: go on with another.
RECYCLED = 75
#: Exit codes of a worker that drained, or that was stopped before it could claim anything.
CLEAN = (0, RECYCLED, -signal.SIGTERM)


@dataclass
class Child:
    """One place for a worker process, filled again whenever it falls empty."""

    number: int
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=monotonic)
    pause: Pause = field(default_factory=Pause)
    replace_at: float | None = None
    #: How many of the requests to stop it was sent.
    told: int = 0
    #: What it says of itself, if it was asked to.
    reports: Reports | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it says that it would take a job."""
        reports = self.reports  # another thread may ask
        return reports is not None and reports.is_ready

    @property
    def has_stopped(self) -> bool:
        """Whether it makes no progress; while it starts nobody can tell."""
        reports = self.reports
        return reports is not None and reports.has_stopped

    def close(self) -> None:
        """Let go of what connected us to the process that ended."""
        self.process.communicate()  # closes our end of its standard input
        if self.reports:
            self.reports.close()
            self.reports = None


class Supervisor:
    """Starts worker processes with the same options, replaces those that die, and stops them all.

    Children are spawned rather than forked, since a fork would share the parent's connections, and
    have a process group of their own, since a Ctrl-C would reach them twice.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        processes: int,
        name: str,
        ends: bool,
        asks_for_reports: bool = False,
    ) -> None:
        self.arguments = arguments
        self.processes = processes
        self.name = name
        #: The workers end by themselves (``--until-empty``), and are not to be replaced then.
        self.ends = ends
        self.asks_for_reports = asks_for_reports
        self.pulse = Pulse("main")
        self.stop_requests = 0
        self.exit_code = 0
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._children: list[Child] = []

    @classmethod
    def from_command(cls, options: dict[str, Any]) -> Supervisor:
        """Make one from the options of the command that was asked for several processes."""
        return cls(
            _arguments(options),
            processes=options["processes"],
            name=options["name"],
            ends=options["until_empty"],
            asks_for_reports=any(options[name] is not None for name in SHOWN),
        )

    def run(self) -> int:
        """Supervise until stopped; return 0 when every worker drained in good order."""
        with signals_caught(self.request_stop):
            self._children = [self._start(number) for number in range(self.processes)]
            while self._children:
                self._sleep()
                self._children = [child for child in self._children if self._look_after(child)]
        return self.exit_code

    def request_stop(self) -> None:
        """Stop every worker; asked a second time, have them give up. Safe in a signal handler."""
        self.stop_requests += 1
        self._wakes.put(None)

    def not_alive(self) -> str:
        """Say that this process or one of the workers makes no progress."""
        if self.pulse.has_stopped():
            return "the supervisor makes no progress"
        stopped = [child.number for child in self._children if child.has_stopped]
        return f"worker {stopped[0]} makes no progress" if stopped else ""

    def not_ready(self) -> str:
        """Say how many of the workers are ready, unless all are."""
        if self.stop_requests:
            return "draining"
        ready = sum(child.is_ready for child in self._children)
        return "" if ready == self.processes else f"{ready} of {self.processes} workers are ready"

    def _start(self, number: int) -> Child:
        reports = Reports() if self.asks_for_reports else None
        name = ["--name", f"{self.name}-{number}"] if self.name else []
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and command
            [sys.executable, "-m", "django", "jobqueue_worker", *self.arguments, *name],
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                SUPERVISED: "1",
                **({REPORTS_TO: str(reports.writer)} if reports else {}),
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            },
            start_new_session=True,
            pass_fds=(reports.writer,) if reports else (),
        )
        if reports:
            reports.close_writer()
        return Child(number, process, reports=reports)

    def _sleep(self) -> None:
        self.pulse.beat()
        with suppress(Empty):
            self._wakes.get(timeout=0.2)

    def _look_after(self, child: Child) -> bool:
        """Pass on what is asked, or replace the process that died; return False to give it up."""
        code = child.process.poll()
        if code is None:
            self._pass_on(child)
            if child.reports:
                child.reports.read()
            return True
        child.close()
        if self.stop_requests or (self.ends and code == 0):
            if child.replace_at is None:  # one that fell earlier has been told of
                self.exit_code = self.exit_code or int(code not in CLEAN)
            return False
        if child.replace_at is None:
            child.replace_at = monotonic() + self._delay(child, code)
            level = logging.INFO if code in (0, RECYCLED) else logging.ERROR
            logs.event(level, "worker.replaced", pid=child.process.pid, exit_code=code)
        if monotonic() >= child.replace_at:
            self._replace(child)
        return True

    def _replace(self, child: Child) -> None:
        fresh = self._start(child.number)
        child.process, child.reports = fresh.process, fresh.reports
        child.started, child.replace_at = fresh.started, None

    def _pass_on(self, child: Child) -> None:
        while child.told < self.stop_requests:
            child.told += 1
            child.process.send_signal(signal.SIGTERM)

    def _delay(self, child: Child, code: int) -> float:
        if code != RECYCLED and monotonic() - child.started < TOO_SOON:
            return child.pause.next()
        child.pause.reset()
        return 0.0


def _arguments(options: dict[str, Any]) -> list[str]:
    """Return the command line of one child."""
    arguments = ["--concurrency", str(options["concurrency"])]
    for name in ("lease", "drain_timeout", "poll_interval"):
        arguments += [_flag(name), str(options[name].total_seconds())]
    for name in ("queues", "exclude_queues", "database", "max_jobs", "max_memory"):
        if options[name]:
            arguments += [_flag(name), str(options[name])]
    if options["until_empty"]:
        arguments.append("--until-empty")
    return [*arguments, "--verbosity", str(options["verbosity"])]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
