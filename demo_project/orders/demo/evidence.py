"""What a run leaves behind: rows in the database, files beside it, and how to find them."""

from __future__ import annotations

import json
import os
import re
import shutil
import string
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.db.models import QuerySet

from demo_project.orders.models import Customer, Order, OrderJob
from jobqueue.models import Attempt, DeadLetter, Job, Worker
from jobqueue.querysets import ago

#: How the references of the demo's orders begin, and so the correlation ids of its jobs.
PREFIX = "demo-"
RECENTLY = timedelta(seconds=30)
MAIL_DOMAIN = "demo.invalid"

_MESSAGE_ID = re.compile(r"^Message-ID:\s*<(\S+)@(\S+)\.invalid>", re.MULTILINE | re.IGNORECASE)
_LOST = re.compile(r"job\.lease_lost job=(?P<job>\d+) .*?attempt=(?P<attempt>\d+)")


class Journal:
    """A file of JSON lines, each on the disk before the next step: evidence that no crash takes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def append(self, **entry: Any) -> None:
        """Add a line and wait until it is stored."""
        with self._lock, self.path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for line in self.path.read_text().splitlines():
            yield json.loads(line)


class End(NamedTuple):
    """How a worker process ended, and how it should have."""

    name: str
    code: int
    expected: int | None  # None: nobody asked it to end

    def __str__(self) -> str:
        return f"{self.name} ended with {self.code}, expected was {self.expected}"


class LateOutcome(NamedTuple):
    """An outcome that a worker could not record any more, by its log."""

    worker: str
    job_id: int
    attempt: int


@dataclass
class Evidence:
    """Everything that one run left, read when first asked for: ask when the run is over."""

    run: str
    folder: Path
    ends: list[End] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.orders = Journal(self.folder / "evidence" / f"{self.run}-orders.jsonl")
        self.requests = Journal(self.folder / "evidence" / f"{self.run}-requests.jsonl")

    @property
    def logs(self) -> Path:
        """Where the workers' logs are."""
        return self.folder / "logs"

    def reference(self, number: int) -> str:
        """Return the reference of the run's nth order."""
        return f"{self.run}-{number:05}"

    @cached_property
    def placed(self) -> dict[str, list[int]]:
        """The committed orders, as the shop was told: reference to job ids."""
        return {each["reference"]: each["jobs"] for each in self.orders if each["committed"]}

    @cached_property
    def refused(self) -> set[str]:
        """The references of the orders that were rolled back."""
        return {each["reference"] for each in self.orders if not each["committed"]}

    @cached_property
    def jobs(self) -> dict[int, Job]:
        """The jobs that are no dead letters."""
        return {job.pk: job for job in _of(self.run, Job.objects.all())}

    @cached_property
    def dead(self) -> dict[int, DeadLetter]:
        """The dead letters."""
        return {letter.pk: letter for letter in _of(self.run, DeadLetter.objects.all())}

    @cached_property
    def all_jobs(self) -> dict[int, Job | DeadLetter]:
        """The jobs, dead or not."""
        return {**self.jobs, **self.dead}

    @cached_property
    def attempts(self) -> dict[int, list[Attempt]]:
        """The attempts of each job, oldest first."""
        attempts: dict[int, list[Attempt]] = defaultdict(list)
        for rows in (Job.objects.all(), DeadLetter.objects.all()):
            ids = _of(self.run, rows).values("pk")
            for attempt in Attempt.objects.filter(job_id__in=ids).order_by("number"):
                attempts[attempt.job_id].append(attempt)
        return attempts

    @cached_property
    def mails(self) -> list[tuple[str, str]]:
        """The receipts in the outbox: idempotency key and reference."""
        texts = (path.read_text() for path in Path(settings.OUTBOX).glob("*.log"))
        found = (match.groups() for text in texts for match in _MESSAGE_ID.finditer(text))
        return [(key, reference) for key, reference in found if self.owns(reference)]

    @cached_property
    def late_outcomes(self) -> list[LateOutcome]:
        """The outcomes that were refused, by the workers' logs."""
        return [
            LateOutcome(path.stem, int(match["job"]), int(match["attempt"]))
            for path in sorted(self.logs.glob(f"{self.run}-*.log"))
            for match in _LOST.finditer(path.read_text(errors="replace"))
        ]

    def owns(self, reference: str) -> bool:
        """Whether a reference is one of this run's."""
        return reference.startswith(f"{self.run}-")


def begin(folder: Path) -> Evidence:
    """Return the evidence, still empty, of a run that begins now."""
    return Evidence(f"{PREFIX}{_base36(int(time.time()))}", folder)


def forget_earlier_runs(folder: Path) -> None:
    """Delete the rows and files of earlier runs, and nothing else."""
    orders = Order.objects.filter(reference__startswith=PREFIX)
    noted = OrderJob.objects.filter(order__in=orders)
    jobs, letters = (_of(PREFIX, rows) for rows in (Job.objects.all(), DeadLetter.objects.all()))
    for rows in (noted.values("job_id"), jobs.values("pk"), letters.values("pk")):
        Attempt.objects.filter(job_id__in=rows).delete()
    for rows in (jobs, letters, orders):
        rows.delete()
    Customer.objects.filter(email__endswith=f"@{MAIL_DOMAIN}", orders__isnull=True).delete()
    for name in ("evidence", "logs", "outbox"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for path in (folder / "media" / "documents").glob(f"{PREFIX}*"):
        path.unlink()


def strangers() -> list[str]:
    """Return the workers of this database that are not the demo's, by their recent heartbeats."""
    alive = Worker.objects.filter(heartbeat_at__gte=ago(RECENTLY))
    return list(alive.exclude(name__startswith=PREFIX).values_list("name", flat=True))


def _of(prefix: str, rows: QuerySet[Any]) -> QuerySet[Any]:
    return rows.filter(correlation_id__startswith=prefix)


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = (string.digits + string.ascii_lowercase)[digit] + digits
    return digits
