"""The overview: what matters first, in every state, and controls only for those who may."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import measures
from jobqueue.admin import display, pauses
from jobqueue.models import Job, Queue, Rollup, Sample
from jobqueue.states import WorkerState
from tests.factories import (
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    RollupFactory,
    SampleFactory,
    WorkerFactory,
)
from tests.test_admin_pages import MARKUP, assert_harmless, get, text_of

pytestmark = pytest.mark.django_db

OVERVIEW = reverse("admin:jobqueue_overview_changelist")
MINUTE = timedelta(minutes=1)
#: What has to be there before a user sees anything at all.
LISTS = ("job", "deadletter", "worker", "queue")


def client_with(*codenames: str) -> Client:
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def roll_up(*, ago: int = 1, **counts: Any) -> Rollup:
    """Write what workers would have written about a minute."""
    rollup: Rollup = RollupFactory(minutes=ago, **{"queue_name": "mail"} | counts)
    return rollup


def sample(*, ago: int, depth: int, queue_name: str = "") -> Sample:
    age = timedelta(seconds=depth)
    found: Sample = SampleFactory(minutes=ago, queue_name=queue_name, depth=depth, oldest_age=age)
    return found


def row_of(html: str, name: str) -> str:
    """Return the row of a table whose head names it, as text."""
    rows = re.findall(r"<tr>\s*<th scope=\"row\".*?</tr>", html, re.DOTALL)
    [row] = [text_of(row) for row in rows if text_of(row).split(" ")[0] == name]
    return row


class TestWhenEmpty:
    def test_says_what_would_be_there(self, admin_client: Client) -> None:
        text = text_of(get(admin_client, OVERVIEW))
        assert "No queues yet" in text
        assert "No worker is running. Start one: python manage.py runworker" in text
        assert "No attempt has ended in this time" in text
        assert text.count("Nothing was measured in this time") == 6
        assert "Jobs are waiting" not in text
        assert "paused" not in text


class TestFirstScreen:
    def test_shows_the_two_that_wake_people_up_first(self, admin_client: Client) -> None:
        JobFactory(age=timedelta(minutes=7, seconds=30))
        DeadLetterFactory()
        WorkerFactory()
        html = get(admin_client, OVERVIEW)
        [alarms] = re.findall(r'<dl class="jobqueue-alarms">.*?</dl>', html, re.DOTALL)
        assert "Oldest waits ⚠ 7 min" in text_of(alarms)
        assert "Dead letters ⚠ 1" in text_of(alarms)
        assert html.index(alarms) < html.index('id="jobqueue-queues"')

    def test_names_the_queues_to_look_at_first(self, admin_client: Client) -> None:
        JobFactory(queue_name="web", age=3 * MINUTE)
        JobFactory(queue_name="mail", age=8 * MINUTE)
        DeadLetterFactory(queue_name="web")
        DeadLetterFactory.create_batch(2, queue_name="mail")
        oldest, letters = admin_client.get(OVERVIEW).context["alarms"]
        assert oldest.is_bad
        assert "queue=mail&amp;status=pending" in oldest.note
        assert text_of(letters.note) == "most of them in mail"

    def test_is_not_red_for_what_a_pause_holds_back(self, admin_client: Client) -> None:
        WorkerFactory()
        QueueFactory(name="mail", paused=True)
        JobFactory(queue_name="mail", age=8 * MINUTE)
        oldest, letters = admin_client.get(OVERVIEW).context["alarms"]
        assert not oldest.is_bad
        assert text_of(oldest.note) == "in mail , which is paused"
        JobFactory(queue_name="web", age=6 * MINUTE)
        oldest, _letters = admin_client.get(OVERVIEW).context["alarms"]
        assert oldest.is_bad
        assert re.search(r"which is paused; 6 min (\d+ s )?in web", text_of(oldest.note))
        assert letters.note == "nothing has given up"

    def test_is_red_when_jobs_wait_and_no_worker_lives(self, admin_client: Client) -> None:
        JobFactory()
        WorkerFactory(silent_for=timedelta(hours=1))
        html = get(admin_client, OVERVIEW)
        assert re.search(r'<p class="errornote" role="alert">Jobs are waiting and no worker', html)

    def test_is_not_when_one_does(self, admin_client: Client) -> None:
        JobFactory()
        WorkerFactory()
        assert "errornote" not in get(admin_client, OVERVIEW)

    def test_names_paused_queues_with_who_and_why(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        QueueFactory(name="web", paused_for_a_while=True)
        QueueFactory(name="over", paused_for_a_while=True, paused_for=-MINUTE)
        html = get(admin_client, OVERVIEW)
        lines = [text_of(line) for line in re.findall(r'<p class="jobqueue-paused">.*?</p>', html)]
        assert len(lines) == 2
        assert re.match(r"‖ Queue mail is paused since .* by alice: the mail server", lines[0])
        assert re.match(r"‖ Queue web is paused since .* until .* by alice", lines[1])

    def test_names_no_more_than_some(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pauses, "MOST_NAMED", 2)
        for _ in range(3):
            QueueFactory(paused=True)
        html = get(admin_client, OVERVIEW)
        assert html.count('class="jobqueue-paused"') == 3
        assert "More queues are paused." in html


class TestQueues:
    def test_have_their_figures_and_rates(self, admin_client: Client) -> None:
        for _ in range(3):
            JobFactory(queue_name="mail", age=timedelta(minutes=2, seconds=10))
        JobFactory(queue_name="mail", claimed=True)
        JobFactory(queue_name="mail", claimed=True, lease_left=-MINUTE)
        DeadLetterFactory(queue_name="mail")
        roll_up(claimed=50, succeeded=30, retried=8, died=2)
        row = row_of(get(admin_client, OVERVIEW), "mail")
        assert re.match(r"mail 2 min 1\d s ⚠ 1 3 1 ⚠ 1 10 8 6 ⚠ 25 % Pause…", row), row

    def test_without_a_row_are_there_too_and_can_be_paused(self, admin_client: Client) -> None:
        JobFactory(queue_name="unheard-of")
        html = get(admin_client, OVERVIEW)
        assert "/admin/jobqueue/queue/unheard-of/change/" not in html
        assert "/admin/jobqueue/queue/unheard_2Dof/pause/?from=overview" in html or (
            "/admin/jobqueue/queue/unheard-of/pause/?from=overview" in html
        )

    def test_that_are_paused_say_so_and_can_be_resumed(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        html = get(admin_client, OVERVIEW)
        assert row_of(html, "mail").startswith("mail ‖ paused")
        assert '<form method="post" action="/admin/jobqueue/queue/mail/resume/' in html
        assert "csrfmiddlewaretoken" in html

    def test_lead_to_the_filtered_lists(self, admin_client: Client) -> None:
        JobFactory(queue_name="mail")
        JobFactory(queue_name="mail", claimed=True)
        DeadLetterFactory(queue_name="mail")
        html = get(admin_client, OVERVIEW).replace("&amp;", "&")
        for link in (
            "/admin/jobqueue/job/?queue=mail&status=pending",
            "/admin/jobqueue/lease/?queue=mail&lease=running",
            "/admin/jobqueue/deadletter/?queue=mail",
        ):
            assert f'href="{link}"' in html
            assert admin_client.get(link).context["cl"].result_count == 1


class TestHistory:
    def test_is_drawn_for_the_last_hour(self, admin_client: Client) -> None:
        sample(ago=2, depth=70)
        sample(ago=1, depth=90)
        waits = {str(measures.bucket(0.5)): 10}
        roll_up(succeeded=10, waits=waits, runs=waits, tries={"1": 9, "2": 1})
        response = admin_client.get(OVERVIEW)
        charts = {chart.name: chart for chart in response.context["charts"]}
        assert not [name for name, chart in charts.items() if chart.is_empty]
        assert len(charts["depth"].rows) == 60
        assert charts["depth"].summary == "pending: last 90, at most 90"
        assert charts["outcomes"].summary.startswith("succeeded: 10;")
        assert charts["tries"].rows == [["1", "9"], ["2", "1"]]
        html = response.content.decode()
        assert html.count('role="img"') == 6
        assert html.count("<details") == 6

    def test_is_drawn_for_a_day(self, admin_client: Client) -> None:
        sample(ago=180, depth=70)
        response = admin_client.get(OVERVIEW, {"span": "24h"})
        [depth] = [chart for chart in response.context["charts"] if chart.name == "depth"]
        assert len(depth.rows) == 96
        assert depth.summary.endswith("at most 70")
        assert "Last 24 hours, all queues" in text_of(response.content.decode())

    def test_is_drawn_for_one_queue(self, admin_client: Client) -> None:
        QueueFactory(name="mail")
        QueueFactory(name="web")
        sample(ago=1, depth=70)
        sample(ago=1, depth=7, queue_name="mail")
        response = admin_client.get(OVERVIEW, {"queue": "mail"})
        assert response.context["charts"][0].summary == "pending: last 7, at most 7"
        html = response.content.decode().replace("&amp;", "&")
        assert 'href="?span=24h&queue=mail"' in html
        assert 'href="?span=1h&queue=web"' in html
        assert 'href="?span=1h&queue=mail" aria-current="true"' in html

    @pytest.mark.parametrize("value", ["", "x", "\0", "'", MARKUP, "9" * 400])
    def test_bears_any_address(self, admin_client: Client, value: str) -> None:
        address = {"span": value, "queue": value, "refresh": value}
        assert_harmless(admin_client.get(OVERVIEW, address).content.decode())

    def test_tells_a_queue_with_no_worker_from_one_with_no_jobs(self, admin_client: Client) -> None:
        sample(ago=3, depth=0)
        sample(ago=1, depth=0)
        [depth, *_] = admin_client.get(OVERVIEW).context["charts"]
        assert "0 - 0" in " ".join(value for _time, value in depth.rows)
        assert len(depth.lines) == 2


class TestTasks:
    def test_near_their_lease_are_pointed_out_and_come_first(self, admin_client: Client) -> None:
        for task, seconds in {"a.quick": 0.2, "b.near": 40, "c.long": 100}.items():
            roll_up(task=task, succeeded=10, runs={str(measures.bucket(seconds)): 10})
        html = get(admin_client, OVERVIEW)
        assert re.search(r"⚠ \d\d %: near its lease", row_of(html, "b.near"))
        assert "longer than its lease" in row_of(html, "c.long")
        assert "⚠" not in row_of(html, "a.quick")
        assert html.index("c.long") < html.index("b.near") < html.index("a.quick")


class TestWorkers:
    def test_are_listed_with_load_and_heartbeat(self, admin_client: Client) -> None:
        WorkerFactory(name="w-1", concurrency=4, pid=1234)
        JobFactory(claimed=True, claimed_by="w-1")
        WorkerFactory(name="w-2", state=WorkerState.DRAINING)
        WorkerFactory(name="w-3", silent_for=timedelta(minutes=11))
        html = get(admin_client, OVERVIEW)
        assert re.match(r"w-1 host.example 1234 ▶ running ♥ \d s ago 1 / 4", row_of(html, "w-1"))
        assert "25 %" in row_of(html, "w-1")
        assert "▽ draining" in row_of(html, "w-2")
        assert "⚠ stale 11 min" in row_of(html, "w-3")


class TestRefresh:
    def test_goes_on_by_itself_until_it_is_stopped(self, admin_client: Client) -> None:
        on = get(admin_client, OVERVIEW)
        assert 'data-refresh="10"' in on
        assert '<noscript><meta http-equiv="refresh" content="60"></noscript>' in on
        assert 'href="?span=1h&amp;refresh=0"' in on
        off = get(admin_client, f"{OVERVIEW}?refresh=0&span=24h")
        assert "data-refresh" not in off
        assert "http-equiv" not in off
        assert 'href="?span=24h"' in off

    def test_finds_each_part_by_an_id_that_nothing_else_has(self, admin_client: Client) -> None:
        """The admin gives the rows of its list of apps ids like ``jobqueue-overview``."""
        sample(ago=1, depth=1)
        roll_up(succeeded=1, waits={"3": 1}, runs={"3": 1}, tries={"1": 1})
        ids = re.findall(r'\sid="([^"]*)"', get(admin_client, OVERVIEW))
        assert "jobqueue-overview-page" in ids
        ours = [each for each in ids if each.startswith("jobqueue-")]
        assert sorted(set(ours)) == sorted(ours)

    def test_needs_nothing_inline(self, admin_client: Client) -> None:
        html = get(admin_client, OVERVIEW)
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
        assert "jobqueue/refresh.js" in html


class TestPermissions:
    def test_of_others_do_not_open_it(self) -> None:
        client = client_with(*(f"view_{name}" for name in LISTS), "pause_queue")
        assert client.get(OVERVIEW).status_code == 403
        assert OVERVIEW not in get(client, reverse("admin:app_list", args=["jobqueue"]))

    def test_to_view_show_no_control_and_no_link_elsewhere(self) -> None:
        JobFactory(queue_name="mail", claimed=True, claimed_by="w-1")
        WorkerFactory(name="w-1")
        QueueFactory(name="mail", paused=True)
        JobFactory()
        DeadLetterFactory()
        roll_up(succeeded=1)
        html = get(client_with("view_overview"), OVERVIEW)
        assert "/pause/" not in html
        assert "/resume/" not in html
        assert "Queue mail is paused" in text_of(html)
        links = set(re.findall(r'href="(/admin/jobqueue/[^"]*)"', html))
        assert links <= {"/admin/jobqueue/", OVERVIEW}

    def test_to_pause_show_the_controls(self) -> None:
        JobFactory(queue_name="mail")
        html = get(client_with("view_overview", "pause_queue"), OVERVIEW)
        assert "/admin/jobqueue/queue/mail/pause/?from=overview" in html

    def test_need_no_post(self, admin_client: Client) -> None:
        for url in ("add/", "1/change/", "1/delete/"):
            assert admin_client.get(OVERVIEW + url).status_code == 404


class TestMarkup:
    def test_in_any_name_is_shown_as_text(self, admin_client: Client) -> None:
        name = MARKUP[:60]
        JobFactory(queue_name=name)
        WorkerFactory(name=MARKUP, host=MARKUP)
        QueueFactory(name=name, paused=True, paused_by=MARKUP, pause_reason=MARKUP)
        roll_up(queue_name=name, task=MARKUP, succeeded=1, runs={"3": 1})
        sample(ago=1, depth=1, queue_name=name)
        for address in ({}, {"queue": name}):
            html = admin_client.get(OVERVIEW, address).content.decode()
            assert_harmless(html, is_expected=True)
        assert "/pause/" not in html  # no enqueue would have made a queue of that name


class TestQueries:
    def fill(self) -> Iterator[None]:
        for number in range(3):
            JobFactory(queue_name="mail")
            JobFactory(claimed=True, queue_name="mail", claimed_by=f"w-{number}")
            WorkerFactory(name=f"w-{number}")
            DeadLetterFactory(queue_name="mail")
            roll_up(ago=number + 1, task=f"task-{number}", succeeded=1)
            sample(ago=number + 1, depth=number)
            yield

    def test_are_as_many_for_any_number_of_rows(self, admin_client: Client) -> None:
        counts = []
        QueueFactory(name="mail")
        for _ in self.fill():
            get(admin_client, OVERVIEW)  # what is cached is cached now
            with CaptureQueriesContext(connection) as captured:
                get(admin_client, OVERVIEW)
            counts.append(len(captured))
        assert len(set(counts[1:])) == 1
        assert counts[-1] < 45

    def test_count_nothing_without_limit(self, admin_client: Client) -> None:
        """C-93."""
        list(self.fill())
        with CaptureQueriesContext(connection) as captured:
            get(admin_client, OVERVIEW)
        for each in captured:
            sql = each["sql"]
            if "COUNT(" in sql and ("jobqueue_job" in sql or "jobqueue_deadletter" in sql):
                limits = (display.MOST_COUNTED, display.MOST_OF_A_QUEUE)
                assert any(f"LIMIT {limit + 1}" in sql for limit in limits), sql
            assert "DISTINCT" not in sql
            assert "OFFSET" not in sql


class TestIndexOfTheApp:
    def test_leads_to_the_overview_and_shows_the_figures(self, admin_client: Client) -> None:
        JobFactory()
        QueueFactory(name="mail", paused=True)
        html = get(admin_client, reverse("admin:app_list", args=["jobqueue"]))
        assert f'href="{OVERVIEW}"' in html
        assert "Pending 1" in text_of(html)
        assert "Queue mail is paused" in text_of(html)
        assert "jobqueue/admin.css" in html

    def test_does_not_for_who_may_not_see_it(self) -> None:
        JobFactory()
        html = get(client_with("view_job"), reverse("admin:app_list", args=["jobqueue"]))
        assert OVERVIEW not in html
        assert "jobqueue-figures" not in html


@pytest.mark.parametrize("model", ["job", "deadletter", "worker", "queue"])
def test_lists_say_in_red_which_queues_are_paused(admin_client: Client, model: str) -> None:
    QueueFactory(name="mail", paused=True)
    html = get(admin_client, reverse(f"admin:jobqueue_{model}_changelist"))
    [line] = re.findall(r'<p class="jobqueue-paused">.*?</p>', html)
    assert "Queue mail is paused since" in text_of(line)
    assert 'href="/admin/jobqueue/queue/mail/change/"' in line
    assert Queue.objects.count() == 1
    assert not Job.objects.exists()
