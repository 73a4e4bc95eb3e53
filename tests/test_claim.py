"""Claim: take jobs for one worker; promote, look and extend are what goes with it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from time import monotonic

import pytest

from jobqueue import lifecycle
from jobqueue.claims import Floors, Settlement, Turn
from jobqueue.models import Attempt, Job
from jobqueue.states import Status
from jobqueue.stores import get as store_of
from tests import verbs
from tests.factories import JobFactory
from tests.tasks import noop

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


class TestClaim:
    def test_starts_a_lease_and_counts_an_attempt(self) -> None:
        job = noop.enqueue()
        claimed = verbs.claim_one(worker="worker-b")
        job.refresh_from_db()
        assert (claimed.id, claimed.fence, claimed.attempts) == (job.pk, 1, 1)
        assert (job.status, job.fence, job.attempts) == (Status.CLAIMED, 1, 1)
        assert (job.claimed_by, claimed.claimed_by) == ("worker-b", "worker-b")
        assert job.claimed_until - job.claimed_at == verbs.LEASE
        assert Job.objects.in_flight().get() == job

    def test_writes_no_attempt_yet(self) -> None:
        noop.enqueue()
        verbs.claim_one()
        assert not Attempt.objects.exists()

    def test_gives_the_worker_all_that_it_needs(self) -> None:
        call = noop.using(priority=3, correlation_id="order-1", actor="ann", max_attempts=2)
        job = call.enqueue(1, key="ä")
        claimed = verbs.claim_one()
        for field in ("task", "version", "queue_name", "priority", "max_attempts", "actor"):
            assert getattr(claimed, field) == getattr(job, field)
        assert claimed.correlation_id == "order-1"
        assert claimed.has_attempts_left

    def test_takes_higher_priority_first_then_longer_due_then_earlier_id(self) -> None:
        """C-68."""
        late, low = JobFactory(), JobFactory(priority=-1, age=9 * MINUTE)
        high, early = JobFactory(priority=1), JobFactory(age=MINUTE)
        twin = JobFactory()
        Job.objects.filter(pk=twin.pk).update(run_after=late.run_after)
        expected = [job.pk for job in (high, early, late, twin, low)]
        assert [claimed.id for claimed in verbs.claim(9)] == expected

    def test_takes_no_more_than_its_limit_and_the_best_of_all(self) -> None:
        JobFactory.create_batch(3)
        best = JobFactory(priority=9)
        assert verbs.claim_one().id == best.pk
        assert len(verbs.claim(2)) == 2
        assert len(verbs.claim(9)) == 1

    def test_takes_from_one_queue_only(self) -> None:
        JobFactory(queue_name="mail")
        assert not verbs.claim(9)
        assert verbs.claim_one(queue_name="mail")

    def test_takes_only_what_can_run_now(self) -> None:
        for state in ("scheduled", "claimed", "succeeded", "cancelled"):
            JobFactory(**{state: True})
        JobFactory(claimed=True, lease_left=-MINUTE)
        assert not verbs.claim(9)

    def test_takes_a_job_once(self) -> None:
        noop.enqueue()
        assert len(verbs.claim(9)) == 1
        assert not verbs.claim(9)

    def test_of_a_task_with_a_lease_of_its_own_uses_that(self) -> None:
        short, usual = JobFactory(task="tests.tasks.leased"), JobFactory()
        verbs.claim(2)
        short.refresh_from_db()
        usual.refresh_from_db()
        assert short.claimed_until - short.claimed_at == timedelta(minutes=7)
        assert usual.claimed_until - usual.claimed_at == verbs.LEASE

    def test_lets_the_fence_grow_every_time(self) -> None:
        noop.using(max_attempts=9).enqueue()
        fences = []
        for _ in range(3):
            claimed = verbs.claim_one()
            fences.append(claimed.fence)
            lifecycle.settle([verbs.released(claimed)])
        assert fences == [1, 2, 3]

    def test_of_a_row_put_in_by_sql_works_like_any_other(self) -> None:
        job = JobFactory(task="nobody.knows", args="text", kwargs=[1])
        assert verbs.claim_one().id == job.pk


@pytest.mark.postgresql
class TestClaimAboveAFloor:
    """Where the last claim ended, the next one starts; one without floors sees everything."""

    def claim_above(self, floors: Floors) -> list[int]:
        claims = lifecycle.claim([Turn("default", 9, floors)], worker="w", lease=MINUTE)
        return [claimed.id for claimed in claims]

    def test_takes_what_comes_after_it_best_first(self) -> None:
        last = JobFactory(age=MINUTE)
        floor = (last.run_after, last.pk)
        later, high = JobFactory(), JobFactory(priority=1)
        twin = JobFactory()
        Job.objects.filter(pk=twin.pk).update(run_after=last.run_after)
        assert self.claim_above({0: floor, 1: floor}) == [high.pk, twin.pk, later.pk]

    def test_leaves_what_lies_below_or_in_other_lanes_to_a_claim_without(self) -> None:
        floor = JobFactory(age=MINUTE)
        below, other_lane = JobFactory(age=2 * MINUTE), JobFactory(priority=2)
        assert self.claim_above({0: (floor.run_after, floor.pk)}) == []
        assert self.claim_above({}) == [other_lane.pk, below.pk, floor.pk]


class TestExtend:
    def test_lets_the_lease_run_its_span_from_now(self) -> None:
        job = noop.enqueue()
        lease = verbs.lease_on(verbs.claim_one(), span=600)
        before = monotonic()
        lifecycle.extend([lease])
        left = Job.objects.with_time_left().get(pk=job.pk).time_left
        assert timedelta(seconds=590) < left <= timedelta(seconds=600)
        assert before + 600 <= lease.ends <= monotonic() + 600
        assert not lease.lost

    def test_never_believes_in_the_lease_for_longer_than_the_database(self) -> None:
        noop.enqueue()
        lease = verbs.lease_on(verbs.claim_one())
        lifecycle.extend([lease])
        left = Job.objects.with_time_left().get().time_left.total_seconds()
        assert lease.ends - monotonic() <= left + 0.01  # SQLite's clock counts milliseconds

    def test_of_a_stale_fence_changes_nothing(self) -> None:
        """C-02: the heartbeat of the earlier owner."""
        JobFactory()
        stale = verbs.lease_on(verbs.claim_one(worker="worker-a"), span=6000)
        ends = stale.ends
        verbs.expire(stale.claim.id)
        lifecycle.rescue()
        verbs.claim_one(worker="worker-b")
        before = verbs.everything()
        lifecycle.extend([stale])
        assert verbs.everything() == before
        assert stale.lost
        assert stale.ends == ends

    @pytest.mark.parametrize("end", [verbs.succeeded, verbs.retried, verbs.buried, verbs.released])
    def test_of_a_settled_job_changes_nothing(self, end: Callable[..., Settlement]) -> None:
        JobFactory()
        lease = verbs.lease_on(verbs.claim_one())
        lifecycle.settle([end(lease.claim)])
        before = verbs.everything()
        lifecycle.extend([lease])
        assert verbs.everything() == before
        assert lease.lost

    def test_of_an_expired_lease_that_nobody_rescued_keeps_the_job(self) -> None:
        job = JobFactory()
        lease = verbs.lease_on(verbs.claim_one())
        verbs.expire(job.pk)
        lifecycle.extend([lease])
        assert not lease.lost
        assert Job.objects.in_flight().get() == job

    def test_tells_of_a_wish_to_cancel(self) -> None:
        JobFactory.create_batch(2)
        leases = [verbs.lease_on(claimed) for claimed in verbs.claim(2)]
        lifecycle.cancel([leases[1].claim.id])
        lifecycle.extend(leases)
        assert [lease.cancel_requested for lease in leases] == [False, True]
        assert not any(lease.lost for lease in leases)

    def test_of_many_judges_each_by_itself(self) -> None:
        JobFactory.create_batch(3)
        leases = [verbs.lease_on(claimed) for claimed in verbs.claim(3)]
        lifecycle.settle([verbs.succeeded(leases[1].claim)])
        lifecycle.extend(leases)
        assert [lease.lost for lease in leases] == [False, True, False]

    def test_of_none_does_nothing(self) -> None:
        lifecycle.extend([])


class TestHeld:
    def test_says_which_claims_still_hold_and_changes_nothing(self) -> None:
        JobFactory.create_batch(3)
        leases = [verbs.lease_on(claimed) for claimed in verbs.claim(3)]
        lifecycle.settle([verbs.retried(leases[0].claim)])
        lifecycle.cancel([leases[2].claim.id])
        before = verbs.everything()
        held = {leases[1].claim.key: False, leases[2].claim.key: True}
        assert store_of("default").held(leases) == held
        assert verbs.everything() == before


class TestLook:
    def test_at_nothing_sees_nothing(self) -> None:
        look = lifecycle.look()
        assert (list(look.queue_names), look.has_due, look.has_expired) == ([], False, False)

    def test_names_each_queue_with_pending_jobs_once(self) -> None:
        for name in ("mail", "default", "mail", "web"):
            JobFactory(queue_name=name)
        JobFactory(queue_name="later", scheduled=True)
        JobFactory(queue_name="busy", claimed=True)
        look = lifecycle.look()
        assert sorted(look.queue_names) == ["default", "mail", "web"]
        assert (look.has_due, look.has_expired) == (False, False)

    def test_sees_what_is_due_and_what_is_lost(self) -> None:
        JobFactory(scheduled=True, due_in=-MINUTE)
        assert lifecycle.look().has_due
        JobFactory(claimed=True, lease_left=-MINUTE)
        assert lifecycle.look().has_expired

    def test_counts_a_lost_claim_as_not_in_flight(self) -> None:
        """C-09 and C-11: only the end of the lease decides."""
        lost = JobFactory(claimed=True, lease_left=-MINUTE)
        old = JobFactory(claimed=True, claimed_ago=timedelta(days=3))
        assert Job.objects.in_flight().get() == old
        assert Job.objects.expired().get() == lost
