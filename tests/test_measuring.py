"""What workers count: each outcome once, by the database's minute, and never at a job's cost."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from time import monotonic
from typing import Any

import pytest
from django.db import Error, OperationalError, connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from jobqueue import enqueue_many, lifecycle, measures, stats, stores
from jobqueue.claims import Claim, Turn
from jobqueue.failpoints import VARIABLE
from jobqueue.measures import BOUNDS, EVER, MINUTE, QUARTER, Counts, bucket, percentile
from jobqueue.models import Job, Queue, Rollup, Sample, Worker
from jobqueue.querysets import ago
from jobqueue.states import Outcome, Status
from jobqueue.worker import tally as tallying
from jobqueue.worker.janitor import Chore, Janitor
from jobqueue.worker.tally import Tally
from tests import tasks, verbs
from tests.factories import DeadLetterFactory, JobFactory, RollupFactory, SampleFactory, minutes_ago
from tests.in_process import run_until_empty, running_worker
from tests.processes import OtherConnection, WorkerProcess, wait_for_lock_wait, wait_until

database = pytest.mark.django_db
in_processes = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
NOOP = tasks.noop.name


def wait_for_time_in_the_minute(*, since: float = 0) -> None:
    """Let no minute end in the middle of a test, nor have begun so few seconds ago."""
    wait_until(lambda: since <= stats.now("default").second < 48, doing="time in the minute")


@pytest.fixture
def tally(db: None) -> Iterator[Tally]:
    """A tally that counts what this test claims and settles."""
    tally = Tally(using="default")
    tally.open()
    yield tally
    tally.close()


@pytest.fixture
def at_once(tally: Tally, django_capture_on_commit_callbacks: Any) -> Iterator[Callable[..., None]]:
    """Settle as if each statement were committed at once."""

    def settle(*settlements: Any) -> None:
        with django_capture_on_commit_callbacks(execute=True):
            lifecycle.settle(settlements)

    return settle


def claimed(tally: Tally, count: int = 1) -> list[Claim]:
    claims = verbs.claim(count)
    assert len(claims) == count
    tally.claimed(claims)
    return claims


def ever(**which: Any) -> Rollup:
    """Return the one row of the counts since for ever."""
    return Rollup.objects.get(span=EVER, **which)


def numbers(row: Rollup) -> dict[str, int]:
    """Return the numbers of a row that are not zero."""
    found = {name: getattr(row, name) for name in measures.NUMBERS}
    return {name: number for name, number in found.items() if number}


def spans(distribution: dict[str, int]) -> Counter[int]:
    return Counter({int(key): count for key, count in distribution.items()})


class TestBuckets:
    @given(st.floats(min_value=0, max_value=BOUNDS[-1]))
    def test_reach_just_above_what_falls_into_them(self, seconds: float) -> None:
        upper = BOUNDS[bucket(seconds)]
        assert seconds <= upper
        assert upper <= max(seconds * 1.42, BOUNDS[0])

    @given(
        st.lists(st.floats(min_value=0.001, max_value=30_000), min_size=1, max_size=50),
        st.sampled_from([0.5, 0.95, 0.99]),
    )
    def test_tell_percentiles_with_a_known_error(self, seconds: list[float], share: float) -> None:
        found = percentile(Counter(str(bucket(each)) for each in seconds), share)
        rank = next(n for n in range(1, len(seconds) + 1) if n >= share * len(seconds) - 1e-9)
        exact = sorted(seconds)[rank - 1]
        assert found is not None
        assert exact <= found <= exact * 1.42

    @given(st.lists(st.tuples(st.integers(-3, 9), st.integers(0, 60)), max_size=9))
    def test_add_up_in_any_order(self, parts: list[tuple[int, int]]) -> None:
        def added(order: list[tuple[int, int]]) -> Counts:
            total = Counts()
            for number, slot in order:
                part = Counts(claimed=number)
                part.waits[slot] += number
                total.add(part)
            return total

        assert added(parts) == added(parts[::-1])
        assert added(parts).claimed == sum(number for number, _ in parts)

    def test_keep_what_is_beyond_the_last(self) -> None:
        assert percentile({str(bucket(1e9)): 1}, 0.5) == BOUNDS[-1]


@database
class TestATally:
    def test_counts_each_outcome_once(self, tally: Tally, at_once: Any) -> None:
        JobFactory.create_batch(9)
        first, *others = claimed(tally, 9)
        endings = [
            verbs.retried(others[0]),
            verbs.buried(others[1]),
            verbs.snoozed(others[2]),
            verbs.interrupted(others[3]),
            verbs.released(others[4]),
            verbs.ended(others[5], Outcome.TIMED_OUT, Status.SCHEDULED),
            verbs.ended(others[6], Outcome.LOST, Status.PENDING),
        ]
        at_once(verbs.succeeded(first), *endings)
        tally.flush()
        row = ever(task=NOOP, queue_name="default")
        counts = {"claimed": 8, "succeeded": 1, "retried": 3, "died": 1, "lost": 1}
        assert numbers(row) == counts
        assert spans(row.runs).total() == 4, "those that ended by themselves"
        assert spans(row.waits).total() == 8
        assert row.tries == {"1": 1}

    def test_counts_a_job_that_was_cancelled_as_neither(self, tally: Tally, at_once: Any) -> None:
        JobFactory()
        [claim] = claimed(tally)
        Job.objects.update(cancel_requested=True)
        at_once(verbs.retried(claim))
        tally.flush()
        assert verbs.where(claim.id) == "cancelled"
        assert numbers(ever()) == {"claimed": 1}

    def test_counts_no_refused_late_ack(self, tally: Tally, at_once: Any) -> None:
        """C-01."""
        JobFactory()
        [late] = claimed(tally)
        verbs.expire(late.id)
        lifecycle.rescue()
        at_once(verbs.succeeded(late))
        tally.flush()
        assert ever().succeeded == 0
        [again] = claimed(tally)
        at_once(verbs.succeeded(again), verbs.succeeded(late))
        tally.flush()
        assert numbers(ever()) == {"claimed": 2, "succeeded": 1}

    def test_counts_the_loss_that_a_rescue_records(
        self, tally: Tally, django_capture_on_commit_callbacks: Any
    ) -> None:
        JobFactory.create_batch(2)
        Job.objects.filter(pk=Job.objects.latest("pk").pk).update(max_attempts=1)
        claims = claimed(tally, 2)
        verbs.expire(*[claim.id for claim in claims])
        with django_capture_on_commit_callbacks(execute=True):
            assert lifecycle.rescue() == 2
        tally.flush()
        assert numbers(ever()) == {"claimed": 2, "retried": 1, "died": 1, "lost": 2}
        assert ever().runs == {}, "nobody knows how long they ran"

    def test_counts_nothing_before_the_commit(self, tally: Tally) -> None:
        JobFactory()
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])
        tally.flush()
        assert not Rollup.objects.exists()

    def test_counts_nothing_where_no_worker_runs(
        self, tally: Tally, at_once: Any, django_capture_on_commit_callbacks: Any
    ) -> None:
        JobFactory()
        tally.close()
        at_once(verbs.succeeded(verbs.claim_one()))
        tally.flush()
        assert not Rollup.objects.exists()

    def test_tells_the_attempt_that_succeeded_within_its_life(
        self, tally: Tally, at_once: Any
    ) -> None:
        JobFactory(attempts=2)
        JobFactory(attempts=7, attempts_forgiven=7, max_attempts=12)
        JobFactory(attempts=30, max_attempts=50)
        at_once(*map(verbs.succeeded, claimed(tally, 3)))
        tally.flush()
        assert ever().tries == {"1": 1, "3": 1, "10": 1}

    def test_measures_how_long_jobs_waited_and_ran(self, tally: Tally, at_once: Any) -> None:
        JobFactory(age=HOUR)
        at_once(verbs.succeeded(*claimed(tally)))
        tally.flush()
        row = ever()
        assert percentile(row.waits, 0.5) == BOUNDS[bucket(3600)]
        assert percentile(row.runs, 0.5) == BOUNDS[bucket(2.0)]

    def test_writes_nothing_when_there_was_nothing(self, tally: Tally) -> None:
        with CaptureQueriesContext(connection) as captured:
            tally.flush()
        assert len(captured) == 0

    def test_keeps_tasks_and_queues_apart(self, tally: Tally, at_once: Any) -> None:
        for queue_name, task in (("default", "a"), ("default", "b"), ("mail", "a")):
            JobFactory(queue_name=queue_name, task=task)
        mail = lifecycle.claim([Turn("mail", 1)], worker="me", lease=HOUR)
        tally.claimed(mail)
        at_once(*map(verbs.succeeded, [*claimed(tally, 2), *mail]))
        tally.flush()
        rows = Rollup.objects.filter(span=EVER, succeeded=1, claimed=1)
        assert rows.count() == Rollup.objects.filter(span=EVER).count() == 3
        assert set(Queue.objects.values_list("name", flat=True)) == {"default", "mail"}

    def test_stays_above_zero_and_for_ever_steady_when_an_old_claim_is_handed_back(
        self, tally: Tally, at_once: Any
    ) -> None:
        wait_for_time_in_the_minute()
        JobFactory()
        RollupFactory(span=EVER, claimed=5, waits={str(bucket(0.001)): 5})
        at_once(verbs.released(verbs.claim_one()))
        tally.flush()
        assert (ever().claimed, sum(ever().waits.values())) == (5, 5)
        for row in Rollup.objects.filter(span=MINUTE):
            assert (row.claimed, row.waits) == (0, {})


@database
class TestAFlush:
    def test_adds_to_the_minute_the_quarter_and_the_total(self, tally: Tally, at_once: Any) -> None:
        wait_for_time_in_the_minute(since=tallying.SLICE)
        for _ in range(2):
            JobFactory()
            at_once(verbs.succeeded(*claimed(tally)))
            tally.flush()
        starts = {row.span: row.start for row in Rollup.objects.filter(succeeded=2, claimed=2)}
        assert starts == {
            EVER: measures.for_ever(),
            MINUTE: minutes_ago(0),
            QUARTER: minutes_ago(0, span=QUARTER),
        }
        # The minute and the quarter also of all queues and tasks together.
        assert Counter(row.span for row in Rollup.objects.all()) == {EVER: 1, MINUTE: 2, QUARTER: 2}

    def test_puts_counts_into_the_minute_in_which_they_were_made(self, tally: Tally) -> None:
        wait_for_time_in_the_minute()
        now = monotonic()
        parts = {now - 600: Counts(succeeded=3), now: Counts(succeeded=1)}
        lifecycle.count({("default", NOOP): parts})
        found = dict(Rollup.objects.filter(span=MINUTE).values_list("start", "succeeded"))
        assert found == {minutes_ago(10): 3, minutes_ago(0): 1}
        assert ever().succeeded == 4

    def test_that_fails_keeps_the_counts_for_the_next(self, tally: Tally, at_once: Any) -> None:
        JobFactory()
        at_once(verbs.succeeded(*claimed(tally)))
        with verbs.refusing("UPDATE", "jobqueue_rollup"), pytest.raises(Error):
            tally.flush()
        tally.flush()
        tally.flush()
        assert numbers(ever()) == {"claimed": 1, "succeeded": 1}

    def test_that_fails_half_way_adds_nothing_twice(
        self, tally: Tally, at_once: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tallying, "PAIRS", 1)
        for task in "abc":
            JobFactory(task=task)
        at_once(*map(verbs.succeeded, claimed(tally, 3)))
        with (
            verbs.refusing("UPDATE", "jobqueue_rollup", when="NEW.task = 'b'"),
            pytest.raises(Error),
        ):
            tally.flush()
        assert ever(task="a").succeeded == 1
        tally.flush()
        assert {row.task: row.succeeded for row in Rollup.objects.filter(span=EVER)} == {
            "a": 1,
            "b": 1,
            "c": 1,
        }

    def test_keeps_no_more_than_so_many_counts(
        self, tally: Tally, at_once: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(tallying, "MOST_KEPT", 2)
        for task in "abc":
            JobFactory(task=task)
        at_once(*map(verbs.succeeded, claimed(tally, 3)))
        with verbs.refusing("UPDATE", "jobqueue_rollup"), pytest.raises(Error):
            tally.flush()
        tally.flush()
        assert not Rollup.objects.filter(succeeded__gt=0).exists()

    def test_repairs_what_somebody_wrote_by_hand(self, tally: Tally, at_once: Any) -> None:
        RollupFactory(span=EVER, succeeded=3, runs={"x": 7}, tries={"1": 3})
        JobFactory()
        at_once(verbs.succeeded(*claimed(tally)))
        tally.flush()
        assert ever().succeeded == 4
        assert ever().tries == {"1": 4}


class TestWaiting:
    @database
    @pytest.mark.parametrize("state", ["pending", "scheduled"])
    def test_is_counted_from_when_the_job_was_due(self, state: str) -> None:
        JobFactory(**{state: True}, age=2 * HOUR, due_in=-2 * HOUR, enqueued_at=ago(5 * HOUR))
        lifecycle.promote()
        waited = verbs.claim_one().waited
        assert 7200 <= waited < 7260

    @database
    def test_is_told_by_every_kind_of_claim(self) -> None:
        for _ in range(2):
            JobFactory(age=HOUR)
        first = verbs.claim_one()
        [second] = lifecycle.claim(
            [Turn("default", 1, {0: (first.run_after, first.id)})], worker="me", lease=HOUR
        )
        assert min(first.waited, second.waited) >= 3600
        assert max(first.waited, second.waited) < 3660

    @database
    def test_is_the_same_for_who_rescues(self) -> None:
        JobFactory(claimed=True, age=HOUR, claimed_ago=HOUR / 2, lease_left=-HOUR / 4)
        with stores.get("default").transaction():
            [expired] = stores.get("default").lock_expired(limit=1)
        assert expired.claim.waited == pytest.approx(1800, abs=60)


@in_processes
class TestWorkers:
    def test_write_what_they_did_before_they_end(self) -> None:
        enqueue_many([tasks.noop.bind() for _ in range(20)])
        tasks.fail.using(max_attempts=1).enqueue()
        run_until_empty()
        assert numbers(ever(task=NOOP)) == {"claimed": 20, "succeeded": 20}
        assert numbers(ever(task=tasks.fail.name)) == {"claimed": 1, "died": 1}
        assert list(Queue.objects.values_list("name", flat=True)) == ["default"]

    def test_count_atomic_tasks_once(self) -> None:
        tasks.leave_row_atomically.enqueue("once")
        run_until_empty()
        assert numbers(ever()) == {"claimed": 1, "succeeded": 1}

    def test_say_how_long_their_leases_are(self) -> None:
        with running_worker(lease=timedelta(seconds=42)):
            row = wait_until(Worker.objects.first)
            assert row is not None
            assert row.lease == timedelta(seconds=42)

    def test_that_end_together_add_up_exactly(
        self, worker_process: Callable[..., WorkerProcess]
    ) -> None:
        queues = ["default", "mail"]
        for name in queues:
            enqueue_many(tasks.noop.using(queue_name=name).bind() for _ in range(150))
            enqueue_many(tasks.add.using(queue_name=name).bind(1, 2) for _ in range(150))
        workers = [worker_process("--until-empty", ready=False) for _ in range(2)]
        assert [worker.wait() for worker in workers] == [0, 0]
        for span in (EVER, QUARTER, MINUTE):
            totals = Counter[tuple[str, str]]()
            for row in Rollup.objects.filter(span=span).exclude(queue_name=""):
                assert row.claimed >= row.succeeded or span == MINUTE
                totals[row.queue_name, row.task] += row.succeeded
            together = Rollup.objects.filter(span=span, queue_name="")
            assert sum(row.succeeded for row in together) == (0 if span == EVER else 600)
            assert totals == {
                (name, task.name): 150 for name in queues for task in (tasks.noop, tasks.add)
            }
        for row in Rollup.objects.filter(span=EVER):
            assert row.claimed == 150
            assert spans(row.runs).total() == spans(row.waits).total() == 150

    @pytest.mark.parametrize("moment", ["before", "inside", "committed"])
    def test_that_are_killed_lose_no_more_than_what_they_had_not_added(
        self, moment: str, worker_process: Callable[..., WorkerProcess]
    ) -> None:
        """C-03."""
        enqueue_many([tasks.noop.bind() for _ in range(5)])
        kill = {VARIABLE: f"count.{moment}=kill"}
        worker = worker_process("--until-empty", ready=False, **kill)
        assert worker.wait() == -signal.SIGKILL
        enqueue_many([tasks.noop.bind() for _ in range(3)])
        run_until_empty()
        assert Job.objects.filter(status=Status.SUCCEEDED).count() == 8
        succeeded = 8 if moment == "committed" else 3
        for span in (EVER, QUARTER, MINUTE):
            rows = Rollup.objects.filter(span=span).exclude(queue_name="")
            assert sum(row.succeeded for row in rows) == succeeded
            assert sum(spans(row.runs).total() for row in rows) == succeeded

    def test_that_cannot_add_their_counts_still_work_and_say_so(
        self, worker_process: Callable[..., WorkerProcess]
    ) -> None:
        tasks.noop.enqueue()
        fail = {VARIABLE: "count.before=error"}
        worker = worker_process("--until-empty", ready=False, **fail)
        assert worker.wait() == 0
        assert worker.lines_with("worker.count_failed")
        assert Job.objects.get().status == Status.SUCCEEDED
        assert not Worker.objects.exists()

    @pytest.mark.postgresql
    def test_that_add_at_the_same_time_wait_for_each_other(
        self, second_connection: OtherConnection
    ) -> None:
        """Neither's counts are lost, nor do they wait in a circle."""
        now = monotonic()
        mine = {("default", task): {now: Counts(succeeded=1)} for task in "abc"}
        theirs = {("default", task): {now: Counts(succeeded=10)} for task in "dcb"}
        second_connection.begin()
        second_connection.run(lifecycle.count, theirs)
        third = OtherConnection()
        try:
            waiting = third.start(lifecycle.count, mine)
            wait_for_lock_wait()
            second_connection.commit()
            waiting.result(30)
        finally:
            third.close()
        found = dict(Rollup.objects.filter(span=EVER).values_list("task", "succeeded"))
        assert found == {"a": 1, "b": 11, "c": 11, "d": 10}


@database
class TestASample:
    def test_tells_how_all_queues_stand_and_each_that_is_not_empty(self) -> None:
        JobFactory(age=HOUR)
        JobFactory(claimed=True, queue_name="mail")
        DeadLetterFactory(queue_name="mail")
        Queue.objects.create(name="empty")
        left = lifecycle.sample()
        assert 0 < left <= 60
        found = {
            row.queue_name: (row.depth, row.in_flight, row.dead_letters)
            for row in Sample.objects.all()
        }
        assert found == {"": (1, 1, 1), "default": (1, 0, 0), "mail": (0, 1, 1)}
        age = Sample.objects.get(queue_name="default").oldest_age
        assert age is not None
        assert HOUR <= age < HOUR + timedelta(minutes=1)
        assert set(Queue.objects.values_list("name", flat=True)) == {"default", "mail", "empty"}

    def test_is_taken_once_a_minute_by_whoever_comes_first(self) -> None:
        wait_for_time_in_the_minute()
        lifecycle.sample()
        JobFactory()
        with CaptureQueriesContext(connection) as captured:
            lifecycle.sample()
        assert len(captured) == 2
        assert Sample.objects.get().depth == 0
        Sample.objects.all().delete()
        SampleFactory(minutes=1)
        lifecycle.sample()
        assert set(Sample.objects.values_list("queue_name", "depth")) == {
            ("", 0),
            ("", 1),
            ("default", 1),
        }

    def test_of_a_queue_in_which_there_was_nothing_is_no_gap(self) -> None:
        wait_for_time_in_the_minute()
        SampleFactory(minutes=2, depth=9)
        start = minutes_ago(2)
        points = {each.start: each for each in stats.history(span=HOUR, queue_name="mail")}
        assert points[start].depth == 0
        assert points[start - timedelta(minutes=1)].depth is None


class TestChores:
    @pytest.mark.parametrize("error", [OperationalError("gone"), TypeError("gone")])
    def test_that_fail_come_again_and_disturb_no_other(
        self, error: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> float:
            raise error

        chore = Chore(fail, failed="worker.sample_failed", first=0.0, again=7.0)
        before = monotonic()
        chore.do()
        assert "worker.sample_failed err=gone" in caplog.text
        assert before + 7 <= chore.due <= monotonic() + 7

    def test_of_a_worker_that_ends_by_itself_are_to_add_up_alone(self) -> None:
        tally = Tally(using="default")
        short = Janitor(tally, using="default", only_counts=True)
        assert short.chores == [short.flush]
        assert len(Janitor(tally, using="default").chores) == 3

    @in_processes
    def test_are_done_when_they_are_due(self) -> None:
        JobFactory()
        janitor = Janitor(Tally(using="default"), using="default")
        janitor.sample.due = monotonic()
        other = OtherConnection()
        try:
            working = other.start(janitor.work)
            wait_until(lambda: Sample.objects.filter(queue_name="default").exists())
            janitor.close()
            working.result(30)
        finally:
            other.close()
        assert janitor.sample.due > monotonic()


@in_processes
class TestWithoutTimeZones:
    """C-82: USE_TZ=False, in a zone far from UTC."""

    def test_counts_and_samples_are_found_again(self, settings: Any) -> None:
        settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Shanghai"
        connection.close()  # the zone is the session's
        wait_for_time_in_the_minute()
        JobFactory(age=HOUR)
        lifecycle.count({("default", NOOP): {monotonic() - 60: Counts(succeeded=1)}})
        lifecycle.sample()
        Sample.objects.update(minute=F("minute") - timedelta(minutes=1))
        last = stats.history(span=HOUR)[-1]
        assert (last.succeeded, last.depth) == (1, 1)
        assert [task.succeeded for task in stats.by_task(span=HOUR)] == [1]
        connection.close()
