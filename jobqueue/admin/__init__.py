"""The admin: jobs, attempts, dead letters and workers; imported by admin.autodiscover() only."""

from jobqueue.admin.attempts import AttemptAdmin
from jobqueue.admin.bulk_operations import BulkOperationAdmin
from jobqueue.admin.dead_letters import DeadLetterAdmin
from jobqueue.admin.jobs import JobAdmin
from jobqueue.admin.leases import LeaseAdmin
from jobqueue.admin.operation_log import OperationLogAdmin
from jobqueue.admin.overview import OverviewAdmin
from jobqueue.admin.queues import QueueAdmin
from jobqueue.admin.workers import WorkerAdmin

__all__ = [
    "AttemptAdmin",
    "BulkOperationAdmin",
    "DeadLetterAdmin",
    "JobAdmin",
    "LeaseAdmin",
    "OperationLogAdmin",
    "OverviewAdmin",
    "QueueAdmin",
    "WorkerAdmin",
]
