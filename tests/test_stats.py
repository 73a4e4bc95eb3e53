"""The figures: what they count, and that they cost little however much there is."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobqueue import enqueue_many, stats
from jobqueue.models import Job
from jobqueue.stats import lanes
from tests import tasks
from tests.factories import DeadLetterFactory, JobFactory, WorkerFactory

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
#: A row's age grows while the test runs.
SOON = timedelta(minutes=1)


class TestFigures:
    def test_of_an_empty_queue_are_zero(self) -> None:
        nothing = {"in_flight": 0, "expired": 0, "dead_letters": 0, "live_workers": 0}
        assert stats.figures() == stats.Figures(depth=0, oldest_age=None, is_stuck=False, **nothing)

    def test_count_each_kind_by_itself(self) -> None:
        for trait in ("pending", "scheduled", "claimed", "succeeded", "cancelled"):
            JobFactory(**{trait: True})
        JobFactory(claimed=True, lease_left=-SOON)
        DeadLetterFactory()
        WorkerFactory()
        found = stats.figures()
        assert (found.depth, found.in_flight, found.expired) == (1, 1, 1)
        assert (found.dead_letters, found.live_workers) == (1, 1)

    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_count_no_further_than_the_limit(self, limit: int) -> None:
        for _ in range(2):
            JobFactory()
            JobFactory(claimed=True)
            JobFactory(claimed=True, lease_left=-SOON)
            DeadLetterFactory()
        found = stats.figures(limit=limit)
        counts = {found.depth, found.in_flight, found.expired, found.dead_letters}
        assert counts == {min(limit, 2)}

    def test_take_few_statements_and_count_nothing_without_limit(self) -> None:
        JobFactory()
        with CaptureQueriesContext(connection) as captured:
            stats.figures(limit=100)
        assert len(captured) <= 6
        for each in captured:
            assert "LIMIT 100" in each["sql"] or "jobqueue_worker" in each["sql"]


class TestOldestAge:
    def test_is_how_long_the_oldest_has_been_due(self) -> None:
        for hours in (2, 5, 1):
            JobFactory(age=hours * HOUR)
        JobFactory(claimed=True, age=9 * HOUR)
        JobFactory(scheduled=True, due_in=-9 * HOUR)
        _depth, age = stats.backlog()
        assert age is not None
        assert 5 * HOUR <= age < 5 * HOUR + SOON

    @pytest.mark.parametrize("oldest", range(6))
    def test_beyond_the_limit_is_found_in_whatever_lane_it_is(self, oldest: int) -> None:
        """The oldest job may be the last that a claim would take."""
        lanes = list(product(("a", "b", "c"), (5, 0, -5)))
        for number, (queue_name, priority) in enumerate(lanes):
            age = (9 if number == oldest else 1 + number / 10) * HOUR
            JobFactory(queue_name=queue_name, priority=priority, age=age)
            JobFactory(queue_name=queue_name, priority=priority, age=HOUR / 2)
        depth, age = stats.backlog(limit=4)
        assert depth == 4
        assert age is not None
        assert 9 * HOUR <= age < 9 * HOUR + SOON

    def test_beyond_the_limit_takes_a_look_up_for_each_queue_and_each_priority(self) -> None:
        for priority in (1, 2):
            Job.objects.bulk_create(
                Job(task="tests.tasks.noop", priority=priority) for _ in range(50)
            )
        with CaptureQueriesContext(connection) as captured:
            stats.backlog(limit=10)
        assert len(captured) == 1 + 3 + 2 + 2  # the depth, names, heads, lanes
        assert all("LIMIT" in each["sql"] for each in captured)

    def test_beyond_the_limit_is_looked_for_in_so_many_lanes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lanes, "MOST_LANES", 3)
        for number in range(10):
            JobFactory(queue_name=f"tenant-{number}", age=number * HOUR)
        _depth, age = stats.backlog(limit=2)
        assert age is not None
        assert 2 * HOUR <= age < 2 * HOUR + SOON

    @pytest.mark.postgresql
    def test_beyond_the_limit_walks_the_claim_index(self) -> None:
        """No step reads a backlog: each finds its row through the index and sorts nothing."""
        for priority in range(4):
            enqueue_many(tasks.noop.using(priority=priority).bind() for _ in range(2000))
        with CaptureQueriesContext(connection) as captured:
            stats.backlog(limit=10)
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE jobqueue_job")
            for each in captured.captured_queries[1:]:
                cursor.execute(f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) {each['sql']}")
                plan = "\n".join(line for (line,) in cursor.fetchall())
                assert "jobqueue_job_pending" in plan
                assert "Sort" not in plan


class TestLiveWorkers:
    def test_are_those_heard_of_within_a_lease(self, settings: Any) -> None:
        WorkerFactory()
        WorkerFactory(silent_for=timedelta(minutes=2))
        assert stats.live_workers() == 1
        settings.JOBQUEUE = {"LEASE": timedelta(minutes=3)}
        assert stats.live_workers() == 2


class TestIsStuck:
    @pytest.mark.parametrize(
        ("job", "is_stuck"),
        [
            ({"pending": True}, True),
            ({"scheduled": True, "due_in": -SOON}, True),
            ({"scheduled": True, "due_in": SOON}, False),
            ({"succeeded": True}, False),
        ],
        ids=["pending", "overdue", "later", "done"],
    )
    def test_when_jobs_wait_and_no_worker_lives(
        self, job: dict[str, Any], *, is_stuck: bool
    ) -> None:
        JobFactory(**job)
        WorkerFactory(silent_for=HOUR)
        assert stats.figures().is_stuck is is_stuck
        WorkerFactory()
        assert not stats.figures().is_stuck
