"""The worker: claim, run, settle, keep the lease, each in a thread of its own."""

from jobqueue.worker.loop import Worker
from jobqueue.worker.options import WorkerOptions

__all__ = ["Worker", "WorkerOptions"]
