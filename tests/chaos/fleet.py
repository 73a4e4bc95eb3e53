"""The processes under test: workers and producers, each replaced when it is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from demo_project.database import CHECKOUT
from tests.chaos import plan as plans
from tests.chaos.journal import last

#: A draining worker gives up its leases after so long, in seconds.
DRAIN = 5.0
#: How long a process may take to end that was asked to, in seconds.
PATIENCE = 30.0


class Death(NamedTuple):
    """The end of a process: at some instant after it was last seen, and until ``at``."""

    name: str
    pid: int
    code: int
    asked: str  # "kill", "term", "" for neither
    seen: float
    at: float


class Member:
    """One process; ``worker-2.5`` is the fifth in the second worker's place."""

    def __init__(self, place: str, generation: int, command: list[str], run: Run) -> None:
        self.place = place
        self.generation = generation
        self.name = f"{place}.{generation}"
        self.asked = ""
        self.seen = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "manage.py"), *command],
            cwd=CHECKOUT,
            env=run.environment | {"PGAPPNAME": self.name},
            stdin=subprocess.DEVNULL,
            stdout=run.log(place),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_worker(self) -> bool:
        return not self.place.startswith("producer")

    def kill(self) -> None:
        """End it as a lost machine would."""
        self.asked = "kill"
        self.process.kill()

    def terminate(self) -> None:
        """Ask it to drain; asked twice, it gives up what it holds."""
        self.asked = self.asked or "term"
        self.process.terminate()

    def stop(self) -> None:
        """Halt it in its tracks."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let it go on, unaware of the time that has passed."""
        self.process.send_signal(signal.SIGCONT)


class Run:
    """What all processes of one run are given."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._logs: dict[str, IO[bytes]] = {}
        inherited = {key: value for key, value in os.environ.items() if key != "DATABASE_NAME"}
        self.environment = inherited | {
            "CHAOS_FOLDER": str(folder),
            "DATABASE_URL": url,
            "DJANGO_SETTINGS_MODULE": "tests.chaos.settings",
            "PYTHONUNBUFFERED": "1",
        }

    def log(self, place: str) -> IO[bytes]:
        """Return the log that all processes of one place share, one after the other."""
        if place not in self._logs:
            self._logs[place] = (self.folder / f"{place}.log").open("ab")
        return self._logs[place]

    def close(self) -> None:
        """Close the logs."""
        for log in self._logs.values():
            log.close()


class Fleet:
    """Keeps every place taken; only the thread that calls :meth:`tend` starts and buries."""

    def __init__(self, plan: plans.Plan, url: str) -> None:
        self.plan = plan
        self.run = Run(plan.folder, url)
        self.members: dict[str, Member] = {}
        self.deaths: list[Death] = []
        self.began = time.monotonic()
        self._closed: tuple[str, ...] = ()
        #: The number of each producer's next job.
        self._next: dict[str, int] = {}

    def start(self) -> None:
        """Start every process."""
        self.plan.save(self.plan.folder / "plan.json")
        places = [f"worker-{n}" for n in range(1, self.plan.workers + 1)]
        places += ["witness-1"] * self.plan.has_witness
        places += [f"producer-{n}" for n in range(1, self.plan.producers + 1)]
        self.began = time.monotonic()
        for place in places:
            self._start(place, 1)

    def tend(self) -> None:
        """Note which processes have ended, and put others in their place."""
        now = time.monotonic()
        for place, member in list(self.members.items()):
            code = member.process.poll()
            if code is None:
                member.seen = now
                continue
            death = Death(member.name, member.pid, code, member.asked, member.seen, now)
            self.deaths.append(death)
            del self.members[place]
            if not self._is_closed(place):
                self._start(place, member.generation + 1)

    def workers(self) -> list[Member]:
        """Return the workers that may be killed."""
        return [each for each in list(self.members.values()) if each.place.startswith("worker")]

    def producers(self) -> list[Member]:
        """Return the producers."""
        return [each for each in list(self.members.values()) if not each.is_worker]

    def all_workers(self) -> list[Member]:
        """Return the workers with the witness."""
        return [each for each in list(self.members.values()) if each.is_worker]

    def end(self, *kinds: str) -> list[str]:
        """Ask processes to end and wait until they have; return the names of those that do not."""
        self._closed += kinds
        for place, member in self.members.items():
            if place.startswith(kinds):
                member.terminate()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(map(self._is_closed, self.members)):
            self.tend()
            time.sleep(0.05)
        return [member.name for place, member in self.members.items() if self._is_closed(place)]

    def _is_closed(self, place: str) -> bool:
        return place.startswith(self._closed)

    def remove(self) -> None:
        """Kill what is left."""
        for member in self.members.values():
            with suppress(ProcessLookupError):
                os.killpg(member.pid, signal.SIGKILL)
            member.process.wait()
        self.run.close()

    def _start(self, place: str, generation: int) -> None:
        make = self._produce if place.startswith("producer") else self._work
        command = make(place, generation)
        self.members[place] = Member(place, generation, command, self.run)

    def _work(self, place: str, generation: int) -> list[str]:
        options = {
            "name": f"{place}.{generation}",
            "concurrency": self.plan.concurrency,
            "lease": self.plan.lease,
            "drain-timeout": DRAIN,
            "poll-interval": 0.5,
        }
        if place.startswith("witness"):
            options["exclude-queues"] = plans.KILLERS
        given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
        return ["runworker", "--verbosity", "0", *given]

    def _produce(self, place: str, generation: int) -> list[str]:
        folder = self.plan.folder
        if before := last(folder / f"{place}.{generation - 1}.jsonl", "submit"):
            self._next[place] = before["first"] + len(before["kinds"])
        number, first = int(place.split("-")[1]), self._next.get(place, 0)
        given = {"number": number, "first": first, "began": self.began}
        options = [text for key, value in given.items() for text in (f"--{key}", str(value))]
        journal = folder / f"{place}.{generation}.jsonl"
        return ["produce", str(folder / "plan.json"), str(journal), *options]
