"""The worker's parts, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from queue import Empty
from time import monotonic
from typing import Any

import pytest
from django.db import DataError, Error, OperationalError, connection, transaction

from jobqueue import enqueue_many, lifecycle, transactions
from jobqueue.claims import Claim, Lease, Settlement, Turn
from jobqueue.lifecycle.alias import BATCH
from jobqueue.models import Attempt, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.querysets import ago
from jobqueue.runner import Attempt as RunningAttempt
from jobqueue.states import Outcome, Status, WorkerState
from jobqueue.worker import Worker, WorkerOptions
from jobqueue.worker.claimer import STALE, Claimer
from jobqueue.worker.connections import TRUSTED_FOR, ThreadConnections
from jobqueue.worker.hand import Hand
from jobqueue.worker.heartbeat import TICK, Heartbeat
from jobqueue.worker.pace import MOST, Pace
from jobqueue.worker.presence import Presence
from jobqueue.worker.settler import Settler
from jobqueue.worker.tally import Tally
from jobqueue.worker.threads import Pause, start_thread
from tests import tasks, verbs
from tests.factories import WorkerFactory
from tests.in_process import running_worker
from tests.processes import OtherConnection, wait_until
from tests.test_logs import CLAIM

MINUTE = timedelta(minutes=1)
database = pytest.mark.django_db


def lease_on(claim: Claim, *, span: float = 60.0, age: float = 0.0) -> Lease:
    now = monotonic()
    return Lease(claim, span, now - age, now - age + span)


def leases(*ids: int, queue_name: str = "default") -> list[Lease]:
    return [lease_on(CLAIM._replace(id=pk, queue_name=queue_name)) for pk in ids]


def claimed(*jobs: Job, worker: str = "me") -> list[Lease]:
    """Claim these jobs, the only pending ones."""
    claims = lifecycle.claim([Turn("default", len(jobs))], worker=worker, lease=MINUTE)
    assert {claim.id for claim in claims} == {job.pk for job in jobs}
    return [lease_on(claim) for claim in claims]


def succeeded(lease: Lease, result: str | None = None) -> Settlement:
    now = monotonic()
    return Settlement(
        lease.claim,
        Outcome.SUCCEEDED,
        Status.SUCCEEDED,
        result=result,
        started=now,
        finished=now,
    )


def hand_with(*leases: Lease) -> Hand:
    hand = Hand()
    for lease in leases:
        hand.add(lease)
    return hand


class TestHand:
    def test_hands_out_jobs_in_their_order(self) -> None:
        hand = hand_with(*leases(1, 2, 3))
        taken = [hand.take() for _ in range(3)]
        assert [lease.claim.id for lease in taken if lease] == [1, 2, 3]
        assert len(hand) == 3

    def test_takes_back_only_what_no_thread_has_taken(self) -> None:
        hand = hand_with(*leases(1, 2, 3))
        hand.take()
        assert [lease.claim.id for lease in hand.take_back()] == [2, 3]
        assert [lease.claim.id for lease in hand.leases()] == [1]
        with pytest.raises(Empty):
            hand.take(timeout=0)

    def test_counts_by_queue(self) -> None:
        hand = hand_with(*leases(1, 2), *leases(3, queue_name="mail"))
        assert (hand.count("default"), hand.count("mail"), hand.count("other")) == (2, 1, 0)

    def test_knows_since_when_a_job_waits_for_a_thread(self) -> None:
        assert Hand().waiting_since() is None
        old, new = lease_on(CLAIM._replace(id=1), age=5), lease_on(CLAIM._replace(id=2))
        hand = hand_with(old, new)
        assert hand.waiting_since() == old.claimed
        hand.start(RunningAttempt(old, using="default", in_transactions={}))
        assert hand.waiting_since() == new.claimed
        assert [attempt.claim.id for attempt in hand.running()] == [1]

    def test_lets_go_of_what_is_finished(self) -> None:
        [lease] = leases(1)
        hand = hand_with(lease)
        hand.start(RunningAttempt(lease, using="default", in_transactions={}))
        hand.drop(lease.claim)
        hand.drop(lease.claim)
        assert not hand.leases()
        assert not hand.running()

    def test_tells_each_thread_that_there_will_be_no_more(self) -> None:
        hand = Hand()
        hand.close(2)
        assert [hand.take(timeout=1), hand.take(timeout=1)] == [None, None]


def lasting(*durations: float) -> list[Settlement]:
    return [
        Settlement(CLAIM, Outcome.SUCCEEDED, Status.SUCCEEDED, started=1.0, finished=1.0 + each)
        for each in durations
    ]


class TestPace:
    def test_holds_nothing_back_before_it_knows(self) -> None:
        assert Pace(8).prefetch == 0

    def test_holds_many_quick_jobs_and_no_slow_ones(self) -> None:
        quick, slow = Pace(8), Pace(8)
        quick.observe(lasting(0.001, 0.001))
        slow.observe(lasting(10, 10))
        assert quick.prefetch > 100
        assert slow.prefetch == 0

    def test_is_bounded_however_quick_the_jobs_are(self) -> None:
        pace = Pace(1000)
        pace.observe(lasting(0.0))
        assert pace.prefetch == MOST

    def test_follows_a_change_and_can_be_forgotten(self) -> None:
        pace = Pace(1)
        pace.observe(lasting(0.001))
        before = pace.prefetch
        pace.observe(lasting(10))
        assert pace.prefetch < before
        pace.forget()
        assert pace.prefetch == 0


class TestPause:
    def test_grows_to_its_limit_with_jitter_and_starts_again(self) -> None:
        pause = Pause()
        pauses = [pause.next() for _ in range(20)]
        assert 0 < pauses[0] <= Pause.FIRST
        assert max(pauses) <= Pause.LONGEST
        assert len(set(pauses[-5:])) == 5
        pause.reset()
        assert pause.next() <= Pause.FIRST


def test_a_thread_that_fails_says_so() -> None:
    failures: list[str] = []

    def work() -> None:
        raise ValueError("broken")

    thread = start_thread("test", work, failed=lambda: failures.append("failed"))
    thread.join(10)
    assert failures == ["failed"]


@pytest.mark.django_db(transaction=True)
class TestSettler:
    def settler(self) -> Settler:
        self.settled: list[Settlement] = []
        return Settler(using="default", on_settled=self.settled.extend)

    def settle(self, ended: Sequence[tuple[Lease, Settlement]]) -> None:
        settler = self.settler()
        for lease, settlement in ended:
            settler.put(lease, settlement)
        assert len(settler) == len(ended)
        settler.close()
        settler.work()
        assert not len(settler)
        assert len(self.settled) == len(ended)

    def test_settles_what_waits_in_one_statement(self, django_assert_max_num_queries: Any) -> None:
        held = claimed(*[tasks.noop.enqueue() for _ in range(20)])
        with django_assert_max_num_queries(50):
            self.settle([(lease, succeeded(lease)) for lease in held])
        assert Job.objects.filter(status=Status.SUCCEEDED).count() == 20

    def test_counts_what_was_committed_though_the_answer_was_lost(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C-16: the retry finds its own attempt and takes it for settled, not for a lost lease."""
        settle, tries = lifecycle.settle, []

        def answer_lost_once(*args: Any, **kwargs: Any) -> set[int]:
            tries.append(kwargs.get("again", False))
            settled = settle(*args, **kwargs)
            if len(tries) == 1:
                raise OperationalError("the connection was cut after the commit")
            return settled

        monkeypatch.setattr(lifecycle, "settle", answer_lost_once)
        [lease] = claimed(tasks.noop.enqueue())
        self.settle([(lease, succeeded(lease))])
        assert tries == [False, True]
        assert Attempt.objects.count() == 1
        assert "job.lease_lost" not in caplog.text

    def test_gives_up_when_the_lease_has_ended(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """C-15, C-16: it tries no longer than the lease lasts, and goes on with other jobs."""

        def away(*args: Any, **kwargs: Any) -> set[int]:
            raise OperationalError("the database is away")

        [lease] = claimed(tasks.noop.enqueue())
        lease.ends = monotonic()
        with monkeypatch.context() as patch:
            patch.setattr(lifecycle, "settle", away)
            self.settle([(lease, succeeded(lease))])
        assert Job.objects.get().status == Status.CLAIMED
        assert f"job.unrecorded job={lease.claim.id}" in caplog.text

    def test_records_a_refused_outcome_without_its_details_and_all_others_whole(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settle = lifecycle.settle

        def picky(settlements: Sequence[Settlement], **kwargs: Any) -> set[int]:
            if any(each.result == '"unstorable"' for each in settlements):
                raise DataError("no such value")
            return settle(settlements, **kwargs)

        monkeypatch.setattr(lifecycle, "settle", picky)
        held = claimed(*[tasks.noop.enqueue() for _ in range(3)])
        results = ['"one"', '"unstorable"', '"three"']
        self.settle(
            [(lease, succeeded(lease, result)) for lease, result in zip(held, results, strict=True)]
        )
        stored = Job.objects.order_by("pk").values_list("status", "result")
        assert list(stored) == [
            (Status.SUCCEEDED, "one"),
            (Status.SUCCEEDED, None),
            (Status.SUCCEEDED, "three"),
        ]
        attempt = Attempt.objects.get(job_id=held[1].claim.id)
        assert attempt.error_class == "unrecordable"

    def test_looks_up_what_was_recorded_before_the_next_kind_was_refused(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        held = claimed(*[tasks.noop.enqueue() for _ in range(2)])
        ends = [succeeded(held[0]), verbs.buried(held[1].claim)]
        with verbs.refusing("INSERT", "jobqueue_deadletter"), caplog.at_level("INFO"):
            self.settle(list(zip(held, ends, strict=True)))
        assert verbs.where(held[0].claim.id) == "succeeded"
        assert f"job.succeeded job={held[0].claim.id} " in caplog.text
        assert f"job.unrecorded job={held[1].claim.id} " in caplog.text
        assert "job.lease_lost" not in caplog.text


def claimer(**options: Any) -> Claimer:
    settler = Settler(using="default", on_settled=lambda _: None)
    tally = Tally(using="default")
    return Claimer(WorkerOptions(name="me", **options), Hand(), settler, tally)


@database
class TestClaimer:
    def test_takes_no_more_than_there_is_room_for(self) -> None:
        enqueue_many(tasks.noop.bind() for _ in range(10))
        subject = claimer(concurrency=3)
        subject.look()
        assert subject.claim() == 3
        assert subject.claim() == 0
        assert Job.objects.claimed().count() == 3

    def test_takes_no_more_than_it_may_in_all(self) -> None:
        enqueue_many(tasks.noop.bind() for _ in range(10))
        subject = claimer(concurrency=8, max_jobs=3)
        subject.look()
        assert subject.claim() == 3
        assert subject.allowance == 0

    def test_counts_a_lease_from_before_the_claim_was_sent(self) -> None:
        tasks.noop.enqueue()
        subject = claimer(lease=MINUTE)
        subject.look()
        before = monotonic()
        subject.claim()
        [lease] = subject.hand.leases()
        assert before <= lease.claimed
        assert lease.ends == lease.claimed + 60

    def test_hands_back_what_waits_too_long_uncounted(self) -> None:
        enqueue_many(tasks.noop.bind() for _ in range(3))
        subject = claimer(concurrency=3)
        hand = subject.hand
        subject.look()
        subject.claim()
        subject.release_stale()
        assert len(hand) == 3
        for lease in hand.leases():
            lease.claimed -= 2 * STALE
        subject.release_stale()
        assert not len(hand)
        assert list(Job.objects.values_list("status", "attempts")) == [(Status.PENDING, 0)] * 3

    def test_hands_back_with_the_next_look_what_an_error_kept_it_from(self) -> None:
        """Otherwise a job that never ran would be lost, and dead if it had but one attempt."""
        tasks.noop.using(max_attempts=1).enqueue()
        subject = claimer()
        subject.look()
        assert subject.claim() == 1
        refusing = verbs.refusing("UPDATE", "jobqueue_job")
        with refusing, pytest.raises(Error), transaction.atomic():
            subject.release_waiting()
        assert Job.objects.get().status == Status.CLAIMED
        subject.look()
        assert list(Job.objects.values_list("status", "attempts")) == [(Status.PENDING, 0)]
        assert subject.claim() == 1

    def test_promotes_what_is_due_when_it_looks(self) -> None:
        job = tasks.noop.using(run_after=timedelta(hours=1)).enqueue()
        lifecycle.run_now([job.pk])
        Job.objects.filter(pk=job.pk).update(status=Status.SCHEDULED)
        subject = claimer()
        subject.look()
        assert subject.claim() == 1

    def test_looks_again_at_once_while_more_is_due_than_one_look_promotes(self) -> None:
        later = tasks.noop.using(run_after=timedelta(hours=1))
        enqueue_many(later.bind() for _ in range(BATCH + 1))
        Job.objects.update(run_after=ago(MINUTE))
        subject = claimer()
        subject.look()
        assert Job.objects.pending().count() == BATCH
        assert subject.look_due <= monotonic()
        subject.look()
        assert Job.objects.pending().count() == BATCH + 1
        assert subject.look_due > monotonic()

    def test_leaves_other_queues_alone(self) -> None:
        tasks.send_mail.enqueue()
        subject = claimer(queues={"default": None})
        subject.look()
        assert subject.claim() == 0


def heartbeat(hand: Hand) -> Heartbeat:
    return Heartbeat(
        hand,
        Settler(using="default", on_settled=lambda _: None),
        Presence(WorkerOptions(name="me")),
        using="default",
        on_stuck=lambda: None,
    )


class TestHeartbeat:
    def test_extends_when_a_third_of_a_lease_has_passed(self) -> None:
        """C-06: two more tries fit in what is left of it."""
        hand = hand_with(lease_on(CLAIM, span=1.5))
        due_in = heartbeat(hand)._next_due() - monotonic()
        assert 0.3 < due_in <= 0.5

    def test_looks_at_least_once_a_tick(self) -> None:
        assert heartbeat(Hand())._next_due() - monotonic() <= TICK

    @database
    def test_extends_what_is_due_and_marks_what_is_lost(self) -> None:
        kept, lost, fresh = claimed(*[tasks.noop.enqueue() for _ in range(3)])
        for lease in (kept, lost):
            lease.ends -= 45
        Job.objects.filter(pk=lost.claim.id).update(fence=99)
        before = [lease.ends for lease in (kept, lost, fresh)]
        heartbeat(hand_with(kept, lost, fresh))._extend_due()
        assert [lease.lost for lease in (kept, lost, fresh)] == [False, True, False]
        assert kept.ends > before[0]
        assert [lost.ends, fresh.ends] == before[1:]

    @database
    def test_tries_less_and_less_often_while_the_database_is_away(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def away(*args: Any, **kwargs: Any) -> None:
            raise OperationalError("the database is away")

        monkeypatch.setattr(lifecycle, "extend", away)
        subject = heartbeat(hand_with(lease_on(CLAIM, age=50)))
        assert subject._next_due() < monotonic()
        for _ in range(6):
            subject._extend.not_before = 0.0
            subject._extend.do()
        subject._extend.do()
        assert len(caplog.records) == 6
        assert subject._next_due() > monotonic() + 0.5

    @database
    def test_is_back_within_a_tick_after_a_long_outage(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Or a short lease claimed right after it would end with its worker alive."""

        def away(*args: Any, **kwargs: Any) -> None:
            raise OperationalError("the database is away")

        monkeypatch.setattr(lifecycle, "extend", away)
        subject = heartbeat(hand_with(lease_on(CLAIM, age=50)))
        for _ in range(20):
            subject._extend.not_before = 0.0
            subject._extend.do()
        assert subject._extend.not_before <= monotonic() + TICK

    @database
    def test_hears_of_a_cancellation(self) -> None:
        [lease] = claimed(tasks.noop.enqueue())
        lifecycle.cancel([lease.claim.id])
        lease.ends -= 45
        heartbeat(hand_with(lease))._extend_due()
        assert lease.cancel_requested


@pytest.mark.postgresql
class TestThreadConnections:
    def test_are_tried_after_a_while_though_jobs_that_do_not_use_them_ran_meanwhile(
        self, second_connection: OtherConnection
    ) -> None:
        kept = second_connection.run(ThreadConnections)
        pid = second_connection.run(backend)
        kept._last_tried -= TRUSTED_FOR + 1
        execute("SELECT pg_terminate_backend(%s)", pid)
        second_connection.run(kept.after_job)  # of one that did not use it
        second_connection.run(kept.before_job)
        assert second_connection.run(backend) != pid

    def test_that_are_closed_are_let_go(self, second_connection: OtherConnection) -> None:
        """A thread that lives long and only opens others now and then keeps none of them."""

        def open_and_close_others() -> int:
            for _ in range(5):
                other: Any = connection.copy()
                other.connect()
                other.close()
            return len(transactions._ours.opened)

        assert second_connection.run(open_and_close_others) <= 2


def backend() -> int:
    """Return which process of the server works for this thread."""
    return int(execute("SELECT pg_backend_pid()")[0])


def execute(statement: str, *parameters: object) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        return cursor.fetchone() or ()


@database
class TestPresence:
    def test_is_a_row_for_as_long_as_the_worker_lives(self) -> None:
        presence = Presence(WorkerOptions(name="me", queues={"a": 2}, concurrency=3))
        presence.beat()
        row = WorkerRow.objects.get()
        assert (row.name, row.queues, row.concurrency) == ("me", "a:2", 3)
        presence.draining()
        presence.beat_if_due()
        row.refresh_from_db()
        assert row.state == WorkerState.DRAINING
        presence.leave()
        assert not WorkerRow.objects.exists()

    def test_takes_the_place_of_a_killed_process_of_the_same_name(self) -> None:
        killed = WorkerFactory(name="me", pid=1, silent_for=timedelta(hours=1))
        Presence(WorkerOptions(name="me")).beat()
        row = WorkerRow.objects.get()
        assert row.pid != killed.pid
        assert row.started_at > killed.started_at

    def test_comes_back_when_somebody_deleted_the_row(self) -> None:
        presence = Presence(WorkerOptions(name="me"))
        presence.beat()
        WorkerRow.objects.all().delete()
        presence.beat()
        assert WorkerRow.objects.count() == 1


@database
def test_a_worker_asks_for_notifications_once_and_only_in_a_row_that_is_there() -> None:
    worker = Worker(WorkerOptions(name="me"))
    worker.listener.is_listening = True
    assert not worker._begins_to_listen()  # so it rests until the next look
    worker.presence.beat()
    assert worker._begins_to_listen()
    assert WorkerRow.objects.get().listens
    assert not worker._begins_to_listen()


@pytest.mark.django_db(transaction=True)
def test_a_dead_thread_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Hand) -> list[Lease]:
        raise ValueError("a fault of our own")

    monkeypatch.setattr(Hand, "leases", broken)
    with running_worker() as worker:
        wait_until(lambda: worker.stop_requests)
    assert worker.exit_code == 1
