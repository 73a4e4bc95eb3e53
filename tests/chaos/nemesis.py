"""Who does the damage: picks a fault, and later undoes it, until told to heal everything."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import psycopg

from tests.chaos.faults import ON_DATABASE, ON_PROCESSES, Damage, Fault, NoTarget, World
from tests.chaos.journal import Journal

#: How long healing may take, in seconds.
PATIENCE = 90.0


@dataclass
class Happening:
    """One fault that was done, with when it was over."""

    kind: str
    target: str
    at: float
    until: float | None = None


@dataclass(order=True)
class _Undo:
    due: float
    number: int
    act: Callable[[], object] = field(compare=False)
    happening: Happening = field(compare=False)


class Nemesis:
    """Deals faults from a shuffled deck: at random, but none of them is left out for long."""

    def __init__(self, world: World, *, seed: int, journal: Journal) -> None:
        self.world = world
        self.happenings: list[Happening] = []
        #: Faults that could not be done, by kind: nobody there, or the server away already.
        self.missed: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._journal = journal
        self._deck: list[Fault] = []
        self._undos: list[_Undo] = []
        self._numbers = count()

    def torment(self, ends: threading.Event) -> None:
        """Do damage until the event."""
        plan = self.world.fleet.plan
        next_at = time.monotonic() + self._chance.uniform(*plan.pauses)
        while not ends.wait(0.05):
            self._undo_due(time.monotonic())
            if time.monotonic() >= next_at:
                next_at = time.monotonic() + self._chance.uniform(*plan.pauses)
                if self._chance.random() >= plan.idle:
                    self._do(self._deal())

    def heal(self) -> None:
        """Undo everything, and see that the server is there."""
        deadline = time.monotonic() + PATIENCE
        self._journal.write("heal")
        while self._undos:
            self._undo_due(float("inf"))
            if time.monotonic() > deadline:
                raise AssertionError(f"could not be undone: {self._undos}")
            time.sleep(0.1)
        self.world.cluster.start()
        self._journal.write("healed")

    def _deal(self) -> Fault:
        if not self._deck:
            only = self.world.fleet.plan.only
            # What falls on one process falls twice as often: there are more of them.
            faults = [*ON_PROCESSES, *ON_PROCESSES, *ON_DATABASE]
            self._deck = [each for each in faults if not only or each.__name__ in only]
            self._chance.shuffle(self._deck)
        return self._deck.pop()

    def _do(self, fault: Fault) -> None:
        happening = Happening(fault.__name__, "", time.monotonic())
        # Before it is done, since what it does may be seen before it returns.
        self.happenings.append(happening)
        try:
            damage = fault(self.world)
        except (NoTarget, psycopg.Error, OSError) as error:
            happening.until = time.monotonic()
            self.happenings.remove(happening)
            self.missed[happening.kind] += 1
            self._journal.write("missed", kind=happening.kind, why=repr(error)[:200])
            return
        happening.target = damage.target
        self._journal.write("fault", kind=happening.kind, target=damage.target)
        self._see_to(damage, happening)

    def _see_to(self, damage: Damage, happening: Happening) -> None:
        if damage.undo is None:
            happening.until = time.monotonic()
            return
        due = time.monotonic() + damage.lasts
        heapq.heappush(self._undos, _Undo(due, next(self._numbers), damage.undo, happening))

    def _undo_due(self, now: float) -> None:
        """Undo what is due; what cannot be undone now is tried again."""
        later = []
        while self._undos and self._undos[0].due <= now:
            undo = heapq.heappop(self._undos)
            try:
                undo.act()
            except (psycopg.Error, OSError) as error:
                undo.due = time.monotonic() + 0.5
                later.append(undo)
                self._journal.write("not yet", kind=undo.happening.kind, why=repr(error)[:200])
            else:
                undo.happening.until = time.monotonic()
                self._journal.write("undone", kind=undo.happening.kind)
        for undo in later:
            heapq.heappush(self._undos, undo)
