"""A job queue in the database that a Django project already has.

Safe to import before the app registry is ready: nothing here touches a model until it is called.
"""

from __future__ import annotations

from collections.abc import Iterable

from jobqueue.context import JobContext
from jobqueue.exceptions import Discard, InvalidJob, JobQueueError, LeaseLost, Retry, Snooze
from jobqueue.registry import Call, Task, task

__version__ = "0.1.0"

__all__ = [
    "Discard",
    "InvalidJob",
    "JobContext",
    "JobQueueError",
    "LeaseLost",
    "Retry",
    "Snooze",
    "Task",
    "enqueue_many",
    "task",
]


def enqueue_many(calls: Iterable[Call]) -> list[int]:
    """Write many jobs in the caller's transaction, all or none; return their ids in order.

    Each call is ``task.bind(*args, **kwargs)``. Raise InvalidJob, before any SQL, with the index
    of the first call that could not be kept.
    """
    from jobqueue import lifecycle  # the app registry may not be ready when this is imported

    return lifecycle.enqueue_many(calls)
