"""Claim and acknowledge as fast as psycopg can: one thread ahead of the other, and no worker."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import Any

from demo_project.orders.bench import bare
from jobqueue.stores import statements
from jobqueue.stores.claiming import CLAIM

#: How many jobs one statement claims or settles.
BATCH = 200
#: How many batches are claimed ahead of settling them.
AHEAD = 4


def drain() -> tuple[float, int]:
    """Settle every no-op job; return how many seconds that took and how many there were."""
    claimed: SimpleQueue[list[Any]] = SimpleQueue()
    room = threading.Semaphore(AHEAD)
    claimer = threading.Thread(target=_claim, args=(claimed, room), daemon=True)
    before = time.monotonic()
    claimer.start()
    settled = _settle(claimed, room)
    took = time.monotonic() - before
    claimer.join()
    return took, settled


def _claim(claimed: SimpleQueue[list[Any]], room: threading.Semaphore) -> None:
    parameters = bare.claim_parameters(BATCH)
    rows: list[Any] = [()]
    try:
        with bare.connect() as psycopg:
            while rows:
                room.acquire()
                rows = psycopg.execute(CLAIM, parameters).fetchall()
                claimed.put(rows)
    finally:
        claimed.put([])


def _settle(claimed: SimpleQueue[list[Any]], room: threading.Semaphore) -> int:
    settled = 0
    with bare.connect() as psycopg:
        while rows := claimed.get():
            room.release()
            parameters = bare.acknowledge_parameters(rows)
            settled += len(psycopg.execute(statements.ACKNOWLEDGE, parameters).fetchall())
    return settled
