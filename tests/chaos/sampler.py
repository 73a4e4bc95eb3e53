"""Looks in every few seconds: at what must hold at any time, and at what must not grow."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from tests.chaos.cluster import ROLE, Cluster
from tests.chaos.fleet import Fleet
from tests.chaos.nemesis import Happening

PAUSE = 2.0
#: A look takes milliseconds; a server or a machine that takes so long stands still, in seconds.
SLOW = 1.0
#: How many finished jobs are remembered, to see whether they stay as they are.
REMEMBERED = 500

#: Each must find nothing at any time; each reads little, so that looking disturbs nobody.
ANYTIME = {
    "claimed, but not leased": """
        SELECT id FROM jobqueue_job WHERE status = 'claimed'
            AND num_nonnulls(claimed_by, claimed_at, claimed_until) <> 3""",
    "leased, but not claimed": """
        SELECT id FROM jobqueue_job WHERE id > (SELECT max(id) FROM jobqueue_job) - 2000
            AND status <> 'claimed' AND num_nonnulls(claimed_by, claimed_at, claimed_until) > 0""",
    "claimed, and settled under the same fence": """
        SELECT job.id FROM jobqueue_job AS job
        JOIN jobqueue_attempt AS attempt ON attempt.job_id = job.id AND attempt.fence = job.fence
        WHERE job.status = 'claimed'""",
    "a job and a dead letter at once": """
        SELECT id FROM jobqueue_job JOIN jobqueue_deadletter USING (id)""",
    "waiting without an attempt left": """
        SELECT id FROM jobqueue_job
        WHERE status = 'pending' AND attempts >= max_attempts""",
    "more attempts than allowed": """
        SELECT id FROM jobqueue_job
        WHERE status = 'claimed' AND attempts > max_attempts""",
}
#: One by one, since each has its own small index.
DEPTH = """
SELECT (SELECT count(*) FROM jobqueue_job WHERE status = 'pending'),
    (SELECT count(*) FROM jobqueue_job WHERE status = 'claimed'),
    (SELECT count(*) FROM jobqueue_job WHERE status = 'scheduled')
"""
DEAD_TUPLES = """
SELECT COALESCE(max(n_dead_tup::float8 / GREATEST(n_live_tup + n_dead_tup, 1)), 0)
FROM pg_stat_user_tables WHERE relname LIKE 'jobqueue%' AND n_live_tup > 1000
"""
#: In bytes, of the jobs with all of their indexes, and of the index that claims walk.
SIZES = """
SELECT pg_total_relation_size('jobqueue_job'), pg_relation_size('jobqueue_job_pending')
"""
CONNECTIONS = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s"
FINISHED = """
SELECT id, fence, attempts FROM jobqueue_job
WHERE status = 'succeeded' AND id > (SELECT max(id) FROM jobqueue_job) - 2000 LIMIT 50
"""


class Sample(NamedTuple):
    """One look; None where the database did not answer."""

    at: float
    resident: dict[str, int]  # bytes, by process
    files: dict[str, int]
    connections: int | None = None
    dead_tuples: float | None = None
    pending: int | None = None
    claimed: int | None = None
    jobs_size: int | None = None
    pending_index_size: int | None = None


class Sampler:
    """Takes samples in a thread of its own, through connections of its own."""

    def __init__(self, cluster: Cluster, fleet: Fleet) -> None:
        self.cluster = cluster
        self.fleet = fleet
        self.samples: list[Sample] = []
        self.seen: list[str] = []
        self.stalls: list[Happening] = []
        #: How often the database was asked for all that must hold, and answered.
        self.looks = 0
        self._finished: dict[int, tuple[int, int]] = {}
        self._fences: dict[int, int] = {}
        self._chance = random.Random(0)

    def watch(self, ends: threading.Event) -> None:
        """Take samples until the event."""
        while not ends.wait(PAUSE):
            self.sample()

    def sample(self) -> None:
        """Look once, and note when that takes long: leases may end meanwhile, too."""
        began = time.monotonic()
        self._sample()
        if (now := time.monotonic()) - began > SLOW:
            self.stalls.append(Happening("slow", "server", began, now))

    def _sample(self) -> None:
        sample = self._look_at_processes()
        with suppress(psycopg.Error), self.cluster.connect() as connection:
            connection.execute("SET statement_timeout = '3s'")
            sample = self._look_at_database(connection, sample)
            self.seen += self._broken(connection)
            self.looks += 1
        self.samples.append(sample)

    def _look_at_processes(self) -> Sample:
        sample = Sample(time.monotonic(), {}, {})
        for member in self.fleet.all_workers():
            with suppress(OSError, IndexError, ValueError):
                process = Path(f"/proc/{member.pid}")
                pages = int((process / "statm").read_text().split()[1])
                sample.resident[member.name] = pages * os.sysconf("SC_PAGE_SIZE")
                sample.files[member.name] = len(list((process / "fd").iterdir()))
        return sample

    def _look_at_database(self, connection: psycopg.Connection[Any], sample: Sample) -> Sample:
        def ask(statement: str, *given: object) -> tuple[Any, ...]:
            return connection.execute(statement, given or None).fetchone() or ()

        pending, claimed, _ = ask(DEPTH)
        jobs_size, pending_index_size = ask(SIZES)
        return sample._replace(
            jobs_size=jobs_size,
            pending_index_size=pending_index_size,
            connections=ask(CONNECTIONS, ROLE)[0],
            dead_tuples=ask(DEAD_TUPLES)[0],
            pending=pending,
            claimed=claimed,
        )

    def _broken(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        for name, statement in ANYTIME.items():
            for (id_,) in connection.execute(statement).fetchall():
                yield f"job {id_} is {name}"
        yield from self._undone(connection)
        yield from self._gone_back(connection)

    def _undone(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """What has succeeded stays so, also when the server was killed since."""
        ids = list(self._finished)
        rows = connection.execute(
            "SELECT id, fence, attempts FROM jobqueue_job"
            " WHERE id = ANY (%s) AND status = 'succeeded'",
            [ids],
        ).fetchall()
        now = {id_: (fence, attempts) for id_, fence, attempts in rows}
        for id_ in ids:
            if now.get(id_) != self._finished[id_]:
                yield f"job {id_} had succeeded as {self._finished[id_]}; now {now.get(id_)}"
        for id_, fence, attempts in connection.execute(FINISHED).fetchall():
            self._finished[id_] = (fence, attempts)
        while len(self._finished) > REMEMBERED:
            del self._finished[self._chance.choice(list(self._finished))]

    def _gone_back(self, connection: psycopg.Connection[Any]) -> Iterator[str]:
        """Fences never go back."""
        ids = list(self._fences)
        for table in ("jobqueue_job", "jobqueue_deadletter"):
            statement = f"SELECT id, fence FROM {table} WHERE id = ANY (%s)"
            for id_, fence in connection.execute(statement, [ids]).fetchall():
                if fence < self._fences[id_]:
                    yield f"the fence of job {id_} went back from {self._fences[id_]} to {fence}"
        claimed = "SELECT id, fence FROM jobqueue_job WHERE status = 'claimed' LIMIT 200"
        self._fences = dict(connection.execute(claimed).fetchall())
