"""What the oracle judges: the journals of producers and handlers, and what the database says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.chaos.fleet import Death
from tests.chaos.journal import read
from tests.chaos.nemesis import Happening

DEAD = "dead"


class Submit(NamedTuple):
    """One job that a producer wanted: "ok", "fail", or "info" where nobody knows."""

    key: str
    kind: str
    result: str


class Run(NamedTuple):
    """One execution: what the handler wrote; times are those of the machine's monotonic clock."""

    job: int
    fence: int
    attempt: int
    key: str
    worker: str
    pid: int
    at: float
    #: Until when the process believed in its lease, as far as it told.
    leased_until: float
    ended: float | None = None
    how: str = ""


class Job(NamedTuple):
    """One row, of a job or of a dead letter."""

    id: int
    key: str
    status: str
    attempts: int
    fence: int
    reason: str = ""


class Attempt(NamedTuple):
    """One row of the ledger; times are those of the database's clock, in seconds."""

    job: int
    number: int
    fence: int
    outcome: str
    worker: str
    started: float
    finished: float
    error: str = ""


@dataclass
class Evidence:
    """All of it, with what lies near beside it: by key, by job."""

    submits: dict[str, Submit] = field(default_factory=dict)
    runs: dict[int, list[Run]] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    attempts: dict[int, list[Attempt]] = field(default_factory=dict)
    orders: set[str] = field(default_factory=set)
    effects: Counter[int] = field(default_factory=Counter)
    happenings: list[Happening] = field(default_factory=list)
    #: When the machine or the server let us wait, whoever did that to them.
    stalls: list[Happening] = field(default_factory=list)
    deaths: list[Death] = field(default_factory=list)
    #: What was seen to be wrong while the run went on.
    seen: list[str] = field(default_factory=list)

    def kind(self, job: Job) -> str:
        """Return how a job was to behave."""
        submit = self.submits.get(job.key)
        return submit.kind if submit else "plain"

    def all_runs(self) -> Iterable[Run]:
        """Give every execution."""
        return (run for runs in self.runs.values() for run in runs)

    def read_journals(self, folder: Path) -> None:
        """Read what producers and handlers wrote."""
        self.submits = _submits(read(folder, "producer-*.jsonl"))
        self.runs = _runs(read(folder, "handler-*.jsonl"))

    def read_database(self, connection: psycopg.Connection[Any]) -> None:
        """Read every table, as it is after the run."""
        connection.execute("SET statement_timeout = 0")
        self.jobs = [Job._make(row) for row in connection.execute(JOBS)]
        for row in connection.execute(ATTEMPTS):
            attempt = Attempt._make(row)
            self.attempts.setdefault(attempt.job, []).append(attempt)
        self.orders = {key for (key,) in connection.execute("SELECT key FROM chaos_order")}
        rows = connection.execute("SELECT job_id, count(*) FROM chaos_effect GROUP BY 1")
        self.effects = Counter(dict(rows.fetchall()))


JOBS = f"""
SELECT id, kwargs ->> 'key', status, attempts, fence, '' FROM jobqueue_job
UNION ALL
SELECT id, kwargs ->> 'key', '{DEAD}', attempts, fence, reason FROM jobqueue_deadletter
"""
ATTEMPTS = """
SELECT job_id, number, fence, outcome, worker, extract(epoch FROM started_at)::float8,
    extract(epoch FROM finished_at)::float8, error_class
FROM jobqueue_attempt ORDER BY job_id, number
"""


def _submits(lines: Iterable[dict[str, Any]]) -> dict[str, Submit]:
    """Put the lines together; a producer that was killed in between leaves "info"."""
    submits: dict[str, Submit] = {}
    wanted: dict[tuple[int, int], list[str]] = {}
    for line in lines:
        batch = (line["producer"], line["first"])
        kinds = wanted.setdefault(batch, line.get("kinds", []))
        result = "info" if line["event"] == "submit" else line["event"]
        for place, kind in enumerate(kinds):
            key = f"{batch[0]}-{batch[1] + place}"
            submits[key] = Submit(key, kind, result)
    return submits


def _runs(lines: Iterable[dict[str, Any]]) -> dict[int, list[Run]]:
    """Put starts and ends together, in the order of the starts."""
    runs: dict[int, list[Run]] = {}
    running: dict[tuple[int, int, int], tuple[int, int]] = {}
    for line in lines:
        event, at = line.pop("event"), line.pop("at")
        of_job = runs.setdefault(line["job"], [])
        execution = (line["job"], line["fence"], line["pid"])
        if event == "start":
            running[execution] = (line["job"], len(of_job))
            of_job.append(Run(**line, at=at))
        else:
            job, place = running.pop(execution)
            until = line["leased_until"]
            runs[job][place] = runs[job][place]._replace(
                ended=at, how=line["how"], leased_until=until
            )
    for of_job in runs.values():
        of_job.sort(key=lambda run: run.at)
    return runs
