"""The figures that say whether the queue is well; ages are by the database's clock.

Nothing here reads a whole backlog: what is counted at this moment is counted no further than a
limit, and what happened is read from the rollups that workers write.
"""

from jobqueue.stats.estimates import estimated_depth
from jobqueue.stats.history import Point, history
from jobqueue.stats.lanes import age_of
from jobqueue.stats.live import Figures, backlog, figures, live_workers, now, stale_after
from jobqueue.stats.queues import QueueFigures, QueueState, by_queue, states
from jobqueue.stats.tasks import TaskFigures, by_task, tries, usual_lease, usual_run_time
from jobqueue.stats.workers import WorkerFigures, workers

__all__ = [
    "Figures",
    "Point",
    "QueueFigures",
    "QueueState",
    "TaskFigures",
    "WorkerFigures",
    "age_of",
    "backlog",
    "by_queue",
    "by_task",
    "estimated_depth",
    "figures",
    "history",
    "live_workers",
    "now",
    "stale_after",
    "states",
    "tries",
    "usual_lease",
    "usual_run_time",
    "workers",
]
