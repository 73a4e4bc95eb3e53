"""Settle: only the current lease can record an outcome, and it is recorded whole or not at all."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, transaction

from jobqueue import lifecycle, signals
from jobqueue.claims import Failure, Settlement
from jobqueue.models import MAX_LAST_ERROR, Attempt, DeadLetter, Job
from jobqueue.querysets import from_now
from jobqueue.states import Outcome, Reason, Status
from tests import verbs
from tests.factories import JobFactory
from tests.tasks import noop

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
ENDS: dict[str, Callable[..., Settlement]] = {
    "ack": verbs.succeeded,
    "retry": verbs.retried,
    "dead-letter": verbs.buried,
    "snooze": verbs.snoozed,
    "release": verbs.released,
    "interrupt": verbs.interrupted,
}


@pytest.fixture(params=list(ENDS))
def end(request: pytest.FixtureRequest) -> Callable[..., Settlement]:
    """Every way to settle a claim."""
    return ENDS[request.param]


class TestAck:
    def test_finishes_the_job_and_ends_the_lease(self) -> None:
        job = JobFactory()
        claimed = verbs.claim_one()
        assert lifecycle.settle([verbs.succeeded(claimed, result='{"total": 3}')]) == {job.pk}
        job.refresh_from_db()
        assert (job.status, job.result, job.attempts) == (Status.SUCCEEDED, {"total": 3}, 1)
        assert job.finished_at is not None
        assert (job.claimed_by, job.claimed_at, job.claimed_until) == (None, None, None)

    @pytest.mark.parametrize("result", ["0", '""', "null", "[]", '"text"', "false"])
    def test_keeps_any_result(self, result: str) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.succeeded(verbs.claim_one(), result=result)])
        assert Job.objects.get(pk=job.pk).result == json.loads(result)

    def test_keeps_no_result_where_there_is_none(self) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])
        assert Job.objects.filter(pk=job.pk, result__isnull=True).exists()

    def test_deletes_the_job_where_succeeded_jobs_are_not_kept(self, settings: Any) -> None:
        settings.JOBQUEUE = {"KEEP_SUCCEEDED": timedelta(0)}
        job, kept = JobFactory.create_batch(2)
        first, second = verbs.claim(2)
        assert lifecycle.settle([verbs.succeeded(first), verbs.retried(second)]) == {
            job.pk,
            kept.pk,
        }
        assert [verbs.where(pk) for pk in (job.pk, kept.pk)] == ["gone", "scheduled"]
        assert verbs.outcomes(job.pk) == ["succeeded"]


class TestRetry:
    def test_schedules_the_job_again_with_its_last_error(self) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.retried(verbs.claim_one(), delay=HOUR)])
        job.refresh_from_db()
        assert (job.status, job.attempts, job.last_error) == (Status.SCHEDULED, 1, "failed")
        assert Job.objects.filter(run_after__gt=from_now(HOUR - timedelta(minutes=1))).exists()
        assert Job.objects.filter(run_after__lte=from_now(HOUR)).exists()
        assert not verbs.claim(9)

    def test_leaves_the_payload_as_it_was(self) -> None:
        """C-88."""
        job = JobFactory(args=[1, {"a": "ä"}], kwargs={"b": None})
        for _ in range(3):
            lifecycle.settle([verbs.retried(verbs.claim_one())])
            verbs.fall_due(job.pk)
            lifecycle.promote()
        job.refresh_from_db()
        assert (job.args, job.kwargs) == ([1, {"a": "ä"}], {"b": None})

    def test_keeps_the_last_error_short_and_the_attempt_whole(self) -> None:
        job = JobFactory()
        failure = Failure("ValueError", "ä" * 4000, "trace", "f" * 16)
        settlement = verbs.ended(
            verbs.claim_one(), Outcome.FAILED, Status.SCHEDULED, delay=HOUR, failure=failure
        )
        lifecycle.settle([settlement])
        assert Job.objects.get(pk=job.pk).last_error == "ä" * MAX_LAST_ERROR
        assert Attempt.objects.get().message == "ä" * 4000


class TestDeadLetter:
    def test_moves_the_job_whole_under_its_id_with_the_reason(self) -> None:
        job = noop.using(
            priority=3, correlation_id="order-1", actor="ann", max_attempts=2, queue_name="mail"
        ).enqueue(1, key={"ä": [None]})
        claimed = verbs.claim_one(queue_name="mail")
        assert lifecycle.settle([verbs.buried(claimed, Reason.NOT_RETRYABLE)]) == {job.pk}
        letter = DeadLetter.objects.get()
        assert verbs.where(job.pk) == "dead"
        moved = (
            "id",
            "task",
            "args",
            "kwargs",
            "version",
            "queue_name",
            "priority",
            "max_attempts",
        )
        moved += ("correlation_id", "actor", "enqueued_at", "run_after", "replays", "trace")
        assert {name: getattr(letter, name) for name in moved} == {
            name: getattr(job, name) for name in moved
        }
        assert (letter.fence, letter.attempts) == (1, 1)
        assert letter.reason == Reason.NOT_RETRYABLE
        assert (letter.error_class, letter.message, letter.last_error) == (
            *("RuntimeError", "failed"),
            "failed",
        )
        assert letter.fingerprint == verbs.FAILURE.fingerprint
        assert letter.died_at >= letter.enqueued_at

    def test_keeps_the_attempts(self) -> None:
        job = JobFactory()
        lifecycle.settle([verbs.buried(verbs.claim_one())])
        assert verbs.outcomes(job.pk) == ["failed"]


class TestSnooze:
    def test_is_recorded_but_costs_no_attempt(self) -> None:
        job = JobFactory(max_attempts=1)
        for number in (1, 2, 3):
            lifecycle.settle([verbs.snoozed(verbs.claim_one())])
            verbs.fall_due(job.pk)
            lifecycle.promote()
            job.refresh_from_db()
            assert (job.attempts, job.budget) == (number, 1)
        assert verbs.outcomes(job.pk) == ["snoozed"] * 3
        claimed = verbs.claim_one()
        assert (claimed.tries, claimed.has_attempts_left) == (1, False)


class TestRelease:
    def test_leaves_no_trace_but_the_fence(self) -> None:
        job = JobFactory()
        assert lifecycle.release(verbs.claim(1)) == {job.pk}
        job.refresh_from_db()
        assert (job.status, job.attempts, job.fence) == (Status.PENDING, 0, 1)
        assert (job.claimed_by, job.claimed_at, job.claimed_until) == (None, None, None)
        assert not Attempt.objects.exists()

    def test_makes_the_job_claimable_at_once_in_its_old_place(self) -> None:
        first, second = JobFactory.create_batch(2)
        lifecycle.release(verbs.claim(1))
        assert [claimed.id for claimed in verbs.claim(2)] == [first.pk, second.pk]

    def test_can_be_repeated_for_ever(self) -> None:
        JobFactory(max_attempts=1)
        for _ in range(5):
            lifecycle.release(verbs.claim(1))
        claimed = verbs.claim_one()
        assert (claimed.attempts, claimed.fence) == (1, 6)


class TestInterrupt:
    def test_is_recorded_forgiven_and_claimable_at_once(self) -> None:
        """C-42."""
        job = JobFactory(max_attempts=1)
        assert lifecycle.interrupt(dict.fromkeys(verbs.claim(1), time.monotonic())) == {job.pk}
        assert verbs.outcomes(job.pk) == ["interrupted"]
        claimed = verbs.claim_one(worker="worker-b")
        assert (claimed.attempts, claimed.max_attempts, claimed.tries) == (2, 2, 1)


class TestAttempt:
    @pytest.mark.parametrize("kind", sorted(ENDS.keys() - {"release"}))
    def test_says_who_did_what(self, kind: str) -> None:
        job = JobFactory()
        claimed = verbs.claim_one(worker="worker-b")
        settlement = ENDS[kind](claimed)
        lifecycle.settle([settlement])
        attempt = Attempt.objects.get()
        assert (attempt.job_id, attempt.number, attempt.fence) == (job.pk, 1, claimed.fence)
        assert (attempt.task, attempt.queue_name) == (job.task, job.queue_name)
        assert (attempt.worker, attempt.outcome) == ("worker-b", settlement.outcome)
        assert attempt.message == settlement.failure.message
        assert attempt.traceback == settlement.failure.traceback

    def test_has_the_databases_time_and_the_handlers_duration(self) -> None:
        """C-83: a worker's clock gives spans, never instants."""
        JobFactory()
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])  # two seconds, a second ago
        attempt = Attempt.objects.get()
        assert abs(attempt.duration - timedelta(seconds=2)) < timedelta(milliseconds=5)
        finished_at = Job.objects.get().finished_at
        assert timedelta(seconds=0.9) < finished_at - attempt.finished_at < timedelta(seconds=60)


class TestFence:
    """C-02, C-03: what a worker does after its lease was lost changes zero rows."""

    def test_a_stale_token_changes_nothing_while_another_runs(
        self, end: Callable[..., Settlement]
    ) -> None:
        JobFactory()
        stale = verbs.claim_one(worker="worker-a")
        verbs.expire(stale.id)
        lifecycle.rescue()
        current = verbs.claim_one(worker="worker-b")
        before = verbs.everything()
        assert lifecycle.settle([end(stale)]) == set()
        assert verbs.everything() == before
        assert lifecycle.settle([verbs.succeeded(current)]) == {current.id}
        assert verbs.outcomes(current.id) == ["lost", "succeeded"]

    def test_a_stale_token_changes_nothing_of_what_was_settled(
        self, end: Callable[..., Settlement]
    ) -> None:
        for settled in ENDS.values():
            JobFactory(queue_name=settled.__name__)
            claimed = verbs.claim_one(queue_name=settled.__name__)
            lifecycle.settle([settled(claimed)])
            before = verbs.everything()
            assert lifecycle.settle([end(claimed)]) == set()
            assert verbs.everything() == before

    def test_a_token_of_the_first_life_changes_nothing_in_the_second(
        self, end: Callable[..., Settlement]
    ) -> None:
        JobFactory(max_attempts=1)
        stale = verbs.claim_one()
        lifecycle.settle([verbs.buried(stale)])
        lifecycle.replay([stale.id])
        verbs.claim_one(worker="worker-b")
        before = verbs.everything()
        assert lifecycle.settle([end(stale)]) == set()
        assert verbs.everything() == before

    def test_a_stale_token_of_a_deleted_job_changes_nothing(
        self, end: Callable[..., Settlement]
    ) -> None:
        JobFactory()
        stale = verbs.claim_one()
        Job.objects.all().delete()
        assert lifecycle.settle([end(stale)]) == set()
        assert not Attempt.objects.exists()

    def test_a_stale_token_deletes_nothing_where_succeeded_jobs_are_not_kept(
        self, settings: Any
    ) -> None:
        settings.JOBQUEUE = {"KEEP_SUCCEEDED": timedelta(0)}
        JobFactory()
        stale = verbs.claim_one(worker="worker-a")
        verbs.expire(stale.id)
        lifecycle.rescue()
        current = verbs.claim_one(worker="worker-b")
        before = verbs.everything()
        assert lifecycle.settle([verbs.succeeded(stale)]) == set()
        assert verbs.everything() == before
        assert lifecycle.settle([verbs.succeeded(current)]) == {current.id}
        assert verbs.where(current.id) == "gone"
        assert verbs.outcomes(current.id) == ["lost", "succeeded"]

    def test_the_fence_alone_decides_and_no_timestamp(self) -> None:
        """C-60: an expired lease that nobody has taken over is still good for an outcome."""
        job = JobFactory()
        claimed = verbs.claim_one()
        verbs.expire(job.pk)
        assert lifecycle.settle([verbs.succeeded(claimed)]) == {job.pk}

    def test_one_stale_token_does_not_hold_up_the_others(self) -> None:
        jobs = JobFactory.create_batch(3)
        claims = verbs.claim(3)
        verbs.expire(jobs[1].pk)
        lifecycle.rescue()
        ends = [verbs.succeeded(claims[0]), verbs.succeeded(claims[1]), verbs.buried(claims[2])]
        assert lifecycle.settle(ends) == {jobs[0].pk, jobs[2].pk}
        assert [verbs.where(job.pk) for job in jobs] == ["succeeded", "pending", "dead"]

    @pytest.mark.parametrize("order", [1, -1])
    def test_an_outcome_counts_once_in_one_batch(
        self, order: int, end: Callable[..., Settlement]
    ) -> None:
        """A worker may have lost a job and claimed it again, and settle both claims at once."""
        job = JobFactory()
        stale = verbs.claim_one()
        verbs.expire(job.pk)
        lifecycle.rescue()
        ends = [end(stale), verbs.retried(verbs.claim_one())]
        assert lifecycle.settle(ends[::order]) == {job.pk}
        assert verbs.where(job.pk) == "scheduled"
        assert verbs.outcomes(job.pk) == ["lost", "failed"]


class TestGroup:
    def test_settles_every_kind_at_once(self) -> None:
        jobs = JobFactory.create_batch(len(ENDS))
        ends = [end(claimed) for end, claimed in zip(ENDS.values(), verbs.claim(99), strict=True)]
        assert lifecycle.settle(ends) == {job.pk for job in jobs}
        assert [verbs.where(job.pk) for job in jobs] == [
            *("succeeded", "scheduled", "dead"),
            *("scheduled", "pending", "pending"),
        ]

    def test_of_nothing_does_nothing(self) -> None:
        assert lifecycle.settle([]) == set()

    def test_an_outcome_whose_commit_got_lost_is_not_refused_when_sent_again(self) -> None:
        job, other = JobFactory.create_batch(2)
        first, second = verbs.claim(2)
        lifecycle.settle([verbs.succeeded(first)])
        again = [verbs.succeeded(first), verbs.succeeded(second)]
        assert lifecycle.settle(again, again=True) == {job.pk, other.pk}
        assert verbs.outcomes(job.pk) == ["succeeded"]

    def test_an_outcome_that_is_doubted_is_what_counts_if_it_was_recorded(self) -> None:
        """The commit of an atomic task gave no answer, so its attempt seems to have failed."""
        job, other = JobFactory.create_batch(2)
        first, second = verbs.claim(2)
        lifecycle.settle([verbs.succeeded(first)])
        failures = [
            replace(verbs.retried(claimed), doubted=verbs.succeeded(claimed))
            for claimed in (first, second)
        ]
        assert lifecycle.settle(failures) == {job.pk, other.pk}
        assert verbs.outcomes(job.pk) == ["succeeded"]
        assert verbs.outcomes(other.pk) == ["failed"]

    def test_sent_again_after_the_lease_was_lost_it_is_refused(self) -> None:
        JobFactory()
        stale = verbs.claim_one()
        verbs.expire(stale.id)
        lifecycle.rescue()
        verbs.claim_one(worker="worker-b")
        assert lifecycle.settle([verbs.succeeded(stale)], again=True) == set()


class TestWholeOrNotAtAll:
    """C-20: job, attempt and dead letter agree wherever it breaks."""

    @pytest.mark.parametrize(
        ("event", "table"),
        [
            ("INSERT", "jobqueue_attempt"),
            ("INSERT", "jobqueue_deadletter"),
            ("DELETE", "jobqueue_job"),
            ("UPDATE", "jobqueue_job"),
        ],
    )
    def test_what_fails_half_way_leaves_all_as_it_was(self, event: str, table: str) -> None:
        JobFactory.create_batch(2, max_attempts=1)
        first, second = verbs.claim(2)
        before = verbs.everything()
        with (
            verbs.refusing(event, table),
            pytest.raises(Error, match="refused"),
            transaction.atomic(),
        ):
            lifecycle.settle([verbs.succeeded(first), verbs.buried(second)])
        assert verbs.everything() == before
        assert lifecycle.settle([verbs.buried(second), verbs.succeeded(first)]) == {
            *(first.id, second.id)
        }
        assert [verbs.where(pk) for pk in (first.id, second.id)] == ["succeeded", "dead"]

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize("table", ["jobqueue_attempt", "jobqueue_deadletter"])
    def test_and_so_it_is_without_a_transaction_around_it(self, table: str) -> None:
        JobFactory(max_attempts=1)
        claimed = verbs.claim_one()
        before = verbs.everything()
        with verbs.refusing("INSERT", table), pytest.raises(Error, match="refused"):
            lifecycle.settle([verbs.buried(claimed)])
        assert verbs.everything() == before


class TestAnnouncement:
    """C-14: whatever ended the job, the same signal and the same kind of record."""

    @pytest.fixture
    def told(self) -> Any:
        heard: list[tuple[str, Settlement]] = []

        def settled(settlement: Settlement, **kwargs: Any) -> None:
            heard.append(("settled", settlement))

        def lost(settlement: Settlement, **kwargs: Any) -> None:
            heard.append(("lost", settlement))

        signals.settled.connect(settled)
        signals.lease_lost.connect(lost)
        yield heard
        signals.settled.disconnect(settled)
        signals.lease_lost.disconnect(lost)

    def test_death_by_failure_and_by_loss_are_told_alike(
        self,
        told: list[tuple[str, Settlement]],
        caplog: pytest.LogCaptureFixture,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        failing, lost = JobFactory.create_batch(2, max_attempts=1)
        claims = verbs.claim(2)
        verbs.expire(lost.pk)
        with (
            caplog.at_level(logging.INFO, "jobqueue"),
            django_capture_on_commit_callbacks(execute=True),
        ):
            lifecycle.settle([verbs.buried(claims[0])])
            lifecycle.rescue()
        assert [(kind, end.claim.id, end.reason) for kind, end in told] == [
            ("settled", failing.pk, Reason.ATTEMPTS_EXHAUSTED),
            ("settled", lost.pk, Reason.WORKER_LOST),
        ]
        lines = [record for record in caplog.records if record.getMessage().startswith("job.dead ")]
        for record, job in zip(lines, (failing, lost), strict=True):
            assert f" job={job.pk} " in record.getMessage()
        assert {record.levelname for record in lines} == {"ERROR"}
        letters = DeadLetter.objects.order_by("pk")
        assert [letter.reason for letter in letters] == ["attempts_exhausted", "worker_lost"]
        assert all(letter.error_class and letter.message for letter in letters)

    def test_a_refused_outcome_is_told_as_a_lost_lease(
        self,
        told: list[tuple[str, Settlement]],
        caplog: pytest.LogCaptureFixture,
        django_capture_on_commit_callbacks: Any,
    ) -> None:
        JobFactory()
        stale = verbs.claim_one()
        verbs.expire(stale.id)
        lifecycle.rescue()
        with django_capture_on_commit_callbacks(execute=True):
            lifecycle.settle([verbs.succeeded(stale)])
        assert [kind for kind, _ in told] == ["lost"]
        assert "job.lease_lost" in caplog.text
        assert "refused=succeeded" in caplog.text

    def test_a_worker_that_lost_a_job_to_itself_is_told_of_both_claims(
        self, told: list[tuple[str, Settlement]], django_capture_on_commit_callbacks: Any
    ) -> None:
        job = JobFactory()
        stale = verbs.claim_one()
        verbs.expire(job.pk)
        lifecycle.rescue()
        current = verbs.claim_one()
        with django_capture_on_commit_callbacks(execute=True):
            ends = [verbs.succeeded(current), verbs.retried(stale)]
            assert lifecycle.settle(ends) == {job.pk}
        assert [(kind, end.claim.fence) for kind, end in told] == [("settled", 2), ("lost", 1)]
        assert verbs.outcomes(job.pk) == ["lost", "succeeded"]

    @pytest.mark.django_db(transaction=True)
    def test_nothing_is_told_of_what_rolled_back(self, told: list[tuple[str, Settlement]]) -> None:
        JobFactory()
        claimed = verbs.claim_one()
        with transaction.atomic():
            lifecycle.settle([verbs.succeeded(claimed)])
            transaction.set_rollback(True)
        assert told == []
        lifecycle.settle([verbs.succeeded(claimed)])
        assert [kind for kind, _ in told] == ["settled"]

    @pytest.mark.django_db(transaction=True)
    def test_a_receiver_that_raises_changes_nothing(
        self, told: list[tuple[str, Settlement]]
    ) -> None:
        """C-39."""

        def raising(**kwargs: Any) -> None:
            raise RuntimeError("in a receiver")

        job = JobFactory()
        signals.settled.connect(raising)
        try:
            assert lifecycle.settle([verbs.succeeded(verbs.claim_one())]) == {job.pk}
        finally:
            signals.settled.disconnect(raising)
        assert verbs.where(job.pk) == "succeeded"
