"""Two at once: real connections, real locks, and the order of things decided by the test.

What is said to happen "meanwhile" happens while the other's transaction is open; a test that needs
one to wait for the other makes sure that it really waits.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, transaction

from jobqueue import lifecycle
from jobqueue.models import DeadLetter, Job
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory
from tests.models import Mark
from tests.processes import PATIENCE, OtherConnection, wait_for_lock_wait
from tests.tasks import leave_row, noop

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

MINUTE = timedelta(minutes=1)


def waiting(other: OtherConnection, function: Callable[..., Any], *args: Any) -> Future[Any]:
    """Start ``function`` on the other connection, and return once it waits for a lock."""
    future = other.start(function, *args)
    wait_for_lock_wait()
    return future


def is_locked(job_id: int) -> bool:
    """Whether some other transaction holds the row of a job."""
    with suppress(OperationalError), transaction.atomic():
        Job.objects.select_for_update(nowait=True).get(pk=job_id)
        return False
    return True


class TestEnqueue:
    """C-70."""

    def test_is_invisible_until_the_commit(self, second_connection: OtherConnection) -> None:
        with transaction.atomic():
            Mark.objects.create(key="order")
            job = leave_row.enqueue("order")
            assert not second_connection.run(verbs.claim, 9)
            assert not second_connection.run(lifecycle.look).queue_names
        assert [claimed.id for claimed in second_connection.run(verbs.claim, 9)] == [job.pk]

    def test_that_rolls_back_was_never_seen(self, second_connection: OtherConnection) -> None:
        with transaction.atomic():
            noop.enqueue()
            assert not second_connection.run(verbs.claim, 9)
            transaction.set_rollback(True)
        assert not second_connection.run(verbs.claim, 9)


class TestClaims:
    def test_never_overlap_and_never_wait(self, second_connection: OtherConnection) -> None:
        """C-55, C-58."""
        jobs = JobFactory.create_batch(5)
        with transaction.atomic():
            ours = verbs.claim(2)
            theirs = second_connection.run(verbs.claim, 9)
        assert [claimed.id for claimed in (*ours, *theirs)] == [job.pk for job in jobs]
        assert all(claimed.attempts == 1 for claimed in (*ours, *theirs))

    def test_that_roll_back_leave_the_jobs_to_others(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory()
        with transaction.atomic():
            verbs.claim(1)
            transaction.set_rollback(True)
        [claimed] = second_connection.run(verbs.claim, 9)
        assert (claimed.id, claimed.attempts, claimed.fence) == (job.pk, 1, 1)


class TestReplay:
    """C-104: the double click."""

    def test_twice_at_once_replays_once(self, second_connection: OtherConnection) -> None:
        letter = DeadLetterFactory()
        with transaction.atomic():
            assert lifecycle.replay([letter.pk]) == [letter.pk]
            second = waiting(second_connection, lifecycle.replay, [letter.pk])
        assert second.result(PATIENCE) == []
        assert Job.objects.get().pk == letter.pk
        assert not DeadLetter.objects.exists()

    def test_after_one_that_rolls_back_takes_place(
        self, second_connection: OtherConnection
    ) -> None:
        letter = DeadLetterFactory()
        with transaction.atomic():
            lifecycle.replay([letter.pk])
            second = waiting(second_connection, lifecycle.replay, [letter.pk])
            transaction.set_rollback(True)
        assert second.result(PATIENCE) == [letter.pk]
        assert Job.objects.get().replays == 1

    def test_of_overlapping_sets_replays_each_once(
        self, second_connection: OtherConnection
    ) -> None:
        ids = [letter.pk for letter in DeadLetterFactory.create_batch(3)]
        with transaction.atomic():
            assert lifecycle.replay(ids[:2]) == ids[:2]
            second = waiting(second_connection, lifecycle.replay, ids[1:])
        assert second.result(PATIENCE) == ids[2:]

    def test_meanwhile_discarded_leaves_one_of_the_two(
        self, second_connection: OtherConnection
    ) -> None:
        letter = DeadLetterFactory()
        with transaction.atomic():
            lifecycle.replay([letter.pk])
            second = waiting(second_connection, lifecycle.discard, [letter.pk])
        assert second.result(PATIENCE) == 0
        assert verbs.where(letter.pk) == "pending"

    def test_of_what_is_discarded_meanwhile_replays_nothing(
        self, second_connection: OtherConnection
    ) -> None:
        letter = DeadLetterFactory()
        with transaction.atomic():
            lifecycle.discard([letter.pk])
            second = waiting(second_connection, lifecycle.replay, [letter.pk])
        assert second.result(PATIENCE) == []
        assert verbs.where(letter.pk) == "discarded"


class TestCancel:
    """C-22: in the same instant as a claim or an ack."""

    def test_meanwhile_a_claim_passes_the_job_by(self, second_connection: OtherConnection) -> None:
        job = JobFactory()
        with transaction.atomic():
            assert lifecycle.cancel([job.pk]) == 1
            assert not second_connection.run(verbs.claim, 9)
        assert verbs.where(job.pk) == "cancelled"

    def test_of_what_is_claimed_meanwhile_asks_it_to_stop(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory()
        with transaction.atomic():
            [claimed] = verbs.claim(1)
            cancelling = waiting(second_connection, lifecycle.cancel, [job.pk])
        assert cancelling.result(PATIENCE) == 1
        assert verbs.where(job.pk) == "claimed"
        lifecycle.extend([lease := verbs.lease_on(claimed)])
        assert lease.cancel_requested

    def test_of_what_is_acknowledged_meanwhile_comes_too_late(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        with transaction.atomic():
            lifecycle.settle([verbs.succeeded(claimed)])
            cancelling = waiting(second_connection, lifecycle.cancel, [job.pk])
        assert cancelling.result(PATIENCE) == 0
        assert verbs.where(job.pk) == "succeeded"

    def test_before_a_failure_is_recorded_keeps_the_job_from_coming_back(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        with transaction.atomic():
            lifecycle.cancel([job.pk])
            settling = waiting(second_connection, lifecycle.settle, [verbs.retried(claimed)])
        assert settling.result(PATIENCE) == {job.pk}
        assert verbs.where(job.pk) == "cancelled"

    def test_and_settle_lock_in_the_same_order(self, second_connection: OtherConnection) -> None:
        """Otherwise each could hold what the other waits for."""
        first, second = JobFactory.create_batch(2)
        claims = {claimed.id: claimed for claimed in verbs.claim(2)}
        ends = [verbs.succeeded(claims[second.pk]), verbs.succeeded(claims[first.pk])]
        with transaction.atomic():
            lifecycle.cancel([first.pk])
            settling = waiting(second_connection, lifecycle.settle, ends)
            assert not is_locked(second.pk)
            assert lifecycle.cancel([second.pk]) == 1
        assert settling.result(PATIENCE) == {first.pk, second.pk}

    def test_and_a_settle_of_several_kinds_cannot_wait_for_each_other(
        self, second_connection: OtherConnection
    ) -> None:
        """Each kind is a statement of its own, and keeps no lock while the next one waits."""
        first, second, third = ids = [job.pk for job in JobFactory.create_batch(3)]
        claims = {claimed.id: claimed for claimed in verbs.claim(3)}
        ends = [verbs.buried(claims[third]), verbs.succeeded(claims[second])]
        ends.append(verbs.buried(claims[first]))
        with transaction.atomic():
            lifecycle.cancel([second])
            settling = waiting(second_connection, lifecycle.settle, ends)
            assert lifecycle.cancel([first, third]) == 0
        assert settling.result(PATIENCE) == set(ids)


class TestRescue:
    def test_meanwhile_settled_leaves_the_job_alone(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        verbs.expire(job.pk)
        with transaction.atomic():
            lifecycle.settle([verbs.succeeded(claimed)])
            assert second_connection.run(lifecycle.rescue) == 0
        assert second_connection.run(lifecycle.rescue) == 0
        assert verbs.outcomes(job.pk) == ["succeeded"]

    def test_refuses_the_outcome_that_waited_for_it(
        self, second_connection: OtherConnection
    ) -> None:
        """C-02."""
        job = JobFactory()
        claimed = verbs.claim_one()
        verbs.expire(job.pk)
        with transaction.atomic():
            assert lifecycle.rescue() == 1
            settling = waiting(second_connection, lifecycle.settle, [verbs.succeeded(claimed)])
        assert settling.result(PATIENCE) == set()
        assert verbs.where(job.pk) == "pending"
        assert verbs.outcomes(job.pk) == ["lost"]

    def test_twice_at_once_records_one_loss(self, second_connection: OtherConnection) -> None:
        jobs = JobFactory.create_batch(2, claimed=True, lease_left=-MINUTE)
        with transaction.atomic():
            assert lifecycle.rescue(limit=1) == 1
            assert second_connection.run(lifecycle.rescue) == 1
        assert [verbs.outcomes(job.pk) for job in jobs] == [["lost"], ["lost"]]

    def test_meanwhile_extended_passes_the_job_by(self, second_connection: OtherConnection) -> None:
        job = JobFactory()
        lease = verbs.lease_on(verbs.claim_one())
        verbs.expire(job.pk)
        with transaction.atomic():
            lifecycle.extend([lease])
            assert second_connection.run(lifecycle.rescue) == 0
        assert second_connection.run(lifecycle.rescue) == 0
        assert not lease.lost


class TestExtend:
    """The heartbeat and the settler touch the same rows."""

    def test_never_waits_for_a_settle(self, second_connection: OtherConnection) -> None:
        JobFactory.create_batch(2)
        claims = verbs.claim(2)
        leases = [verbs.lease_on(claimed) for claimed in reversed(claims)]
        with transaction.atomic():
            lifecycle.settle([verbs.succeeded(claimed) for claimed in claims])
            second_connection.run(lifecycle.extend, leases)
            assert not any(lease.lost for lease in leases)  # it is not decided yet
        second_connection.run(lifecycle.extend, leases)
        assert all(lease.lost for lease in leases)

    def test_and_settle_cannot_wait_for_each_other(
        self, second_connection: OtherConnection
    ) -> None:
        JobFactory.create_batch(2)
        first, second = verbs.claim(2)
        ends = [verbs.succeeded(second), verbs.succeeded(first)]
        with transaction.atomic():
            lifecycle.extend([verbs.lease_on(first)])
            settling = waiting(second_connection, lifecycle.settle, ends)
            lifecycle.extend([verbs.lease_on(second)])
        assert settling.result(PATIENCE) == {first.id, second.id}

    def test_of_what_is_taken_over_meanwhile_is_refused(
        self, second_connection: OtherConnection
    ) -> None:
        JobFactory()
        lease = verbs.lease_on(verbs.claim_one())
        verbs.expire(lease.claim.id)
        second_connection.run(lifecycle.rescue)
        second_connection.run(verbs.claim, 1)
        lifecycle.extend([lease])
        assert lease.lost


class TestPromote:
    def test_twice_at_once_promotes_each_once(self, second_connection: OtherConnection) -> None:
        JobFactory.create_batch(3, scheduled=True, due_in=-MINUTE)
        with transaction.atomic():
            assert lifecycle.promote(limit=2).total() == 2
            assert second_connection.run(lifecycle.promote).total() == 1

    def test_passes_by_what_is_being_cancelled(self, second_connection: OtherConnection) -> None:
        job = JobFactory(scheduled=True, due_in=-MINUTE)
        with transaction.atomic():
            lifecycle.cancel([job.pk])
            assert second_connection.run(lifecycle.promote).total() == 0
        assert verbs.where(job.pk) == "cancelled"

    def test_meanwhile_run_now_finds_nothing_left_to_do(
        self, second_connection: OtherConnection
    ) -> None:
        job = JobFactory(scheduled=True, due_in=-MINUTE)
        with transaction.atomic():
            lifecycle.promote()
            running = waiting(second_connection, lifecycle.run_now, [job.pk])
        assert running.result(PATIENCE) == 0


class TestPrune:
    def test_twice_at_once_deletes_each_once(self, second_connection: OtherConnection) -> None:
        JobFactory.create_batch(3, succeeded=True, finished_ago=timedelta(days=2))
        with transaction.atomic():
            assert lifecycle.prune()["jobs"] == 3
            assert second_connection.run(lifecycle.prune)["jobs"] == 0


class TestOperations:
    """What people do to the same rows from two windows, in whatever order they picked them."""

    @pytest.mark.parametrize(
        ("act", "state"), [(lifecycle.run_now, "scheduled"), (lifecycle.cancel, "pending")]
    )
    def test_on_jobs_lock_in_one_order(
        self, act: Callable[..., int], state: str, second_connection: OtherConnection
    ) -> None:
        first, second = JobFactory.create_batch(2, **{state: True})
        Job.objects.filter(pk=first.pk).update(actor="moved behind the other in the table")
        with transaction.atomic():
            lifecycle.cancel([first.pk])
            acting = waiting(second_connection, act, [second.pk, first.pk])
            assert not is_locked(second.pk)
        assert acting.result(PATIENCE) == 1

    @pytest.mark.parametrize("act", [lifecycle.replay, lifecycle.discard])
    def test_on_letters_lock_in_one_order(
        self, act: Callable[..., Any], second_connection: OtherConnection
    ) -> None:
        first, second = DeadLetterFactory.create_batch(2)
        DeadLetter.objects.filter(pk=first.pk).update(actor="moved behind the other in the table")
        with transaction.atomic():
            lifecycle.discard([first.pk])
            acting = waiting(second_connection, act, [second.pk, first.pk])
            assert DeadLetter.objects.select_for_update(skip_locked=True).filter(pk=second.pk)
        assert acting.result(PATIENCE) in (1, [second.pk])
