"""One attempt: whatever happens in it becomes one settlement, and nothing of it stays behind."""

from __future__ import annotations

import dataclasses
import json
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection, connections
from django.test import TestCase

from jobqueue import lifecycle, registry, signals
from jobqueue.claims import Claim, Settlement
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.options import MAX_SPAN
from jobqueue.querysets import from_now
from jobqueue.runner import Attempt as Run
from jobqueue.states import Outcome, Reason, Status
from jobqueue.testing import run_jobs
from tests import tasks, verbs
from tests.factories import JobFactory
from tests.models import Mark

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def run(task: Any, *args: Any, **kwargs: Any) -> Settlement:
    """Enqueue a job, run it once and settle what came of it."""
    task.enqueue(*args, **kwargs)
    return verbs.run_next(queue_name=task.queue_name)


def is_due_in(span: timedelta) -> bool:
    """Whether the one job there is, is scheduled for about then."""
    minute = timedelta(minutes=1)
    scheduled = Job.objects.scheduled().filter(run_after__gt=from_now(span - minute))
    return scheduled.filter(run_after__lte=from_now(span)).count() == 1


class TestSuccess:
    def test_is_recorded_with_its_result(self) -> None:
        settlement = run(tasks.add, 2, 3)
        assert (settlement.outcome, settlement.status) == (Outcome.SUCCEEDED, Status.SUCCEEDED)
        assert Job.objects.get().result == 5

    def test_of_an_async_task_was_awaited(self) -> None:
        """C-37."""
        settlement = run(tasks.async_row, "k")
        assert settlement.result == '"awaited"'
        assert Mark.objects.get().key == "k"

    @pytest.mark.parametrize("kind", ["nan", "nul", "set", "model", "huge", "hostile"])
    def test_with_a_result_that_cannot_be_kept_is_a_success_that_says_so(self, kind: str) -> None:
        """C-19: the side effect happens once."""
        settlement = run(tasks.return_oddly, kind)
        job = Job.objects.get()
        assert (job.status, job.result, settlement.status) == ("succeeded", None, "succeeded")
        assert "the result was not kept" in job.last_error
        assert "the result was not kept" in Attempt.objects.get().message

    def test_of_a_task_known_by_an_older_name(self) -> None:
        """C-87."""
        JobFactory(task="tests.old_name")
        assert verbs.run_next().result == '"renamed"'


class TestFailure:
    def test_is_retried_after_the_tasks_backoff(self) -> None:
        settlement = run(tasks.fail_and_wait_an_hour)
        assert (settlement.outcome, settlement.status) == (Outcome.FAILED, Status.SCHEDULED)
        assert is_due_in(HOUR)
        attempt = Attempt.objects.get()
        assert (attempt.error_class, attempt.message) == ("RuntimeError", "failed")
        assert "fail_and_wait_an_hour" in attempt.traceback

    def test_is_retried_after_the_default_backoff(self, settings: Any) -> None:
        settings.JOBQUEUE = {"BACKOFF": lambda attempt: attempt * HOUR}
        run(tasks.fail_and_wait)
        assert is_due_in(HOUR)

    @pytest.mark.parametrize("says", ["soon", None, 5])
    def test_is_retried_where_the_backoff_itself_fails(self, says: Any, settings: Any) -> None:
        """A project's backoff is somebody's code, too."""
        settings.JOBQUEUE = {"BACKOFF": lambda attempt: {}[attempt] if says is None else says}
        assert run(tasks.fail_and_wait).status == Status.SCHEDULED
        assert Attempt.objects.get().message == "failed"

    def test_on_the_last_attempt_is_the_end(self) -> None:
        """C-85."""
        settlement = run(tasks.fail.using(max_attempts=1))
        assert (settlement.status, settlement.reason) == (None, Reason.ATTEMPTS_EXHAUSTED)
        assert DeadLetter.objects.get().message == "failed"

    def test_ends_only_when_its_turn_has_come(self) -> None:
        job = tasks.fail.using(max_attempts=3).enqueue()
        wheres = []
        for _ in range(3):
            verbs.run_next()
            wheres.append(verbs.where(job.pk))
            verbs.fall_due(job.pk)
            lifecycle.promote()
        assert wheres == ["scheduled", "scheduled", "dead"]

    @pytest.mark.parametrize(
        ("task", "error"),
        [
            (tasks.exit_politely, "SystemExit"),
            (tasks.interrupt, "KeyboardInterrupt"),
            (tasks.fail_with_a_base_exception, "tests.tasks.Unwell"),
            (tasks.run_out_of_memory, "MemoryError"),
            (tasks.recurse, "RecursionError"),
            (tasks.async_fail, "RuntimeError"),
            (tasks.fail_with_nul, "ValueError"),
        ],
    )
    def test_of_any_kind_is_a_failed_attempt(self, task: Any, error: str) -> None:
        """C-17, C-29, C-38: exit code 0 is not a success."""
        assert run(task).outcome == Outcome.FAILED
        assert Attempt.objects.get().error_class == error
        assert verbs.where(Job.objects.get().pk) == "scheduled"

    @pytest.mark.parametrize("kind", ["str", "repr", "arguments", "lock"])
    def test_that_cannot_be_put_into_words_is_recorded_to_the_end(self, kind: str) -> None:
        """C-18."""
        job = tasks.fail_unprintably.using(max_attempts=2).enqueue(kind)
        verbs.run_next()
        verbs.fall_due(job.pk)
        lifecycle.promote()
        verbs.run_next()
        letter = DeadLetter.objects.get()
        assert letter.error_class
        assert letter.message

    @pytest.mark.parametrize(
        ("kind", "reason"),
        [("retried", None), ("given up", "not_retryable"), ("other", "not_retryable")],
    )
    def test_is_retried_only_where_the_task_says_so(self, kind: str, reason: str | None) -> None:
        assert run(tasks.be_picky, kind).reason == reason


class TestInstructions:
    def test_a_retry_may_say_when(self) -> None:
        settlement = run(tasks.retry, 7200)
        assert (settlement.outcome, settlement.failure.message) == ("failed", "come back later")
        assert is_due_in(2 * HOUR)

    def test_a_retry_may_leave_it_to_the_backoff(self) -> None:
        run(tasks.retry)
        assert is_due_in(HOUR)

    def test_a_retry_on_the_last_attempt_is_the_end(self) -> None:
        assert run(tasks.retry.using(max_attempts=1)).reason == Reason.ATTEMPTS_EXHAUSTED

    def test_a_discard_is_the_end_at_once(self) -> None:
        settlement = run(tasks.discard, "gone: 410")
        assert settlement.reason == Reason.DISCARDED
        assert DeadLetter.objects.get().message == "gone: 410"

    def test_a_snooze_is_no_failure(self) -> None:
        settlement = run(tasks.snooze.using(max_attempts=1), 3600)
        assert (settlement.outcome, settlement.status) == (Outcome.SNOOZED, Status.SCHEDULED)
        assert Job.objects.get().budget == 1
        assert is_due_in(HOUR)

    @pytest.mark.parametrize("task", [tasks.retry, tasks.snooze])
    def test_a_delay_beyond_all_calendars_is_cut(self, task: Any) -> None:
        """As a Retry-After header may hold it; the database must be able to add it up."""
        run(task, 1e12)
        assert is_due_in(MAX_SPAN)

    @pytest.mark.parametrize("task", [tasks.retry, tasks.snooze])
    def test_a_negative_delay_means_at_once(self, task: Any) -> None:
        run(task, -5)
        assert lifecycle.promote().total() == 1


class TestContext:
    def test_says_what_the_handler_may_need(self) -> None:
        call = tasks.dump_context.using(max_attempts=3, correlation_id="order-1", actor="ann")
        job = call.enqueue()
        verbs.run_next()
        assert Job.objects.get().result == {
            "job_id": job.pk,
            "attempt": 1,
            "max_attempts": 3,
            "correlation_id": "order-1",
            "actor": "ann",
            "idempotency_key": f"tests.tasks.dump_context:{job.pk}",
            "time_left": None,
            "lease_lost": False,
            "cancel_requested": False,
        }

    def test_has_one_idempotency_key_for_every_attempt(self) -> None:
        tasks.dump_context.enqueue()
        keys = set()
        for _ in range(3):
            claimed = verbs.claim_one()
            keys.add(
                json_of(Run(verbs.lease_on(claimed), using="default").run())["idempotency_key"]
            )
            lifecycle.settle([verbs.interrupted(claimed)])
        assert len(keys) == 1

    def test_knows_how_much_time_is_left(self) -> None:
        run(tasks.time_left)
        assert 0 < Job.objects.get().result <= 60

    def test_extends_the_lease_by_hand(self) -> None:
        assert run(tasks.extend_lease).result == "false"

    def test_knows_when_the_lease_is_lost(self) -> None:
        tasks.extend_lease.enqueue()
        claimed = verbs.claim_one()
        verbs.expire(claimed.id)
        lifecycle.rescue()
        settlement = Run(verbs.lease_on(claimed), using="default").run()
        assert settlement.failure.error_class == "jobqueue.exceptions.LeaseLost"

    def test_knows_when_the_lease_has_run_out(self) -> None:
        tasks.dump_context.enqueue()
        lease = verbs.lease_on(verbs.claim_one(), span=0)
        assert json_of(Run(lease, using="default").run())["lease_lost"] is True

    def test_is_inherited_by_the_jobs_that_the_handler_enqueues(self) -> None:
        run(tasks.enqueue_more.using(correlation_id="order-1"), "k")
        assert Job.objects.get(task=tasks.leave_row.name).correlation_id == "order-1"

    def test_of_a_job_without_a_correlation_id_names_the_job(self) -> None:
        parent = tasks.enqueue_more.enqueue("k")
        verbs.run_next()
        assert Job.objects.get(task=tasks.leave_row.name).correlation_id == f"job-{parent.pk}"

    def test_is_gone_after_the_job(self) -> None:
        run(tasks.noop)
        assert tasks.noop.enqueue().correlation_id == ""

    def test_of_one_job_leaves_nothing_for_the_next(self) -> None:
        """C-33: language, time zone, script prefix and context variables."""
        before = json_of(run(tasks.read_locale))
        run(tasks.leave_locale)
        run(tasks.leave_locale, failing=True)
        assert json_of(run(tasks.read_locale)) | {"script prefix": "/"} == before


def json_of(settlement: Settlement) -> dict[str, Any]:
    assert settlement.result is not None, settlement
    found: dict[str, Any] = json.loads(settlement.result)
    return found


class TestPayload:
    """C-87, C-88: what does not fit is kept, explained and can be replayed."""

    @pytest.mark.parametrize(
        ("task", "args", "kwargs"),
        [
            (tasks.add.name, [1], {}),
            (tasks.add.name, [1, 2, 3], {}),
            (tasks.add.name, [1], {"c": 2}),
            (tasks.async_row.name, [], {}),
            (tasks.async_row.name, [1, 2], {}),
            (tasks.dump_context.name, [1], {}),
            (tasks.add.name, {"a": 1}, {}),
            (tasks.add.name, "text", {}),
            (tasks.add.name, [1, 2], ["not", "an", "object"]),
        ],
    )
    def test_that_does_not_fit_is_kept_with_the_reason(
        self, task: str, args: Any, kwargs: Any
    ) -> None:
        job = JobFactory(task=task, args=args, kwargs=kwargs)
        assert verbs.run_next().reason == Reason.INVALID_PAYLOAD
        letter = DeadLetter.objects.get()
        assert (letter.pk, letter.args, letter.kwargs) == (job.pk, args, kwargs)
        assert task in letter.message or "args" in letter.message

    def test_that_fits_may_still_fail_with_a_type_error(self) -> None:
        settlement = run(tasks.add, 1, "2")
        assert (settlement.status, settlement.reason) == (Status.SCHEDULED, None)

    def test_that_did_not_fit_runs_once_the_code_is_put_right(self) -> None:
        job = JobFactory(task=tasks.add.name, args=[1, 2, 3])
        verbs.run_next()
        lifecycle.replay([job.pk])
        Job.objects.update(task=tasks.noop.name)  # as a deploy would bring back f(a, b, c)
        assert verbs.run_next().status == Status.SUCCEEDED

    def test_of_an_older_version_is_upgraded(self) -> None:
        JobFactory(task=tasks.versioned.name, version=1)
        assert verbs.run_next().result == "1"

    def test_of_an_older_version_that_nothing_upgrades_is_the_end(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        without = dataclasses.replace(tasks.versioned, upgrade=None)
        monkeypatch.setitem(registry.tasks, without.name, without)
        JobFactory(task=without.name, version=1)
        assert verbs.run_next().reason == Reason.UNSUPPORTED_VERSION

    def test_of_a_newer_version_waits_for_the_deploy(self) -> None:
        job = JobFactory(task=tasks.versioned.name, version=3, max_attempts=2)
        assert verbs.run_next().status == Status.SCHEDULED
        assert is_due_in(timedelta(seconds=60))
        Job.objects.update(run_after=from_now(-HOUR))
        lifecycle.promote()
        assert verbs.run_next().reason == Reason.UNSUPPORTED_VERSION
        assert verbs.where(job.pk) == "dead"

    def test_of_an_unknown_task_waits_for_the_deploy_and_is_kept(self) -> None:
        """C-87."""
        job = JobFactory(task="nobody.knows", args=[1], max_attempts=2)
        assert verbs.run_next().status == Status.SCHEDULED
        assert is_due_in(timedelta(seconds=60))
        Job.objects.update(run_after=from_now(-HOUR))
        lifecycle.promote()
        assert verbs.run_next().reason == Reason.UNKNOWN_TASK
        assert "nobody.knows" in DeadLetter.objects.get().message
        lifecycle.replay([job.pk])
        Job.objects.update(task="tests.old_name", args=[])
        assert verbs.run_next().status == Status.SUCCEEDED

    def test_names_a_task_but_never_a_path_to_import(self) -> None:
        job = JobFactory(task="os.system", args=["false"], max_attempts=1)
        assert verbs.run_next().reason == Reason.UNKNOWN_TASK
        assert verbs.where(job.pk) == "dead"


class TestAuthorisation:
    def run_as(self, actor: Any) -> Settlement:
        call = tasks.change_mark if actor is None else tasks.change_mark.using(actor=actor)
        call.enqueue("k")
        return verbs.run_next()

    def permitted(self, **fields: Any) -> User:
        user = User.objects.create(username="ann", **fields)
        user.user_permissions.add(Permission.objects.get(codename="change_mark"))
        return user

    def test_lets_an_actor_with_the_permission(self) -> None:
        assert self.run_as(self.permitted()).status == Status.SUCCEEDED
        assert Mark.objects.exists()

    @pytest.mark.parametrize("actor", [None, "nobody", "0", "9" * 30, "1 OR 1=1"])
    def test_refuses_who_is_no_user(self, actor: str | None) -> None:
        assert self.run_as(actor).reason == Reason.NOT_AUTHORISED
        assert not Mark.objects.exists()

    def test_asks_again_when_the_job_runs(self) -> None:
        user = self.permitted()
        tasks.change_mark.using(actor=user).enqueue("k")
        user.user_permissions.clear()
        assert verbs.run_next().reason == Reason.NOT_AUTHORISED

    def test_refuses_who_was_deactivated_or_deleted(self) -> None:
        user = self.permitted(is_active=False)
        assert self.run_as(user).reason == Reason.NOT_AUTHORISED
        user.is_active = True
        user.save()
        tasks.change_mark.using(actor=user).enqueue("k")
        user.delete()
        assert verbs.run_next().reason == Reason.NOT_AUTHORISED


class TestSignals:
    def test_the_start_is_told_before_the_handler_and_may_fail(self) -> None:
        """C-39."""
        heard: list[Claim] = []

        def receive(claim: Claim, **kwargs: Any) -> None:
            heard.append(claim)
            raise RuntimeError("in a receiver")

        signals.started.connect(receive)
        try:
            settlement = run(tasks.add, 1, 2)
        finally:
            signals.started.disconnect(receive)
        assert settlement.status == Status.SUCCEEDED
        assert heard == [settlement.claim]


@pytest.mark.django_db(transaction=True)
class TestAtomic:
    """The handler's writes and its acknowledgement commit together, or not at all."""

    def start(self, task: Any, *args: Any) -> tuple[Run, Settlement]:
        task.enqueue(*args)
        attempt = Run(verbs.lease_on(verbs.claim_one()), using="default")
        return attempt, attempt.run()

    def test_settles_itself(self) -> None:
        attempt, settlement = self.start(tasks.leave_row_atomically, "k")
        assert attempt.is_settled
        assert verbs.where(settlement.claim.id) == "succeeded"
        assert verbs.outcomes(settlement.claim.id) == ["succeeded"]
        assert Mark.objects.get().key == "k"

    def test_a_failure_takes_the_writes_with_it(self) -> None:
        attempt, settlement = self.start(tasks.leave_row_then_fail, "k")
        assert not attempt.is_settled
        assert (settlement.outcome, settlement.status) == (Outcome.FAILED, Status.SCHEDULED)
        assert not Mark.objects.exists()

    def test_a_failure_takes_the_jobs_with_it(self) -> None:
        self.start(tasks.enqueue_more_then_fail, "k")
        assert not Job.objects.filter(task=tasks.leave_row.name).exists()

    def test_a_lost_lease_takes_the_writes_with_it(self) -> None:
        tasks.leave_row_atomically.enqueue("k")
        stale = verbs.claim_one()
        verbs.expire(stale.id)
        lifecycle.rescue()
        verbs.claim_one(worker="worker-b")
        before = verbs.everything()
        attempt = Run(verbs.lease_on(stale), using="default")
        settlement = attempt.run()
        assert not attempt.is_settled
        assert settlement.failure.error_class == "jobqueue.exceptions.LeaseLost"
        assert lifecycle.settle([settlement]) == set()
        assert verbs.everything() == before
        assert not Mark.objects.exists()

    @pytest.mark.parametrize("table", ["jobqueue_attempt", "jobqueue_job"])
    def test_an_acknowledgement_that_fails_takes_the_writes_with_it(self, table: str) -> None:
        tasks.leave_row_atomically.enqueue("k")
        lease = verbs.lease_on(verbs.claim_one())
        event = "INSERT" if table == "jobqueue_attempt" else "UPDATE"
        with verbs.refusing(event, table):
            settlement = Run(lease, using="default").run()
        assert settlement.outcome == Outcome.FAILED
        assert "refused" in settlement.failure.message
        assert not Mark.objects.exists()
        assert lifecycle.settle([settlement]) == {lease.claim.id}

    def test_takes_no_longer_lock_than_its_own(self) -> None:
        """What a handler holds while it runs is its own transaction and nothing of the queue's."""
        tasks.leave_row_atomically.enqueue("k")
        verbs.run_next()
        assert not connection.in_atomic_block


LEAKS = ["autocommit", "atomic", "raw"]


@pytest.mark.django_db(transaction=True)
class TestLeftovers:
    """C-30, C-31, C-32: the next job finds a clean connection, whatever the last one did."""

    def next_job_commits(self) -> bool:
        run(tasks.leave_row, "next")
        # Another connection sees it only if it was committed.
        connection.close()
        return Mark.objects.filter(key="next").exists()

    @pytest.mark.parametrize("kind", LEAKS)
    def test_a_transaction_left_open_is_rolled_back_and_the_attempt_fails(self, kind: str) -> None:
        settlement = run(tasks.leak_transaction, kind, "leaked")
        assert settlement.outcome == Outcome.FAILED
        assert settlement.failure.error_class == "jobqueue.exceptions.LeakedTransaction"
        assert self.next_job_commits()
        assert not Mark.objects.filter(key="leaked").exists()

    @pytest.mark.parametrize("kind", LEAKS)
    def test_a_transaction_left_open_by_a_failure_is_rolled_back_too(self, kind: str) -> None:
        settlement = run(tasks.leak_transaction, kind, "leaked", failing=True)
        assert settlement.failure.error_class == "RuntimeError"
        assert self.next_job_commits()
        assert not Mark.objects.filter(key="leaked").exists()

    def test_djangos_connection_object_stays(self) -> None:
        """C-109: a test runner holds on to it, and closes it before it drops the database."""
        before = connections["default"]
        run(tasks.leak_transaction, "atomic", "leaked")
        assert connections["default"] is before
        assert not before.in_atomic_block

    @pytest.mark.postgresql
    def test_no_lock_is_left(self) -> None:
        run(tasks.leak_transaction, "lock", "leaked")
        assert self.next_job_commits()

    @pytest.mark.parametrize("kind", ["atomic", "savepoint"])
    @pytest.mark.parametrize("failing", [False, True])
    def test_inside_an_atomic_task_the_whole_goes(self, kind: str, *, failing: bool) -> None:
        settlement = run(tasks.leak_in_atomic, kind, "leaked", failing=failing)
        assert settlement.outcome == Outcome.FAILED
        assert self.next_job_commits()
        assert not Mark.objects.filter(key="leaked").exists()

    @pytest.mark.parametrize("kind", ["in a block of its own", "plain", "in a raw transaction"])
    def test_a_swallowed_database_error_does_no_harm(self, kind: str) -> None:
        """C-30."""
        settlement = run(tasks.swallow_database_error, kind)
        assert settlement.outcome == (
            Outcome.FAILED if kind == "in a raw transaction" else Outcome.SUCCEEDED
        )
        assert self.next_job_commits()

    def test_an_error_out_of_an_open_block_does_no_harm(self) -> None:
        assert run(tasks.fail_in_the_database).outcome == Outcome.FAILED
        assert self.next_job_commits()

    @pytest.mark.parametrize("kind", ["close", "close_all", "close_old", "raw", "in atomic"])
    def test_a_closed_connection_does_no_harm(self, kind: str) -> None:
        """C-32."""
        tasks.close_connection.enqueue(kind)
        lease = verbs.lease_on(verbs.claim_one())
        settlement = Run(lease, using="default").run()
        connection.close()  # as the worker does with what is not usable
        assert lifecycle.settle([settlement]) == {lease.claim.id}
        assert self.next_job_commits()


class TestRunJobs(TestCase):
    """C-109: what projects use in their own tests, inside a TestCase."""

    def test_runs_what_is_due_on_the_tests_own_connection(self) -> None:
        tasks.leave_row.enqueue("k")
        tasks.leave_row.using(run_after=HOUR).enqueue("later")
        settlements = run_jobs()
        assert [settlement.outcome for settlement in settlements] == [Outcome.SUCCEEDED]
        assert list(Mark.objects.values_list("key", flat=True)) == ["k"]
        assert connection.in_atomic_block

    def test_runs_every_queue_or_those_named(self) -> None:
        tasks.send_mail.enqueue()
        tasks.noop.enqueue()
        assert len(run_jobs(["mail"])) == 1
        assert len(run_jobs()) == 1

    def test_runs_what_the_handlers_enqueue_and_retries_that_are_due(self) -> None:
        tasks.enqueue_more.enqueue("k")
        tasks.fail_until.enqueue(3)
        outcomes = sorted(settlement.outcome.value for settlement in run_jobs())
        assert outcomes == ["failed", "failed", "succeeded", "succeeded", "succeeded"]
        assert Mark.objects.get().key == "k"

    def test_runs_atomic_tasks_and_counts_them_once(self) -> None:
        job = tasks.leave_row_atomically.enqueue("k")
        assert len(run_jobs()) == 1
        assert verbs.where(job.pk) == "succeeded"

    def test_runs_async_tasks(self) -> None:
        tasks.async_row.enqueue("k")
        assert [settlement.outcome for settlement in run_jobs()] == [Outcome.SUCCEEDED]

    def test_takes_a_handler_that_fails_in_the_database(self) -> None:
        tasks.fail_in_the_database.using(max_attempts=1).enqueue()
        tasks.leave_row.enqueue("k")
        assert [each.outcome for each in run_jobs()] == [Outcome.FAILED, Outcome.SUCCEEDED]
        assert Mark.objects.get().key == "k"

    def test_does_not_run_for_ever(self) -> None:
        tasks.fail.using(max_attempts=50).enqueue()
        with self.assertRaisesMessage(AssertionError, "more than 10 jobs ran"):
            run_jobs(limit=10)

    def test_with_nothing_to_do_returns_nothing(self) -> None:
        assert run_jobs() == []


class TestDuration:
    def test_is_the_handlers_own(self) -> None:
        before = monotonic()
        settlement = run(tasks.noop)
        assert before <= settlement.started <= settlement.finished <= monotonic()
