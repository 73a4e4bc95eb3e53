"""The story of one run: orders are placed, workers come to harm, everything is done in the end."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from django.db.models import Count

from demo_project.orders import tasks
from demo_project.orders.demo.evidence import Evidence
from demo_project.orders.demo.fleet import LEASE, SIZE, Fleet, Worker
from demo_project.orders.demo.interruption import Interruption
from demo_project.orders.demo.progress import Progress
from demo_project.orders.demo.receiver import Receiver
from demo_project.orders.demo.shop import Shop
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.querysets import JobQuerySet
from jobqueue.states import FINISHED, Outcome, Status

T = TypeVar("T")

LOOK_EVERY = 0.02  # seconds
SHOW_EVERY = 0.25  # seconds
#: The run is stuck when it has waited so long for one thing.
PATIENCE = 30.0  # seconds
LONGEST_DRAIN = 180.0  # seconds
#: So many orders are placed at a time to keep a worker busy.
BAIT = 3
MOST_TRIES = 10
SHOWN = (Status.PENDING, Status.SCHEDULED, Status.CLAIMED, Status.SUCCEEDED, "dead")


class Stuck(Exception):
    """Something that had to happen did not happen in time; the message says what."""


@dataclass
class Scenario:
    """One run and everyone in it."""

    evidence: Evidence
    receiver: Receiver
    fleet: Fleet
    shop: Shop
    progress: Progress
    interruption: Interruption
    doing: str = ""
    shown_at: float = float("-inf")

    def play(self, orders: int) -> None:
        """Place the orders in four parts, with something terrible after each of the first three."""
        self.start_workers()
        self.shop.open()
        for number, harm in enumerate((self.kill_one, self.freeze_one, self.restart_one), start=1):
            self.place_until(orders * number // 4)
            harm()
        self.poison()
        self.place_until(orders)
        self.drain()
        self.dismiss_workers()

    def start_workers(self) -> None:
        """Start the fleet and wait until it has reported for duty."""
        self.doing = "starting workers"
        workers = [self.fleet.start() for _ in range(SIZE)]
        self.wait_for(lambda: all(map(_is_registered, workers)), "the workers to report")
        self.progress.say(f"started  {' and '.join(each.name for each in workers)}")

    def place_until(self, number: int, *, doing: str = "placing orders") -> None:
        """Place orders until so many have been placed."""
        self.doing = doing
        while self.shop.placed < number:
            self.shop.place_one()
            self.tend()

    def kill_one(self) -> None:
        """Kill a worker whose handlers run, and start another in its place."""
        with self._busy_worker("a worker to kill") as (victim, _):
            victim.kill()
        replacement = self.fleet.start()
        self.progress.say(
            f"SIGKILL  {victim.name} in the middle of its work; {replacement.name} replaces it"
        )

    def restart_one(self) -> None:
        """Ask a busy worker to drain, wait until it has, and start another."""
        with self._busy_worker("a worker to restart") as (victim, _):
            victim.terminate()
        self.wait_for(lambda: not victim.is_running(), f"{victim.name} to drain")
        replacement = self.fleet.start()
        self.progress.say(
            f"SIGTERM  {victim.name}, which finished what it ran; {replacement.name} replaces it"
        )

    def freeze_one(self) -> None:
        """Stop a busy worker past its lease, and wake it when its work is someone else's."""
        for _ in range(MOST_TRIES):
            with self._busy_worker("a worker to stop past its lease") as (victim, job_id):
                self.look_for(lambda victim=victim: _is_quiet(victim), timeout=0.5)
                victim.freeze()
            self.doing = f"waiting for the leases of {victim.name} to end"
            try:
                taken = self.look_for(lambda: _was_lost(job_id, victim), timeout=2 * LEASE + 1)
            finally:
                victim.wake()
            if taken:
                break
            # It was stopped inside a transaction that kept others waiting, or a moment too late.
        else:
            raise Stuck("no worker that was stopped lost its lease")
        self._wait_for_refusal(victim, job_id)

    def _wait_for_refusal(self, victim: Worker, job_id: int) -> None:
        line = f"job.lease_lost job={job_id} "
        self.wait_for(lambda: line in victim.log.read_text(), f"{line} in {victim.log}")
        self.progress.say(
            f"SIGSTOP  {victim.name} past its lease; woken, it could not record its late outcomes"
        )

    @contextmanager
    def _busy_worker(self, wanted: str) -> Iterator[tuple[Worker, int]]:
        """Give a worker in the middle of a job, and the job; the job ends after the block."""
        with self.receiver.holding_answers():
            for _ in range(MOST_TRIES):
                self.place_until(self.shop.placed + BAIT, doing=f"looking for {wanted}")
                if found := self.look_for(self._find_busy_worker, timeout=1.0):
                    break
            else:
                raise Stuck(f"did not find {wanted}: none was busy")
            yield found

    def _find_busy_worker(self) -> tuple[Worker, int] | None:
        ids = [int(key.rpartition(":")[2]) for key in self.receiver.waiting()]
        jobs = Job.objects.in_flight().filter(pk__in=ids)
        for pk, claimed_by in jobs.values_list("pk", "claimed_by"):
            if owner := self.fleet.owner(claimed_by):
                return owner, pk
        return None

    def poison(self) -> None:
        """Enqueue jobs that misbehave."""
        options = {"correlation_id": f"{self.evidence.run}-poison"}
        for number in range(3):
            tasks.always_fails.using(**options).enqueue(f"poison {number}")
        tasks.exits.using(**options).enqueue()
        tasks.kills_its_worker.using(**options).enqueue(really=True)
        self.progress.say("poison   3 jobs that fail, one that exits, one that kills its worker")

    def drain(self) -> None:
        """Wait until every job has succeeded or is a dead letter."""
        self.doing = "working off the rest"
        deadline = time.monotonic() + LONGEST_DRAIN
        while self._open_jobs():
            before = self._ended_attempts()
            self.wait_for(lambda before=before: self._has_moved(before), "an attempt to end")
            if time.monotonic() > deadline:
                raise Stuck(f"{self._open_jobs()} jobs are open after {LONGEST_DRAIN:.0f} s")

    def _has_moved(self, before: int) -> bool:
        return self._ended_attempts() > before or not self._open_jobs()

    def _ended_attempts(self) -> int:
        return Attempt.objects.filter(worker__startswith=self.evidence.run).count()

    def _open_jobs(self) -> int:
        return self._jobs().exclude(status__in=FINISHED).count()

    def _jobs(self) -> JobQuerySet:
        return Job.objects.filter(correlation_id__startswith=self.evidence.run)

    def dismiss_workers(self) -> None:
        """End the workers and note how each ended."""
        self.doing = "stopping workers"
        # One that is only starting does not hear the signal yet: it would be ended by it.
        self.wait_for(lambda: all(map(_is_registered, self.fleet.running())), "the last to report")
        self.fleet.stop()
        self.evidence.ends = self.fleet.ends()
        self.progress.clear()

    # Waiting: always for a fact, with a bound.

    def wait_for(self, fact: Callable[[], T], what: str) -> T:
        """Wait until ``fact`` is true and return it; raise Stuck when it takes too long."""
        if found := self.look_for(fact, timeout=PATIENCE):
            return found
        raise Stuck(f"waited {PATIENCE:.0f} s for {what}; {self.fleet.last_words()}")

    def look_for(self, fact: Callable[[], T], *, timeout: float) -> T:
        """Wait until ``fact`` is true, and return what it is in the end."""
        deadline = time.monotonic() + timeout
        while not (found := fact()) and time.monotonic() < deadline:
            self.tend()
            time.sleep(LOOK_EVERY)
        return found

    def tend(self) -> None:
        """Replace workers that have ended, and show how far it is; end if someone asks."""
        self.interruption.check()
        for fallen in self.fleet.replace_the_fallen():
            code = fallen.process.returncode
            self.progress.say(f"ended    {fallen.name} with exit code {code}; it is replaced")
            if self.fleet.is_exhausted():
                raise Stuck(f"workers keep ending; {self.fleet.last_words()}")
        if time.monotonic() > self.shown_at + SHOW_EVERY:
            self.progress.show(self._state())
            self.shown_at = time.monotonic()

    def _state(self) -> str:
        counts = Counter(dict(self._jobs().values_list("status").annotate(Count("pk"))))
        dead = DeadLetter.objects.filter(correlation_id__startswith=self.evidence.run)
        counts["dead"] = dead.count()
        jobs = ", ".join(f"{counts[status]} {status}" for status in SHOWN)
        return f"{self.shop.placed} orders; jobs: {jobs}; {self.doing}"


def _is_registered(worker: Worker) -> bool:
    return WorkerRow.objects.filter(name__startswith=worker.name).exists()


def _is_quiet(worker: Worker) -> bool:
    """Whether a worker holds nothing but webhooks: on SQLite it then holds no write lock either."""
    held = Job.objects.claimed().filter(claimed_by__startswith=worker.name)
    return not held.exclude(task=tasks.post_webhook.name).exists()


def _was_lost(job_id: int, worker: Worker) -> bool:
    lost = Attempt.objects.filter(job_id=job_id, outcome=Outcome.LOST)
    return lost.filter(worker__startswith=worker.name).exists()
