"""What can go wrong: each fault does its damage and says how to undo it, and when."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from tests.chaos.cluster import MAX_CONNECTIONS, NAME, ROLE, Cluster
from tests.chaos.fleet import Fleet, Member


class Damage(NamedTuple):
    """What was done to whom; ``undo`` is due after ``lasts`` seconds."""

    target: str
    undo: Callable[[], object] | None = None
    lasts: float = 0.0


class NoTarget(Exception):
    """There is nothing that this could be done to now."""


class World:
    """What a fault works on."""

    def __init__(self, cluster: Cluster, fleet: Fleet, chance: random.Random) -> None:
        self.cluster = cluster
        self.fleet = fleet
        self.chance = chance
        self.lease = fleet.plan.lease

    def worker(self) -> Member:
        """Return one of the workers that may be hurt."""
        return self._one_of(self.fleet.workers())

    def producer(self) -> Member:
        """Return one of the producers."""
        return self._one_of(self.fleet.producers())

    def _one_of(self, members: list[Member]) -> Member:
        if not members:
            raise NoTarget
        return self.chance.choice(members)

    def execute(self, *statements: str) -> None:
        """Run statements as the superuser, each in a transaction of its own."""
        with self.cluster.connect() as connection:
            for statement in statements:
                connection.execute(statement)

    def cut(self, pattern: str) -> int:
        """Let the server end the sessions of processes with such a name; return how many."""
        with self.cluster.connect() as connection:
            cursor = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE usename = %s AND application_name LIKE %s",
                [ROLE, pattern],
            )
            return int((cursor.fetchone() or (0,))[0])


# Done to processes.


def kill_worker(world: World) -> Damage:
    worker = world.worker()
    worker.kill()
    return Damage(worker.name)


def stop_worker(world: World) -> Damage:
    """Halt it, for less than its lease or for far more."""
    worker = world.worker()
    worker.stop()
    return Damage(worker.name, worker.go_on, world.lease * world.chance.uniform(0.5, 3.0))


def terminate_worker(world: World) -> Damage:
    """Let it drain, or hurry it with a second signal."""
    worker = world.worker()
    worker.terminate()
    is_hurried = world.chance.random() < 0.4
    return Damage(worker.name, worker.terminate if is_hurried else None, 0.3)


def kill_producer(world: World) -> Damage:
    producer = world.producer()
    producer.kill()
    return Damage(producer.name)


# Done to sessions.


def cut_worker(world: World) -> Damage:
    worker = world.worker()
    world.cut(worker.name)
    return Damage(worker.name)


def cut_producer(world: World) -> Damage:
    producer = world.producer()
    world.cut(producer.name)
    return Damage(producer.name)


def cut_all(world: World) -> Damage:
    world.cut("%")
    return Damage("all")


# Done to the server.


def restart_fast(world: World) -> Damage:
    return _restart(world, "fast")


def restart_immediate(world: World) -> Damage:
    """Restart without a checkpoint: what was committed comes back from the log."""
    return _restart(world, "immediate")


def _restart(world: World, mode: str) -> Damage:
    world.cluster.stop(mode)
    return Damage("server", world.cluster.try_to_start, world.chance.choice([0.0, 0.0, 2.0, 5.0]))


def kill_postmaster(world: World) -> Damage:
    world.cluster.kill()
    return Damage("server", world.cluster.try_to_start)


def kill_backend(world: World) -> Damage:
    """Kill one session's process: the server restarts all, since shared memory may be damaged."""
    with world.cluster.connect() as connection:
        rows = connection.execute(
            "SELECT pid, application_name FROM pg_stat_activity WHERE usename = %s", [ROLE]
        ).fetchall()
    if not rows:
        raise NoTarget
    pid, name = world.chance.choice(rows)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return Damage(name)


#: Limits that hold for living sessions at once, and values that only some statements survive.
LIMITS = {
    "statement_timeout": ("1ms", "3ms", "10ms"),
    "lock_timeout": ("1ms", "10ms"),
    "idle_in_transaction_session_timeout": ("1ms", "3ms"),
    "transaction_timeout": ("2ms", "10ms"),
}


def limit_time(world: World) -> Damage:
    """Give statements, locks or transactions too little time."""
    name = world.chance.choice(list(LIMITS))
    value = world.chance.choice(LIMITS[name])

    def undo() -> None:
        world.execute(f"ALTER SYSTEM RESET {name}", "SELECT pg_reload_conf()")

    with suppress(psycopg.Error):  # it may be half done, so it is undone in any case
        world.execute(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")
    return Damage(f"{name}={value}", undo, world.chance.uniform(2, 5))


def limit_connections(world: World) -> Damage:
    """Let the database take few sessions, after all were cut."""
    limit = world.chance.choice([0, 3, 8])

    def undo() -> None:
        world.execute(f"ALTER DATABASE {NAME} CONNECTION LIMIT -1")

    with suppress(psycopg.Error):  # it may be half done, so it is undone in any case
        world.execute(f"ALTER DATABASE {NAME} CONNECTION LIMIT {limit}")
        world.cut("%")
    return Damage(f"limit={limit}", undo, world.chance.uniform(2, 6))


def eat_connections(world: World) -> Damage:
    """Take up every connection that is left, and cut one worker off from its own."""
    idle: list[psycopg.Connection[Any]] = []

    def undo() -> None:
        for connection in idle:
            connection.close()

    worker = world.worker()
    with suppress(psycopg.Error):
        while len(idle) < MAX_CONNECTIONS:
            idle.append(world.cluster.connect(user=ROLE, application_name="eater"))
    with suppress(psycopg.Error):
        world.cut(worker.name)
    return Damage(worker.name, undo, world.chance.uniform(2, 6))


def lock_table(world: World) -> Damage:
    """Hold the lock of a migration, with which no statement on jobs goes on."""
    table = world.chance.choice(["jobqueue_job", "jobqueue_job", "jobqueue_attempt"])
    connection = world.cluster.connect(autocommit=False)
    try:
        connection.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
    except psycopg.Error:
        connection.close()
        raise
    return Damage(table, connection.close, world.chance.uniform(0.5, 2.0) * world.lease)


def fill_disk(world: World) -> Damage:
    """Leave the tables no room to grow."""
    if not world.cluster.disk.is_there:
        raise NoTarget
    world.cluster.disk.fill(left=world.chance.choice([0, 64 << 10]))
    return Damage("disk", world.cluster.disk.empty, world.chance.uniform(2, 6))


Fault = Callable[[World], Damage]
#: On whom each kind falls: one process, or everybody who works on the database.
ON_PROCESSES: tuple[Fault, ...] = (
    kill_worker,
    stop_worker,
    terminate_worker,
    kill_producer,
    cut_worker,
    cut_producer,
)
ON_DATABASE: tuple[Fault, ...] = (
    cut_all,
    restart_fast,
    restart_immediate,
    kill_postmaster,
    kill_backend,
    limit_time,
    limit_connections,
    eat_connections,
    lock_table,
    fill_disk,
)
DATABASE_KINDS = frozenset(fault.__name__ for fault in ON_DATABASE)
