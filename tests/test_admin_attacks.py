"""What nobody sends by accident, and what a project's own admins and sites do with our pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.test import Client
from django.urls import path, reverse

from jobqueue import lifecycle
from jobqueue.admin import DeadLetterAdmin, JobAdmin, OverviewAdmin, operations, search
from jobqueue.lifecycle import Actor
from jobqueue.models import BulkOperation, DeadLetter, Job, OperationLog, Overview, Queue
from tests.admin_site import each_admin, make_all, pages
from tests.factories import BulkOperationFactory, DeadLetterFactory, JobFactory, QueueFactory
from tests.test_admin_operations import lease_row, list_url, page_url, staff

pytestmark = pytest.mark.django_db

ALICE = Actor("7", "alice")


class _OnlyMail(DeadLetterAdmin):
    """A project's own: who opens it looks after one queue."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        return super().get_queryset(request).filter(queue_name="mail")


class _ByPriority(JobAdmin):
    list_filter = (*JobAdmin.list_filter, "priority", ("actor", admin.EmptyFieldListFilter))


theirs = admin.AdminSite(name="theirs")
theirs.register(DeadLetter, _OnlyMail)
theirs.register(Job, _ByPriority)
theirs.register(Overview, OverviewAdmin)
urlpatterns = [path("admin/", admin.site.urls), path("theirs/", theirs.urls)]


def bulk_url(kind: str = "replay", site: str = "admin", query: str = "") -> str:
    name = f"admin:jobqueue_deadletter_bulk_{kind}"
    return reverse(name, current_app=site) + query


def act(client: Client, model: type[Model], action: str, *keys: Any, query: str = "") -> Any:
    data = {"action": action, "_selected_action": keys, "index": "0"}
    return client.post(list_url(model) + query, data)


class TestForged:
    @pytest.mark.parametrize("key", ["abc", "\0", "1.5", "9" * 5000])
    def test_keys_of_no_row_are_refused(self, admin_client: Client, key: str) -> None:
        assert act(admin_client, Job, "cancel", key).status_code == 400

    def test_key_with_a_nul_is_no_row(self, admin_client: Client) -> None:
        for page in ("change", "history"):
            response = admin_client.get(f"/admin/jobqueue/queue/%00/{page}/")
            assert response.status_code in (302, 404)

    def test_nul_in_a_filter_is_exported_as_nothing(self, admin_client: Client) -> None:
        job = JobFactory()
        response = act(admin_client, Job, "export_csv", job.pk, query="?queue=%00")
        assert len(b"".join(response.streaming_content).splitlines()) == 1
        assert OperationLog.objects.get().targets["queue"] == r"\u0000"

    @pytest.mark.parametrize(
        "until", ["9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "9999-12-31", "\0", "x"]
    )
    def test_time_of_a_question_is_survived(self, admin_client: Client, until: str) -> None:
        held, letter = lease_row(), DeadLetterFactory()
        across = {"action": "release", "_selected_action": "0", "select_across": "1"}
        sent = across | {"until": until, "index": "0"}
        assert admin_client.post(list_url(type(held)), sent).status_code in (200, 302)
        given = {"reason": "r", "until": until}
        assert admin_client.post(bulk_url(), given).status_code in (200, 302)
        for operation in BulkOperation.objects.all():
            assert operation.until < datetime.now(tz=UTC) + timedelta(minutes=5)
        assert DeadLetter.objects.open().filter(pk=letter.pk).exists()

    def test_time_of_a_question_is_never_yet_to_come(self) -> None:
        now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        earlier, later = now - timedelta(minutes=1), now + timedelta(minutes=1)
        assert operations.read_until(earlier.isoformat(), now) == earlier
        assert operations.read_until(later.isoformat(), now) == now
        assert operations.read_until("2026-01-01T00:00:00", now) == now  # without a zone

    @pytest.mark.parametrize(
        "text",
        ['args.a:"' + '\\"' * 4000, "args.a:1 " * 30, "kwargs.a:" + "x" * 2000],
        ids=["quotes", "words", "length"],
    )
    def test_search_has_limits(self, admin_client: Client, text: str) -> None:
        JobFactory()
        response = admin_client.get(list_url(Job), {"q": text})
        assert "at most 1000 characters and 20 words" in response.content.decode()

    def test_search_that_is_long_is_no_less_private(self) -> None:
        assert search.is_of_payloads("x" * 2000 + " args.a:1")

    @pytest.mark.parametrize("model", each_admin(), ids=lambda model: model.__name__)
    def test_post_without_a_token_is_refused_by_every_page(
        self, admin_user: Any, model: type[Model]
    ) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(admin_user)
        for page in pages(model, make_all(model)[:1]):
            assert client.post(page.url, {"confirmed": "yes"}).status_code == 403, page


class TestWithoutViewPayload:
    def test_a_dry_run_does_not_quote_what_does_not_fit(self) -> None:
        DeadLetterFactory(task="tests.tasks.add", args=[1, 2], kwargs={"secret_name": 1})
        may = ("view_deadletter", "replay_deadletter")
        assert "secret_name" not in staff(*may).get(bulk_url()).content.decode()
        assert "secret_name" in staff(*may, "view_payload").get(bulk_url()).content.decode()


class TestTheLog:
    def test_of_a_bulk_operation_is_found_from_its_page(self, admin_client: Client) -> None:
        operation = BulkOperationFactory()
        lifecycle.bulk.pause(operation.pk, by=ALICE)
        shown = admin_client.get(page_url(BulkOperation, operation.pk))
        found = admin_client.get(shown.context["deeds"].url)
        assert [line.action for line in found.context["cl"].result_list] == ["pause replay"]
        assert page_url(BulkOperation, operation.pk) in found.content.decode()


class TestTooLate:
    """Two clicks, or two people: one effect, and whoever comes second is told."""

    def test_an_edit_that_is_sent_twice_is_done_once(self, admin_client: Client) -> None:
        letter = DeadLetterFactory(task="tests.tasks.noop")
        url = reverse("admin:jobqueue_deadletter_edit", args=[letter.pk])
        given = {"args": "[]", "kwargs": "{}", "version": "1"}
        assert admin_client.post(url, given).status_code == 302
        again = admin_client.post(url, given, follow=True)
        assert again.redirect_chain == [(page_url(Job, letter.pk), 302)]
        assert "somebody has dealt with it already" in again.content.decode()
        assert OperationLog.objects.count() == 1

    def test_a_letter_that_was_discarded_meanwhile_stays_so(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk])
        url = reverse("admin:jobqueue_deadletter_edit", args=[letter.pk])
        response = admin_client.post(url, {"args": "[]", "kwargs": "{}", "version": "1"})
        assert response.url == page_url(DeadLetter, letter.pk)


@pytest.mark.urls(__name__)
class TestAProjectsOwn:
    @pytest.fixture
    def letters(self) -> list[DeadLetter]:
        fault = {"fingerprint": "f" * 16, "error_class": "Broken"}
        return [DeadLetterFactory(queue_name=name, **fault) for name in ("mail", "other")]

    def test_queryset_bounds_bulk_operations(
        self, admin_client: Client, letters: list[DeadLetter]
    ) -> None:
        given = {"reason": "r", "rate": "50"}
        admin_client.post(bulk_url(site="theirs", query="?fingerprint=" + "f" * 16), given)
        assert BulkOperation.objects.get().ids == [letters[0].pk]

    def test_queryset_bounds_groups_and_edits(
        self, admin_client: Client, letters: list[DeadLetter]
    ) -> None:
        url = reverse("admin:jobqueue_deadletter_groups", current_app="theirs")
        [group] = admin_client.get(url).context["found"].groups
        assert group.size == "1"
        foreign = reverse(
            "admin:jobqueue_deadletter_edit", args=[letters[1].pk], current_app="theirs"
        )
        given = {"args": "[]", "kwargs": "{}", "version": "1"}
        admin_client.post(foreign, given)
        assert DeadLetter.objects.open().filter(pk=letters[1].pk).exists()

    @pytest.mark.parametrize("query", ["priority__exact=5", "priority=5", "actor__isempty=1"])
    def test_filters_work(self, admin_client: Client, query: str) -> None:
        job = JobFactory(priority=5)
        JobFactory(priority=1, actor="somebody")
        url = reverse("admin:jobqueue_job_changelist", current_app="theirs")
        shown = admin_client.get(f"{url}?{query}").context["cl"]
        assert [row.pk for row in shown.result_list] == [job.pk]

    def test_filters_allow_no_others(self, admin_client: Client) -> None:
        url = reverse("admin:jobqueue_job_changelist", current_app="theirs")
        for query in ("kwargs__has_key=token", "priority__gt__exact=5", "job__priority__exact=5"):
            assert admin_client.get(f"{url}?{query}").status_code == 400

    def test_overview_needs_no_other_page(self, admin_client: Client) -> None:
        JobFactory()
        url = reverse("admin:jobqueue_overview_changelist", current_app="theirs")
        html = admin_client.get(url).content.decode()
        assert 'href="/admin/' not in html
        assert "/pause/" not in html


def _crumbs(html: str) -> Iterator[str]:
    _, _, rest = html.partition('class="breadcrumbs">')
    yield from re.findall(r'<a href="([^"]*)"', re.split(r"</ol>|</div>", rest)[0])


class TestCrumbs:
    def test_lead_back_to_the_list_and_the_row(self, admin_client: Client) -> None:
        letter, queue = DeadLetterFactory(), QueueFactory(name="mail")
        home = ["/admin/", "/admin/jobqueue/"]
        for model, url, rows in (
            (DeadLetter, bulk_url(), []),
            (DeadLetter, reverse("admin:jobqueue_deadletter_groups"), []),
            (
                DeadLetter,
                reverse("admin:jobqueue_deadletter_edit", args=[letter.pk]),
                [page_url(DeadLetter, letter.pk)],
            ),
            (
                Queue,
                reverse("admin:jobqueue_queue_pause", args=["mail"]),
                [page_url(Queue, "mail")],
            ),
        ):
            html = admin_client.get(url).content.decode()
            assert list(_crumbs(html)) == [*home, list_url(model), *rows], url
        assert queue.pk == "mail"

    def test_lead_nowhere_that_the_user_may_not_go(self) -> None:
        client = staff("view_overview", "pause_queue")
        html = client.get("/admin/jobqueue/queue/mail/pause/?from=overview").content.decode()
        assert list(_crumbs(html)) == ["/admin/", "/admin/jobqueue/"]
