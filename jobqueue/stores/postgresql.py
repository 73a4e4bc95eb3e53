"""The store for PostgreSQL: set-based statements, one round trip each."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any

from django.db import OperationalError, connections

from jobqueue.claims import Claim, JobRequest, Key, Lease, Settlement, Turn
from jobqueue.states import Status
from jobqueue.stores import claiming, statements
from jobqueue.stores.base import Expired, Inserted, Look, Store

#: So many rows are worth the three statements of a COPY.
MANY = 100
#: So many are sent at a time.
CHUNK = 500
#: How often a statement is sent that has to give way to another.
TRIES = 5
#: PostgreSQL's codes for that: serialization failure, deadlock.
CONFLICTS = ("40001", "40P01")


class PostgreSQLStore(Store):
    """PostgreSQL 14 and later."""

    def _fetch(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        for _ in range(TRIES - 1):
            try:
                return self._execute(statement, parameters)
            except OperationalError as error:
                if not self._gave_way(error):
                    raise
        return self._execute(statement, parameters)

    def _gave_way(self, error: OperationalError) -> bool:
        """Whether a statement on its own was undone for another's sake, so that it may come again.

        Where REPEATABLE READ is the server's default, that is so whenever a row has changed since
        the statement began.
        """
        is_alone = connections[self.using].get_autocommit()
        return is_alone and getattr(error.__cause__, "sqlstate", None) in CONFLICTS

    def _execute(self, statement: str, parameters: Any) -> list[tuple[Any, ...]]:
        with connections[self.using].cursor() as cursor:
            cursor.execute(statement, parameters)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows

    def insert(self, request: JobRequest) -> Inserted:
        [(*decided, _)] = self._fetch(statements.INSERT, request)
        return Inserted._make(decided)

    def insert_many(self, requests: Sequence[JobRequest]) -> list[int]:
        if len(requests) >= MANY and self._can_copy():
            return self._copy(requests)
        columns = [list(column) for column in zip(*requests, strict=True)]
        return [id_ for id_, _ in self._fetch(statements.INSERT_MANY, columns)]

    def _can_copy(self) -> bool:
        """Whether the driver is psycopg 3."""
        connection: Any = connections[self.using]
        return hasattr(connection.Database, "Capabilities")

    def _copy(self, requests: Sequence[JobRequest]) -> list[int]:
        [(ids, now)] = self._fetch(statements.TAKE_IDS, {"count": len(requests)})
        rows = _as_rows(ids, requests, now)
        connection: Any = connections[self.using]
        connection.validate_no_broken_transaction()
        with (
            connection.cursor() as cursor,
            connection.wrap_database_errors,
            cursor.copy(statements.COPY) as copy,
        ):
            while some := "".join(islice(rows, CHUNK)):  # the server reads while we write the next
                copy.write(some)
        self.wake({each.queue_name for each in requests})
        return list(ids)

    def wake(self, queue_names: Collection[str]) -> None:
        if queue_names:
            self._fetch(statements.WAKE, {"queue_names": list(queue_names)})

    def claim(
        self, turns: Sequence[Turn], *, worker: str, lease: float, leases: Mapping[str, float]
    ) -> list[Claim]:
        claims: list[Claim] = []
        shared = {"worker": worker, "lease": lease, "leases": json.dumps(leases)}
        if anywhere := [turn for turn in turns if not turn.floors]:
            parameters = shared | _queues(anywhere)
            claims += map(Claim._make, self._fetch(claiming.CLAIM, parameters))
        if above := [turn for turn in turns if turn.floors]:
            parameters = shared | _queues(above) | _lanes(above)
            claims += map(Claim._make, self._fetch(claiming.CLAIM_ABOVE, parameters))
        return claims

    def extend(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        given = {
            "ids": _array([lease.claim.id for lease in leases]),
            "fences": _array([lease.claim.fence for lease in leases]),
            "spans": _array([lease.span for lease in leases]),
        }
        return {(id_, fence): asked for id_, fence, asked in self._fetch(statements.EXTEND, given)}

    def held(self, leases: Sequence[Lease]) -> dict[Key, bool]:
        given = {
            "ids": _array([lease.claim.id for lease in leases]),
            "fences": _array([lease.claim.fence for lease in leases]),
        }
        return {(id_, fence): asked for id_, fence, asked in self._fetch(statements.HELD, given)}

    def acknowledge(self, settlements: Sequence[Settlement]) -> set[Key]:
        workers = {each.claim.claimed_by for each in settlements}
        if len(workers) > 1:
            return self.settle(settlements)
        now = time.monotonic()
        parameters = {
            "worker": workers.pop(),
            "ids": _array([each.claim.id for each in settlements]),
            "fences": _array([each.claim.fence for each in settlements]),
            "started_ago": _array([int(1e6 * (now - each.started)) for each in settlements]),
            "finished_ago": _array([int(1e6 * (now - each.finished)) for each in settlements]),
        }
        return set(self._fetch(statements.ACKNOWLEDGE, parameters))

    def settle(self, settlements: Sequence[Settlement]) -> set[Key]:
        rows = self._settle(statements.SETTLE, settlements)
        statuses = {(id_, fence): status for id_, fence, status in rows}
        for settlement in settlements:
            if statuses.get(settlement.claim.key) == Status.CANCELLED:
                settlement.status = Status.CANCELLED
        return set(statuses)

    def bury(self, settlements: Sequence[Settlement]) -> set[Key]:
        return set(self._settle(statements.BURY, settlements))

    def delete(self, settlements: Sequence[Settlement]) -> set[Key]:
        return set(self._settle(statements.DELETE, settlements))

    def _settle(self, statement: str, settlements: Sequence[Settlement]) -> list[tuple[Any, ...]]:
        now = time.monotonic()
        parameters = {
            "ids": _array([each.claim.id for each in settlements]),
            "settlements": json.dumps([_as_record(each, now) for each in settlements]),
        }
        return self._fetch(statement, parameters)

    def promote(self, *, limit: int) -> list[str]:
        return [name for (name,) in self._fetch(statements.PROMOTE, {"limit": limit})]

    def lock_expired(self, *, limit: int) -> list[Expired]:
        rows = self._fetch(statements.LOCK_EXPIRED, {"limit": limit})
        return [Expired(Claim._make(row[:-2]), row[-2], row[-1]) for row in rows]

    def look(self) -> Look:
        return Look._make(self._fetch(statements.LOOK)[0])


def _queues(turns: Sequence[Turn]) -> dict[str, Any]:
    return {
        "queue_names": [turn.queue_name for turn in turns],
        "limits": [turn.limit for turn in turns],
        "most": max(turn.limit for turn in turns),
    }


def _lanes(turns: Sequence[Turn]) -> dict[str, Any]:
    lanes = [
        (turn.queue_name, priority, *floor)
        for turn in turns
        for priority, floor in sorted(turn.floors.items(), reverse=True)
    ]
    names = ("lane_names", "priorities", "run_afters", "ids")
    return dict(zip(names, map(list, zip(*lanes, strict=True)), strict=True))


def _as_rows(ids: Iterable[int], requests: Iterable[JobRequest], now: datetime) -> Iterator[str]:
    """Give lines for COPY; what it would read as an escape or as an end is escaped."""
    starts: dict[tuple[Any, ...], str] = {}
    for id_, request in zip(ids, requests, strict=True):
        task, args, kwargs, *decided = request
        key = (task, *decided)
        if (start := starts.get(key)) is None:
            start = starts[key] = _start_of_row(request, now)
        if "\\" in args or "\\" in kwargs:
            args, kwargs = args.replace("\\", r"\\"), kwargs.replace("\\", r"\\")
        yield f"{start}\t{id_}\t{args}\t{kwargs}\n"


def _start_of_row(request: JobRequest, now: datetime) -> str:
    due = request.run_at or now
    if request.run_in is not None:
        due = now + timedelta(seconds=request.run_in)
    columns = (
        *(request.task, request.version, request.queue_name, request.priority),
        *(request.max_attempts, request.correlation_id, request.actor),
    )
    text = "\t".join(map(str, columns)).replace("\\", r"\\")
    trace = r"\N" if request.trace is None else request.trace.replace("\\", r"\\")
    status = Status.SCHEDULED if due > now else Status.PENDING
    return f"{text}\t{trace}\t{due.isoformat()}\t{status}"


def _array(numbers: list[int] | list[float]) -> str:
    """Return numbers as an array of PostgreSQL; the driver takes ten times as long over a list."""
    return f"{{{str(numbers)[1:-1]}}}"


def _as_record(settlement: Settlement, now: float) -> dict[str, Any]:
    failure = settlement.failure
    return {
        "id": settlement.claim.id,
        "fence": settlement.claim.fence,
        "worker": settlement.claim.claimed_by,
        "status": settlement.status,
        "reason": settlement.reason,
        "outcome": settlement.outcome,
        "delay": None if settlement.delay is None else settlement.delay.total_seconds(),
        "started_ago": now - settlement.started,
        "finished_ago": now - settlement.finished,
        "result": settlement.result,
        "error_class": failure.error_class,
        "message": failure.message,
        "traceback": failure.traceback,
        "fingerprint": failure.fingerprint,
    }
