"""Tasks that do what handlers do in the field: work, fail in every way, and misbehave.

Marks and gates are files, see ``tests.processes``. A failing task waits for nothing before its next
attempt, unless waiting is its point; how often it is tried is for the test to say.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import django.db
from django.db import connection, connections, transaction
from django.db.utils import DataError, IntegrityError
from django.urls import get_script_prefix, set_script_prefix
from django.utils import timezone, translation

from jobqueue import Discard, JobContext, Retry, Snooze, task
from tests.models import Mark

AT_ONCE = timedelta(0)
#: The end of every wait in a handler; no test lets it come to that.
PATIENCE = 60.0


def mark(path: str | None, event: str, **fields: object) -> None:
    """Append a mark to the file and have it on disk before going on."""
    if path is None:
        return
    line = json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic(), **fields}) + "\n"
    with Path(path).open("a") as file:
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def wait_at(gate: str) -> None:
    """Wait until the test opens the gate."""
    deadline = time.monotonic() + PATIENCE
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError("the test never opened the gate")
        # Not time.sleep(): faketime breaks it, taking a monotonic instant for one of the calendar.
        threading.Event().wait(0.01)


# Handlers that work.


@task
def noop(*args: Any, **kwargs: Any) -> None:
    """Do nothing, with any arguments."""


@task
def add(a: int, b: int) -> int:
    return a + b


@task(lease=timedelta(minutes=7))
def leased() -> None:
    """Have a lease of its own."""


@task(backoff=AT_ONCE, takes_context=True)
def leave_mark(context: JobContext, key: str = "", *, marks: str) -> None:
    """Leave one mark, so that a test can count the runs."""
    mark(marks, "run", key=key, job=context.job_id, attempt=context.attempt)


@task(backoff=AT_ONCE, takes_context=True)
def slow(context: JobContext, seconds: float, *, marks: str | None = None, key: str = "") -> None:
    """Take some time between two marks."""
    mark(marks, "start", key=key, job=context.job_id, attempt=context.attempt)
    time.sleep(seconds)
    mark(marks, "end", key=key, job=context.job_id, attempt=context.attempt)


@task(backoff=AT_ONCE, takes_context=True)
def hold(context: JobContext, *, gate: str, marks: str | None = None, key: str = "") -> str:
    """Wait between two marks until the test opens the gate."""
    mark(marks, "start", key=key, job=context.job_id, attempt=context.attempt)
    wait_at(gate)
    mark(marks, "end", key=key, job=context.job_id, lease_lost=context.lease_lost)
    return key


@task(backoff=AT_ONCE, takes_context=True)
def hold_until_cancelled(context: JobContext, *, marks: str) -> str:
    """Work until somebody asks for the job to be cancelled."""
    mark(marks, "start", job=context.job_id)
    deadline = time.monotonic() + PATIENCE
    while not context.cancel_requested and time.monotonic() < deadline:
        time.sleep(0.01)
    mark(marks, "end", job=context.job_id, cancel_requested=context.cancel_requested)
    return "stopped early"


@task(backoff=AT_ONCE, takes_context=True)
def hold_then_fail(context: JobContext, *, gate: str, marks: str | None = None) -> NoReturn:
    """Wait until the test opens the gate, then fail."""
    mark(marks, "start", job=context.job_id, attempt=context.attempt)
    wait_at(gate)
    raise RuntimeError("failed behind the gate")


@task(backoff=AT_ONCE)
def spin(seconds: float, *, marks: str | None = None) -> None:
    """Burn the processor in Python, so that other threads hardly get a turn."""
    mark(marks, "start")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        sum(range(1000))
    mark(marks, "end")


@task(queue_name="mail", priority=5)
def send_mail(key: str = "", *, marks: str | None = None) -> None:
    """Run in a queue and at a priority of its own."""
    mark(marks, "run", key=key)


@task(takes_context=True)
def dump_context(context: JobContext) -> dict[str, Any]:
    """Return everything that the context says."""
    time_left = context.time_left
    return {
        "job_id": context.job_id,
        "attempt": context.attempt,
        "max_attempts": context.max_attempts,
        "correlation_id": context.correlation_id,
        "actor": context.actor,
        "idempotency_key": context.idempotency_key,
        "time_left": time_left.total_seconds() if time_left else None,
        "lease_lost": context.lease_lost,
        "cancel_requested": context.cancel_requested,
    }


@task(takes_context=True, timeout=timedelta(seconds=60))
def time_left(context: JobContext) -> float:
    """Return how many seconds are left of the minute that the task has."""
    assert context.time_left is not None
    return context.time_left.total_seconds()


@task(takes_context=True)
def extend_lease(context: JobContext) -> bool:
    """Extend the lease by hand."""
    context.extend_lease()
    return context.lease_lost


@task
def enqueue_more(key: str) -> int:
    """Enqueue another job from within a job."""
    return int(leave_row.enqueue(key).pk)


@task(backoff=AT_ONCE, atomic=True)
def enqueue_more_then_fail(key: str) -> NoReturn:
    """Enqueue another job, which must go away with the failure."""
    leave_row.enqueue(key)
    raise RuntimeError("after enqueueing another job")


@task(version=2, upgrade=lambda version, args, kwargs: (args, kwargs | {"from_version": version}))
def versioned(*, from_version: int = 2) -> int:
    """Return the version of the payload."""
    return from_version


@task(name="tests.renamed", aliases=("tests.old_name",))
def renamed() -> str:
    """Be known by a name that is not the function's, and by an older one."""
    return "renamed"


@task(permission="tests.change_mark", backoff=AT_ONCE)
def change_mark(key: str) -> None:
    """Do what only an actor with the permission may have done."""
    Mark.objects.create(key=key)


# Handlers that write to the database.


@task(backoff=AT_ONCE)
def leave_row(key: str, value: str = "") -> None:
    """Write a row, committed at once."""
    Mark.objects.create(key=key, value=value)


@task(backoff=AT_ONCE, atomic=True)
def leave_row_atomically(key: str, value: str = "") -> None:
    """Write a row in one transaction with the acknowledgement."""
    Mark.objects.create(key=key, value=value)


@task(backoff=AT_ONCE, atomic=True)
def leave_row_then_fail(key: str) -> NoReturn:
    """Write a row that must go away with the failure."""
    Mark.objects.create(key=key)
    raise RuntimeError("after writing a row")


@task(backoff=AT_ONCE, atomic=True, takes_context=True)
def leave_row_then_hold(
    context: JobContext, key: str, *, gate: str, marks: str | None = None
) -> None:
    """Write a row, then wait until the test opens the gate."""
    Mark.objects.create(key=key, value=str(context.attempt))
    mark(marks, "start", key=key, attempt=context.attempt)
    wait_at(gate)
    mark(marks, "end", key=key, attempt=context.attempt)


# Handlers that fail.


class StrRaises(Exception):
    def __str__(self) -> NoReturn:
        raise RuntimeError("no text for you")


class ReprRaises(Exception):
    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr for you")

    __str__ = __repr__


class NeedsArguments(Exception):
    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"{code}: {detail}")


class Unwell(BaseException):
    """Not an Exception, as some libraries' errors."""


@task(backoff=AT_ONCE)
def fail(message: str = "failed", *, marks: str | None = None) -> NoReturn:
    mark(marks, "run")
    raise RuntimeError(message)


@task(backoff=AT_ONCE, takes_context=True)
def fail_until(context: JobContext, attempt: int) -> str:
    """Fail until the given attempt, which succeeds."""
    if context.attempt < attempt:
        raise RuntimeError(f"attempt {context.attempt} of {context.max_attempts} failed")
    return "at last"


@task
def fail_and_wait() -> NoReturn:
    """Fail, and be tried again after the default backoff."""
    raise RuntimeError("failed")


@task(backoff=timedelta(hours=1))
def fail_and_wait_an_hour() -> NoReturn:
    """Fail, and be tried again an hour later."""
    raise RuntimeError("failed")


@task(backoff=AT_ONCE)
def fail_with_nul() -> NoReturn:
    """Raise an error whose text no PostgreSQL can store."""
    raise ValueError("before\0after \ud800")


@task(backoff=AT_ONCE)
def fail_at_length(size: int) -> NoReturn:
    """Raise an error with an endless text."""
    raise ValueError("x" * size)


@task(backoff=AT_ONCE)
def fail_unprintably(kind: str) -> NoReturn:
    """Raise an error that resists being turned into text."""
    if kind == "str":
        raise StrRaises
    if kind == "repr":
        raise ReprRaises
    if kind == "arguments":
        raise NeedsArguments(7, detail="out of stock")
    raise ValueError(threading.Lock())


@task(backoff=AT_ONCE)
def fail_in_a_chain() -> NoReturn:
    """Raise an error that was caused by another."""
    try:
        raise KeyError("the cause")
    except KeyError as error:
        raise RuntimeError("the effect") from error


@task(backoff=AT_ONCE)
def fail_with_a_base_exception() -> NoReturn:
    raise Unwell("neither Exception nor exit")


@task(backoff=AT_ONCE)
def fail_on_a_line_of(path: str) -> None:
    """Raise an error from the first line of a file, whatever else stands there."""
    exec(compile("raise ValueError('plain')", path, "exec"))


@task(backoff=AT_ONCE)
def run_out_of_memory() -> bytearray:
    """Ask for more memory than there is."""
    return bytearray(2**62)


@task(backoff=AT_ONCE)
def recurse() -> None:
    """Exhaust the stack."""
    recurse()


@task(backoff=AT_ONCE, retry_on=(OSError,), give_up_on=(ConnectionRefusedError,))
def be_picky(kind: str) -> NoReturn:
    """Raise an error that is retried, one of a kind that is not, or one that is not named."""
    raise {"retried": OSError, "given up": ConnectionRefusedError}.get(kind, LookupError)(kind)


@task(backoff=timedelta(hours=1))
def retry(delay: float | None = None) -> NoReturn:
    """Ask for a retry after so many seconds."""
    raise Retry("come back later", delay=delay)


@task
def discard(reason: str = "gone for good") -> NoReturn:
    raise Discard(reason)


@task(takes_context=True)
def snooze(context: JobContext, seconds: float, *, times: int = 1) -> str:
    """Snooze so many times, then work."""
    if context.attempt <= times:
        raise Snooze(seconds)
    return "awake"


# Async handlers.


@task(backoff=AT_ONCE)
async def async_row(key: str) -> str:
    """Write a row from async code."""
    await asyncio.sleep(0)
    await Mark.objects.acreate(key=key)
    return "awaited"


@task(backoff=AT_ONCE)
async def async_fail() -> NoReturn:
    await asyncio.sleep(0)
    raise RuntimeError("awaited and failed")


# Results that cannot be stored.


class Hostile:
    """Not even to be asked for an attribute, as a lazy object whose row is gone."""

    def __getattr__(self, name: str) -> NoReturn:
        raise LookupError(name)


@task(backoff=AT_ONCE)
def return_oddly(kind: str, *, marks: str | None = None) -> Any:
    """Work, and return what cannot be stored as JSON."""
    mark(marks, "run", kind=kind)
    results: dict[str, Any] = {
        "hostile": Hostile(),
        "nan": float("nan"),
        "nul": "before\0after",
        "set": {1, 2},
        "model": Mark(key="unsaved"),
        "huge": "x" * 50_000_000,
    }
    return results[kind]


# Handlers that take their process with them, or try to.


@task(backoff=AT_ONCE)
def kill_self(*, marks: str | None = None) -> None:
    """End the worker as the kernel does when memory runs out."""
    mark(marks, "run")
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(PATIENCE)  # the signal may take a moment to arrive


@task(backoff=AT_ONCE)
def exit_at_once(code: int = 1, *, marks: str | None = None) -> NoReturn:
    """End the worker behind Python's back."""
    mark(marks, "run")
    os._exit(code)


@task(backoff=AT_ONCE)
def exit_politely(code: int = 0) -> NoReturn:
    sys.exit(code)


@task(backoff=AT_ONCE)
def interrupt() -> NoReturn:
    raise KeyboardInterrupt


@task(backoff=AT_ONCE, timeout=timedelta(seconds=0.3))
def overrun(*, marks: str | None = None) -> None:
    """Take longer than the task's timeout, in Python."""
    mark(marks, "start")
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        time.sleep(0.01)


@task(backoff=AT_ONCE, timeout=timedelta(seconds=0.3))
def overrun_in_one_call(seconds: float = PATIENCE, *, marks: str | None = None) -> None:
    """Take longer than the task's timeout, in one call that nothing in Python can interrupt."""
    mark(marks, "start")
    time.sleep(seconds)
    mark(marks, "end")


# Handlers that leave a mess.


@task(backoff=AT_ONCE)
def leak_transaction(kind: str, key: str, *, failing: bool = False) -> None:
    """Write a row in a transaction that is left open; the row must not be there in the end."""
    if kind == "autocommit":
        transaction.set_autocommit(False)
    elif kind == "atomic":
        transaction.atomic().__enter__()
    else:
        connection.cursor().execute("BEGIN")
    Mark.objects.create(key=key)
    if kind == "lock":
        connection.cursor().execute(f"LOCK TABLE {Mark._meta.db_table} IN ACCESS EXCLUSIVE MODE")
    if failing:
        raise RuntimeError("failed with a transaction open")


@task(backoff=AT_ONCE, atomic=True)
def leak_in_atomic(kind: str, key: str, *, failing: bool = False) -> None:
    """Leave a block of its own open inside the transaction of an atomic task."""
    Mark.objects.create(key=key)
    transaction.atomic(savepoint=kind == "savepoint").__enter__()
    if failing:
        raise RuntimeError("failed inside a block left open")


@task(backoff=AT_ONCE)
def swallow_database_error(kind: str) -> str:
    """Run into a database error and carry on as if nothing had happened."""
    Mark.objects.count()
    if kind == "in a block of its own":
        try:
            with transaction.atomic():
                Mark.objects.create(key=None)
        except IntegrityError:
            return "swallowed"
    if kind == "in a raw transaction":
        connection.cursor().execute("BEGIN")
    try:
        Mark.objects.create(key=None)
    except IntegrityError:
        return "swallowed"
    return "the database accepted it"


@task(backoff=AT_ONCE)
def fail_in_the_database() -> None:
    """Raise what the database says of a bad value, out of an open block."""
    with transaction.atomic():
        Mark.objects.create(key="x" * 1000)
        raise DataError("as SQLite would not say")


@task(backoff=AT_ONCE)
def close_connection(kind: str) -> None:
    """Close the database connection under the worker's feet."""
    Mark.objects.count()
    if kind == "close":
        connection.close()
    elif kind == "close_all":
        connections.close_all()
    elif kind == "close_old":
        django.db.close_old_connections()
    elif kind == "raw":
        connection.connection.close()
    else:
        with transaction.atomic():
            connection.close()


leftover: contextvars.ContextVar[str] = contextvars.ContextVar("leftover", default="")


@task(backoff=AT_ONCE)
def leave_locale(*, failing: bool = False) -> None:
    """Change everything that a thread remembers, and put nothing back."""
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    set_script_prefix("/elsewhere/")
    leftover.set("left by another job")
    if failing:
        raise RuntimeError("failed abroad")


@task(backoff=AT_ONCE)
def read_locale() -> dict[str, str]:
    """Return what a handler finds."""
    return {
        "language": translation.get_language(),
        "time zone": timezone.get_current_timezone_name(),
        "script prefix": get_script_prefix(),
        "leftover": leftover.get(),
    }


@task(backoff=AT_ONCE)
def fork(kind: str, *, marks: str | None = None) -> int:
    """Fork with a connection open; return the exit code of the child."""
    Mark.objects.count()
    mark(marks, "parent", session=_session())
    if kind == "multiprocessing":
        child = multiprocessing.get_context("fork").Process(target=_count_in_child, args=(marks,))
        child.start()
        child.join(PATIENCE)
        return int(child.exitcode or 0)
    pid = os.fork()
    if pid == 0:
        if kind == "child returns":
            mark(marks, "child", session=0)
            return 0  # into code that believes to be the worker
        _count_in_child(marks)
        os._exit(0)
    mark(marks, "forked", child=pid)
    return os.waitstatus_to_exitcode(_wait_for_child(pid))


def _count_in_child(marks: str | None) -> None:
    """Query as the child of a careless handler does, on the connection of its parent."""
    try:
        Mark.objects.count()
    finally:
        mark(marks, "child", session=_session())


def _session() -> int:
    """Return what tells this connection from any other at the same time."""
    raw = connection.connection
    return int(raw.info.backend_pid if connection.vendor == "postgresql" else id(raw))


def _wait_for_child(pid: int) -> int:
    deadline = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


# Handlers that two workers run at the same time, so that each attempt has a gate of its own.


@task(backoff=AT_ONCE, takes_context=True)
def hold_each(context: JobContext, ending: str, *, gate: str, marks: str) -> str:
    """Wait until the test opens the gate of this attempt, then end as told."""
    mark(marks, "start", ending=ending, attempt=context.attempt)
    wait_at(f"{gate}.{context.attempt}")
    mark(marks, "end", ending=ending, attempt=context.attempt, lease_lost=context.lease_lost)
    errors = {"retry": RuntimeError("failed"), "discard": Discard("gone"), "snooze": Snooze(3600)}
    if ending in errors:
        raise errors[ending]
    return f"attempt {context.attempt}"


@task(backoff=AT_ONCE, atomic=True, takes_context=True)
def hold_each_atomically(context: JobContext, key: str, *, gate: str, marks: str) -> None:
    """Write a row, wait at the gate of this attempt, and commit row and acknowledgement."""
    Mark.objects.create(key=key, value=str(context.attempt))
    mark(marks, "start", ending="atomic", attempt=context.attempt)
    wait_at(f"{gate}.{context.attempt}")
    mark(marks, "end", ending="atomic", attempt=context.attempt)


@task(backoff=AT_ONCE, takes_context=True)
def hold_the_interpreter(context: JobContext, seconds: float, *, marks: str) -> str:
    """Let no other thread of the process run for a while, at the first attempt."""
    mark(marks, "start", attempt=context.attempt)
    if context.attempt == 1:
        ctypes.PyDLL(None).usleep(int(seconds * 1_000_000))  # PyDLL keeps the interpreter's lock
    mark(marks, "end", attempt=context.attempt)
    return f"attempt {context.attempt}"


# Handlers that take too long, in ways that are hard to end.


@task(backoff=AT_ONCE, timeout=timedelta(seconds=1), lease=timedelta(seconds=1))
def overrun_with_the_lease(*, marks: str) -> None:
    """Have a timeout that is as long as the lease, and overrun both."""
    mark(marks, "start")
    wait_at("/nowhere")


@task(backoff=AT_ONCE, timeout=timedelta(seconds=0.3))
def overrun_in_a_pool(seconds: float, *, marks: str) -> None:
    """Wait for a thread of one's own, which Python would join before it exits."""
    mark(marks, "start")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(time.sleep, seconds).result()
    mark(marks, "end")


@task(backoff=AT_ONCE, timeout=timedelta(seconds=0.3))
async def overrun_in_async(*, marks: str) -> None:
    """Take longer than the task's timeout, in a coroutine."""
    mark(marks, "start")
    await asyncio.sleep(PATIENCE)


# Handlers that start something of their own.


@task(backoff=AT_ONCE)
def leave_a_thread(kind: str, seconds: float) -> str:
    """Start a thread that goes on after the job, and that Python would wait for at its end."""
    if kind == "pool":
        ThreadPoolExecutor(1, "left-behind").submit(time.sleep, seconds)
    else:
        thread = threading.Thread(target=time.sleep, args=(seconds,), name="left-behind")
        thread.daemon = False  # otherwise it is as the one that starts it
        thread.start()
    return "started"


@task(backoff=AT_ONCE)
def run_a_program(seconds: float, *, marks: str) -> None:
    """Start another program and insist on its success."""
    arguments = ["sleep", str(seconds)]
    with subprocess.Popen(arguments) as program:
        mark(marks, "start", program=program.pid)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, arguments)


# Handlers that use the database for a while.


@task(backoff=AT_ONCE, takes_context=True)
def hold_between_queries(context: JobContext, key: str, *, gate: str, marks: str) -> None:
    """Use a connection, wait until the test opens the gate, and use it again."""
    Mark.objects.count()
    mark(marks, "start", key=key, attempt=context.attempt)
    wait_at(gate)
    Mark.objects.create(key=key, value=str(context.attempt))


@task(backoff=AT_ONCE)
def write_at_length(key: str, *, rows: int, seconds: float, marks: str) -> None:
    """Be in the middle of a statement, then of a transaction with many, for a while."""
    mark(marks, "start")
    if connection.vendor == "postgresql":
        connection.cursor().execute("SELECT pg_sleep(%s)", [seconds])
    else:
        time.sleep(seconds)
    with transaction.atomic():
        for number in range(rows):
            Mark.objects.create(key=key, value=str(number))


@task(backoff=AT_ONCE)
def count_logged_queries() -> int:
    """Return how many queries of earlier jobs Django still keeps for this thread."""
    before = len(connection.queries_log)
    Mark.objects.count()
    return before


@task(backoff=AT_ONCE)
def exhaust_memory(*, megabytes: int, marks: str) -> int:
    """Allocate until the operating system refuses, a little at a time."""
    mark(marks, "start")
    return sum(len(piece) for piece in [bytearray(1_000_000) for _ in range(megabytes)])


# Handlers on hosts whose network or clock is wrong.


@task(backoff=AT_ONCE, takes_context=True)
def hold_until_lost(context: JobContext, *, gate: str, marks: str) -> str:
    """Watch the lease until it is lost, if it is, then wait at the gate of this attempt."""
    mark(marks, "start", job=context.job_id, attempt=context.attempt)
    own_gate = Path(f"{gate}.{context.attempt}")
    deadline = time.monotonic() + PATIENCE
    while not (context.lease_lost or own_gate.exists()) and time.monotonic() < deadline:
        time.sleep(0.01)
    if context.lease_lost:
        mark(marks, "lost", attempt=context.attempt, lease_ended=context.lease.ends)
    wait_at(str(own_gate))
    return f"attempt {context.attempt}"


@task(backoff=AT_ONCE, takes_context=True)
def wait_for_an_answer(context: JobContext, seconds: float, *, marks: str) -> None:
    """Be in the middle of a statement, at the first attempt."""
    mark(marks, "start", job=context.job_id, attempt=context.attempt)
    if context.attempt > 1:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(%s)", [seconds])
    except django.db.Error:
        mark(marks, "cut off", job=context.job_id)
        raise


@task
def read_clock() -> float:
    """Return what time this host believes it is."""
    return time.time()


@task(takes_context=True)
def enqueue_for_later(context: JobContext, at: str, *, seconds: float) -> list[int]:
    """Enqueue two jobs: for an instant that was given, and for some seconds from now."""
    same_queue = leave_row.using(queue_name=context.claim.queue_name)
    instant, span = datetime.fromisoformat(at), timedelta(seconds=seconds)
    return [same_queue.using(run_after=when).enqueue(key="later").pk for when in (instant, span)]


# Handlers whose workers fail around them.


@task(backoff=AT_ONCE, takes_context=True)
def live(context: JobContext, life: str, *, marks: str) -> None:
    """Lead one kind of life: plain, long, one that fails once, or one that is given up."""
    mark(marks, "start", life=life, job=context.job_id, attempt=context.attempt)
    if life == "long":
        time.sleep(1.5)
    if life == "fails once" and context.attempt == 1:
        raise RuntimeError("once")
    if life == "given up":
        raise Discard("by design")
    mark(marks, "end", life=life, job=context.job_id, attempt=context.attempt)
