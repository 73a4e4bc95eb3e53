"""The judge: what must be true of a run, told from evidence outside the database under test.

The counts are those of Jepsen's checker for queues ("total-queue"): lost, unexpected, recovered.
Each check yields a sentence for whatever contradicts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.chaos import duplicates
from tests.chaos.evidence import DEAD, Evidence, Job
from tests.chaos.plan import POISON

Check = Callable[[Evidence], Iterator[str]]

FINISHED = ("succeeded", DEAD)
#: Rounding of times on their way out of the database, in seconds.
TINY = 0.00001


def judge(evidence: Evidence) -> dict[str, list[str]]:
    """Return what each check found, by its name; nothing but empty lists is a pass."""
    return {check.__name__: list(check(evidence)) for check in CHECKS}


# The queue as a whole.


def lost(evidence: Evidence) -> Iterator[str]:
    """What was committed is there."""
    there = {job.key for job in evidence.jobs}
    for submit in evidence.submits.values():
        if submit.result == "ok" and submit.key not in there:
            yield f"{submit.key} was committed and is nowhere"


def unexpected(evidence: Evidence) -> Iterator[str]:
    """What was rolled back, or never asked for, is not there."""
    for job in evidence.jobs:
        submit = evidence.submits.get(job.key)
        if submit is None or submit.result == "fail":
            yield f"job {job.id} ({job.key}) is there: {submit or 'never asked for'}"


def doubled(evidence: Evidence) -> Iterator[str]:
    """What was asked for once is there once, as a job or as a dead letter."""
    for name, counts in (
        ("key", Counter(job.key for job in evidence.jobs)),
        ("id", Counter(job.id for job in evidence.jobs)),
    ):
        yield from (f"{name} {key} is there {n} times" for key, n in counts.items() if n > 1)


def apart_from_its_order(evidence: Evidence) -> Iterator[str]:
    """A job and the business row of its transaction are both there, or neither."""
    jobs = {job.key for job in evidence.jobs}
    yield from (f"job {key} has no order" for key in jobs - evidence.orders)
    yield from (f"order {key} has no job" for key in evidence.orders - jobs)


def not_drained(evidence: Evidence) -> Iterator[str]:
    """In the end everything has an end."""
    for job in evidence.jobs:
        if job.status not in FINISHED:
            yield f"job {job.id} ({evidence.kind(job)}) is {job.status}"


# What became of each job.


def not_run(evidence: Evidence) -> Iterator[str]:
    """What succeeded was really run to its end, by the claim that says so."""
    for job in evidence.jobs:
        if job.status == "succeeded":
            runs = evidence.runs.get(job.id, [])
            if not any(run.fence == job.fence and run.how == "returned" for run in runs):
                yield f"job {job.id} succeeded under fence {job.fence}; it ran as {runs}"


def wrongly_ended(evidence: Evidence) -> Iterator[str]:
    """Poison ends as dead letters, and everything else succeeds."""
    for job in evidence.jobs:
        kind = evidence.kind(job)
        if job.status in FINISHED and (job.status == DEAD) != (kind in POISON):
            yield f"job {job.id} ({kind}) ended as {job.status} {job.reason}"
        elif job.status == DEAD and job.reason not in _reasons(kind):
            yield f"job {job.id} ({kind}) is dead because of {job.reason}"


def _reasons(kind: str) -> tuple[str, ...]:
    # The last worker of a hopeless job may have been killed for another reason.
    return ("worker_lost",) if kind == "killer" else ("attempts_exhausted", "worker_lost")


def gap_in_history(evidence: Evidence) -> Iterator[str]:
    """Attempts are numbered from 1 to the job's count, and their fences grow."""
    for job in evidence.jobs:
        attempts = evidence.attempts.get(job.id, [])
        numbers = [attempt.number for attempt in attempts]
        fences = [attempt.fence for attempt in attempts]
        if numbers != list(range(1, job.attempts + 1)):
            yield f"job {job.id} counts {job.attempts} attempts and recorded {numbers}"
        if fences != sorted(set(fences)) or fences[-1:] > [job.fence]:
            yield f"job {job.id} with fence {job.fence} recorded the fences {fences}"


def not_settled_once(evidence: Evidence) -> Iterator[str]:
    """A succeeded job has one succeeded attempt, its last, under its fence; others have none."""
    for job in evidence.jobs:
        attempts = evidence.attempts.get(job.id, [])
        winners = [attempt for attempt in attempts if attempt.outcome == "succeeded"]
        expected = [attempts[-1]] if attempts and job.status == "succeeded" else []
        is_right = len(expected) == (job.status == "succeeded") and winners == expected
        if not is_right or any(winner.fence != job.fence for winner in winners):
            yield f"job {job.id} is {job.status} under fence {job.fence}: {attempts}"


def wrong_effects(evidence: Evidence) -> Iterator[str]:
    """What an atomic handler wrote is there once if its job succeeded, and else not at all."""
    for job in evidence.jobs:
        expected = job.status == "succeeded" and evidence.kind(job) == "atomic"
        if evidence.effects[job.id] != expected:
            yield f"job {job.id} ({job.status}) had its effect {evidence.effects[job.id]} times"


# Executions against the ledger.


def unrecorded(evidence: Evidence) -> Iterator[str]:
    """Every execution belongs to an attempt in the ledger, and no attempt to two."""
    for job_id, runs in evidence.runs.items():
        attempts = {each.fence: each for each in evidence.attempts.get(job_id, [])}
        for run in runs:
            attempt = attempts.get(run.fence)
            if attempt is None or attempt.number != run.attempt:
                yield f"job {job_id} ran as {run}, and the ledger says {attempt}"
        counts = Counter(run.fence for run in runs)
        yield from (f"job {job_id} ran {n} times as {f}" for f, n in counts.items() if n > 1)


def imagined(evidence: Evidence) -> Iterator[str]:
    """What the ledger says a handler did, some handler did."""
    atomic = {job.id for job in evidence.jobs if evidence.kind(job) == "atomic"}
    for job_id, attempts in evidence.attempts.items():
        hows = {run.fence: run.how for run in evidence.runs.get(job_id, [])}
        for attempt in attempts:
            did = hows.get(attempt.fence, "never started")
            # The transaction of an atomic one may fail before its handler begins, or after its end.
            if attempt.outcome == "failed" and did != "raised" and job_id not in atomic:
                yield f"{attempt}, and its handler {did}"
            if attempt.outcome == "succeeded" and did != "returned":
                yield f"{attempt}, and its handler {did}"


def overlapping(evidence: Evidence) -> Iterator[str]:
    """By the database's clock, an attempt begins only when the one before has ended."""
    for job_id, attempts in evidence.attempts.items():
        for before, after in pairwise(attempts):
            if after.started < before.finished - TINY:
                yield f"job {job_id}: {after} began before the end of {before}"


def both_believed(evidence: Evidence) -> Iterator[str]:
    """No process began while another still had reason to believe in its lease on the job."""
    handed_over = {
        (attempt.job, attempt.fence)
        for attempts in evidence.attempts.values()
        for attempt in attempts
        if attempt.outcome == "interrupted"  # given up while it ran, and said so
    }
    ends = {death.name: death.at for death in evidence.deaths}
    for job_id, runs in evidence.runs.items():
        for before, after in pairwise(runs):
            over = before.ended or ends.get(before.worker, before.leased_until)
            believed = min(before.leased_until, over)
            if after.at < believed and (job_id, before.fence) not in handed_over:
                yield f"{after} began {believed - after.at:.3f} s too early after {before}"


# How it went.


def unexplained(evidence: Evidence) -> Iterator[str]:
    """Whatever ran again has a reason: it failed, or the nemesis took its worker or its lease."""
    for found in duplicates.explain(evidence):
        if not found.reason:
            yield f"{found.run} was {found.outcome}, and ran again without a cause: {found.again}"


def died_by_itself(evidence: Evidence) -> Iterator[str]:
    """A process ends because it was killed or asked to, or because a job killed it."""
    kinds = evidence.submits
    killed = {run.worker for run in evidence.all_runs() if kinds[run.key].kind == "killer"}
    for death in evidence.deaths:
        is_killed = death.code == -9 and (death.asked == "kill" or death.name in killed)
        # SIGTERM itself ends a process that does not catch it yet, or no longer.
        is_asked = death.asked == "term" and death.code in (0, 1, -15)
        if not is_killed and not is_asked:
            yield f"{death}"


def seen_meanwhile(evidence: Evidence) -> Iterator[str]:
    """What must hold at any time held whenever we looked."""
    yield from evidence.seen


CHECKS: tuple[Check, ...] = (
    lost,
    unexpected,
    doubled,
    apart_from_its_order,
    not_drained,
    not_run,
    wrongly_ended,
    gap_in_history,
    not_settled_once,
    wrong_effects,
    unrecorded,
    imagined,
    overlapping,
    both_believed,
    unexplained,
    died_by_itself,
    seen_meanwhile,
)


def recovered(evidence: Evidence) -> int:
    """Return how many are there of those whose producers could not know."""
    there = {job.key for job in evidence.jobs}
    return sum(each.result == "info" and each.key in there for each in evidence.submits.values())


def dead_letters(evidence: Evidence) -> list[Job]:
    """Return the dead letters."""
    return [job for job in evidence.jobs if job.status == DEAD]
