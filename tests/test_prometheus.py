"""The metrics: what a scrape says, who may scrape, and what happens when the database is away."""

from __future__ import annotations

import ast
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, cast

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from jobqueue import enqueue_many
from jobqueue.contrib.prometheus import bounds, collector, families, views
from jobqueue.contrib.prometheus.collector import JobQueueCollector
from jobqueue.measures import BOUNDS, EVER, bucket
from jobqueue.models import BulkOperation, Queue
from jobqueue.querysets import ago
from jobqueue.states import WorkerState
from tests.factories import (
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    RollupFactory,
    WorkerFactory,
)
from tests.processes import PATIENCE, OtherConnection
from tests.projects import Project
from tests.tasks import leased, noop
from tests.test_house import MODULES, tree_of

pytestmark = pytest.mark.django_db

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
TOKEN = "t0ken-" + "x" * 32
PROMTOOL = shutil.which("promtool")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"
NAMES = [
    'say "hi"',
    "line\nbreak",
    "back\\slash",
    "\\n",
    "{a=1}",
    "tab\tand\rreturn",
    "\u202e\U0001f4a9",
    "</script>",
    "x" * 64,
]

Labels = dict[str, str]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(client: Client, **headers: str) -> str:
    """Return what a scrape from this machine says."""
    answer = client.get(reverse("jobqueue_metrics"), headers={"host": "localhost", **headers})
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def series_of(text: str, parse: Callable[[str], Any] = parse_text) -> Series:
    """Return each sample of an exposition; none comes twice."""
    samples = [sample for family in parse(text) for sample in family.samples]
    found = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
    assert len(found) == len(samples)
    return found


@pytest.fixture
def value(client: Client) -> Callable[..., float | None]:
    """Scrape, and return one sample: ``value("jobqueue_depth", queue="mail")``."""

    def find(name: str, **labels: str) -> float | None:
        return series_of(scraped(client)).get((name, frozenset(labels.items())))

    return find


class TestQueues:
    def test_have_each_figure_by_itself(self, value: Any) -> None:
        for _ in range(2):
            JobFactory(queue_name="mail", age=10 * MINUTE)
        JobFactory(queue_name="mail", claimed=True)
        JobFactory(queue_name="mail", claimed=True, lease_left=-MINUTE)
        DeadLetterFactory(queue_name="mail")
        QueueFactory(name="mail", paused=True)
        QueueFactory(name="idle")
        assert value("jobqueue_depth", queue="mail") == 2
        assert 600 <= value("jobqueue_oldest_age_seconds", queue="mail") < 660
        for name in ("in_flight", "expired_leases", "dead_letters", "paused"):
            assert value(f"jobqueue_{name}", queue="mail") == 1
            assert value(f"jobqueue_{name}", queue="idle") == 0
        assert value("jobqueue_oldest_age_seconds", queue="idle") == 0
        assert value("jobqueue_queues_left_out") == 0

    def test_that_are_too_long_to_be_counted_are_no_shorter(
        self, value: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(families, "MOST_COUNTED", 3)
        enqueue_many([noop.bind()] * 5)
        assert value("jobqueue_depth", queue="default") >= 3

    @pytest.mark.postgresql
    def test_that_are_too_long_to_be_counted_have_an_estimate(
        self, value: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(families, "MOST_COUNTED", 3)
        enqueue_many([noop.bind()] * 500)
        execute("ANALYZE jobqueue_job")
        assert 400 <= value("jobqueue_depth", queue="default") <= 600

    def test_do_not_count_letters_that_were_discarded(self, value: Any) -> None:
        letter = DeadLetterFactory()
        DeadLetterFactory()
        letter.discarded_at = letter.died_at
        letter.save()
        assert value("jobqueue_dead_letters", queue="default") == 1

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
    def test_come_back_whatever_they_are_called(
        self, name: str, accept: str, client: Client
    ) -> None:
        QueueFactory(name=name)
        RollupFactory(span=EVER, queue_name=name, task=name, claimed=3)
        text = scraped(client, accept=accept)
        found = series_of(text, parse_openmetrics if accept == OPENMETRICS else parse_text)
        assert found["jobqueue_depth", frozenset({("queue", name)})] == 0
        both = frozenset({("queue", name), ("task", name)})
        assert found["jobqueue_claims_total", both] == 3

    def test_have_series_up_to_a_number(self, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(families, "MOST_QUEUES", 2)
        for name in "cab":
            QueueFactory(name=name)
        assert [value("jobqueue_depth", queue=name) for name in "abc"] == [0, 0, None]
        assert value("jobqueue_queues_left_out") == 1


class TestWorkers:
    def test_are_counted_while_they_live(self, value: Any) -> None:
        WorkerFactory()
        WorkerFactory(state=WorkerState.DRAINING)
        WorkerFactory(state=WorkerState.DRAINING, silent_for=timedelta(hours=1))
        assert value("jobqueue_live_workers") == 2
        assert value("jobqueue_workers_draining") == 1

    @pytest.mark.parametrize(
        "job", [{"pending": True}, {"scheduled": True, "due_in": -MINUTE}], ids=["pending", "due"]
    )
    def test_that_do_not_live_while_jobs_wait_mean_stuck(self, job: Any, value: Any) -> None:
        assert value("jobqueue_stuck") == 0
        JobFactory(**job)
        assert value("jobqueue_stuck") == 1
        WorkerFactory()
        assert value("jobqueue_stuck") == 0

    def test_have_bulk_operations_to_carry_out(self, value: Any) -> None:
        for state in ("running", "running", "done", "paused"):
            BulkOperation.objects.create(kind="replay", state=state, expected=1)
        assert value("jobqueue_bulk_operations_running") == 2


class TestTotals:
    def test_are_those_since_for_ever(self, value: Any) -> None:
        counts = {"claimed": 9, "succeeded": 4, "retried": 3, "died": 2, "lost": 1}
        RollupFactory(span=EVER, queue_name="mail", task="send", **counts)
        RollupFactory(queue_name="mail", task="send", claimed=100)
        pair = {"queue": "mail", "task": "send"}
        assert value("jobqueue_claims_total", **pair) == 9
        assert value("jobqueue_attempts_lost_total", **pair) == 1
        for outcome in ("succeeded", "retried", "died"):
            assert value("jobqueue_attempts_total", **pair, outcome=outcome) == counts[outcome]

    def test_have_series_up_to_a_number(self, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(families, "MOST_PAIRS", 2)
        for task in "cab":
            RollupFactory(span=EVER, task=task, claimed=1)
        found = [value("jobqueue_claims_total", queue="default", task=task) for task in "abc"]
        assert found == [1, 1, None]
        assert value("jobqueue_totals_left_out") == 1

    def test_have_histograms_of_the_first_tasks(
        self, value: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(families, "MOST_TASKS", 1)
        for task in "ba":
            RollupFactory(span=EVER, task=task, runs={"4": 1})
        assert [value("jobqueue_run_seconds_count", task=task) for task in "ab"] == [1, None]
        assert value("jobqueue_totals_left_out") == 1

    def test_survive_a_row_that_was_written_by_hand(self, value: Any) -> None:
        RollupFactory(span=EVER, task="odd", runs={"x": 1, "99": 2, "4": 1}, waits={})
        assert value("jobqueue_run_seconds_count", task="odd") == 3
        assert value("jobqueue_wait_seconds_count", task="odd") == 0


class TestHistograms:
    def test_are_cumulative_over_all_queues(self, client: Client) -> None:
        spans = [0.0005, 0.001, 0.0012, 0.5, 20, 90_000]
        for queue, some in (("mail", spans[:2]), ("push", spans[2:])):
            runs = Counter(str(bucket(span)) for span in some)
            RollupFactory(span=EVER, queue_name=queue, task="send", runs=runs)
        found = buckets(series_of(scraped(client)), "jobqueue_run_seconds")
        assert list(found) == [*BOUNDS[::2], inf]
        for bound, count in found.items():
            assert count == sum(span <= bound for span in spans)

    @pytest.mark.parametrize("number", range(len(BOUNDS)))
    def test_have_a_sum_that_is_right_to_a_fifth(self, number: int) -> None:
        lower, upper = BOUNDS[number] / 2**0.5, BOUNDS[number]
        estimate = families.estimated_sum({str(number): 10}) / 10
        assert upper / 1.2 <= estimate <= lower * 1.2

    def test_know_the_lease_of_each_task(self, value: Any) -> None:
        WorkerFactory(lease=timedelta(seconds=90))
        for name in ("gone", leased.name):
            RollupFactory(span=EVER, task=name)
        assert value("jobqueue_lease_seconds", task="gone") == 90
        assert value("jobqueue_lease_seconds", task=leased.name) == 420


def buckets(found: Series, name: str) -> dict[float, float]:
    """Return the buckets of one task's histogram, in order."""
    mine = {
        dict(labels)["le"]: count
        for (each, labels), count in found.items()
        if each == f"{name}_bucket"
    }
    return {float(bound): mine[bound] for bound in sorted(mine, key=float)}


@pytest.fixture
def everything() -> None:
    """Something of each kind."""
    JobFactory()
    DeadLetterFactory()
    RollupFactory(span=EVER, runs={"3": 1}, waits={"60": 2}, claimed=1, succeeded=1)
    WorkerFactory()
    QueueFactory(paused=True)


@pytest.mark.usefixtures("everything")
class TestExposition:
    def test_says_the_same_in_both_formats(self, client: Client) -> None:
        times = {"jobqueue_scrape_duration_seconds", "jobqueue_oldest_age_seconds"}
        plain, rich = (
            {key: value for key, value in found.items() if key[0] not in times}
            for found in (
                series_of(scraped(client)),
                series_of(scraped(client, accept=OPENMETRICS), parse_openmetrics),
            )
        )
        assert plain == rich

    def test_ends_as_openmetrics_must(self, client: Client) -> None:
        url = reverse("jobqueue_metrics")
        answer = client.get(url, headers={"host": "localhost", "accept": OPENMETRICS})
        assert answer["Content-Type"].startswith(OPENMETRICS)
        assert answer.content.endswith(b"# EOF\n")

    def test_describes_every_metric(self, client: Client) -> None:
        for family in parse_text(scraped(client)):
            assert family.name.startswith("jobqueue_")
            assert family.documentation.endswith(".")
            assert family.type in {"gauge", "counter", "histogram"}

    @pytest.mark.skipif(PROMTOOL is None, reason="needs promtool")
    def test_pleases_the_linter_of_prometheus(self, client: Client) -> None:
        done = subprocess.run(
            [str(PROMTOOL), "check", "metrics"],
            input=scraped(client),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_goes_into_a_registry_of_the_project_too(self) -> None:
        registry = CollectorRegistry()
        registry.register(JobQueueCollector())
        assert registry.get_sample_value("jobqueue_up") == 1
        assert registry.get_sample_value("jobqueue_live_workers") == 1


class TestStatements:
    """C-93: what a scrape costs does not grow with the tables."""

    def statements(self, client: Client) -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            scraped(client)
        return [each["sql"] for each in captured]

    def test_count_nothing_without_limit(self, client: Client, everything: None) -> None:
        for sql in self.statements(client):
            if "COUNT(" in sql:
                assert "LIMIT" in sql or "jobqueue_worker" in sql, sql

    def test_do_not_become_more_with_more_rows(self, client: Client, everything: None) -> None:
        before = len(self.statements(client))
        for number in range(20):
            JobFactory()
            DeadLetterFactory()
            RollupFactory(span=EVER, task=f"task-{number}")
        assert len(self.statements(client)) == before


class TestAccessFromThisMachine:
    def ask(self, client: Client, peer: str = "127.0.0.1", **headers: str) -> int:
        headers = {"host": "localhost:8000", **headers}
        answer = client.get(reverse("jobqueue_metrics"), headers=headers, REMOTE_ADDR=peer)
        assert (b"jobqueue_" in answer.content) == (answer.status_code == 200)
        return answer.status_code

    @pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
    def test_needs_no_token(self, peer: str, client: Client) -> None:
        assert self.ask(client, peer) == 200

    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]:8000"])
    def test_may_name_it_in_every_way(self, host: str, client: Client) -> None:
        assert self.ask(client, host=host) == 200

    @pytest.mark.parametrize(
        "peer", ["10.0.0.1", "192.168.1.2", "::ffff:10.0.0.1", "fe80::1", "", "localhost", "x"]
    )
    def test_is_no_other_machine(self, peer: str, client: Client) -> None:
        assert self.ask(client, peer) == 403

    @pytest.mark.parametrize(
        "header",
        [
            "forwarded",
            "x-forwarded-for",
            "x-real-ip",
            "x-forwarded-host",
            "x-forwarded-proto",
            "via",
        ],
    )
    @pytest.mark.parametrize("said", ["127.0.0.1", "203.0.113.9", ""])
    def test_is_no_proxy_on_this_machine(self, header: str, said: str, client: Client) -> None:
        assert self.ask(client, **{header: said}) == 403

    @pytest.mark.parametrize("host", ["shop.example", "127.0.0.1.shop.example", "10.0.0.1"])
    def test_is_not_asked_by_a_public_name(self, host: str, client: Client, settings: Any) -> None:
        settings.ALLOWED_HOSTS = ["*"]
        assert self.ask(client, host=host) == 403

    def test_is_no_matter_of_a_login(self, admin_client: Client, settings: Any) -> None:
        assert self.ask(admin_client, "10.0.0.1") == 403
        middleware = "django.contrib.auth.middleware.LoginRequiredMiddleware"
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, middleware]
        assert self.ask(Client()) == 200


class TestAccessWithAToken:
    @pytest.fixture(autouse=True)
    def token(self, settings: Any) -> None:
        settings.JOBQUEUE = {"METRICS_TOKEN": TOKEN}

    def ask(self, client: Client, authorization: str | None) -> int:
        headers = {"host": "testserver", "x-forwarded-for": "203.0.113.9"}
        if authorization is not None:
            headers["authorization"] = authorization
        answer = client.get(reverse("jobqueue_metrics"), headers=headers, REMOTE_ADDR="10.0.0.1")
        assert (b"jobqueue_" in answer.content) == (answer.status_code == 200)
        assert TOKEN.encode() not in answer.content
        return answer.status_code

    @pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER  "])
    def test_comes_from_anywhere(self, scheme: str, client: Client) -> None:
        assert self.ask(client, scheme + TOKEN) == 200

    @pytest.mark.parametrize(
        "authorization",
        [
            None,
            "",
            "Bearer",
            "Bearer ",
            TOKEN,
            f"Basic {TOKEN}",
            f"Bearer {TOKEN[:-1]}",
            f"Bearer {TOKEN}x",
            f"Bearer {TOKEN} x",
            f"Bearer {TOKEN.upper()}",
            "Bearer t\xf6ken",
        ],
    )
    def test_needs_the_whole_token(self, authorization: str | None, client: Client) -> None:
        assert self.ask(client, authorization) == 403

    def test_does_not_let_this_machine_in_without_it(self, client: Client) -> None:
        answer = client.get(reverse("jobqueue_metrics"), headers={"host": "localhost"})
        assert answer.status_code == 403


class TestAnswers:
    @pytest.mark.parametrize("method", ["post", "put", "patch", "delete", "options"])
    def test_only_get_and_head(self, method: str, client: Client) -> None:
        url = reverse("jobqueue_metrics")
        answer = getattr(client, method)(url, headers={"host": "localhost"})
        assert answer.status_code == 405
        assert answer["Allow"] == "GET, HEAD"

    def test_head_without_a_body(self, client: Client) -> None:
        answer = client.head(reverse("jobqueue_metrics"), headers={"host": "localhost"})
        assert (answer.status_code, answer.content) == (200, b"")

    def test_are_kept_by_nobody_and_set_no_cookie(self, admin_client: Client) -> None:
        answer = admin_client.get(reverse("jobqueue_metrics"), headers={"host": "localhost"})
        assert "no-store" in answer["Cache-Control"]
        assert not answer.cookies
        assert "Cookie" not in answer.get("Vary", "")

    def test_do_not_depend_on_parameters(self, client: Client) -> None:
        url = reverse("jobqueue_metrics") + "?name[]=jobqueue_up&x=%00"
        answer = client.get(url, headers={"host": "localhost"})
        assert b"jobqueue_live_workers" in answer.content


def refused(client: Client) -> str:
    """Return what a scrape is told that gets no metrics."""
    answer = client.get(reverse("jobqueue_metrics"), headers={"host": "localhost"})
    assert answer.status_code == 503
    assert answer["Content-Type"].startswith("text/plain")
    return answer.content.decode()


class TestTrouble:
    def test_no_time_is_left(
        self,
        client: Client,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(collector, "PATIENCE", -1.0)
        assert refused(client) == "the database could not be read\n"
        # What Django logs of a request goes to the admins by mail, at each scrape.
        assert {record.name for record in caplog.records} == {"jobqueue"}

    def test_another_scrape_is_slow(self, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(views, "PATIENCE", 0.01)
        with views._one_at_a_time:
            assert refused(client) == "another scrape is under way\n"
        assert "jobqueue_up 1.0" in scraped(client)

    @pytest.mark.postgresql
    @pytest.mark.django_db(transaction=True)
    def test_one_part_cannot_be_read(
        self,
        client: Client,
        second_connection: OtherConnection,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(bounds, "STATEMENT_MS", 100)
        RollupFactory(span=EVER)
        QueueFactory(name="mail")
        second_connection.begin()
        second_connection.run(execute, "LOCK TABLE jobqueue_bulkoperation")
        found = series_of(scraped(client))
        second_connection.roll_back()
        assert found["jobqueue_up", frozenset()] == 0
        for part, is_lost in (("queues", 0), ("workers", 1), ("totals", 0)):
            assert found["jobqueue_scrape_error", frozenset({("part", part)})] == is_lost
        names = {name for name, _ in found}
        assert {"jobqueue_depth", "jobqueue_claims_total"} <= names
        assert "jobqueue_live_workers" not in names
        assert "metrics.unreadable part=workers err=" in caplog.text
        assert series_of(scraped(client))["jobqueue_up", frozenset()] == 1

    def test_the_database_is_away(self, tmp_path: Path) -> None:
        """Also where Django would open a transaction before the view."""
        project = Project(tmp_path)
        project.settings(more=INCLUDED + AWAY)
        project.write("shop/urls.py", URLS)
        done = project.manage("shell", "-c", ASK)
        assert done.returncode == 0, done.stderr
        assert "503 the database could not be read" in done.stdout
        assert "metrics.database_away err=" in done.stderr
        assert "Traceback" not in done.stdout + done.stderr


def execute(sql: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql)


INCLUDED = """
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["localhost"]
"""
AWAY = """
DATABASES = {"default": {
    "ENGINE": "django.db.backends.sqlite3", "NAME": "/nowhere/at/all", "ATOMIC_REQUESTS": True,
}}
"""
URLS = """
from django.urls import include, path

urlpatterns = [path("metrics", include("jobqueue.contrib.prometheus.urls"))]
"""
ASK = """
from django.test import Client

answer = Client().get("/metrics", headers={"host": "localhost"})
print(answer.status_code, answer.content.decode())
"""


class TestLibrary:
    def test_is_needed_by_nothing_else(self) -> None:
        for module in MODULES:
            imported = {
                name.partition(".")[0] for node in ast.walk(tree_of(module)) for name in named(node)
            }
            is_here = module.startswith("jobqueue.contrib.prometheus.")
            assert "prometheus_client" not in imported or is_here, module

    def test_is_asked_for_where_it_is_missing(self, tmp_path: Path) -> None:
        project = Project(tmp_path)
        project.write("shop/tasks.py", "import sys\nsys.modules['prometheus_client'] = None\n")
        done = project.manage("check")
        assert done.returncode == 0, done.stderr
        project.settings(more=INCLUDED)
        project.write("shop/urls.py", URLS)
        done = project.manage("check")
        assert done.returncode != 0
        assert done.stderr.rstrip().endswith('pip install "jobqueue[prometheus]"')


def named(node: ast.AST) -> list[str]:
    """Return the modules that an import names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [cast("str", node.module)] if isinstance(node, ast.ImportFrom) else []


class TestQueuesAsRows:
    def test_a_pause_that_has_ended_is_none(self, value: Any) -> None:
        QueueFactory(name="mail", paused_at=ago(HOUR), paused_until=ago(MINUTE), paused_by="al")
        assert Queue.objects.count() == 1
        assert value("jobqueue_paused", queue="mail") == 0
