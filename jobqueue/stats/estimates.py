"""What the planner believes: a guess that costs nothing, where counting would cost seconds."""

from __future__ import annotations

import json

from django.db import connections, router

from jobqueue.models import Job


def estimated_depth(queue_name: str | None = None, *, using: str | None = None) -> int | None:
    """Return about how many jobs are pending, of one queue or of all; None where no one can tell.

    It is PostgreSQL's estimate from its latest statistics: good to a few percent after ANALYZE or
    autovacuum, and far off in between. Show it as an estimate, and only beyond what was counted.
    """
    using = using or router.db_for_read(Job)
    if connections[using].vendor != "postgresql":
        return None
    pending = Job.objects.using(using).pending().order_by()
    if queue_name is not None:
        pending = pending.filter(queue_name=queue_name)
    [plan] = json.loads(pending.values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])
