"""The verbs of the lifecycle in the shortest words, for tests that are about something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import Any

from django.db import connection

from jobqueue import lifecycle
from jobqueue.claims import Claim, Failure, Lease, Settlement, Turn
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.querysets import ago
from jobqueue.runner import Attempt as Run
from jobqueue.states import Outcome, Reason, Status

LEASE = timedelta(minutes=1)
FAILURE = Failure("RuntimeError", "failed", "Traceback", "0123456789abcdef")


def claim(limit: int = 1, *, queue_name: str = "default", worker: str = "worker-a") -> list[Claim]:
    """Claim up to ``limit`` jobs for a minute."""
    return lifecycle.claim([Turn(queue_name, limit)], worker=worker, lease=LEASE)


def claim_one(*, queue_name: str = "default", worker: str = "worker-a") -> Claim:
    """Claim the next job, of which there must be one."""
    [claimed] = claim(queue_name=queue_name, worker=worker)
    return claimed


def lease_on(claimed: Claim, *, span: float = 60.0) -> Lease:
    """Return the lease on a claim as its worker knows it."""
    now = monotonic()
    return Lease(claimed, span, now, now + span)


def ended(claimed: Claim, outcome: Outcome, status: Status | None, **rest: Any) -> Settlement:
    """Return what became of a claim, two seconds of work that ended a second ago."""
    now = monotonic()
    return Settlement(claimed, outcome, status, started=now - 3, finished=now - 1, **rest)


def succeeded(claimed: Claim, **rest: Any) -> Settlement:
    """Return the settlement of work that was done."""
    return ended(claimed, Outcome.SUCCEEDED, Status.SUCCEEDED, **rest)


def retried(claimed: Claim, *, delay: timedelta = timedelta(0)) -> Settlement:
    """Return the settlement of a failure that is tried again after ``delay``."""
    return ended(claimed, Outcome.FAILED, Status.SCHEDULED, delay=delay, failure=FAILURE)


def snoozed(claimed: Claim, *, delay: timedelta = timedelta(0)) -> Settlement:
    """Return the settlement of a snooze."""
    return ended(claimed, Outcome.SNOOZED, Status.SCHEDULED, delay=delay)


def released(claimed: Claim) -> Settlement:
    """Return the settlement of a claim that was never started."""
    return ended(claimed, Outcome.RELEASED, Status.PENDING)


def interrupted(claimed: Claim) -> Settlement:
    """Return the settlement of a handler that its worker had to leave."""
    return ended(claimed, Outcome.INTERRUPTED, Status.PENDING)


def buried(claimed: Claim, reason: Reason = Reason.ATTEMPTS_EXHAUSTED) -> Settlement:
    """Return the settlement of a failure after which the job gives up."""
    return ended(claimed, Outcome.FAILED, None, reason=reason, failure=FAILURE)


def expire(*job_ids: int) -> None:
    """Let leases have run out a second ago."""
    Job.objects.claimed().filter(pk__in=job_ids).update(
        claimed_at=ago(LEASE), claimed_until=ago(timedelta(seconds=1))
    )


def fall_due(*job_ids: int) -> None:
    """Let scheduled jobs have become due a second ago."""
    Job.objects.scheduled().filter(pk__in=job_ids).update(run_after=ago(timedelta(seconds=1)))


def run(claimed: Claim) -> Settlement:
    """Run a claim as a worker does, and settle what came of it."""
    attempt = Run(lease_on(claimed), using="default")
    settlement = attempt.run()
    if not attempt.is_settled:
        lifecycle.settle([settlement])
    return settlement


def run_next(*, queue_name: str = "default") -> Settlement:
    """Run the next job and settle what came of it."""
    return run(claim_one(queue_name=queue_name))


def where(job_id: int) -> str:
    """Return where a job stands: its status, "dead", "discarded", or "gone"."""
    places = list(Job.objects.filter(pk=job_id).values_list("status", flat=True))
    letters = DeadLetter.objects.filter(pk=job_id)
    places += ["dead"] * letters.open().count() + ["discarded"] * letters.discarded().count()
    assert len(places) <= 1, f"job {job_id} is in two places: {places}"
    return places[0] if places else "gone"


def outcomes(job_id: int) -> list[str]:
    """Return how the attempts of a job ended, oldest first."""
    return list(Attempt.objects.of(job_id).values_list("outcome", flat=True))


def everything() -> dict[str, list[dict[str, Any]]]:
    """Return every row of the queue, to see whether anything changed."""
    models = (Job, Attempt, DeadLetter)
    return {model.__name__: list(model.objects.order_by("pk").values()) for model in models}


@contextmanager
def refusing(event: str, table: str, *, when: str = "1 = 1") -> Iterator[None]:
    """Let the database refuse an INSERT, UPDATE or DELETE of a table's rows meanwhile."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql"
                " AS $$BEGIN RAISE check_violation USING MESSAGE = 'refused'; END$$"
            )
            body = f"FOR EACH ROW WHEN ({when}) EXECUTE FUNCTION refuse()"
        else:
            body = f"WHEN {when} BEGIN SELECT RAISE(ABORT, 'refused'); END"
        cursor.execute(f"CREATE TRIGGER refuse BEFORE {event} ON {table} {body}")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("DROP FUNCTION refuse() CASCADE")
            else:
                cursor.execute("DROP TRIGGER refuse")


def set_raw(job_id: int, **columns: str) -> None:
    """Put JSON text into a job's columns as it stands, as somebody with psql could."""
    cast = "::jsonb" if connection.vendor == "postgresql" else ""
    assignments = ", ".join(f"{name} = %s{cast}" for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE jobqueue_job SET {assignments} WHERE id = %s", [*columns.values(), job_id]
        )
