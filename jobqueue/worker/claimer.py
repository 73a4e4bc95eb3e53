"""Decide which queues to take jobs from, and how many."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Collection, Iterable
from time import monotonic
from typing import Any

from jobqueue import lifecycle, registry
from jobqueue.claims import Claim, Lease, Turn
from jobqueue.lifecycle.alias import BATCH
from jobqueue.worker import settler as settling
from jobqueue.worker.caution import Caution
from jobqueue.worker.hand import Hand
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.pace import Pace
from jobqueue.worker.settler import Settler
from jobqueue.worker.tally import Tally

#: How long a claimed job may wait for a thread before it is handed back, in seconds.
STALE = 1.0
#: So many claims that found something within a second: jobs come in all the time.
BUSY = 20


class Claimer:
    """Takes jobs in hand from each queue in turn: a flood in one does not hold up another."""

    def __init__(self, options: WorkerOptions, hand: Hand, settler: Settler, tally: Tally) -> None:
        self.options = options
        self.using = options.using
        self.hand = hand
        self.settler = settler
        self.tally = tally
        self.pace = Pace(options.concurrency)
        self.caution = Caution()
        #: Queues that had pending jobs when last seen, the next to be asked first.
        self.ready: list[str] = []
        #: Where the claims since the last look ended, by queue.
        self._floors: dict[str, dict[int, tuple[Any, int]]] = {}
        self.look_due = 0.0
        #: Whether there were bulk operations to be carried out when last seen.
        self.has_operations = False
        #: When the latest claims found something, on the monotonic clock.
        self._finds: deque[float] = deque(maxlen=BUSY)
        #: Claims that a database error kept from being handed back.
        self._unreleased: list[Claim] = []
        #: How many more jobs may be taken; None: any number.
        self.allowance = options.max_jobs
        self._is_retired = False

    @property
    def has_served(self) -> bool:
        """Whether this process takes no more jobs: it has had its number, or has been retired."""
        return self._is_retired or self.allowance == 0

    def retire(self) -> None:
        """Take no more jobs, and hand back those that have not started."""
        self._is_retired = True
        self.release_waiting()

    def look(self) -> None:
        """See which queues have jobs; promote and rescue what is due; obey pauses."""
        self._release()
        look = lifecycle.look(using=self.using)
        if look.has_expired:
            lifecycle.rescue(using=self.using)
            look = lifecycle.look(using=self.using)
        self.has_operations = look.has_operations
        if look.paused:
            self.release_waiting(look.paused)
        promoted = lifecycle.promote(using=self.using) if look.has_due else Counter[str]()
        self._update({*look.queue_names, *promoted}.difference(look.paused))
        self._floors.clear()  # something may have come in below, or in another priority
        jitter = random.uniform(0.8, 1.0)  # noqa: S311 - not a secret
        pause = self.options.poll_interval.total_seconds() * jitter
        if promoted.total() == BATCH:
            pause = 0.0  # a tide of retries would come in at one batch for each poll
        self.look_due = monotonic() + pause

    def note(self, queue_name: str | None) -> None:
        """Ask this queue next, since a job of it was announced."""
        if queue_name and self.options.serves(queue_name) and queue_name not in self.ready:
            self.ready.append(queue_name)

    def _update(self, queue_names: Iterable[str]) -> None:
        seen = {name for name in queue_names if self.options.serves(name)}
        known = [name for name in self.ready if name in seen]
        order = self.options.queues or sorted(seen)
        self.ready = known + [name for name in order if name in seen.difference(known)]

    def claim(self) -> int:
        """Take as many jobs as there is room for; return how many."""
        asked: set[str] = set()
        claimed = 0
        while turns := self._turns(asked):
            claimed += self._claim(turns)
            asked.update(turn.queue_name for turn in turns)
        return claimed

    def _turns(self, asked: Collection[str]) -> list[Turn]:
        """Share the room out among the queues that have not been asked yet."""
        waiting, room = [name for name in self.ready if name not in asked], self.room()
        turns = []
        for number, name in enumerate(waiting):
            evenly = -(-room // (len(waiting) - number))  # rounded up
            limit = min(evenly, self._room_of(name, evenly))
            if limit > 0:
                turns.append(Turn(name, limit, self._floors.setdefault(name, {})))
                room -= limit
        return turns

    @property
    def is_busy(self) -> bool:
        """Whether jobs come in so often that it is cheaper to ask than to be told of each."""
        return len(self._finds) == BUSY and monotonic() - self._finds[0] < 1.0

    def room(self) -> int:
        """Return how many more jobs this worker may hold."""
        held, unsettled = len(self.hand), len(self.settler)
        if unsettled > 2 * settling.MOST or self._is_retired:
            return 0
        room = self._capacity - held
        if self.caution.wants_to_be_alone:
            room = 0 if held or unsettled else 1
        return room if self.allowance is None else min(room, self.allowance)

    @property
    def _capacity(self) -> int:
        waiting = 0 if self.caution.level else self.pace.prefetch
        return self.options.concurrency + waiting

    @property
    def refill_at(self) -> int:
        """How few jobs must be in hand for a claim to be worth while, if the last one took some."""
        capacity = self._capacity
        return capacity - max((capacity - self.options.concurrency) // 2, 1)

    def _room_of(self, queue_name: str, portion: int) -> int:
        share = self.options.share(queue_name)
        return portion if share is None else share - self.hand.count(queue_name)

    def _claim(self, turns: list[Turn]) -> int:
        sent = monotonic()
        claims = lifecycle.claim(
            turns, worker=self.options.name, lease=self.options.lease, using=self.using
        )
        if claims:
            self._finds.append(sent)
            self.tally.claimed(claims)
        found: dict[str, list[Claim]] = {turn.queue_name: [] for turn in turns}
        for claim in claims:
            found[claim.queue_name].append(claim)
        for turn in turns:
            self._note_end_of(turn, found[turn.queue_name])
        admitted = self.caution.admit(claims)
        self._take_in_hand(admitted, sent)
        if len(admitted) < len(claims):
            self._floors.clear()
            for turn in turns:
                self.note(turn.queue_name)
            self._release(set(claims).difference(admitted))
        return len(claims)

    def _note_end_of(self, turn: Turn, claims: list[Claim]) -> None:
        """Decide whether and from where to ask this queue again, after the others had a turn."""
        name, floors = turn.queue_name, self._floors[turn.queue_name]
        self.ready.remove(name)
        if len(claims) == turn.limit:
            self.ready.append(name)
            floors |= {claim.priority: (claim.run_after, claim.id) for claim in claims}
        elif floors:
            self.ready.append(name)  # there may be more below, or in other priorities
            floors.clear()

    def _take_in_hand(self, claims: list[Claim], sent: float) -> None:
        spans, usual = registry.leases(), self.options.lease.total_seconds()
        for claim in claims:
            span = spans.get(claim.task, usual)
            self.hand.add(Lease(claim, span, sent, sent + span))
        if self.allowance is not None:
            self.allowance -= len(claims)

    def release_stale(self) -> None:
        """Hand back what has waited too long: the threads are busy, other workers may not be."""
        since = self.hand.waiting_since()
        if since is not None and monotonic() - since > STALE:
            self.pace.forget()
            self.release_waiting()

    def release_waiting(self, queue_names: Collection[str] | None = None) -> None:
        """Hand back what no thread has started: jobs of these queues, or all."""
        leases = self.hand.take_back(queue_names)
        if self.allowance is not None:
            self.allowance += len(leases)
        self._release(lease.claim for lease in leases)

    def _release(self, claims: Iterable[Claim] = ()) -> None:
        """Hand claims back, and with them what a database error kept from it before."""
        self._unreleased.extend(claims)
        if self._unreleased:
            lifecycle.release(self._unreleased, using=self.using)
            self._unreleased.clear()
