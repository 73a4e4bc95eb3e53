"""Decide which queues to take jobs from, and how many."""

from __future__ import annotations

import random
from collections.abc import Iterable
from time import monotonic
from typing import Any

from jobqueue import lifecycle, registry
from jobqueue.claims import Claim, Lease
from jobqueue.lifecycle.alias import BATCH
from jobqueue.worker import settler as settling
from jobqueue.worker.caution import Caution
from jobqueue.worker.hand import Hand
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.pace import Pace
from jobqueue.worker.settler import Settler

#: How long a claimed job may wait for a thread before it is handed back, in seconds.
STALE = 1.0

#: Quick jobs are taken from one queue so many at a time, however many queues there are.
WORTH_A_STATEMENT = 100


class Claimer:
    """Takes jobs in hand from each queue in turn: a flood in one does not hold up another."""

    def __init__(self, options: WorkerOptions, hand: Hand, settler: Settler) -> None:
        self.options = options
        self.using = options.using
        self.hand = hand
        self.settler = settler
        self.pace = Pace(options.concurrency)
        self.caution = Caution()
        #: Queues that had pending jobs when last seen, the next to be asked first.
        self.ready: list[str] = []
        #: Where the claims since the last look ended, by queue.
        self._floors: dict[str, dict[int, tuple[Any, int]]] = {}
        self.look_due = 0.0
        #: Whether new jobs are announced to this worker.
        self.hears_news = False
        #: How many more jobs may be taken; None: any number.
        self.allowance = options.max_jobs

    def look(self) -> None:
        """See which queues have jobs; promote and rescue what is due."""
        look, promoted = lifecycle.look(using=self.using), 0
        if look.has_due or look.has_expired:
            promoted = lifecycle.promote(using=self.using)
            lifecycle.rescue(using=self.using)
            look = lifecycle.look(using=self.using)
        self._update(look.queue_names)
        self._floors.clear()  # something may have come in below, or in another priority
        jitter = random.uniform(0.8, 1.0)  # noqa: S311 - not a secret
        pause = self.options.poll_interval.total_seconds() * jitter
        if promoted == BATCH:
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
        queues, claimed = list(self.ready), 0
        evenly = -(-self.room() // max(len(queues), 1))  # rounded up
        portion = max(evenly, min(self.pace.prefetch, WORTH_A_STATEMENT))
        for name in queues:
            limit = min(portion, self.room(), self._room_of(name, portion))
            if limit > 0:
                claimed += self._claim_from(name, limit)
        return claimed

    def room(self) -> int:
        """Return how many more jobs this worker may hold."""
        held, unsettled = len(self.hand), len(self.settler)
        if unsettled > 2 * settling.MOST:
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

    def _claim_from(self, name: str, limit: int) -> int:
        floors = self._floors.setdefault(name, {})
        sent = monotonic()
        claims = lifecycle.claim(
            name,
            worker=self.options.name,
            limit=limit,
            lease=self.options.lease,
            floors=floors,
            using=self.using,
        )
        self._note_end_of(name, claims, is_full=len(claims) == limit)
        admitted = self.caution.admit(claims)
        self._take_in_hand(admitted, sent)
        if len(admitted) < len(claims):
            lifecycle.release(set(claims).difference(admitted), using=self.using)
            self.note(name)
            floors.clear()
        return len(claims)

    def _note_end_of(self, name: str, claims: list[Claim], *, is_full: bool) -> None:
        """Decide whether and from where to ask this queue again, after the others had a turn."""
        floors = self._floors[name]
        self.ready.remove(name)
        if is_full:
            self.ready.append(name)
            floors |= {claim.priority: (claim.run_after, claim.id) for claim in claims}
        elif floors and not self.hears_news:
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

    def release_waiting(self) -> None:
        """Hand back every job that no thread has started."""
        leases = self.hand.take_back()
        if not leases:
            return
        lifecycle.release([lease.claim for lease in leases], using=self.using)
        if self.allowance is not None:
            self.allowance += len(leases)
