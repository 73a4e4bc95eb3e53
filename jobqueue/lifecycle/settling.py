"""Settle: the one door through which an outcome enters, and the fence is at the door."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from time import monotonic

from django.db import transaction

from jobqueue import conf, failpoints, logs, signals
from jobqueue.claims import NO_FAILURE, Claim, Failure, Key, Settlement
from jobqueue.lifecycle.alias import alias, store
from jobqueue.models import Attempt, Job
from jobqueue.states import Outcome, Reason, Status
from jobqueue.stores.base import Expired, Store

Write = Callable[[Sequence[Settlement]], set[Key]]


@failpoints.around
def settle(
    settlements: Sequence[Settlement], *, using: str | None = None, again: bool = False
) -> set[int]:
    """Record outcomes with their attempts, each only if its claim's fence still holds.

    Return the ids that were settled. For the others the lease was lost and nothing was written.
    After an error some may be recorded. ``again`` says that an earlier try may have been committed
    without our knowing, as ``doubted`` says of another settlement: what either recorded counts.
    """
    using = alias(using)
    settled: set[Key] = set()
    # A transaction each: one for all would lock across the others' ids, and a cancel of the same
    # jobs could wait for what waits for it.
    for write, group in _writes(store(using), settlements).items():
        settled |= write(group)
    if earlier := _recorded_earlier(settlements, settled, again=again, using=using):
        settled |= earlier.keys()
        settlements = [earlier.get(each.claim.key, each) for each in settlements]
    announce = partial(_announce, settlements, settled, using)
    transaction.on_commit(announce, using=using, robust=True)
    return {job_id for job_id, _ in settled}


def _recorded_earlier(
    settlements: Sequence[Settlement], settled: set[Key], *, again: bool, using: str
) -> dict[Key, Settlement]:
    """Find, of what is refused, what a commit recorded of which no answer came."""
    if len(settled) == len(settlements):
        return {}
    maybe: dict[tuple[int, int, str], Settlement] = {}
    for each in settlements:
        if each.claim.key not in settled:
            tries = ([each] if again else []) + ([each.doubted] if each.doubted else [])
            maybe.update({(*one.claim.key, one.outcome): one for one in tries})
    if not maybe:
        return {}
    attempts = Attempt.objects.using(using).filter(job_id__in=[job_id for job_id, _, _ in maybe])
    recorded = attempts.values_list("job_id", "fence", "outcome")
    return {(key[0], key[1]): maybe[key] for key in recorded if key in maybe}


def _writes(store: Store, settlements: Sequence[Settlement]) -> dict[Write, list[Settlement]]:
    keeps_succeeded = timedelta(0) < conf.get().KEEP_SUCCEEDED
    writes: dict[Write, list[Settlement]] = {}
    # By id, as cancel locks its rows: two that lock in one order never wait for each other.
    for settlement in sorted(settlements, key=lambda each: each.claim.id):
        if settlement.status is None:
            write: Write = store.bury
        elif settlement.status != Status.SUCCEEDED:
            write = store.settle
        elif not keeps_succeeded:
            write = store.delete
        elif settlement.result is None and settlement.failure is NO_FAILURE:
            write = store.acknowledge
        else:
            write = store.settle
        writes.setdefault(write, []).append(settlement)
    return writes


def _announce(settlements: Sequence[Settlement], settled: set[Key], using: str) -> None:
    logs.ended(settlements, recorded=settled)
    signals.group_settled.send_robust(Job, settlements=settlements, recorded=settled, using=using)
    for settlement in settlements:
        held = settlement.claim.key in settled
        signal = signals.settled if held else signals.lease_lost
        signal.send_robust(Job, settlement=settlement)


def lost(expired: Expired, failure: Failure) -> Settlement:
    """Return what becomes of a claim whose lease has ended: it is tried again, or dead.

    It is pending again at once, since its lease was delay enough.
    """
    claim, now = expired.claim, monotonic()
    goes_on = claim.has_attempts_left
    return Settlement(
        claim,
        Outcome.LOST,
        status=Status.PENDING if goes_on else None,
        reason=None if goes_on else Reason.WORKER_LOST,
        failure=failure,
        started=now - expired.claimed_ago,
        finished=now - max(expired.expired_ago, 0.0),
    )


@failpoints.around
def release(claims: Iterable[Claim], *, using: str | None = None) -> set[int]:
    """Hand back claims whose handler was not started; their attempts are not counted."""
    now = monotonic()
    released = [_handed_back(claim, Outcome.RELEASED, since=now) for claim in claims]
    return settle(released, using=using)


@failpoints.around
def interrupt(claims: Mapping[Claim, float], *, using: str | None = None) -> set[int]:
    """Give up claims whose handler still runs, at a forced exit; others may take them at once.

    The attempt is recorded, and forgiven. Each claim comes with when its handler was started, on
    the monotonic clock.
    """
    interrupted = [
        _handed_back(claim, Outcome.INTERRUPTED, since=started) for claim, started in claims.items()
    ]
    return settle(interrupted, using=using)


def _handed_back(claim: Claim, outcome: Outcome, *, since: float) -> Settlement:
    return Settlement(claim, outcome, Status.PENDING, started=since, finished=monotonic())
