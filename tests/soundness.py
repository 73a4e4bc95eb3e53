"""What must be true of every job whatever happened: the predicates that tests of faults share."""

from __future__ import annotations

from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome, Status


def violations() -> list[str]:
    """Return what is wrong in the tables, a sentence each (I4, I5, I7, I8, I10, I13)."""
    jobs = {job.pk: job for job in Job.objects.all()}
    letters = {letter.pk: letter for letter in DeadLetter.objects.all()}
    found = [f"job {pk} is in two places" for pk in jobs.keys() & letters.keys()]
    for pk, job in {**jobs, **letters}.items():
        attempts = list(Attempt.objects.of(pk))
        status = job.status if isinstance(job, Job) else "dead"
        said = f"job {pk}, {status}, {[(each.number, each.outcome) for each in attempts]}"
        is_open = status == Status.CLAIMED
        if [each.number for each in attempts] != list(range(1, job.attempts + 1 - is_open)):
            found.append(f"{said}: not one attempt for each of {job.attempts}")
        fences = [each.fence for each in attempts]
        if fences != sorted(set(fences)) or max(fences, default=0) > job.fence - is_open:
            found.append(f"{said}: fences {fences} below {job.fence}")
        successes = [each.number for each in attempts if each.outcome == Outcome.SUCCEEDED]
        if successes != ([job.attempts] if status == Status.SUCCEEDED else []):
            found.append(f"{said}: settled twice, or never")
        if status == Status.SUCCEEDED and attempts[-1:] and fences[-1] != job.fence:
            found.append(f"{said}: closed by a stale fence")
    return found
