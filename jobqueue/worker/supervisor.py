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
from jobqueue.worker.stopping import signals_caught
from jobqueue.worker.threads import Pause

#: Set for the children: their standard input ends when the parent does.
SUPERVISED = "JOBQUEUE_SUPERVISED"
#: A child that ends sooner than this, in seconds, is replaced only after a pause.
TOO_SOON = 5.0
#: Exit codes of a worker that drained, or that was stopped before it could claim anything.
CLEAN = (0, -signal.SIGTERM)


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


class Supervisor:
    """Starts worker processes with the same options, replaces those that die, and stops them all.

    Children are spawned rather than forked, since a fork would share the parent's connections, and
    have a process group of their own, since a Ctrl-C would reach them twice.
    """

    def __init__(self, arguments: Sequence[str], *, processes: int, name: str, ends: bool) -> None:
        self.arguments = arguments
        self.processes = processes
        self.name = name
        #: The workers end by themselves (``--until-empty``), and are not to be replaced then.
        self.ends = ends
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

    def _start(self, number: int) -> Child:
        name = ["--name", f"{self.name}-{number}"] if self.name else []
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and command
            [sys.executable, "-m", "django", "jobqueue_worker", *self.arguments, *name],
            stdin=subprocess.PIPE,
            env={
                **os.environ,
                SUPERVISED: "1",
                "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
            },
            start_new_session=True,
        )
        return Child(number, process)

    def _sleep(self) -> None:
        with suppress(Empty):
            self._wakes.get(timeout=0.2)

    def _look_after(self, child: Child) -> bool:
        """Pass on what is asked, or replace the process that died; return False to give it up."""
        code = child.process.poll()
        if code is None:
            self._pass_on(child)
            return True
        child.process.communicate()  # closes our end of its standard input
        if self.stop_requests or (self.ends and code == 0):
            self.exit_code = self.exit_code or int(code not in CLEAN)
            return False
        if child.replace_at is None:
            child.replace_at = monotonic() + self._delay(child)
            level = logging.ERROR if code else logging.INFO
            logs.event(level, "worker.replaced", pid=child.process.pid, exit_code=code)
        if monotonic() >= child.replace_at:
            child.process = self._start(child.number).process
            child.started, child.replace_at = monotonic(), None
        return True

    def _pass_on(self, child: Child) -> None:
        while child.told < self.stop_requests:
            child.told += 1
            child.process.send_signal(signal.SIGTERM)

    def _delay(self, child: Child) -> float:
        if monotonic() - child.started < TOO_SOON:
            return child.pause.next()
        child.pause.reset()
        return 0.0


def _arguments(options: dict[str, Any]) -> list[str]:
    """Return the command line of one child."""
    arguments = ["--concurrency", str(options["concurrency"])]
    for name in ("lease", "drain_timeout", "poll_interval"):
        arguments += [_flag(name), str(options[name].total_seconds())]
    for name in ("queues", "exclude_queues", "database", "max_jobs"):
        if options[name]:
            arguments += [_flag(name), str(options[name])]
    if options["until_empty"]:
        arguments.append("--until-empty")
    return [*arguments, "--verbosity", str(options["verbosity"])]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
