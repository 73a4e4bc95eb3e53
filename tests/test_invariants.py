"""The lifecycle as a state machine: whatever is done in whatever order, some things stay true.

A model that fits on a page says where each job must be; after every step the database is compared
with it, and asked for what must never be there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from django.db import transaction
from django.db.models import F, Q
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from jobqueue import enqueue_many, lifecycle
from jobqueue.claims import Claim, Settlement
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.querysets import ago
from jobqueue.states import Outcome, Reason, Status
from tests import verbs
from tests.tasks import noop

T = TypeVar("T")

PICKS = st.lists(st.integers(0, 1000), min_size=1, max_size=4)
HOUR = timedelta(hours=1)
#: What is charged against the budget; the rest is forgiven.
CHARGED = ("succeeded", "failed", "lost")


@dataclass
class Expected:
    """Where a job must be, and what must be known of it."""

    place: str
    max_attempts: int
    attempts: int = 0
    forgiven: int = 0
    fence: int = 0
    replays: int = 0
    cancel_requested: bool = False
    is_expired: bool = False
    outcomes: list[str] = field(default_factory=list)

    def end(self, outcome: str, place: str) -> None:
        """End the claim; where its cancellation was asked for, a job does not come back."""
        comes_back = place in ("pending", "scheduled")
        self.place = "cancelled" if comes_back and self.cancel_requested else place
        self.is_expired = False
        if outcome == "released":
            self.attempts -= 1
        else:
            self.outcomes.append(outcome)
        if outcome in ("snoozed", "interrupted"):
            self.forgiven += 1
            self.max_attempts += 1


def failed(claimed: Claim) -> Settlement:
    """Return the settlement of a failure as the runner decides it."""
    return verbs.retried(claimed) if claimed.has_attempts_left else verbs.buried(claimed)


def discarded(claimed: Claim) -> Settlement:
    return verbs.buried(claimed, Reason.DISCARDED)


ENDS: dict[str, Callable[[Claim], Settlement]] = {
    "succeed": verbs.succeeded,
    "fail": failed,
    "discard": discarded,
    "snooze": verbs.snoozed,
    "release": verbs.released,
    "interrupt": verbs.interrupted,
}


def pick(items: Iterable[T], numbers: list[int]) -> list[T]:
    """Return some of the items, each at most once."""
    found = list(items)
    return [found[index] for index in sorted({number % len(found) for number in numbers})]


class Lifecycle(RuleBasedStateMachine):
    """Everything that can happen to jobs, inside one transaction that is rolled back at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs: dict[int, Expected] = {}
        self.claims: list[Claim] = []  # every one there ever was, most of them stale by now
        self.fences: dict[int, int] = {}
        self.block = transaction.atomic()
        self.block.__enter__()

    def teardown(self) -> None:
        transaction.set_rollback(True)
        self.block.__exit__(None, None, None)

    def ids(self, *places: str) -> list[int]:
        return [pk for pk, job in self.jobs.items() if job.place in places]

    def is_current(self, claimed: Claim) -> bool:
        job = self.jobs.get(claimed.id)
        return job is not None and job.place == "claimed" and job.fence == claimed.fence

    # Jobs come into being.

    @rule(
        budgets=st.lists(st.integers(1, 3), min_size=1, max_size=3),
        priority=st.integers(-1, 1),
        delay=st.sampled_from([None, HOUR]),
        commits=st.booleans(),
        many=st.booleans(),
    )
    def enqueue(
        self,
        budgets: list[int],
        priority: int,
        delay: timedelta | None,
        commits: bool,  # noqa: FBT001 - Hypothesis passes it by name
        many: bool,  # noqa: FBT001
    ) -> None:
        task = noop.using(priority=priority, run_after=delay)
        with transaction.atomic():
            calls = [task.using(max_attempts=budget).bind() for budget in budgets]
            ids = enqueue_many(calls) if many else [lifecycle.enqueue(call).pk for call in calls]
            transaction.set_rollback(not commits)
        if commits:
            place = "scheduled" if delay else "pending"
            self.jobs |= {pk: Expected(place, n) for pk, n in zip(ids, budgets, strict=True)}

    @rule()
    def promote(self) -> None:
        due = self.ids("scheduled")
        verbs.fall_due(*due)
        assert lifecycle.promote().total() == len(due)
        for pk in due:
            self.jobs[pk].place = "pending"

    # Workers.

    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        waiting = Job.objects.pending().order_by("-priority", "run_after", "id")
        best = list(waiting.values_list("pk", flat=True)[:limit])
        claims = verbs.claim(limit)
        assert [claimed.id for claimed in claims] == best
        for claimed in claims:
            job = self.jobs[claimed.id]
            job.place = "claimed"
            job.attempts += 1
            job.fence += 1
            assert (claimed.fence, claimed.attempts) == (job.fence, job.attempts)
        self.claims += claims

    @precondition(lambda self: self.claims)
    @rule(picks=PICKS)
    def extend(self, picks: list[int]) -> None:
        leases = [verbs.lease_on(claimed) for claimed in pick(self.claims, picks)]
        newest = {lease.claim.id: lease for lease in leases}  # one lease on each job
        lifecycle.extend(list(newest.values()))
        for lease in newest.values():
            assert lease.lost == (not self.is_current(lease.claim))
            if not lease.lost:
                self.jobs[lease.claim.id].is_expired = False
                assert lease.cancel_requested == self.jobs[lease.claim.id].cancel_requested

    @precondition(lambda self: self.claims)
    @rule(picks=PICKS, ends=st.lists(st.sampled_from(sorted(ENDS)), min_size=4, max_size=4))
    def settle(self, picks: list[int], ends: list[str]) -> None:
        """With current and with stale tokens, both of one job among them."""
        claims = pick(self.claims, picks)
        settlements = [ENDS[end](claimed) for claimed, end in zip(claims, ends, strict=False)]
        current = [each for each in settlements if self.is_current(each.claim)]
        assert lifecycle.settle(settlements) == {each.claim.id for each in current}
        for each in current:
            place = "dead" if each.status is None else each.status.value
            self.jobs[each.claim.id].end(each.outcome.value, place)

    @precondition(lambda self: self.ids("claimed"))
    @rule(picks=PICKS)
    def expire(self, picks: list[int]) -> None:
        for pk in pick(self.ids("claimed"), picks):
            verbs.expire(pk)
            self.jobs[pk].is_expired = True

    @rule()
    def rescue(self) -> None:
        lost = [job for job in self.jobs.values() if job.is_expired]
        assert lifecycle.rescue() == len(lost)
        for job in lost:
            job.end("lost", "pending" if job.attempts < job.max_attempts else "dead")

    # People.

    @precondition(lambda self: self.jobs)
    @rule(picks=PICKS)
    def cancel(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        waiting = [pk for pk in ids if self.jobs[pk].place in ("pending", "scheduled")]
        running = [
            pk
            for pk in ids
            if self.jobs[pk].place == "claimed" and not self.jobs[pk].cancel_requested
        ]
        assert lifecycle.cancel(ids) == len(waiting) + len(running)
        for pk in waiting:
            self.jobs[pk].place = "cancelled"
        for pk in running:
            self.jobs[pk].cancel_requested = True

    @precondition(lambda self: self.jobs)
    @rule(picks=PICKS)
    def run_now(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        scheduled = [pk for pk in ids if self.jobs[pk].place == "scheduled"]
        assert lifecycle.run_now(ids) == len(scheduled)
        for pk in scheduled:
            self.jobs[pk].place = "pending"

    @precondition(lambda self: self.ids("claimed"))
    @rule(picks=PICKS)
    def extend_leases(self, picks: list[int]) -> None:
        ids = pick(self.ids("claimed"), picks)
        assert lifecycle.extend_leases([*ids, *ids], timedelta(minutes=5)) == len(ids)
        for pk in ids:
            self.jobs[pk].is_expired = False

    @precondition(lambda self: self.jobs)
    @rule(picks=PICKS)
    def release_leases(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        held = [pk for pk in ids if self.jobs[pk].place == "claimed"]
        assert lifecycle.release_leases(ids) == len(held)
        for pk in held:
            job = self.jobs[pk]
            job.end("lost", "pending" if job.attempts < job.max_attempts else "dead")

    @precondition(lambda self: self.jobs)
    @rule(picks=PICKS)
    def move_away_and_back(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        waiting = [pk for pk in ids if self.jobs[pk].place in ("pending", "scheduled")]
        assert lifecycle.move(ids, "other") == len(waiting)
        assert lifecycle.move(waiting, "default") == len(waiting)

    @precondition(lambda self: self.jobs)
    @rule(picks=PICKS)
    def replay(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        dead = [pk for pk in ids if self.jobs[pk].place == "dead"]
        assert sorted(lifecycle.replay([*ids, *ids])) == sorted(dead)
        for pk in dead:
            job = self.jobs[pk]
            self.jobs[pk] = replace(
                job,
                place="pending",
                max_attempts=job.attempts + job.max_attempts - job.forgiven,
                forgiven=job.attempts,
                replays=job.replays + 1,
                cancel_requested=False,
            )

    @precondition(lambda self: self.ids("dead"))
    @rule(picks=PICKS)
    def discard(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        dead = [pk for pk in ids if self.jobs[pk].place == "dead"]
        assert lifecycle.discard(ids) == len(dead)
        for pk in dead:
            self.jobs[pk].place = "discarded"

    @precondition(lambda self: self.ids("discarded"))
    @rule(picks=PICKS)
    def restore(self, picks: list[int]) -> None:
        ids = pick(self.jobs, picks)
        discarded = [pk for pk in ids if self.jobs[pk].place == "discarded"]
        assert lifecycle.restore([*ids, *ids]) == len(discarded)
        for pk in discarded:
            self.jobs[pk].place = "dead"

    @precondition(lambda self: self.ids("succeeded", "cancelled"))
    @rule(picks=PICKS)
    def prune(self, picks: list[int]) -> None:
        old = pick(self.ids("succeeded", "cancelled"), picks)
        Job.objects.filter(pk__in=old).update(finished_at=ago(timedelta(days=2)))
        assert lifecycle.prune()["jobs"] == len(old)
        for pk in old:
            del self.jobs[pk]

    # What must be so, and what must never be.

    @invariant()
    def every_job_is_where_it_must_be(self) -> None:
        """I1, I2, I8, I10, I17: nothing lost, no phantom, none in two places, all counts right."""
        jobs = {
            row["pk"]: row
            for row in Job.objects.values("pk", "status", *COUNTS, "cancel_requested")
        }
        letters = {
            row["pk"]: row | {"status": "discarded" if row["discarded_at"] else "dead"}
            for row in DeadLetter.objects.values("pk", "discarded_at", *COUNTS)
        }
        assert not jobs.keys() & letters.keys()
        assert jobs.keys() | letters.keys() == self.jobs.keys()
        for pk, expected in self.jobs.items():
            row: dict[str, Any] = jobs.get(pk) or letters[pk]
            assert row["status"] == expected.place
            assert (
                row.get("cancel_requested", expected.cancel_requested) == expected.cancel_requested
            )
            counts = (expected.attempts, expected.max_attempts, expected.forgiven)
            assert tuple(row[name] for name in COUNTS) == (
                *counts,
                expected.replays,
                expected.fence,
            )

    @invariant()
    def the_history_of_every_job_is_whole(self) -> None:
        """I5, I7, I8, I9, I13 and "nothing is settled twice"."""
        histories: dict[int, list[tuple[int, int, str]]] = {pk: [] for pk in self.jobs}
        for pk, *attempt in Attempt.objects.order_by("number").values_list(
            "job_id", "number", "fence", "outcome"
        ):
            histories.setdefault(pk, []).append(tuple(attempt))  # type: ignore[arg-type]
        for pk, history in histories.items():
            numbers, fences, outcomes = ([each[n] for each in history] for n in range(3))
            assert numbers == list(range(1, len(history) + 1))
            assert fences == sorted(set(fences))
            if expected := self.jobs.get(pk):
                self.compare_history(expected, fences, outcomes)

    def compare_history(self, expected: Expected, fences: list[int], outcomes: list[str]) -> None:
        is_open = expected.place == "claimed"
        assert outcomes == expected.outcomes
        assert len(outcomes) == expected.attempts - is_open
        assert ("succeeded" in outcomes) == (expected.place == "succeeded")
        if expected.place == "succeeded":
            assert outcomes.index("succeeded") == len(outcomes) - 1
            assert fences[-1] == expected.fence
        if is_open:
            assert expected.fence not in fences
        charged = sum(outcome in CHARGED for outcome in outcomes)
        budget = expected.max_attempts - expected.forgiven
        assert charged <= budget * (expected.replays + 1)

    @invariant()
    def fences_never_go_back(self) -> None:
        for model in (Job, DeadLetter):
            for pk, fence in model._default_manager.values_list("pk", "fence"):
                assert fence >= self.fences.get(pk, 0)
                self.fences[pk] = fence

    @invariant()
    def the_promises_hold_in_the_tables(self) -> None:
        """I4 and I9: what the constraints say, asked in other words."""
        leased = Q(claimed_by=None) | Q(claimed_at=None) | Q(claimed_until=None)
        free = Q(claimed_by=None, claimed_at=None, claimed_until=None)
        claimed = Job.objects.claimed()
        assert not claimed.filter(leased).exists()
        assert not Job.objects.exclude(status=Status.CLAIMED).exclude(free).exists()
        assert not Job.objects.filter(attempts__gt=F("max_attempts")).exists()
        assert not Job.objects.finished().filter(finished_at=None).exists()
        assert not Job.objects.pending().filter(attempts__gte=F("max_attempts")).exists()
        assert not Attempt.objects.filter(outcome=Outcome.RELEASED).exists()


COUNTS = ("attempts", "max_attempts", "attempts_forgiven", "replays", "fence")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "examples", [12, pytest.param(100, marks=pytest.mark.chaos)], ids=["some", "many"]
)
def test_whatever_happens_in_whatever_order(examples: int) -> None:
    run_state_machine_as_test(
        Lifecycle,
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
