"""One attempt: call the task, and turn whatever happens into one settlement.

The only place that swallows an exception of a handler.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import Any

from asgiref.sync import async_to_sync
from django.db import transaction

from jobqueue import authorisation, failures, lifecycle, logs, payload, registry, signals, verdicts
from jobqueue.claims import NO_FAILURE, Failure, Lease, Settlement
from jobqueue.context import JobContext, current
from jobqueue.exceptions import (
    InvalidArguments,
    InvalidPayload,
    LeakedTransaction,
    LeaseLost,
    PayloadRefused,
    TimedOut,
    UnsupportedVersion,
)
from jobqueue.models import Job
from jobqueue.registry import Task
from jobqueue.states import Outcome, Status
from jobqueue.transactions import depths, drop_leaked


class Attempt:
    """One attempt at a claimed job, run by one thread and watched by another."""

    def __init__(
        self,
        lease: Lease,
        *,
        using: str,
        on_deadline: Callable[[], None] | None = None,
        in_transactions: Mapping[str, int] | None = None,
    ) -> None:
        self.lease = lease
        self.claim = lease.claim
        self.using = using
        self.task: Task[..., Any] | None = None
        self.started = monotonic()
        #: When the attempt has run for too long, on the monotonic clock.
        self.deadline: float | None = None
        self._on_deadline = on_deadline
        self._in_transactions = depths() if in_transactions is None else in_transactions
        self.was_interrupted = False
        self.is_settled = False
        #: Its outcome was recorded without it, since its handler could not be stopped.
        self.is_abandoned = False
        #: What its own transaction recorded, until the commit of that is answered.
        self.doubted: Settlement | None = None
        self._thread: int | None = None
        self._process = os.getpid()
        self._lock = threading.Lock()

    def run(self) -> Settlement:
        """Run the task and return what became of it; an atomic one may be settled already."""
        try:
            # A context of its own: language, time zone and context variables start afresh and
            # are gone afterwards.
            return Context().run(self._run)
        except BaseException as error:  # noqa: BLE001 - SystemExit is a failed attempt, too
            return replace(self._failed(error), doubted=self.doubted)

    def _failed(self, error: BaseException) -> Settlement:
        if isinstance(error, TimedOut) and not error.args:
            error.args = ("the handler ran for longer than its task's timeout",)
        try:
            return verdicts.failed(self.claim, self.task, error, started=self.started)
        except Exception:  # noqa: BLE001 - what the task says of errors is somebody's code, too
            return verdicts.failed(self.claim, None, error, started=self.started)

    def _run(self) -> Settlement:
        self.task = task = registry.get(self.claim.task)
        args, kwargs = self._arguments(task)
        if task.permission:
            authorisation.check(task.permission, self.claim.actor)
        if task.timeout:
            self.deadline = self.started + task.timeout.total_seconds()
            if self._on_deadline:
                self._on_deadline()
        context = JobContext(self.claim, self.lease, self.deadline, self._extend)
        current.set(context)
        if task.takes_context:
            args = [context, *args]
        logs.started(self.claim)
        signals.started.send_robust(Job, claim=self.claim)
        run = self._run_atomic if task.atomic else self._run_plain
        return run(task, args, kwargs)

    def _arguments(self, task: Task[..., Any]) -> tuple[list[Any], dict[str, Any]]:
        try:
            args, kwargs = payload.loads(self.claim.args, self.claim.kwargs)
        except InvalidPayload as error:
            raise PayloadRefused(str(error)) from error
        version = self.claim.version
        if version == task.version:
            return args, kwargs
        if version < task.version and task.upgrade:
            return task.upgrade(version, args, kwargs)
        raise UnsupportedVersion(
            f"the payload has version {version}, and {task.name} reads version {task.version}"
        )

    def _run_plain(
        self, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Settlement:
        before = depths() if task.atomic else self._in_transactions
        leaked: list[str] = []
        try:
            result = self._call(task, args, kwargs)
        finally:
            leaked = drop_leaked(before)
        if leaked:
            names = ", ".join(map(repr, leaked))
            raise LeakedTransaction(f"a transaction was left open on {names}, and rolled back")
        return self._succeeded(result)

    def _run_atomic(
        self, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]
    ) -> Settlement:
        """Let the handler's writes and its acknowledgement commit together, or not at all."""
        with transaction.atomic(using=self.using):
            settlement = self._run_plain(task, args, kwargs)
            if not lifecycle.settle([settlement], using=self.using):
                raise LeaseLost(f"the lease on job {self.claim.id} was lost; its writes roll back")
            self.doubted = settlement
        self.doubted = None
        self.is_settled = True
        return settlement

    def _call(self, task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        self._thread = threading.get_ident()
        try:
            returned = task.function(*args, **kwargs)
            return async_to_sync(_awaited)(returned, task.timeout) if task.is_async else returned
        except TypeError as error:
            if not _fits(task, args, kwargs):
                raise PayloadRefused(f"the payload does not fit {task.name}: {error}") from None
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        if os.getpid() != self._process:
            os._exit(1)  # a child that the handler forked came back; its parent is the worker
        with self._lock:
            self._thread = None
        if self.was_interrupted:
            for _ in range(1000):  # the interpreter delivers a pending TimedOut at a loop's turn
                pass

    def _succeeded(self, result: Any) -> Settlement:
        text, failure = _as_json(result)
        return Settlement(
            self.claim,
            Outcome.SUCCEEDED,
            Status.SUCCEEDED,
            result=text,
            failure=failure,
            started=self.started,
            finished=monotonic(),
        )

    def _extend(self, lease: Lease) -> bool:
        lifecycle.extend([lease], using=self.using)
        return not lease.lost

    def interrupt(self) -> None:
        """Raise TimedOut in the handler's thread; called from another thread.

        It arrives between two instructions of Python, so a handler that waits in C code gets it
        when that returns.
        """
        if not self._lock.acquire(timeout=1):
            return
        try:
            if self._thread is not None:
                self.was_interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread), ctypes.py_object(TimedOut)
                )
        finally:
            self._lock.release()


async def _awaited(coroutine: Coroutine[Any, Any, Any], span: timedelta | None) -> Any:
    """Await an async handler, and end it in time: its loop may run in another thread than ours."""
    limit = asyncio.timeout(span.total_seconds() if span else None)
    try:
        async with limit:
            return await coroutine
    except TimeoutError:
        if limit.expired():
            raise TimedOut from None
        raise


def _fits(task: Task[..., Any], args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the function takes these arguments, so that its TypeError is one from inside."""
    try:
        task.check_arguments(args[1:] if task.takes_context else args, kwargs)
    except InvalidArguments:
        return False
    return True


def _as_json(result: Any) -> tuple[str | None, Failure]:
    """Return a result as JSON; one that cannot be kept does not undo the work, only says so."""
    if result is None:
        return None, NO_FAILURE
    try:
        text = payload.dumps(result, name="result")
        payload.check_size(text, name="the result")
    except Exception as error:  # noqa: BLE001 - to look at the result may run somebody's code
        why = failures.describe(error).message
        return None, Failure(message=f"succeeded; the result was not kept: {why}")
    return text, NO_FAILURE
