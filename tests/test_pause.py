"""Pause and resume: no job of a paused queue starts, none is lost, and all go on in the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import pytest
from django.db import IntegrityError

from jobqueue import enqueue_many, lifecycle
from jobqueue.claims import Turn
from jobqueue.exceptions import InvalidJob, InvalidPause
from jobqueue.lifecycle import Actor
from jobqueue.models import Attempt, Job, OperationLog, Queue
from jobqueue.querysets import ago
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from jobqueue.worker.hand import Hand
from tests import tasks, verbs
from tests.factories import JobFactory, QueueFactory
from tests.in_process import new_worker, run_until_empty, running_worker
from tests.processes import Gate, Marks, OtherConnection, WorkerProcess, wait_until

ALICE = Actor("7", "alice")
HOUR = timedelta(hours=1)
#: Looks so seldom that nothing but a notification can be what woke the worker.
SELDOM = timedelta(minutes=1)


def is_paused(name: str = "default") -> bool:
    return Queue.objects.paused().filter(pk=name).exists()


def let_pause_end(name: str = "default") -> None:
    Queue.objects.filter(pk=name).update(paused_until=ago(timedelta(seconds=1)))


@pytest.mark.django_db
class TestPause:
    def test_keeps_jobs_from_being_claimed_and_leaves_them_pending(self) -> None:
        job = JobFactory()
        lifecycle.pause("default")
        assert verbs.claim(10) == []
        assert verbs.where(job.pk) == Status.PENDING

    def test_is_about_one_queue(self) -> None:
        JobFactory()
        other = JobFactory(queue_name="mail")
        lifecycle.pause("default")
        claims = lifecycle.claim([Turn("default", 5), Turn("mail", 5)], worker="w", lease=HOUR)
        assert [each.id for each in claims] == [other.pk]

    def test_holds_for_a_claim_from_where_the_last_one_ended(self) -> None:
        JobFactory.create_batch(3)
        first = verbs.claim_one()
        floors = {first.priority: (first.run_after, first.id)}
        lifecycle.pause("default")
        assert not lifecycle.claim([Turn("default", 5, floors)], worker="w", lease=HOUR)
        lifecycle.resume("default")
        assert len(lifecycle.claim([Turn("default", 5, floors)], worker="w", lease=HOUR)) == 2

    def test_takes_the_queue_out_of_what_there_is_to_do(self) -> None:
        JobFactory()
        JobFactory(queue_name="mail")
        lifecycle.pause("default")
        look = lifecycle.look()
        assert (set(look.queue_names), set(look.paused)) == ({"mail"}, {"default"})

    def test_says_who_when_and_why(self) -> None:
        lifecycle.pause("mail", by=ALICE, reason="the relay is down", until=HOUR)
        queue = Queue.objects.get()
        assert (queue.paused_by, queue.pause_reason) == ("alice", "the relay is down")
        assert queue.paused_at
        assert queue.paused_until
        assert queue.paused_until - queue.paused_at == HOUR

    def test_until_an_instant(self) -> None:
        until = datetime.now(UTC) + HOUR
        lifecycle.pause("mail", until=until)
        assert Queue.objects.get().paused_until == until

    def test_that_has_ended_by_itself_is_none(self) -> None:
        JobFactory()
        lifecycle.pause("default", until=HOUR)
        assert not verbs.claim()
        let_pause_end()
        assert set(lifecycle.look().queue_names) == {"default"}
        assert verbs.claim()

    def test_replaces_an_earlier_one(self) -> None:
        lifecycle.pause("mail", by=ALICE, reason="first", until=HOUR)
        lifecycle.pause("mail", reason="second")
        queue = Queue.objects.get()
        assert (queue.paused_by, queue.pause_reason, queue.paused_until) == ("", "second", None)

    def test_keeps_no_text_that_no_database_stores(self) -> None:
        lifecycle.pause("mail", by=Actor("7", "a\0b"), reason="\ud800" + "x" * 1000)
        queue = Queue.objects.get()
        assert queue.paused_by == "a\\u0000b"
        assert queue.pause_reason.startswith("\\ud800xx")
        assert len(queue.pause_reason) == 500

    @pytest.mark.parametrize("name", ["", "Mail", "a b", "-x", "x" * 65, "a\0", 7, None])
    def test_of_no_queue_is_refused_before_any_sql(
        self, name: Any, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(0):
            for verb in (lifecycle.pause, lifecycle.resume):
                with pytest.raises(InvalidJob, match="queue_name"):
                    verb(name)

    @pytest.mark.parametrize(
        ("until", "says"),
        [
            (timedelta(0), "up to 3650 days, not 0:00:00"),
            (-HOUR, "up to 3650 days"),
            (timedelta(days=3651), "up to 3650 days"),
            (60, "a datetime or a timedelta, not 60"),
            ("tomorrow", "a datetime or a timedelta"),
            (True, "a datetime or a timedelta"),
            (datetime(2100, 1, 1), "naive"),  # noqa: DTZ001 - the point
            (datetime(2020, 1, 1, tzinfo=UTC), "has passed"),
            (datetime(9999, 1, 1, tzinfo=UTC), "year"),
        ],
    )
    def test_until_what_makes_no_sense_is_refused_before_any_sql(
        self, until: Any, says: str, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(0), pytest.raises(InvalidPause, match=says):
            lifecycle.pause("mail", until=until)

    def test_leaves_run_jobs_nothing_to_run(self) -> None:
        job = tasks.noop.enqueue()
        lifecycle.pause("default")
        assert run_jobs() == []
        lifecycle.resume("default")
        assert [each.claim.id for each in run_jobs()] == [job.pk]


@pytest.mark.django_db
class TestResume:
    def test_lets_jobs_be_claimed_again(self) -> None:
        job = JobFactory()
        lifecycle.pause("default", by=ALICE, reason="why", until=HOUR)
        assert lifecycle.resume("default")
        assert verbs.claim_one().id == job.pk
        queue = Queue.objects.get()
        assert (queue.paused_at, queue.paused_until) == (None, None)
        assert (queue.paused_by, queue.pause_reason) == ("", "")

    def test_of_a_queue_that_is_not_paused_changes_and_says_nothing(self) -> None:
        QueueFactory(name="mail")
        assert not lifecycle.resume("mail", by=ALICE)
        assert not lifecycle.resume("unheard-of", by=ALICE)
        assert not OperationLog.objects.exists()
        assert not Queue.objects.filter(pk="unheard-of").exists()


@pytest.mark.django_db
class TestAudit:
    def test_keeps_what_was_before_and_after(self) -> None:
        lifecycle.pause("mail", by=ALICE, reason="first", correlation_id="op-1")
        lifecycle.pause("mail", by=Actor("8", "bob"), reason="second", until=HOUR)
        lifecycle.resume("mail", by=ALICE, reason="mended")
        first, second, last = OperationLog.objects.order_by("pk")
        assert (first.action, first.target_type, first.target_id) == ("pause", "queue", "mail")
        assert (first.actor_id, first.actor, first.reason) == ("7", "alice", "first")
        assert first.correlation_id == "op-1"
        assert first.before["paused_at"] is None
        assert first.after["paused_at"]
        assert second.before == first.after
        assert second.after["paused_by"] == "bob"
        assert second.after["paused_until"] > second.after["paused_at"]
        assert (last.action, last.before) == ("resume", second.after)
        assert last.after == first.before

    def test_is_not_written_for_the_projects_own_code(self) -> None:
        lifecycle.pause("mail", reason="deploy")
        lifecycle.resume("mail")
        assert not OperationLog.objects.exists()

    def test_is_written_with_the_change_or_not_at_all(self) -> None:
        with (
            verbs.refusing("INSERT", "jobqueue_operationlog"),
            pytest.raises(IntegrityError, match="refused"),
        ):
            lifecycle.pause("mail", by=ALICE)
        assert not is_paused("mail")


@pytest.mark.django_db(transaction=True)
class TestWorkers:
    def test_that_are_busy_claim_nothing_more_of_a_paused_queue(
        self, worker_process: Callable[..., WorkerProcess]
    ) -> None:
        """Real ones, with the default poll: within two seconds, and nothing is lost."""
        for name in ("a", "b"):
            worker_process("--name", name, "--concurrency", "4")
        ids = enqueue_many(tasks.slow.bind(0.02) for _ in range(1500))
        wait_until(lambda: Attempt.objects.count() > 100)
        lifecycle.pause("default", by=ALICE, reason="test")
        paused = monotonic()
        wait_until(lambda: not Job.objects.claimed().exists(), timeout=10)
        assert monotonic() < paused + 10  # a bound for slow machines: usually one or two
        done = Attempt.objects.count()
        assert done < len(ids), "paused too late to tell"
        other = tasks.noop.using(queue_name="mail").enqueue()
        wait_until(lambda: verbs.where(other.pk) == Status.SUCCEEDED)
        assert Attempt.objects.filter(queue_name="default").count() == done
        assert Job.objects.pending().count() == len(ids) - done
        lifecycle.resume("default", by=ALICE)
        wait_until(lambda: not Job.objects.exclude(status=Status.SUCCEEDED).exists())
        assert Attempt.objects.filter(queue_name="default").count() == len(ids)
        assert set(Job.objects.values_list("attempts", flat=True)) == {1}

    def test_hand_back_what_they_have_not_started(self, marks: Marks, gate: Gate) -> None:
        """And no attempt is counted for it."""
        with running_worker(name="busy", concurrency=1) as worker:
            enqueue_many(tasks.noop.bind() for _ in range(50))
            wait_until(lambda: worker.claimer.pace.prefetch >= 20)
            wait_until(lambda: not len(worker.hand))
            slow = tasks.hold.bind(gate=gate.path, marks=marks.path)
            first, *behind = enqueue_many([slow, *[tasks.noop.bind() for _ in range(20)]])
            marks.wait_for("start")
            lifecycle.pause("default")
            wait_until(lambda: list(Job.objects.claimed().values_list("pk", flat=True)) == [first])
            waiting = Job.objects.pending()
            assert waiting.count() == len(behind)
            assert set(waiting.values_list("attempts", flat=True)) == {0}
            gate.open()
            marks.wait_for("end")
            lifecycle.resume("default")
            wait_until(lambda: not Job.objects.exclude(status=Status.SUCCEEDED).exists())

    def test_go_on_when_a_pause_has_ended_by_itself(self) -> None:
        lifecycle.pause("default", until=HOUR)
        job = tasks.noop.enqueue()
        with running_worker():
            other = tasks.noop.using(queue_name="mail").enqueue()
            wait_until(lambda: verbs.where(other.pk) == Status.SUCCEEDED)
            assert verbs.where(job.pk) == Status.PENDING
            let_pause_end()
            wait_until(lambda: verbs.where(job.pk) == Status.SUCCEEDED)

    @pytest.mark.postgresql
    def test_that_listen_are_woken_by_a_resume(self) -> None:
        lifecycle.pause("default")
        job = tasks.noop.enqueue()
        with running_worker(poll_interval=SELDOM) as worker:
            wait_until(lambda: worker.presence.listens)
            lifecycle.resume("default")
            wait_until(lambda: verbs.where(job.pk) == Status.SUCCEEDED)

    @pytest.mark.postgresql
    def test_that_listen_ask_once_for_each_call_to_a_paused_queue(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lifecycle.pause("default")
        with running_worker(poll_interval=SELDOM) as worker:
            wait_until(lambda: worker.presence.listens)
            asked: list[str] = []
            claim = lifecycle.claim

            def noted(turns: list[Turn], **rest: Any) -> Any:
                asked.extend(turn.queue_name for turn in turns)
                return claim(turns, **rest)

            monkeypatch.setattr(lifecycle, "claim", noted)
            for _ in range(5):
                tasks.noop.enqueue()
            other = tasks.noop.using(queue_name="mail").enqueue()
            wait_until(lambda: verbs.where(other.pk) == Status.SUCCEEDED)
            tasks.noop.using(queue_name="mail").enqueue()
            wait_until(lambda: not Job.objects.filter(queue_name="mail").pending().exists())
            assert asked.count("default") <= 5
            assert Job.objects.pending().count() == 5

    def test_that_end_when_all_is_done_do_not_wait_for_a_paused_queue(self) -> None:
        paused = tasks.noop.using(queue_name="mail").enqueue()
        due = JobFactory(scheduled=True, due_in=-HOUR, queue_name="mail")
        job = tasks.noop.enqueue()
        lifecycle.pause("mail")
        run_until_empty()
        places = [verbs.where(each.pk) for each in (paused, due, job)]
        assert places == [Status.PENDING, Status.PENDING, Status.SUCCEEDED]


@pytest.mark.django_db
class TestHand:
    def test_gives_back_the_jobs_of_some_queues_and_keeps_the_others_in_line(self) -> None:
        hand = Hand()
        for name in ("a", "b", "a", "c", "b"):
            JobFactory(queue_name=name)
            hand.add(verbs.lease_on(verbs.claim_one(queue_name=name)))
        assert [each.claim.queue_name for each in hand.take_back({"a", "x"})] == ["a", "a"]
        left = [hand.take(timeout=0) for _ in range(len(hand))]
        assert [each and each.claim.queue_name for each in left] == ["b", "c", "b"]


@pytest.mark.django_db
class TestLook:
    def test_hands_back_what_waits_of_paused_queues_at_once(self) -> None:
        """And leaves the rest in hand: it is not stale yet."""
        claimer = new_worker(concurrency=2).claimer
        kept, given_back = JobFactory(queue_name="mail"), JobFactory()
        claimer.look()
        assert claimer.claim() == 2
        lifecycle.pause("default")
        claimer.look()
        assert [lease.claim.id for lease in claimer.hand.leases()] == [kept.pk]
        assert verbs.where(given_back.pk) == Status.PENDING
        assert claimer.ready == []


@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    @pytest.mark.postgresql
    def test_a_claim_that_does_not_see_the_pause_yet_takes_its_jobs(
        self, second_connection: OtherConnection
    ) -> None:
        """And the next one takes none: nobody waits for anybody."""
        JobFactory.create_batch(2)
        second_connection.begin()
        second_connection.run(lifecycle.pause, "default")
        assert len(verbs.claim()) == 1
        second_connection.commit()
        assert verbs.claim() == []

    @pytest.mark.postgresql
    def test_two_pauses_of_a_new_queue_are_one_row(
        self, second_connection: OtherConnection
    ) -> None:
        second_connection.begin()
        second_connection.run(lifecycle.pause, "mail", by=Actor("8", "bob"))
        waiting = OtherConnection()
        try:
            second = waiting.start(lifecycle.pause, "mail", by=ALICE)
            second_connection.commit()
            second.result(30)
        finally:
            waiting.close()
        assert Queue.objects.get().paused_by == "alice"
        earlier, later = OperationLog.objects.order_by("pk")
        assert (later.before, later.actor) == (earlier.after, "alice")
