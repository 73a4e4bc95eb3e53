"""What projects that use jobqueue need in their own tests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

from jobqueue import lifecycle
from jobqueue.claims import Lease, Settlement, Turn
from jobqueue.runner import Attempt

WORKER = "tests"


def run_jobs(
    queues: Sequence[str] | None = None, *, limit: int = 1000, using: str | None = None
) -> list[Settlement]:
    """Run what is due, in this thread and on its connection, until nothing is; return the outcomes.

    Works inside a TestCase, where a worker in a process of its own would see nothing. Jobs that the
    handlers enqueue are run as well; retries and snoozes only once they are due. Raise
    AssertionError after ``limit`` jobs, since jobs that enqueue each other never end.
    """
    using = lifecycle.alias(using)
    settlements: list[Settlement] = []
    while ran := _turn(queues, using):
        settlements += ran
        if len(settlements) > limit:
            raise AssertionError(f"more than {limit} jobs ran; do they enqueue each other?")
    return settlements


def _turn(queues: Sequence[str] | None, using: str) -> list[Settlement]:
    lifecycle.promote(using=using)
    names = lifecycle.look(using=using).queue_names if queues is None else queues
    return [each for name in sorted(names) for each in _run_queue(name, using)]


def _run_queue(name: str, using: str) -> list[Settlement]:
    span = timedelta(minutes=10)
    claims = lifecycle.claim([Turn(name, 100)], worker=WORKER, lease=span, using=using)
    settlements = []
    for claim in claims:
        now = monotonic()
        lease = Lease(claim, span.total_seconds(), now, now + span.total_seconds())
        attempt = Attempt(lease, using=using)
        settlement = attempt.run()
        if not attempt.is_settled:
            lifecycle.settle([settlement], using=using)
        settlements.append(settlement)
    return settlements
