"""What the admin shows: everything about a job, safely, whatever its row holds and however many."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import registry, task
from jobqueue.admin import display, filters, payloads
from jobqueue.admin.history import MOST_ATTEMPTS
from jobqueue.admin.paginator import CappedPaginator
from jobqueue.models import Attempt, DeadLetter, Job, Lease, OperationLog, Worker
from jobqueue.states import Outcome, Reason, Status
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    OperationLogFactory,
    WorkerFactory,
)
from tests.processes import CHECKOUT, process_environment

pytestmark = pytest.mark.django_db

MODELS = [Job, Lease, Attempt, DeadLetter, Worker, OperationLog]


def lease_row(**options: Any) -> Lease:
    """Return a claimed job as the lease on it."""
    return Lease.objects.get(pk=JobFactory(claimed=True, **options).pk)


FACTORIES: dict[type[Model], Callable[..., Any]] = {
    Job: JobFactory,
    Lease: lease_row,
    OperationLog: OperationLogFactory,
    Attempt: AttemptFactory,
    DeadLetter: DeadLetterFactory,
    Worker: WorkerFactory,
}
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)

#: What must come out as text, wherever it went in.
MARKUP = '</pre></script><script>alert(1)</script><img src=x onerror="alert(2)">\'{{7*7}}'


def list_url(model: type[Model], **parameters: str) -> str:
    url = reverse(f"admin:jobqueue_{model._meta.model_name}_changelist")
    return f"{url}?{display.urlencode(parameters)}"


def page_url(row: Model) -> str:
    return reverse(f"admin:jobqueue_{row._meta.model_name}_change", args=[row.pk])


def get(client: Client, url: str) -> str:
    response = client.get(url)
    assert response.status_code == 200, (url, response.status_code)
    return str(response.content.decode())


def text_of(html: str) -> str:
    """Return what a reader sees."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


def listed(client: Client, url: str) -> set[int]:
    response = client.get(url)
    assert response.status_code == 200, response.status_code
    return {row.pk for row in response.context["cl"].result_list}


def write(row: Model, **columns: Any) -> None:
    """Write into a row by SQL what no enqueue would have let through."""
    table = row._meta.db_table
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = ON")
        for column, value in columns.items():
            cursor.execute(f"UPDATE {table} SET {column} = %s WHERE id = %s", [value, row.pk])
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA ignore_check_constraints = OFF")


class TestEveryPage:
    @each_model
    def test_opens_when_empty_and_says_what_would_be_here(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        assert 'class="jobqueue-empty"' in get(admin_client, list_url(model))

    @each_model
    def test_opens_with_a_row_in_each_state(self, admin_client: Client, model: type[Model]) -> None:
        rows = [FACTORIES[model]()]
        if model is Job:
            traits = ("scheduled", "claimed", "succeeded", "cancelled")
            rows += [JobFactory(**{trait: True}) for trait in traits]
        html = get(admin_client, list_url(model))
        for row in rows:
            assert page_url(row) in html
            get(admin_client, page_url(row))

    @each_model
    def test_has_no_inline_script_or_style(self, admin_client: Client, model: type[Model]) -> None:
        row = FACTORIES[model]()
        for url in (list_url(model), page_url(row)):
            html = get(admin_client, url)
            assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", html)
            assert "jobqueue/admin.css" in html

    @each_model
    def test_is_for_those_who_may_view_it_and_its_links_too(self, model: type[Model]) -> None:
        """C-102: the index, the pages and the links between them agree for each user."""
        job = JobFactory(claimed=True)
        WorkerFactory(name=job.claimed_by)
        AttemptFactory(job=job)
        FACTORIES[model]()
        user = User.objects.create_user("staff", is_staff=True)
        name = model._meta.model_name
        user.user_permissions.set(Permission.objects.filter(codename=f"view_{name}"))
        client = Client()
        client.force_login(user)
        assert reverse(f"admin:jobqueue_{name}_changelist") in get(client, reverse("admin:index"))
        html = get(client, list_url(model))
        html += "".join(get(client, page_url(row)) for row in model._default_manager.all())
        own = f"/admin/jobqueue/{name}/"
        links = re.findall(r'href="(/admin/jobqueue/\w+/)', html)
        assert set(links) == {own}
        for other in MODELS:
            if other is not model:
                assert client.get(list_url(other)).status_code == 403


class TestLists:
    def test_tells_the_status_in_words(self, admin_client: Client) -> None:
        JobFactory(succeeded=True)
        html = get(admin_client, list_url(Job))
        assert "✓</span> succeeded" in html

    def test_shows_who_holds_a_lease_and_for_how_long(self, admin_client: Client) -> None:
        JobFactory(claimed=True, claimed_by="worker-7", lease_left=timedelta(hours=2, seconds=30))
        assert "worker-7 2 h left" in text_of(get(admin_client, list_url(Job)))

    def test_marks_an_expired_lease(self, admin_client: Client) -> None:
        JobFactory(claimed=True, lease_left=-timedelta(minutes=5))
        assert "⚠ expired 5 min" in text_of(get(admin_client, list_url(Job)))

    def test_marks_a_job_whose_task_is_not_registered(self, admin_client: Client) -> None:
        """C-99: a removed task is a mark, not an error, and nothing is imported to find out."""
        JobFactory(task="gone.tasks.vanished")
        before = set(sys.modules)
        text = text_of(get(admin_client, list_url(Job)))
        assert "gone.tasks.vanished ⚠ not registered" in text
        assert not {name for name in set(sys.modules) - before if name.startswith("gone")}

    def test_does_not_mark_a_registered_one(self, admin_client: Client) -> None:
        JobFactory()
        assert "not registered" not in get(admin_client, list_url(Job))

    def test_of_dead_letters_begins_with_the_last_that_died(self, admin_client: Client) -> None:
        ages = {hours: DeadLetterFactory(died_ago=timedelta(hours=hours)).pk for hours in (1, 3, 2)}
        response = admin_client.get(list_url(DeadLetter))
        shown = [row.pk for row in response.context["cl"].result_list]
        assert shown == [ages[1], ages[2], ages[3]]

    def test_is_ordered_by_number_whatever_the_address_asks(self, admin_client: Client) -> None:
        """C-93: no address makes the database sort the table."""
        rows = [JobFactory(queue_name=name).pk for name in ("c", "a", "b")]
        response = admin_client.get(list_url(Job, o="1.2.3.4.5.6"))
        assert [row.pk for row in response.context["cl"].result_list] == rows[::-1]


class TestFilters:
    @pytest.mark.parametrize("status", Status.values)
    def test_by_status(self, admin_client: Client, status: str) -> None:
        rows = {each: JobFactory(**{each: True}).pk for each in Status.values}
        assert listed(admin_client, list_url(Job, status=status)) == {rows[status]}

    def test_by_lease(self, admin_client: Client) -> None:
        running, expired, _ = (
            JobFactory(claimed=True),
            JobFactory(claimed=True, lease_left=-timedelta(seconds=1)),
            JobFactory(),
        )
        assert listed(admin_client, list_url(Job, lease="running")) == {running.pk}
        assert listed(admin_client, list_url(Job, lease="expired")) == {expired.pk}

    @pytest.mark.parametrize(
        "name", ["mail.fast_lane-2", "a#b", "a:b", "a?b&c=d", "100%", "a/b c", "ä"]
    )
    def test_by_a_queue_of_any_name_find_its_jobs(self, admin_client: Client, name: str) -> None:
        """C-101: the link of each choice leads to the right rows, odd characters and all."""
        wanted = JobFactory(queue_name=name)
        JobFactory()
        cl = admin_client.get(list_url(Job)).context["cl"]
        [by_queue] = [spec for spec in cl.filter_specs if spec.parameter_name == "queue"]
        [choice] = [each for each in by_queue.choices(cl) if each["display"] == name]
        url = reverse("admin:jobqueue_job_changelist") + choice["query_string"]
        assert listed(admin_client, url) == {wanted.pk}

    def test_by_task_offer_removed_tasks_and_registered_ones(self, admin_client: Client) -> None:
        """C-99: the jobs of a removed task can be found."""
        gone = JobFactory(task="gone.tasks.vanished")
        JobFactory()
        html = get(admin_client, list_url(Job))
        assert "?task=gone.tasks.vanished" in html
        assert "?task=tests.tasks.send_mail" in html
        assert listed(admin_client, list_url(Job, task=gone.task)) == {gone.pk}

    def test_look_for_names_in_the_newest_and_the_oldest_rows_only(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """C-93: no DISTINCT over the table."""
        monkeypatch.setattr(filters, "SAMPLE", 1)
        for name in ("gone.oldest", "gone.middle", "gone.newest"):
            JobFactory(task=name)
        html = get(admin_client, list_url(Job))
        assert "?task=gone.oldest" in html
        assert "?task=gone.newest" in html
        assert "?task=gone.middle" not in html
        assert "?task=gone.middle" in get(admin_client, list_url(Job, task="gone.middle"))

    def test_by_age_use_the_databases_clock(self, admin_client: Client) -> None:
        young, old = JobFactory(age=timedelta(minutes=50)), JobFactory(age=timedelta(hours=2))
        assert listed(admin_client, list_url(Job, enqueued="1h")) == {young.pk}
        assert listed(admin_client, list_url(Job, enqueued="3h")) == {young.pk, old.pk}

    @pytest.mark.parametrize("reason", Reason.values)
    def test_of_dead_letters_by_reason(self, admin_client: Client, reason: str) -> None:
        rows = {each: DeadLetterFactory(reason=each).pk for each in Reason.values}
        assert listed(admin_client, list_url(DeadLetter, reason=reason)) == {rows[reason]}

    def test_of_dead_letters_by_age_queue_task_and_error(self, admin_client: Client) -> None:
        wanted = DeadLetterFactory(queue_name="mail", task="tests.tasks.add", fingerprint="f" * 16)
        DeadLetterFactory(died_ago=timedelta(days=8))
        for parameters in (
            {"died": "7d"},
            {"queue": "mail"},
            {"task": "tests.tasks.add"},
            {"fingerprint": "f" * 16},
        ):
            assert listed(admin_client, list_url(DeadLetter, **parameters)) == {wanted.pk}

    def test_of_attempts_by_outcome_task_age_and_job(self, admin_client: Client) -> None:
        wanted = AttemptFactory(lost=True, task="tests.tasks.add")
        AttemptFactory(finished_ago=timedelta(days=8))
        for parameters in (
            {"outcome": Outcome.LOST},
            {"task": "tests.tasks.add"},
            {"ended": "24h"},
            {"job": str(wanted.job_id)},
        ):
            assert listed(admin_client, list_url(Attempt, **parameters)) == {wanted.pk}

    @each_model
    def test_bear_any_value(self, admin_client: Client, model: type[Model]) -> None:
        FACTORIES[model]()
        response = admin_client.get(list_url(model))
        names = list(filters.parameters(response.context["cl"].list_filter))
        model_admin = admin.site.get_model_admin(model)
        for value in ("", "x", "\0", "'", "9" * 40, "-1", "\u0661"):
            listed(admin_client, list_url(model, **dict.fromkeys(names, value)))
            for name in names:  # alone too, as one of them may leave nothing to the others
                request = RequestFactory().get(list_url(model, **{name: value}))
                request.user = response.wsgi_request.user
                list(model_admin.get_changelist_instance(request).result_list)

    @pytest.mark.parametrize(
        "parameter",
        [
            "kwargs__password__startswith",
            "args__contains",
            "kwargs__has_key",
            "result__ok",
            "id__gt",
        ],
    )
    def test_are_the_only_look_ups_there_are(self, admin_client: Client, parameter: str) -> None:
        """C-98: an address must not tell what a payload holds."""
        JobFactory(kwargs={"password": "hunter2"}, result={"ok": True})
        response = admin_client.get(list_url(Job, **{parameter: "hunter2"}))
        assert response.status_code == 400


class TestSearch:
    def test_finds_a_number_a_correlation_id_and_a_holder(self, admin_client: Client) -> None:
        wanted = JobFactory(claimed=True, claimed_by="worker-z", correlation_id="req-4711")
        JobFactory(correlation_id="req-47")
        for term in (str(wanted.pk), " req-4711 ", "worker-z"):
            assert listed(admin_client, list_url(Job, q=term)) == {wanted.pk}

    @pytest.mark.parametrize("term", ["req-4", "REQ-4711", "hunter2", "tests.tasks.noop", "9" * 30])
    def test_finds_whole_matches_of_nothing_else(self, admin_client: Client, term: str) -> None:
        """C-98: a search must not confirm what a payload holds."""
        JobFactory(correlation_id="req-4711", kwargs={"password": "hunter2"}, last_error="hunter2")
        DeadLetterFactory(correlation_id="req-4711", message="hunter2")
        assert listed(admin_client, list_url(Job, q=term)) == set()
        assert listed(admin_client, list_url(DeadLetter, q=term)) == set()


class TestJobPage:
    def test_shows_the_payload_the_result_and_the_origin(self, admin_client: Client) -> None:
        job = JobFactory(
            succeeded=True,
            args=[1, "two"],
            kwargs={"order": {"lines": [3]}},
            result={"sent": 4},
            actor="user-5",
            correlation_id="req-6",
            trace={"traceparent": "00-7"},
        )
        text = text_of(get(admin_client, page_url(job)))
        for part in ('[ 1, "two" ]', '"lines": [ 3 ]', '"sent": 4', "user-5", "req-6", "00-7"):
            assert part in text

    def test_shows_the_lease_and_whether_its_holder_lives(self, admin_client: Client) -> None:
        job = JobFactory(claimed=True, lease_left=timedelta(hours=2, seconds=30))
        text = text_of(get(admin_client, page_url(job)))
        assert "worker-a ⚠ no such worker any more" in text
        assert "2 h left" in text
        worker = WorkerFactory(name="worker-a")
        html = get(admin_client, page_url(job))
        assert page_url(worker) in html
        assert "♥ heartbeat" in text_of(html)
        Worker.objects.all().delete()
        WorkerFactory(name="worker-a", silent_for=timedelta(minutes=3))
        assert "⚠ stale: heartbeat 3 min" in text_of(get(admin_client, page_url(job)))

    def test_without_a_lease_shows_none(self, admin_client: Client) -> None:
        assert "Held by" not in get(admin_client, page_url(JobFactory()))

    def test_of_a_job_that_died_leads_to_its_dead_letter_and_back(
        self, admin_client: Client
    ) -> None:
        letter = DeadLetterFactory()
        as_job = page_url(Job(pk=letter.pk))
        assert admin_client.get(as_job).url == page_url(letter)
        DeadLetter.objects.all().delete()
        JobFactory(id=letter.pk)
        assert admin_client.get(page_url(letter)).url == as_job

    @pytest.mark.parametrize("number", ["999999", "x", "9" * 30, "%00", "_5F"])
    def test_of_no_job_leads_to_the_index(self, admin_client: Client, number: str) -> None:
        url = reverse("admin:jobqueue_job_changelist") + f"{number}/change/"
        assert admin_client.get(url).url == reverse("admin:index")


class TestAttempts:
    def test_of_a_job_are_listed_newest_first_with_their_errors(self, admin_client: Client) -> None:
        job = JobFactory(attempts=2)
        for number in (1, 2):
            AttemptFactory(
                job=job, number=number, message=f"broke {number}", traceback=f"tb {number}"
            )
        history = admin_client.get(page_url(job)).context["history"]
        assert [row.attempt.number for row in history.rows] == [2, 1]
        assert [row.is_open for row in history.rows] == [True, False]
        text = text_of(get(admin_client, page_url(job)))
        for part in ("broke 1", "broke 2", "tb 1", "tb 2", "RuntimeError"):
            assert part in text

    def test_of_a_dead_letter_are_listed_too(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        attempt = AttemptFactory(job=None, job_id=letter.pk, **ATTEMPT, message="broke")
        html = get(admin_client, page_url(letter))
        assert page_url(attempt) in html
        assert "broke" in html

    def test_of_a_job_with_very_many_are_not_all_listed(self, admin_client: Client) -> None:
        """C-94: the newest, and a link to the rest."""
        job = JobFactory(attempts=5000, max_attempts=5001)
        now = AttemptFactory(job=job).started_at
        Attempt.objects.bulk_create(
            Attempt(job=job, **ATTEMPT | {"number": number}, started_at=now, finished_at=now)
            for number in range(1, MOST_ATTEMPTS + 1)
        )
        response = admin_client.get(page_url(job))
        assert len(response.context["history"].rows) == MOST_ATTEMPTS
        assert f"?job={job.pk}" in response.content.decode()

    def test_link_to_what_their_job_is_now(self, admin_client: Client) -> None:
        job, letter = JobFactory(), DeadLetterFactory()
        AttemptFactory(job=job)
        AttemptFactory(job=None, job_id=letter.pk, **ATTEMPT)
        AttemptFactory(job=None, job_id=10**12, **ATTEMPT)  # pruned
        html = get(admin_client, list_url(Attempt))
        assert page_url(job) in html
        assert page_url(letter) in html
        assert str(10**12) in html
        assert page_url(Job(pk=10**12)) not in html

    def test_have_a_page_with_the_whole_error(self, admin_client: Client) -> None:
        attempt = AttemptFactory(message="m" * 500, traceback="Traceback\n  line 1\n")
        html = get(admin_client, page_url(attempt))
        assert "m" * 500 in html
        assert "Traceback\n  line 1\n</pre>" in html
        assert "m" * 500 not in get(admin_client, list_url(Attempt))


ATTEMPT: dict[str, Any] = {
    "number": 1,
    "fence": 1,
    "task": "tests.tasks.fail",
    "queue_name": "default",
    "worker": "worker-a",
    "outcome": Outcome.FAILED,
}


class TestWorkers:
    def test_are_listed_with_what_they_do(self, admin_client: Client) -> None:
        worker = WorkerFactory(queues="default, mail:2")
        JobFactory(claimed=True, claimed_by=worker.name)
        JobFactory(claimed=True, claimed_by="another")
        html = get(admin_client, list_url(Worker))
        assert "default, mail:2" in html
        assert f'<a href="/admin/jobqueue/lease/?worker={worker.name}">1</a>' in html
        held = listed(admin_client, list_url(Job, worker=worker.name))
        assert held == {Job.objects.get(claimed_by=worker.name).pk}

    def test_serve_all_queues_when_none_is_named(self, admin_client: Client) -> None:
        assert text_of(get(admin_client, page_url(WorkerFactory()))).count("Queues: all") == 1

    def test_are_stale_after_three_missed_heartbeats(
        self, admin_client: Client, settings: Any
    ) -> None:
        WorkerFactory(silent_for=timedelta(minutes=2))
        assert "⚠ stale" in text_of(get(admin_client, list_url(Worker)))
        settings.JOBQUEUE = {"LEASE": timedelta(minutes=5)}
        assert "♥ heartbeat 2 min" in text_of(get(admin_client, list_url(Worker)))


class TestFigures:
    @pytest.mark.parametrize("model", [Job, DeadLetter, Worker])
    def test_stand_above_the_list(self, admin_client: Client, model: type[Model]) -> None:
        JobFactory(age=timedelta(minutes=3))
        JobFactory(claimed=True)
        JobFactory(claimed=True, lease_left=-timedelta(seconds=1))
        DeadLetterFactory()
        WorkerFactory()
        text = text_of(get(admin_client, list_url(model)))
        for part in (
            "Pending 1",
            "Oldest waits 3 min",
            "In flight 1",
            "Expired leases ⚠ 1",
            "Dead letters 1",
            "Live workers 1",
        ):
            assert part in text

    def test_warn_when_jobs_wait_and_nobody_works(self, admin_client: Client) -> None:
        JobFactory()
        WorkerFactory(silent_for=timedelta(hours=1))
        assert "no worker has checked in for 1 min" in get(admin_client, list_url(Job))
        WorkerFactory()
        assert "no worker has checked in" not in get(admin_client, list_url(Job))

    def test_are_not_counted_beyond_what_is_shown(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(display, "MOST_COUNTED", 2)
        for age in (1, 2, 3):
            JobFactory(age=timedelta(minutes=age))
        text = text_of(get(admin_client, list_url(Job)))
        assert "Pending 2+" in text
        assert "Oldest waits 3 min" in text

    def test_are_not_read_for_a_post(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        data = {"action": "replay", "_selected_action": letter.pk, "index": "0"}
        with CaptureQueriesContext(connection) as captured:
            admin_client.post(list_url(DeadLetter), data)
        assert not [each for each in captured if "jobqueue_worker" in each["sql"]]


SECRET = "hunter2-never-to-be-seen"


class TestMasking:
    def test_hides_sensitive_keys_at_any_depth_and_in_any_case(self, admin_client: Client) -> None:
        """C-98"""
        payload = {
            "password": SECRET,
            "PassWord": SECRET,
            "api_key": SECRET,
            "X-Api-Key": SECRET,
            "apiKey": SECRET,
            "user_token_old": [SECRET],
            "Authorization": {"Bearer": SECRET},
            "nested": {"deeper": [{"cookie": SECRET}]},
        }
        given = {"kwargs": payload, "args": [payload], "trace": payload}
        job = JobFactory(succeeded=True, result=payload, **given)
        letter = DeadLetterFactory(**given)
        for url in (page_url(job), page_url(letter), list_url(Job), list_url(DeadLetter)):
            assert SECRET not in get(admin_client, url)
        assert get(admin_client, page_url(job)).count(payloads.MASK) == 4 * len(payload)

    def test_hides_positional_arguments_by_the_names_of_the_task(
        self, admin_client: Client
    ) -> None:
        job = JobFactory(task="tests.log_in", args=["me", SECRET, 3])
        with registered("tests.log_in", log_in):
            text = text_of(get(admin_client, page_url(job)))
        assert f'[ "me", "{payloads.MASK}", 3 ]' in text

    def test_leaves_the_rest_readable(self, admin_client: Client) -> None:
        job = JobFactory(kwargs={"order": 7, "password": SECRET})
        assert '"order": 7' in text_of(get(admin_client, page_url(job)))

    def test_follows_the_settings(self, admin_client: Client, settings: Any) -> None:
        settings.JOBQUEUE = {"SENSITIVE_KEYS": ["shoe-size"]}
        job = JobFactory(kwargs={"Shoe_Size": "a large one", "password": "open"})
        text = text_of(get(admin_client, page_url(job)))
        assert "a large one" not in text
        assert '"password": "open"' in text

    @pytest.mark.parametrize("name", ["discard", "cancel"])
    def test_holds_on_the_page_that_asks(self, admin_client: Client, name: str) -> None:
        factory = DeadLetterFactory if name == "discard" else JobFactory
        row = factory(kwargs={"plain": SECRET})
        response = admin_client.post(page_url(row).replace("change", name))
        assert f"#{row.pk}" in response.content.decode()
        assert SECRET not in response.content.decode()


def log_in(user: str, password: str, *rest: int) -> None:
    """Be a task with a sensitive argument."""


class registered:  # noqa: N801 - reads as a statement
    """Register a function under a name for a while."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def __enter__(self) -> None:
        task(name=self.name)(self.function)

    def __exit__(self, *_error: object) -> None:
        del registry.tasks[self.name]


class TestMarkup:
    """C-97: whatever is stored comes out as text."""

    def everything(self) -> Iterator[Model]:
        names = {"task": MARKUP, "queue_name": MARKUP[:60], "correlation_id": MARKUP[:60]}
        payload = {"args": [MARKUP], "kwargs": {MARKUP: MARKUP}, "trace": {MARKUP: [MARKUP]}}
        error = {"error_class": MARKUP, "message": MARKUP, "fingerprint": "<script>1"}
        yield JobFactory(succeeded=True, result=MARKUP, actor=MARKUP, **names, **payload)
        claimed = JobFactory(claimed=True, claimed_by=MARKUP, last_error=MARKUP, **names, **payload)
        yield claimed
        yield AttemptFactory(job=claimed, worker=MARKUP, traceback=MARKUP, **error)
        yield DeadLetterFactory(actor=MARKUP, **names, **payload, **error)
        yield WorkerFactory(name=MARKUP, host=MARKUP, queues=MARKUP, silent_for=timedelta(hours=1))
        yield Lease.objects.get(pk=claimed.pk)
        who = {"actor": MARKUP, "actor_id": MARKUP, "reason": MARKUP, "action": "<script>alert"}
        change = {"before": {MARKUP: MARKUP}, "after": {MARKUP: [MARKUP]}, "targets": [MARKUP]}
        target = {"target_type": "job", "target_id": str(claimed.pk)}
        yield OperationLogFactory(correlation_id=MARKUP[:60], **who, **change, **target)

    def test_is_shown_as_text_on_every_page(self, admin_client: Client) -> None:
        rows = list(self.everything())
        for row in rows:
            model = type(row)
            assert_harmless(get(admin_client, page_url(row)), is_expected=True)
            assert_harmless(get(admin_client, list_url(model)), is_expected=True)
            assert_harmless(get(admin_client, page_url(row).replace("change", "history")))

    def test_is_shown_as_text_by_questions_messages_searches_and_filters(
        self, admin_client: Client
    ) -> None:
        rows = list(self.everything())
        for row, name in (
            *((rows[1], "cancel"), (rows[3], "discard"), (rows[3], "replay"), (rows[5], "extend")),
            *((rows[4], "release_leases"), (rows[5], "release")),
        ):
            url = page_url(row).replace("change", name)
            assert_harmless(admin_client.post(url).content.decode())
            response = admin_client.post(url, {"confirmed": "yes"}, follow=True)
            assert_harmless(response.content.decode())
        assert_harmless(get(admin_client, reverse("admin:index")))
        for parameter in ("q", "task", "queue", "worker"):
            assert_harmless(get(admin_client, list_url(Job, **{parameter: MARKUP})))


def assert_harmless(html: str, *, is_expected: bool = False) -> None:
    assert "<script>alert" not in html
    assert "<img src=x" not in html
    assert 'onerror="alert' not in html
    assert "<script>1" not in html
    if is_expected:
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html


class TestUnreadableRows:
    """C-99: one bad row spoils neither the list nor its own page."""

    @pytest.mark.parametrize(
        ("stored", "shown"),
        [
            ("[" * 3000 + "]" * 3000, "(not shown: nested too deeply)"),
            ("[" * 70 + f'"{SECRET}"' + "]" * 70, "(not shown: nested too deeply)"),
            ('{"n": ' + "9" * 5000 + "}", "9" * 5000),
            ('{"n": 1e400}', '"n": '),
            ("null", "null"),
            ('"text"', '"text"'),
            ("[1]", "[ 1 ]"),
            ("true", "true"),
            (json.dumps("x" * 1_100_000), "(not shown: more than a million characters)"),
        ],
        ids=["deep", "deep-secret", "digits", "float", "null", "string", "list", "bool", "long"],
    )
    def test_put_in_by_sql_open(self, admin_client: Client, stored: str, shown: str) -> None:
        rows = [JobFactory(), DeadLetterFactory()]
        for row in rows:
            write(row, kwargs=stored, args=stored)
            html = get(admin_client, page_url(row))
            assert shown in text_of(html)
            assert SECRET not in html
            assert page_url(row) in get(admin_client, list_url(type(row)))

    @pytest.mark.skipif("connection.vendor != 'sqlite'", reason="others store no such text")
    @pytest.mark.parametrize("stored", ["not json", "", '{"a": "\\ud800"}', "{"])
    def test_that_are_no_json_open(self, admin_client: Client, stored: str) -> None:
        job = JobFactory()
        write(job, kwargs=stored)
        get(admin_client, page_url(job))
        get(admin_client, list_url(Job))

    def test_can_be_cancelled_and_discarded(self, admin_client: Client) -> None:
        job, letter = JobFactory(), DeadLetterFactory()
        for row, name in ((job, "cancel"), (letter, "discard")):
            write(row, kwargs='{"n": ' + "9" * 5000 + "}")
            admin_client.post(page_url(row).replace("change", name), {"confirmed": "yes"})
        assert Job.objects.values_list("status", flat=True).get() == Status.CANCELLED
        assert not DeadLetter.objects.open().exists()


class TestStatements:
    """C-93: what a page costs does not grow with the table."""

    def statements(self, client: Client, url: str) -> list[str]:
        get(client, url)  # fills the caches of Django
        with CaptureQueriesContext(connection) as captured:
            get(client, url)
        return [each["sql"] for each in captured]

    @each_model
    def test_of_a_list_do_not_grow_with_its_rows(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        FACTORIES[model]()
        few = len(self.statements(admin_client, list_url(model)))
        for _ in range(5):
            FACTORIES[model]()
        assert len(self.statements(admin_client, list_url(model))) == few
        assert few <= 17

    @each_model
    def test_of_a_page_do_not_grow_with_its_attempts(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        row = FACTORIES[model]()
        few = len(self.statements(admin_client, page_url(row)))
        for number in range(2, 7):
            AttemptFactory(job=None, job_id=row.pk, **ATTEMPT | {"number": number})
        assert len(self.statements(admin_client, page_url(row))) == few
        assert few <= 15

    @each_model
    def test_of_a_list_never_count_or_compare_a_whole_table(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        FACTORIES[model]()
        for sql in self.statements(admin_client, list_url(model)):
            if "jobqueue_" not in sql:
                continue
            assert "DISTINCT" not in sql
            if "COUNT(" in sql and "jobqueue_worker" not in sql and '"claimed"' not in sql:
                assert "LIMIT" in sql or "'claimed'" in sql, sql

    @pytest.mark.parametrize("model", [Job, DeadLetter])
    def test_of_a_list_leave_payloads_alone(self, admin_client: Client, model: type[Model]) -> None:
        FACTORIES[model]()
        for sql in self.statements(admin_client, list_url(model)):
            for column in ("args", "kwargs", "result", "trace"):
                assert f'"{column}"' not in sql

    def test_of_a_list_of_attempts_leave_tracebacks_alone(self, admin_client: Client) -> None:
        AttemptFactory()
        for sql in self.statements(admin_client, list_url(Attempt)):
            assert '"traceback"' not in sql

    def test_of_a_long_list_stop_counting(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CappedPaginator, "most", 3)
        for _ in range(5):
            JobFactory()
        response = admin_client.get(list_url(Job))
        assert response.context["cl"].result_count == 3
        text = text_of(response.content.decode())
        assert "There are more: only the first 3 are listed." in text

    def test_of_a_long_list_offer_all_that_match_without_a_number(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(CappedPaginator, "most", 3)
        monkeypatch.setattr("jobqueue.admin.dead_letters.DeadLetterAdmin.list_per_page", 2)
        for _ in range(5):
            DeadLetterFactory()
        text = text_of(get(admin_client, list_url(DeadLetter)))
        assert "Select all dead letters that match" in text
        assert "Select all 3" not in text

    def test_of_an_address_beyond_the_last_page_lead_back(self, admin_client: Client) -> None:
        JobFactory()
        assert admin_client.get(list_url(Job, p="5000")).status_code == 200


class TestWithoutTheAdmin:
    def test_the_app_works(self) -> None:
        """C-110: a project need not have the admin, nor users."""
        code = """
import sys, django
from django.conf import settings
settings.configure(INSTALLED_APPS=["jobqueue"], DATABASES={}, DEFAULT_AUTO_FIELD="")
django.setup()
from django.core.management import call_command
call_command("check")
assert not [name for name in sys.modules if name.startswith("jobqueue.admin")]
"""
        environment = process_environment()
        del environment["DJANGO_SETTINGS_MODULE"]
        command = [sys.executable, "-c", code]
        ended = subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
