"""The tables. Rows are written by :mod:`jobqueue.lifecycle` and its stores, and by nothing else."""

from jobqueue.models.figures import Rollup, Sample
from jobqueue.models.jobs import (
    MAX_LAST_ERROR,
    MAX_REASON,
    MAX_TASK_NAME,
    MAX_WORKER_NAME,
    Attempt,
    DeadLetter,
    Job,
    Lease,
    Request,
)
from jobqueue.models.operations import BulkOperation, OperationLog, Replay
from jobqueue.models.workers import Overview, Queue, Worker

__all__ = [
    "MAX_LAST_ERROR",
    "MAX_REASON",
    "MAX_TASK_NAME",
    "MAX_WORKER_NAME",
    "Attempt",
    "BulkOperation",
    "DeadLetter",
    "Job",
    "Lease",
    "OperationLog",
    "Overview",
    "Queue",
    "Replay",
    "Request",
    "Rollup",
    "Sample",
    "Worker",
]
