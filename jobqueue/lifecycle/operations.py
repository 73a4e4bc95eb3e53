"""What people do to jobs: cancel, run now, replay, discard."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models.functions import Now

from jobqueue import failpoints
from jobqueue.lifecycle.alias import alias, batches, store
from jobqueue.models import DeadLetter, Job
from jobqueue.states import Status


@failpoints.around
def cancel(job_ids: Iterable[int], *, using: str | None = None) -> int:
    """Cancel jobs; return how many there were to cancel.

    One that waits is cancelled at once. One that runs is asked to stop: its handler sees
    ``context.cancel_requested``, and whatever it does, no further attempt starts.
    """
    return sum(_cancel(batch, alias(using)) for batch in batches(job_ids))


def _cancel(job_ids: list[int], using: str) -> int:
    with store(using).transaction():
        rows = Job.objects.using(using).filter(pk__in=job_ids)
        ids = list(store(using).lock(rows.order_by("pk")).values_list("pk", flat=True))
        jobs = Job.objects.using(using).filter(pk__in=ids)
        running = jobs.claimed().filter(cancel_requested=False)
        waiting = jobs.filter(status__in=(Status.SCHEDULED, Status.PENDING))
        asked = running.update(cancel_requested=True)
        return asked + waiting.update(status=Status.CANCELLED, finished_at=Now())


@failpoints.around
def run_now(job_ids: Iterable[int], *, using: str | None = None) -> int:
    """Make scheduled jobs pending without waiting for their time; return how many."""
    jobs = Job.objects.using(alias(using)).scheduled()
    return sum(
        jobs.filter(pk__in=batch).update(status=Status.PENDING, run_after=Now())
        for batch in batches(job_ids)
    )


@failpoints.around
def replay(letter_ids: Iterable[int], *, using: str | None = None) -> list[int]:
    """Turn dead letters into pending jobs of the same id; return the ids that this call replayed.

    A job goes on as one story: its attempts keep counting and its fence keeps growing, with a fresh
    budget on top. Of two replays of one letter at the same time, one gets it.
    """
    return [pk for batch in batches(letter_ids) for pk in _replay(batch, alias(using))]


def _replay(letter_ids: list[int], using: str) -> list[int]:
    with store(using).transaction():
        letters = DeadLetter.objects.using(using).filter(pk__in=letter_ids).order_by("pk")
        ids = list(store(using).lock(letters).values_list("pk", flat=True))
        if ids:
            store(using).revive(ids)
            DeadLetter.objects.using(using).filter(pk__in=ids).delete()
        return ids


@failpoints.around
def discard(letter_ids: Iterable[int], *, using: str | None = None) -> int:
    """Delete dead letters; return how many. Their attempts stay until they are pruned."""
    letters = DeadLetter.objects.using(alias(using))
    return sum(letters.filter(pk__in=batch).delete()[0] for batch in batches(letter_ids))
