"""Enqueue: look at everything that could be wrong, then write in the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction

from jobqueue import conf, failpoints, payload
from jobqueue.claims import JobRequest
from jobqueue.context import inherited_correlation_id, inherited_trace
from jobqueue.exceptions import InvalidJob
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.models import Job
from jobqueue.registry import Call, Task
from jobqueue.stores.base import Inserted

#: Jobs in one statement of :func:`enqueue_many`; new rows are in nobody's way, so it may be long.
BULK = 10_000


@failpoints.around
def enqueue(call: Call, *, using: str | None = None) -> Job:
    """Write one job and return it; raise InvalidJob, before any SQL, if it could not be kept."""
    request = _request(call, _decide(call.task))
    using = alias(using)
    inserted = store(using).insert(request)
    return _as_job(call, request, inserted, using)


@failpoints.around
def enqueue_many(calls: Iterable[Call], *, using: str | None = None) -> list[int]:
    """Write jobs, all or none, and return their ids in the order of the calls.

    Raise InvalidJob, before any SQL, with the index of the first that could not be kept.
    """
    requests = list(_requests(calls))
    if len(requests) <= BULK:
        return store(using).insert_many(requests) if requests else []
    with transaction.atomic(using=alias(using)):
        return [pk for batch in batches(requests, BULK) for pk in store(using).insert_many(batch)]


def _requests(calls: Iterable[Call]) -> Iterator[JobRequest]:
    """Check each call; what its task decides is worked out once for all calls of the same one."""
    decided: dict[Task[..., Any], _Decided] = {}
    for index, call in enumerate(calls):
        try:
            if call.task not in decided:
                decided[call.task] = _decide(call.task)
            yield _request(call, decided[call.task])
        except InvalidJob as error:
            error.args = (f"job {index}: {error}",)
            raise


class _Decided(NamedTuple):
    """What a task says of each of its jobs: the last fields of a JobRequest."""

    version: int
    queue_name: str
    priority: int
    max_attempts: int
    run_at: datetime | None
    run_in: float | None
    correlation_id: str
    actor: str
    trace: str | None


def _decide(task: Task[..., Any]) -> _Decided:
    run_after = task.run_after
    return _Decided(
        version=task.version,
        queue_name=task.queue_name,
        priority=task.priority,
        max_attempts=task.max_attempts or conf.get().MAX_ATTEMPTS,
        run_at=run_after if isinstance(run_after, datetime) else None,
        run_in=run_after.total_seconds() if isinstance(run_after, timedelta) else None,
        correlation_id=task.correlation_id or inherited_correlation_id(),
        actor=task.actor,
        trace=payload.dumps(dict(task.trace), name="trace") if task.trace else inherited_trace(),
    )


def _request(call: Call, decided: _Decided) -> JobRequest:
    task, args, kwargs = call
    task.check_arguments(args, kwargs)
    args_text = payload.dumps(list(args), name="args")
    kwargs_text = payload.dumps(kwargs, name="kwargs") if kwargs else "{}"
    payload.check_size(args_text, kwargs_text, name="args and kwargs")
    return JobRequest(task.name, args_text, kwargs_text, *decided)


def _as_job(call: Call, request: JobRequest, inserted: Inserted, using: str) -> Job:
    given = request._asdict()
    for name in ("args", "kwargs", "trace", "run_at", "run_in"):
        del given[name]
    unchanged = {"attempts": 0, "attempts_forgiven": 0, "replays": 0, "losses": 0, "fence": 0}
    job = Job(
        args=list(call.args),
        kwargs=dict(call.kwargs),
        last_error="",
        cancel_requested=False,
        **given,
        **unchanged,
        **inserted._asdict(),
    )
    job._state.adding = False
    job._state.db = using
    return job
