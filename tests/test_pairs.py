"""Every two things that can happen to one job at once end as if one had come after the other.

The first is done in a transaction that stays open while the second is tried on another connection,
where it waits or passes the job by; then the first commits, or rolls back. What comes out must be
what one of the two orders gives without any overlap. The admin's actions are these same verbs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import pytest
from django.db import OperationalError, connection, transaction

from jobqueue import lifecycle
from jobqueue.claims import Claim, Settlement
from jobqueue.models import Attempt, DeadLetter, Job
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory
from tests.processes import PATIENCE, OtherConnection, lock_waits, wait_until
from tests.soundness import violations

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

MINUTE = timedelta(minutes=1)
TWO_DAYS = timedelta(days=2)


class Given(NamedTuple):
    """One job; if it is claimed, with the claim that holds and one that was lost before."""

    job_id: int
    fresh: Claim | None = None
    stale: Claim | None = None


def _claimed() -> Given:
    job = JobFactory()
    stale = verbs.claim_one(worker="worker-a")
    verbs.expire(job.pk)
    lifecycle.rescue()
    return Given(job.pk, verbs.claim_one(worker="worker-b"), stale)


def _expired() -> Given:
    given = _claimed()
    verbs.expire(given.job_id)
    return given


def _dead() -> Given:
    return Given(DeadLetterFactory(attempts=0, fence=0, died_ago=TWO_DAYS).pk)


STATES: dict[str, Callable[[], Given]] = {
    "claimed": _claimed,
    "expired": _expired,
    "pending": lambda: Given(JobFactory().pk),
    "scheduled": lambda: Given(JobFactory(scheduled=True, due_in=-MINUTE).pk),
    "dead": _dead,
    "cancelled": lambda: Given(JobFactory(cancelled=True, finished_ago=TWO_DAYS).pk),
}


def _settle(end: Callable[[Claim], Settlement]) -> Callable[[Given], Any]:
    return lambda given: len(lifecycle.settle([end(given.fresh)]))


def _settle_stale(given: Given) -> int:
    return len(lifecycle.settle([verbs.succeeded(given.stale)]))


def _extend(given: Given) -> bool:
    lifecycle.extend([lease := verbs.lease_on(given.fresh)])
    return lease.lost


def _extend_stale(given: Given) -> bool:
    lifecycle.extend([lease := verbs.lease_on(given.stale)])
    return lease.lost


ACTS: dict[str, Callable[[Given], Any]] = {
    "claim": lambda _: len(verbs.claim(9)),
    "succeed": _settle(verbs.succeeded),
    "retry": _settle(verbs.retried),
    "bury": _settle(verbs.buried),
    "succeed late": _settle_stale,
    "extend": _extend,
    "extend late": _extend_stale,
    "release": lambda given: len(lifecycle.release([given.fresh])),
    "interrupt": lambda given: len(lifecycle.interrupt({given.fresh: 0.0})),
    "rescue": lambda _: lifecycle.rescue(),
    "promote": lambda _: lifecycle.promote().total(),
    "cancel": lambda given: lifecycle.cancel([given.job_id]),
    "run now": lambda given: lifecycle.run_now([given.job_id]),
    "move": lambda given: lifecycle.move([given.job_id], "other"),
    "prioritise": lambda given: lifecycle.prioritise([given.job_id], 7),
    "extend lease": lambda given: lifecycle.extend_leases([given.job_id], MINUTE),
    "release lease": lambda given: lifecycle.release_leases([given.job_id]),
    "replay": lambda given: len(lifecycle.replay([given.job_id])),
    "discard": lambda given: lifecycle.discard([given.job_id]),
    "prune": lambda _: sum(lifecycle.prune().values()),
}
HELD = (
    *("succeed", "retry", "bury", "succeed late", "extend", "release", "cancel"),
    *("extend lease", "release lease"),
)
#: What passes by a row that is locked, and comes again with the worker's next round.
PASS_BY = ("claim", "extend", "extend late", "rescue", "promote", "prune")
#: What can happen to a job in each state at all.
POSSIBLE = {
    "claimed": (*HELD, "extend late", "interrupt"),
    "expired": (*HELD, "rescue"),
    "pending": ("claim", "cancel", "run now", "move", "prioritise"),
    "scheduled": ("claim", "cancel", "run now", "promote", "move", "prioritise"),
    "dead": ("replay", "discard", "prune"),
    "cancelled": ("cancel", "run now", "prune"),
}


class Seen(NamedTuple):
    """What came out of two acts: what each said, and where the job stands."""

    said: tuple[Any, ...]
    job: tuple[Any, ...]


def look_at(given: Given, *said: Any) -> Seen:
    assert violations() == []
    columns = ("attempts", "max_attempts", "attempts_forgiven", "replays", "fence")
    columns += ("queue_name", "priority")
    [row] = [
        *Job.objects.values_list(*columns, "cancel_requested"),
        *DeadLetter.objects.values_list(*columns),
    ] or [()]
    return Seen(said, (verbs.where(given.job_id), *row, *verbs.outcomes(given.job_id)))


def clear() -> None:
    for model in (Attempt, DeadLetter, Job):
        model._default_manager.all().delete()


@cache
def one_after_the_other(state: str, *acts: str) -> Seen:
    given = STATES[state]()
    said = [ACTS[act](given) for act in acts]
    seen = look_at(given, *said)
    clear()
    return seen


def at_once(
    given: Given, first: str, second: str, other: OtherConnection, *, commit: bool
) -> tuple[Any, Any]:
    """Try the second while the first is under way; repeat it, as workers do, if it is refused."""
    with transaction.atomic():
        said = ACTS[first](given)
        future = other.start(ACTS[second], given)
        wait_until(lambda: wait([future], 0.005).done or lock_waits(), doing=f"{second} to wait")
        transaction.set_rollback(not commit)
    return said, _result(future, second, given)


def _result(future: Future[Any], act: str, given: Given) -> Any:
    try:
        return future.result(PATIENCE)
    except OperationalError as error:
        if "could not serialize" not in str(error):
            raise
    return ACTS[act](given)  # only REPEATABLE READ refuses


@contextmanager
def isolation(level: str, other: OtherConnection) -> Iterator[None]:
    def begin_at(level: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")

    begin_at(level)
    other.run(begin_at, level)
    try:
        yield
    finally:
        begin_at("READ COMMITTED")


@pytest.fixture(autouse=True)
def keep_letters_for_a_day(settings: Any) -> None:
    settings.JOBQUEUE = {"KEEP_DEAD_LETTERS": timedelta(days=1)}


QUICK = {
    *(("READ COMMITTED", "expired", first) for first in ("succeed", "rescue", "cancel")),
    ("READ COMMITTED", "claimed", "release lease"),
    ("READ COMMITTED", "dead", "replay"),
}


def matrix() -> Iterator[Any]:
    """Yield every level, state and first act; all but a few belong to the long runs."""
    for level in ("READ COMMITTED", "REPEATABLE READ"):
        for state, acts in POSSIBLE.items():
            for first in acts:
                is_quick = (level, state, first) in QUICK
                marks = [] if is_quick else [pytest.mark.chaos]
                given = f"{state}-{first}-{level}".replace(" ", "_")
                yield pytest.param(level, state, first, marks=marks, id=given)


@pytest.mark.parametrize(("level", "state", "first"), list(matrix()))
class TestAtOnce:
    def test_two_end_as_if_one_came_after_the_other(
        self, level: str, state: str, first: str, second_connection: OtherConnection
    ) -> None:
        with isolation(level, second_connection):
            for second in POSSIBLE[state]:
                orders = [one_after_the_other(state, first, second)]
                mirrored = one_after_the_other(state, second, first)
                orders.append(Seen(mirrored.said[::-1], mirrored.job))
                passed_by = one_after_the_other(state, first).job
                given = STATES[state]()
                said = at_once(given, first, second, second_connection, commit=True)
                seen = look_at(given, *said)
                if seen not in orders and second in PASS_BY:
                    assert seen.job == passed_by
                    seen = look_at(given, said[0], ACTS[second](given))
                clear()
                assert seen in orders, f"{first} while {second}"

    @pytest.mark.chaos
    def test_one_that_rolls_back_leaves_the_other_its_way(
        self, level: str, state: str, first: str, second_connection: OtherConnection
    ) -> None:
        """Or it was passed by, and stands as it stood."""
        with isolation(level, second_connection):
            for second in POSSIBLE[state]:
                alone = one_after_the_other(state, second)
                untouched = one_after_the_other(state)
                given = STATES[state]()
                said = at_once(given, first, second, second_connection, commit=False)
                seen = look_at(given, *said)
                clear()
                assert seen.job in (alone.job, untouched.job), f"{first} while {second}"
                if seen.job == alone.job != untouched.job:
                    assert seen.said[1:] == alone.said
