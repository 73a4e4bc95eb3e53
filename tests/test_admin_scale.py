"""C-93: what the pages of the admin ask of the database, however many rows it has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from demo_project.orders.bench import heaps
from demo_project.orders.bench.pages import every_page
from jobqueue.admin import base
from jobqueue.admin.paginator import CappedPaginator
from jobqueue.models import Attempt, DeadLetter, Job, Worker
from jobqueue.states import Status
from tests.factories import AttemptFactory, JobFactory
from tests.populated import populate

pytestmark = [pytest.mark.django_db, pytest.mark.pages]

#: What may hold secrets, or be too large to read by the hundred.
LARGE = ("args", "kwargs", "result", "trace", "traceback")
#: These tables are as long as there are processes or queues, so they may be counted.
SHORT = ("jobqueue_worker", "jobqueue_queue")
MOST_QUERIES = 60
WRITES = re.compile(r"^\s*(INSERT|UPDATE|DELETE|MERGE|TRUNCATE|LOCK)\b|\bFOR (UPDATE|SHARE)\b")


class Recorder(Client):
    """Keeps what each page that it gets asks of the queue's tables."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: dict[str, list[str]] = {}

    def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        with CaptureQueriesContext(connection) as captured:
            response = super().get(path, *args, **kwargs)
        self.asked[path] = [each["sql"] for each in captured if "jobqueue_" in each["sql"]]
        return response


def counts_without_a_limit(sql: str) -> bool:
    """Tell whether rows are counted that neither a limit nor a key bounds."""
    if "COUNT(" not in sql or any(f'FROM "{table}"' in sql for table in SHORT):
        return False
    # Claimed jobs are as many as the workers have threads, and some more that wait for one.
    return "LIMIT" not in sql and "'claimed'" not in sql and "GROUP BY" not in sql


def deepest_offset(sql: str) -> int:
    return max(map(int, re.findall(r"\bOFFSET (\d+)", sql)), default=0)


def registered() -> Iterator[type[Model]]:
    for model in admin.site._registry:
        if model._meta.app_label == "jobqueue":
            yield model


@pytest.fixture
def recorder(admin_user: User) -> Recorder:
    populate()
    recorder = Recorder()
    recorder.force_login(admin_user)
    return recorder


class TestEveryPage:
    def test_is_found_and_asks_for_no_more_than_it_shows(self, recorder: Recorder) -> None:
        pages = every_page(recorder, choices=len(Status.values))
        names = {page.name for page in pages}
        for model in registered():
            assert f"{model._meta.model_name}_changelist" in names
        for model in (Job, Attempt, DeadLetter, Worker):
            assert {f"{model._meta.model_name}_{page}" for page in ("change", "history")} <= names
        assert {"job_changelist?status=pending", "deadletter_changelist?q=no-such-word"} <= names
        for page in pages:
            for sql in recorder.asked[page.url]:
                assert not counts_without_a_limit(sql), (page, sql)
                assert "DISTINCT" not in sql, (page, sql)
                assert deepest_offset(sql) <= CappedPaginator.most, (page, sql)
                assert not WRITES.search(sql), (page, sql)
                if page.is_list:
                    selected = sql.partition(" FROM ")[0]
                    named = [name for name in LARGE if f'"{name}"' in selected]
                    assert not named, (page, sql)

    def test_asks_as_often_with_many_rows_as_with_few(self, recorder: Recorder) -> None:
        pages = every_page(recorder, choices=1)
        few = {page: len(recorder.asked[page.url]) for page in pages}
        populate(range(1, 5))
        for page, number in few.items():
            recorder.get(page.url)
            asked = recorder.asked[page.url]
            assert len(asked) <= number, (page, asked)
            assert number <= MOST_QUERIES, page


class TestTheRulesAbove:
    """What finds nothing must be able to find something."""

    @pytest.mark.parametrize(
        ("sql", "is_uncapped"),
        [
            ('SELECT COUNT(*) FROM "jobqueue_job"', True),
            ("SELECT COUNT(*) FROM \"jobqueue_job\" WHERE task = 'x'", True),
            ('SELECT COUNT(*) FROM (SELECT "id" FROM "jobqueue_job" LIMIT 5) subquery', False),
            ('SELECT COUNT(*) FROM "jobqueue_worker"', False),
        ],
    )
    def test_know_a_count_of_everything(self, sql: str, is_uncapped: bool) -> None:  # noqa: FBT001 - a column of the table
        assert counts_without_a_limit(sql) is is_uncapped

    def test_know_a_deep_offset(self) -> None:
        assert deepest_offset("SELECT 1 LIMIT 100 OFFSET 1900000") == 1_900_000
        assert deepest_offset("SELECT 1 LIMIT 100") == 0

    @pytest.mark.parametrize("sql", ["UPDATE jobqueue_job SET", "SELECT 1 FOR UPDATE SKIP LOCKED"])
    def test_know_a_write(self, sql: str) -> None:
        assert WRITES.search(sql)


class TestAFilterWithoutAnIndex:
    """It looks through the newest rows only, and says so."""

    @pytest.fixture(autouse=True)
    def few_are_looked_through(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(base, "MOST_SEARCHED", 3)

    def listed(self, client: Client, model: str, query: str) -> tuple[set[int], bool]:
        response = client.get(reverse(f"admin:jobqueue_{model}_changelist") + query)
        note = b"Only the newest 3 were looked through." in response.content
        return {row.pk for row in response.context["cl"].result_list}, note

    def test_finds_new_jobs_by_task(self, admin_client: Client) -> None:
        _old, *new = [JobFactory(task="wanted").pk for _ in range(4)]
        assert self.listed(admin_client, "job", "?task=wanted") == ({*new}, True)

    def test_finds_new_attempts_by_outcome(self, admin_client: Client) -> None:
        _old, *new = [AttemptFactory().pk for _ in range(4)]
        assert self.listed(admin_client, "attempt", "?outcome=failed") == ({*new}, True)

    def test_finds_all_while_there_are_few(self, admin_client: Client) -> None:
        both = {JobFactory(task="wanted").pk for _ in range(2)}
        assert self.listed(admin_client, "job", "?task=wanted") == (both, False)

    @pytest.mark.parametrize("query", ["?status=pending", "?status=pending&queue=default", "?q=x"])
    def test_is_not_meant_where_there_is_one(self, admin_client: Client, query: str) -> None:
        all_of_them = {JobFactory(correlation_id="x").pk for _ in range(5)}
        assert self.listed(admin_client, "job", query) == (all_of_them, False)

    @pytest.mark.parametrize("status", [Status.SUCCEEDED, Status.CANCELLED])
    def test_looks_for_finished_jobs_among_those_that_ended_last(
        self, admin_client: Client, status: str
    ) -> None:
        ages = range(5)
        jobs = [JobFactory(**{status: True}, finished_ago=timedelta(hours=age)) for age in ages]
        for _ in range(5):
            JobFactory()
        last = {job.pk for job in jobs[:3]}
        assert self.listed(admin_client, "job", f"?status={status}") == (last, True)

    def test_does_not_limit_what_is_done_to_all_that_match(self, admin_client: Client) -> None:
        letters = [JobFactory(task="wanted") for _ in range(5)]
        admin_client.post(
            reverse("admin:jobqueue_job_changelist") + "?task=wanted",
            {"action": "cancel", "select_across": "1", "_selected_action": letters[0].pk}
            | {"confirmed": "yes"},
        )
        assert Job.objects.filter(status=Status.CANCELLED).count() == 5


class TestTheOrderOfJobs:
    """Each status in the order of its index, so that old rows are found behind many new ones."""

    @pytest.mark.parametrize(
        ("status", "index"),
        [
            (Status.PENDING, "jobqueue_job_pending"),
            (Status.SCHEDULED, "jobqueue_job_scheduled"),
            (Status.SUCCEEDED, "jobqueue_job_finished"),
        ],
    )
    @pytest.mark.postgresql
    def test_walks_an_index(self, recorder: Recorder, status: str, index: str) -> None:
        heaps.clear()
        heaps.fill(rows=2000, letters=10)
        url = reverse("admin:jobqueue_job_changelist") + f"?status={status}"
        recorder.get(url)
        [sql] = [each for each in recorder.asked[url] if "ORDER BY" in each and "time_left" in each]
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {sql}")
            plan = "\n".join(line for (line,) in cursor.fetchall())
        assert index in plan

    def test_is_that_of_the_claim_for_pending_ones(self, admin_client: Client) -> None:
        last = JobFactory(queue_name="b", priority=9)
        later = JobFactory(queue_name="a")
        first = JobFactory(queue_name="a", priority=1)
        url = reverse("admin:jobqueue_job_changelist") + "?status=pending"
        rows = admin_client.get(url).context["cl"].result_list
        assert [row.pk for row in rows] == [first.pk, later.pk, last.pk]
