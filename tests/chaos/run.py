"""One run: the safety phase with faults, the healing, the liveness phase, and the verdict."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from demo_project.database import CHECKOUT
from tests.chaos import oracle, report
from tests.chaos.cluster import Cluster
from tests.chaos.evidence import Evidence
from tests.chaos.faults import World
from tests.chaos.fleet import Fleet
from tests.chaos.journal import Journal
from tests.chaos.nemesis import Happening, Nemesis
from tests.chaos.plan import Plan
from tests.chaos.sampler import DEPTH, SLOW, Sampler

TICK = 0.02
PROGRESS = 10.0


@dataclass
class Result:
    """What was counted, and for each check what it found."""

    figures: dict[str, Any]
    found: dict[str, list[str]] = field(default_factory=dict)

    @property
    def has_passed(self) -> bool:
        """Whether no check found anything."""
        return not any(self.found.values())

    def __str__(self) -> str:
        return "\n".join(report.lines(self.figures, self.found))


class Scene:
    """Everything that takes part in one run."""

    def __init__(self, plan: Plan, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.say = say
        self.cluster = Cluster(plan.folder)
        self.fleet = Fleet(plan, self.cluster.url)
        world = World(self.cluster, self.fleet, random.Random(plan.seed + 1))
        self.journal = Journal(plan.folder / "nemesis.jsonl")
        self.nemesis = Nemesis(world, seed=plan.seed, journal=self.journal)
        self.sampler = Sampler(self.cluster, self.fleet)
        self._pool = ThreadPoolExecutor(3)
        self._said_at = self._ticked_at = 0.0
        self._stalls: list[Happening] = []

    def run(self) -> Result:
        """Do it all, and leave no process behind."""
        try:
            self._prepare()
            with self._in_background(self.sampler.watch) as is_well:
                self._safety(is_well)
                drained_in = self._liveness(is_well)
            self._end("worker", "witness")
            return self._verdict(drained_in)
        finally:
            self._pool.shutdown()  # or the nemesis might start what is removed
            self.fleet.remove()
            self.cluster.remove()
            self.journal.close()

    def _prepare(self) -> None:
        self.cluster.create()
        if not self.cluster.disk.is_there:
            self.say("no file system could be mounted: the disk will not be full")
        subprocess.run(
            [sys.executable, str(CHECKOUT / "manage.py"), "migrate", "--run-syncdb", "-v", "0"],
            cwd=CHECKOUT,
            env=self.fleet.run.environment,
            check=True,
        )
        self.fleet.start()

    def _safety(self, is_well: Callable[[], None]) -> None:
        """Let everything go wrong; the nemesis heals what is still broken when its time is up."""
        ends = time.monotonic() + self.plan.seconds
        with self._in_background(self.nemesis.torment) as is_tormenting:
            while time.monotonic() < ends:
                is_well()
                is_tormenting()
                self._tick("faults")
        self._ticked_at = 0.0  # the nemesis may have taken its time to end
        healing = self._pool.submit(self.nemesis.heal)
        while not healing.done():
            self._tick("healing")
        healing.result()

    def _liveness(self, is_well: Callable[[], None]) -> float:
        """Produce nothing more, and let everything drain; return how long that took."""
        began = time.monotonic()
        self._end("producer")
        self._ticked_at = 0.0
        patience = self.plan.patience + self._open() / self.plan.drain_rate
        while self._open() and time.monotonic() < began + patience:
            is_well()
            self._tick("draining", pause=0.2)
        return time.monotonic() - began

    def _end(self, *kinds: str) -> None:
        self.sampler.seen += [f"{name} did not end when asked" for name in self.fleet.end(*kinds)]

    def _open(self) -> int:
        with self.cluster.connect() as connection:
            return sum(connection.execute(DEPTH).fetchone() or ())

    def _verdict(self, drained_in: float) -> Result:
        self.say("judging")
        evidence = Evidence(
            happenings=self.nemesis.happenings,
            stalls=self.sampler.stalls + self._stalls,
            deaths=self.fleet.deaths,
            seen=self.sampler.seen,
        )
        evidence.read_journals(self.plan.folder)
        with self.cluster.connect() as connection:
            server = report.server(connection)
            evidence.read_database(connection)
        figures = {
            "commit": report.commit(),
            "server": server,
            **report.figures(self.plan, evidence, self.sampler.samples),
        }
        figures["drained in, s"] = round(drained_in, 1)
        figures["faults that could not be done"] = dict(self.nemesis.missed)
        figures["looks at what must always hold"] = self.sampler.looks
        return Result(figures, oracle.judge(evidence))

    @contextmanager
    def _in_background(
        self, work: Callable[[threading.Event], None]
    ) -> Iterator[Callable[[], None]]:
        """Run ``work`` in a thread; yield what raises its error, if it has one."""
        ends = threading.Event()
        future = self._pool.submit(work, ends)
        try:
            yield lambda: _raise_error_of(future)
        finally:
            ends.set()
        future.result()

    def _tick(self, phase: str, *, pause: float = TICK) -> None:
        self.fleet.tend()
        self._note_a_stall()
        if time.monotonic() - self._said_at > PROGRESS:
            self._said_at = time.monotonic()
            self.say(f"{phase}: {self._progress()}")
        time.sleep(pause)

    def _note_a_stall(self) -> None:
        """A machine that lets us wait so long lets heartbeats wait, too."""
        now, before = time.monotonic(), self._ticked_at
        if before and now - before > SLOW:
            self._stalls.append(Happening("stall", "machine", before, now))
        self._ticked_at = now

    def _progress(self) -> str:
        last = self.sampler.samples[-1:]
        waiting = f"{last[0].pending} pending" if last else "no sample yet"
        faults, deaths = len(self.nemesis.happenings), len(self.fleet.deaths)
        return f"{faults} faults, {deaths} processes ended, {waiting}"


def _raise_error_of(future: Future[None]) -> None:
    if future.done():
        future.result()


def perform(plan: Plan, say: Callable[[str], None] = print) -> Result:
    """Run a plan; the same seed deals the same faults in the same order."""
    say(f"seed {plan.seed}, {plan.seconds:g} s at {plan.rate:g} jobs/s, in {plan.folder}")
    return Scene(plan, say).run()
