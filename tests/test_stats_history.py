"""The figures over time: sums of what workers counted, cheap however many tasks there are."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection, connections
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many, stats
from jobqueue.measures import EVER, QUARTER, bucket, percentile
from jobqueue.models import DeadLetter, Job, Rollup
from jobqueue.stats import queues
from tests import tasks
from tests.factories import (
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    RollupFactory,
    SampleFactory,
    WorkerFactory,
    minutes_ago,
)
from tests.processes import wait_until

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def minute_with_time_left(db: None) -> None:
    """Let no minute end in the middle of a test."""
    wait_until(lambda: stats.now("default").second < 54, doing="the next minute")


def took(*seconds: float) -> dict[str, int]:
    """Return the distribution of some spans."""
    found: dict[str, int] = {}
    for each in seconds:
        key = str(bucket(each))
        found[key] = found.get(key, 0) + 1
    return found


class TestByQueue:
    def test_says_how_each_queue_is(self) -> None:
        for trait in ("pending", "scheduled", "claimed", "succeeded"):
            JobFactory(**{trait: True}, queue_name="mail")
        JobFactory(claimed=True, lease_left=-MINUTE, queue_name="mail")
        JobFactory(queue_name="mail", age=HOUR)
        DeadLetterFactory(queue_name="mail")
        DeadLetterFactory(queue_name="reports")
        mail, reports = stats.by_queue(limit=100)
        assert (mail.name, mail.depth, mail.in_flight, mail.expired) == ("mail", 2, 1, 1)
        assert mail.oldest_age is not None
        assert HOUR <= mail.oldest_age < HOUR + MINUTE
        assert (mail.dead_letters, mail.paused) == (1, None)
        assert (reports.name, reports.depth, reports.oldest_age) == ("reports", 0, None)
        assert reports.dead_letters == 1

    def test_leaves_out_dead_letters_that_somebody_has_dealt_with(self) -> None:
        letter = DeadLetterFactory()
        assert [queue.dead_letters for queue in stats.by_queue(limit=9)] == [1]
        assert stats.figures().dead_letters == 1
        DeadLetter.objects.update(discarded_at=letter.died_at)
        assert stats.by_queue(limit=9) == []
        assert stats.figures().dead_letters == 0

    def test_shows_queues_that_are_empty_now_and_who_paused_them(self) -> None:
        QueueFactory(name="idle")
        QueueFactory(name="over", paused_for_a_while=True, paused_for=-MINUTE)
        QueueFactory(name="stopped", paused=True)
        idle, over, stopped = stats.by_queue(limit=100)
        assert (idle.paused, over.paused) == (None, None)
        assert stopped.paused is not None
        assert stopped.paused.paused_by == "alice"

    def test_counts_what_was_done_in_the_last_full_minutes(self) -> None:
        for minutes, succeeded in ((0, 1000), (1, 1), (5, 10), (6, 100)):
            RollupFactory(minutes=minutes, queue_name="mail", succeeded=succeeded)
        RollupFactory(queue_name="mail", task="other", claimed=7, retried=3, died=2)
        RollupFactory(minutes=1, span=QUARTER, queue_name="mail", succeeded=9999)
        QueueFactory(name="mail")
        [mail] = stats.by_queue(limit=1)
        assert (mail.claimed, mail.succeeded, mail.retried, mail.died) == (7, 11, 3, 2)
        assert mail.minutes == 5

    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_counts_no_further_than_the_limit(self, limit: int) -> None:
        for _ in range(2):
            JobFactory()
            DeadLetterFactory()
        [queue] = stats.by_queue(limit=limit)
        assert {queue.depth, queue.dead_letters} == {min(limit, 2)}

    def test_takes_as_many_statements_however_many_queues_and_tasks_there_are(self) -> None:
        def statements() -> int:
            with CaptureQueriesContext(connection) as captured:
                stats.by_queue(limit=10)
            for each in captured:
                assert "LIMIT" in each["sql"] or "jobqueue_job" not in each["sql"]
            return len(captured)

        QueueFactory(name="queue-0")
        JobFactory(queue_name="queue-0")
        one = statements()
        for number in range(1, 10):
            QueueFactory(name=f"queue-{number}")
            JobFactory(queue_name=f"queue-{number}")
            for task in range(5):
                RollupFactory(queue_name=f"queue-{number}", task=f"task-{task}")
        assert statements() == one

    def test_looks_at_so_many_queues(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queues, "MOST_QUEUES", 3)
        for number in range(6):
            JobFactory(queue_name=f"tenant-{number}")
        names = [queue.name for queue in stats.by_queue(limit=10)]
        assert names == ["tenant-0", "tenant-1", "tenant-2"]

    @pytest.mark.postgresql
    def test_finds_the_names_and_counts_through_indexes(self) -> None:
        for number in range(4):
            queue = tasks.noop.using(queue_name=f"queue-{number}")
            enqueue_many(queue.bind() for _ in range(1500))
        for name in ("queue-1", "queue-2", "short"):
            QueueFactory(name=name)
        JobFactory(queue_name="short")
        with CaptureQueriesContext(connection) as captured:
            stats.by_queue(limit=10)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_job")
            for each in captured.captured_queries:
                if '"jobqueue_job"' in each["sql"]:
                    cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {each['sql']}")
                    plan = "\n".join(line for (line,) in cursor.fetchall())
                    assert "Seq Scan on jobqueue_job" not in plan
                    assert "Sort" not in plan


class TestEstimatedDepth:
    @pytest.mark.postgresql
    def test_is_what_the_statistics_say(self) -> None:
        enqueue_many(tasks.noop.bind() for _ in range(3000))
        enqueue_many(tasks.noop.using(queue_name="mail").bind() for _ in range(1000))
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_job")
        assert stats.estimated_depth() == pytest.approx(4000, rel=0.2)
        assert stats.estimated_depth("mail") == pytest.approx(1000, rel=0.2)

    def test_is_unknown_on_other_databases(self) -> None:
        if connection.vendor == "postgresql":
            pytest.skip("PostgreSQL has one")
        assert stats.estimated_depth() is None


class TestHistory:
    def test_of_an_hour_has_a_point_for_each_full_minute(self) -> None:
        points = stats.history(span=HOUR)
        assert len(points) == 60
        assert {point.seconds for point in points} == {60}
        assert points[-1].start == minutes_ago(1)
        assert {later.start - one.start for one, later in pairwise(points)} == {MINUTE}
        gap = points[30]
        assert (gap.claimed, gap.wait_p95, gap.depth, gap.oldest_age) == (0, None, None, None)

    def test_of_a_day_has_quarters_of_an_hour(self) -> None:
        RollupFactory(span=QUARTER, minutes=60, succeeded=5)
        Rollup.objects.create(span=60, start=minutes_ago(60), queue_name="", task="", succeeded=700)
        points = stats.history(span=DAY)
        assert len(points) == 96
        assert {point.seconds for point in points} == {900}
        assert sum(point.succeeded for point in points) == 5

    def test_adds_up_tasks_and_queues_and_their_distributions(self) -> None:
        mail = {"queue_name": "mail", "minutes": 3}
        RollupFactory(**mail, succeeded=2, claimed=4, waits=took(0.01, 0.01, 1.0, 1.0))
        RollupFactory(**mail, task="other", succeeded=1, retried=2, lost=1, runs=took(5, 5, 5))
        RollupFactory(minutes=3, died=3, waits=took(60))
        start = minutes_ago(3)
        everything = {point.start: point for point in stats.history(span=HOUR)}[start]
        assert everything[2:7] == (4, 3, 2, 3, 1)
        assert everything.wait_p50 == pytest.approx(1.0, rel=0.2)
        assert everything.wait_p99 == pytest.approx(60, rel=0.2)
        assert everything.run_p50 == pytest.approx(5.0, rel=0.2)
        own = {point.start: point for point in stats.history(span=HOUR, queue_name="mail")}[start]
        assert (own.died, own.succeeded) == (0, 3)
        assert own.wait_p99 == pytest.approx(1.0, rel=0.2)

    def test_tells_how_queues_stood(self) -> None:
        SampleFactory(minutes=2, depth=7, oldest_age=HOUR, in_flight=3, dead_letters=1)
        SampleFactory(minutes=2, queue_name="mail", depth=4)
        start = minutes_ago(2)
        everything = {point.start: point for point in stats.history(span=HOUR)}[start]
        assert everything[-4:] == (7, HOUR, 3, 1)
        own = {point.start: point for point in stats.history(span=HOUR, queue_name="mail")}[start]
        assert own[-4:] == (4, None, 0, 0)

    def test_keeps_the_peaks_of_a_day(self) -> None:
        start = minutes_ago(60, span=QUARTER)
        for minute, depth in enumerate((5, 900, 6)):
            sample = SampleFactory(depth=depth, minutes=40 + minute)
            type(sample).objects.filter(pk=sample.pk).update(minute=start + minute * MINUTE)
        found = {point.start: point for point in stats.history(span=DAY)}[start]
        assert found.depth == 900

    def test_reads_no_more_often_for_more_rows(self) -> None:
        for minutes in range(1, 6):
            RollupFactory(minutes=minutes)
            SampleFactory(minutes=minutes)
        with CaptureQueriesContext(connection) as captured:
            stats.history(span=HOUR)
        assert len(captured) == 3


class TestByTask:
    def test_shows_run_times_against_the_lease(self) -> None:
        WorkerFactory(lease=timedelta(seconds=20))
        RollupFactory(minutes=1, runs=took(*[1.0] * 99), succeeded=90, retried=8, died=1)
        RollupFactory(minutes=30, queue_name="mail", runs=took(15.0), succeeded=1)
        RollupFactory(minutes=1, task="slow", runs=took(15.0), succeeded=1)
        RollupFactory(minutes=90, task="earlier", runs=took(15.0))
        slow, noop = stats.by_task(span=HOUR)
        assert (noop.task, noop.runs, noop.succeeded) == ("tests.tasks.noop", 100, 91)
        assert (noop.retried, noop.died) == (8, 1)
        assert noop.p50 == noop.p95 == pytest.approx(1.0, rel=0.2)
        assert noop.lease == timedelta(seconds=20)
        assert not noop.is_near_lease
        assert slow.share == pytest.approx(0.75, rel=0.2)
        assert slow.is_near_lease

    def test_prefers_the_lease_of_the_task(self, settings: Any) -> None:
        settings.JOBQUEUE = {"LEASE": timedelta(seconds=33)}
        RollupFactory(task=tasks.leased.name)
        RollupFactory()
        leases = {found.task: found.lease for found in stats.by_task(span=HOUR)}
        assert leases[tasks.leased.name] == timedelta(minutes=7)
        assert leases["tests.tasks.noop"] == timedelta(seconds=33)

    def test_without_runs_has_no_percentiles(self) -> None:
        RollupFactory(claimed=1)
        [noop] = stats.by_task(span=DAY) or stats.by_task(span=HOUR)
        assert (noop.runs, noop.p95, noop.share, noop.is_near_lease) == (0, None, None, False)

    def test_usual_run_time_is_of_everything_that_ever_ran(self) -> None:
        RollupFactory(span=EVER, runs=took(*[1.0] * 60))
        RollupFactory(span=EVER, queue_name="mail", runs=took(*[1.0] * 38, 500, 500))
        RollupFactory(span=EVER, task="other", runs={})
        RollupFactory(runs=took(77))
        found = stats.usual_run_time(["tests.tasks.noop", "other", "unknown"])
        assert found == {"tests.tasks.noop": pytest.approx(1.0, rel=0.2)}

    def test_tries_are_in_order(self) -> None:
        RollupFactory(succeeded=4, tries={"10": 1, "2": 3})
        RollupFactory(task="other", succeeded=5, tries={"1": 4, "2": 1})
        assert stats.tries(span=HOUR) == [(1, 4), (2, 4), (10, 1)]

    def test_a_row_written_by_hand_harms_nobody(self) -> None:
        RollupFactory(succeeded=1, tries={"x": 1, "1": 2}, runs={"999": 3, "y": 1})
        assert stats.tries(span=HOUR) == [(1, 2)]
        [noop] = stats.by_task(span=HOUR)
        assert noop.runs == 3


class TestWorkers:
    def test_show_what_each_has_in_hand(self) -> None:
        WorkerFactory(name="worker-a", concurrency=4)
        WorkerFactory(name="worker-b", silent_for=HOUR)
        for _ in range(3):
            JobFactory(claimed=True)
        JobFactory(claimed=True, claimed_by="killed")
        mine, silent = stats.workers()
        assert (mine.worker.name, mine.held, mine.load) == ("worker-a", 3, 0.75)
        assert not mine.is_stale
        assert silent.is_stale
        assert (silent.held, silent.load) == (0, 0.0)
        assert HOUR <= silent.heartbeat_age < HOUR + MINUTE

    def test_are_never_more_than_fully_loaded(self) -> None:
        WorkerFactory(name="worker-a", concurrency=1)
        for _ in range(3):
            JobFactory(claimed=True)
        [mine] = stats.workers()
        assert (mine.held, mine.load) == (3, 1.0)

    def test_take_two_statements(self) -> None:
        for _ in range(3):
            WorkerFactory()
            JobFactory(claimed=True)
        with CaptureQueriesContext(connection) as captured:
            assert len(stats.workers()) == 3
        assert len(captured) == 2
        assert Job.objects.claimed().count() == 3


class TestPooler:
    def test_figures_need_no_cursor_that_outlives_its_statement(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """PgBouncer in transaction mode would ask another session for the rest of the rows."""
        RollupFactory(minutes=2, succeeded=1, tries={"1": 1})
        monkeypatch.setattr(connections["default"], "chunked_cursor", None)
        assert sum(point.succeeded for point in stats.history(span=HOUR)) == 1
        assert [task.succeeded for task in stats.by_task(span=HOUR)] == [1]
        assert stats.tries(span=HOUR) == [(1, 1)]


class TestPercentile:
    def test_is_never_below_what_it_stands_for(self) -> None:
        assert percentile({}, 0.5) is None
        found = percentile(took(0.1, 0.2, 0.3, 40.0), 0.5)
        assert found is not None
        assert 0.2 <= found < 0.3
