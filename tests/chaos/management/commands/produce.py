"""A producer process: each transaction writes business rows and their jobs, or neither."""

from __future__ import annotations

import random
import signal
import time
from argparse import ArgumentParser
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand
from django.db import Error, close_old_connections, transaction

from jobqueue import enqueue_many
from jobqueue.registry import Call
from tests.chaos import plan as plans
from tests.chaos.journal import Journal
from tests.chaos.models import Order
from tests.chaos.tasks import work, work_atomically

#: How many jobs one transaction enqueues: one, a few by INSERT, many by COPY.
SIZES = {1: 0.97, 5: 0.028, 120: 0.002}
#: So many transactions roll back by themselves.
ABORTED = 0.01
#: A producer that was away does not have to make up for more than this, in seconds.
MOST_LATE = 60.0


class Aborted(Exception):
    """The producer changed its mind inside the transaction."""


class Producer:
    """Writes down what it is about to do and what came of it, each before it goes on."""

    def __init__(
        self, plan: plans.Plan, journal: Journal, *, number: int, first: int, began: float
    ) -> None:
        self.plan = plan
        self.journal = journal
        self.number = number
        self.counter = first
        self.rate = plan.rate / plan.producers
        #: When the job with the number 0 was due, so that after an outage we catch up.
        self.began = max(began, time.monotonic() - MOST_LATE - first / self.rate)
        self.chance = random.Random(f"{plan.seed}-{number}-{first}")
        self.is_stopped = False

    def stop(self, *_: object) -> None:
        """End after the current transaction; safe in a signal handler."""
        self.is_stopped = True

    def run(self) -> None:
        """Produce at the plan's rate until stopped."""
        while not self.is_stopped:
            early = self.began + self.counter / self.rate - time.monotonic()
            if early > 0:
                time.sleep(min(early, 0.1))
            else:
                size = self.chance.choices(list(SIZES), list(SIZES.values()))[0]
                self.submit([self.plan.kind(self.chance) for _ in range(size)])

    def submit(self, kinds: list[str]) -> None:
        """Run one transaction; note "ok", "fail" (never committed) or "info" (nobody knows)."""
        told = {"producer": self.number, "first": self.counter}
        keys = [f"{self.number}-{self.counter + place}" for place in range(len(kinds))]
        self.counter += len(kinds)
        self.journal.write("submit", **told, kinds=kinds)
        result, why = self._transaction(keys, kinds)
        self.journal.write(result, **told, why=why)
        if result != "ok":
            close_old_connections()
            time.sleep(self.chance.uniform(0.05, 0.3))

    def _transaction(self, keys: list[str], kinds: list[str]) -> tuple[str, str]:
        reached_commit = False
        try:
            with transaction.atomic():
                self._write(keys, kinds)
                reached_commit = True
        except Aborted:
            return "fail", "aborted"
        except Error as error:
            return "info" if reached_commit else "fail", f"{type(error).__name__}: {error}"[:200]
        return "ok", ""

    def _write(self, keys: list[str], kinds: list[str]) -> None:
        Order.objects.bulk_create([Order(key=key) for key in keys])
        calls = [self._call(key, kind) for key, kind in zip(keys, kinds, strict=True)]
        if len(calls) > 1:
            enqueue_many(calls)
        else:
            task, args, kwargs = calls[0]
            task.enqueue(*args, **kwargs)
        if self.chance.random() < ABORTED:
            raise Aborted

    def _call(self, key: str, kind: str) -> Call:
        chance = self.chance
        options: dict[str, Any] = {
            "max_attempts": plans.MAX_ATTEMPTS.get(kind, plans.USUAL_ATTEMPTS),
            "queue_name": chance.choice(["default", "default", "mail"]),
            "priority": chance.choice([0, 0, 0, 1]),
        }
        if chance.random() < 0.05:
            options["run_after"] = timedelta(seconds=chance.uniform(0, 3))
        if kind == "killer":
            options["queue_name"] = plans.KILLERS
        if kind == "atomic":
            return work_atomically.using(**options).bind(key=key)
        seconds = chance.uniform(0.5, 4.0) if kind == "slow" else 0.0
        return work.using(**options).bind(key=key, kind=kind, seconds=seconds)


class Command(BaseCommand):
    help = "Enqueue jobs at a steady rate until SIGTERM."
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("plan", type=Path)
        parser.add_argument("journal", type=Path)
        parser.add_argument("--number", type=int, required=True)
        parser.add_argument("--first", type=int, required=True)
        parser.add_argument("--began", type=float, required=True)

    def handle(self, **options: Any) -> None:
        producer = Producer(
            plans.Plan.load(options["plan"]),
            Journal(options["journal"]),
            number=options["number"],
            first=options["first"],
            began=options["began"],
        )
        signal.signal(signal.SIGTERM, producer.stop)
        producer.run()
