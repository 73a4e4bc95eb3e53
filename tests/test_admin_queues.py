"""Queues in the admin: how each is, and pausing and resuming one, by those who may."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue.models import OperationLog, Queue
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory, QueueFactory
from tests.test_admin_overview import OVERVIEW, client_with
from tests.test_admin_pages import MARKUP, assert_harmless, get, text_of

pytestmark = pytest.mark.django_db

LIST = reverse("admin:jobqueue_queue_changelist")
REASON = {"reason": "the relay is down"}


def url(verb: str, name: str = "mail") -> str:
    return reverse(f"admin:jobqueue_queue_{verb}", args=[name])


def rows(html: str) -> list[str]:
    """Return the rows of the list."""
    return re.findall(r'<tr><th class="field-name.*?</tr>', html, re.DOTALL)


def is_paused(name: str = "mail") -> bool:
    return Queue.objects.paused().filter(pk=name).exists()


class TestList:
    def test_shows_each_with_its_figures_and_links(self, admin_client: Client) -> None:
        QueueFactory(name="mail")
        JobFactory(queue_name="mail", age=timedelta(minutes=3, seconds=20))
        JobFactory(queue_name="mail", claimed=True, lease_left=-timedelta(minutes=1))
        DeadLetterFactory(queue_name="mail")
        html = get(admin_client, LIST)
        [row] = rows(html)
        assert re.match(r"mail ▶ open 3 min 2\d s 1 1 0 1", text_of(row)), text_of(row)
        assert 'href="/admin/jobqueue/deadletter/?queue=mail"' in row

    def test_shows_who_paused_one_until_when_and_why(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused_for_a_while=True)
        [row] = rows(get(admin_client, LIST))
        assert "jobqueue-warning" in row
        assert re.search(r"‖ Queue mail is paused since .* until .* by alice: the", text_of(row))

    def test_calls_one_open_whose_pause_has_ended(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused_for_a_while=True, paused_for=-timedelta(minutes=1))
        html = get(admin_client, LIST)
        assert "open" in text_of(html)
        assert "is paused" not in html

    def test_takes_as_many_statements_for_any_number_of_jobs(self, admin_client: Client) -> None:
        QueueFactory(name="mail")
        JobFactory(queue_name="mail")
        counts = []
        for _ in range(3):
            JobFactory(queue_name="mail")
            with CaptureQueriesContext(connection) as captured:
                get(admin_client, LIST)
            counts.append(len(captured))
        assert len(set(counts)) == 1

    def test_says_what_would_be_there(self, admin_client: Client) -> None:
        assert "No queues." in text_of(get(admin_client, LIST))


class TestPause:
    def test_asks_for_a_reason_and_says_what_will_happen(self, admin_client: Client) -> None:
        text = text_of(get(admin_client, url("pause")))
        assert "Pause queue mail" in text
        assert "What runs already goes on to its end" in text
        response = admin_client.post(url("pause"), {"reason": " "})
        assert "This field is required" in response.content.decode()
        assert not Queue.objects.exists()

    def test_of_a_queue_without_a_row_is_done_audited_and_logged(
        self, admin_client: Client, admin_user: User
    ) -> None:
        JobFactory(queue_name="mail")
        response = admin_client.post(url("pause"), REASON, follow=True)
        assert "Queue mail is paused." in text_of(response.content.decode())
        assert response.redirect_chain[0][0] == url("change")
        queue = Queue.objects.get()
        assert (queue.paused_by, queue.pause_reason) == ("admin", "the relay is down")
        assert queue.paused_until is None
        assert not verbs.claim(queue_name="mail")
        line = OperationLog.objects.get()
        assert (line.action, line.target_id, line.reason) == ("pause", "mail", REASON["reason"])
        assert (line.actor_id, line.actor) == (str(admin_user.pk), "admin")
        assert re.fullmatch("op-[0-9a-f]{16}", line.correlation_id)
        entry = LogEntry.objects.get()
        assert (entry.object_id, entry.get_change_message()) == (
            "mail",
            "Paused: the relay is down",
        )

    @pytest.mark.parametrize("minutes", ["15", "60", "240", "1440"])
    def test_can_end_by_itself(self, admin_client: Client, minutes: str) -> None:
        admin_client.post(url("pause"), REASON | {"minutes": minutes})
        queue = Queue.objects.get()
        assert queue.paused_until
        assert queue.paused_at
        assert queue.paused_until - queue.paused_at == timedelta(minutes=int(minutes))

    @pytest.mark.parametrize("minutes", ["-1", "7", "x", "9" * 40])
    def test_for_no_time_that_is_offered_is_refused(
        self, admin_client: Client, minutes: str
    ) -> None:
        assert "Select a valid choice" in text_of(
            admin_client.post(url("pause"), REASON | {"minutes": minutes}).content.decode()
        )
        assert not Queue.objects.exists()

    def test_says_that_it_replaces_another(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        text = text_of(get(admin_client, url("pause")))
        assert "by alice: the mail server is down" in text
        assert "replaces the one above" in text
        admin_client.post(url("pause"), REASON)
        assert Queue.objects.get().paused_by == "admin"

    def test_leads_back_to_where_one_came_from(self, admin_client: Client) -> None:
        assert f'href="{OVERVIEW}"' in get(admin_client, url("pause") + "?from=overview")
        response = admin_client.post(url("pause") + "?from=overview", REASON)
        assert response.headers["Location"] == OVERVIEW
        response = admin_client.post(url("pause") + "?from=//evil.example", REASON)
        assert response.headers["Location"] == url("change")

    @pytest.mark.parametrize("name", ["Mail", "a b", "x" * 65, "ä"])
    def test_of_what_can_be_no_queue_is_not_found(self, admin_client: Client, name: str) -> None:
        for verb in ("pause", "resume"):
            assert admin_client.post(url(verb, name), REASON).status_code == 404
        assert not Queue.objects.exists()

    @pytest.mark.parametrize("name", ["a.b-c_d", "_x", "0"])
    def test_of_any_name_finds_its_queue(self, admin_client: Client, name: str) -> None:
        JobFactory(queue_name=name)
        html = get(admin_client, OVERVIEW)
        [address] = re.findall(r'href="(/admin/jobqueue/queue/[^"]*/pause/[^"]*)"', html)
        admin_client.post(address, REASON)
        assert is_paused(name)

    def test_shows_markup_as_text(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True, paused_by=MARKUP, pause_reason=MARKUP)
        for address in (LIST, url("change"), url("pause"), url("history")):
            html = get(admin_client, address)
            assert_harmless(html, is_expected=address != url("history"))
        html = admin_client.post(url("pause"), {"reason": MARKUP}, follow=True).content.decode()
        assert_harmless(html, is_expected=True)
        assert_harmless(get(admin_client, url("history")), is_expected=True)


class TestResume:
    def test_is_a_button_where_it_is_of_use(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        html = get(admin_client, url("change"))
        assert f'<form method="post" action="{url("resume")}"' in html
        admin_client.post(url("resume"))
        assert not is_paused()
        html = get(admin_client, url("change"))
        assert f'<a href="{url("pause")}"' in html
        assert url("resume") not in html

    def test_is_audited_and_logged(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        response = admin_client.post(url("resume") + "?from=overview", follow=True)
        assert "Queue mail goes on." in text_of(response.content.decode())
        assert response.redirect_chain[0][0] == OVERVIEW
        line = OperationLog.objects.get()
        assert (line.action, line.before["paused_by"]) == ("resume", "alice")
        assert LogEntry.objects.get().get_change_message() == "Resumed."

    def test_twice_says_that_there_was_nothing_to_do(self, admin_client: Client) -> None:
        QueueFactory(name="mail")
        response = admin_client.post(url("resume"), follow=True)
        assert "Queue mail was not paused." in text_of(response.content.decode())
        assert not LogEntry.objects.exists()

    def test_is_no_get(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        assert admin_client.get(url("resume")).status_code == 405
        assert is_paused()


class TestPermissions:
    VIEW = ("view_queue", "view_overview", "view_job")

    @pytest.mark.parametrize("codenames", [VIEW, ("pause_queue",), (*VIEW, "cancel_job"), ()])
    def test_other_than_to_pause_and_to_look_change_nothing(self, codenames: Any) -> None:
        QueueFactory(name="mail", paused=True)
        QueueFactory(name="web")
        before = list(Queue.objects.order_by("pk").values())
        client = client_with(*codenames)
        assert client.get(url("pause")).status_code == 403
        assert client.post(url("pause", "web"), REASON).status_code == 403
        assert client.post(url("resume"), REASON).status_code == 403
        assert list(Queue.objects.order_by("pk").values()) == before
        assert not OperationLog.objects.exists()

    def test_to_look_show_no_control(self) -> None:
        QueueFactory(name="mail", paused=True)
        html = get(client_with("view_queue"), url("change"))
        assert "/resume/" not in html
        assert "/pause/" not in html

    def test_to_pause_are_enough_with_either_page(self) -> None:
        for page in ("view_queue", "view_overview"):
            client = client_with(page, "pause_queue")
            response = client.post(url("pause"), REASON)
            assert response.status_code == 302
            assert client.get(response.headers["Location"]).status_code == 200
            assert client.post(url("resume")).status_code == 302
            assert not is_paused()

    def test_need_the_token_of_the_form(self, admin_user: User) -> None:
        client = Client(enforce_csrf_checks=True)
        client.force_login(admin_user)
        assert client.post(url("pause"), REASON).status_code == 403
        QueueFactory(name="mail", paused=True)
        assert client.post(url("resume")).status_code == 403
        assert is_paused()

    def test_are_asked_before_a_login_is_offered(self) -> None:
        response = Client().post(url("pause"), REASON)
        assert response.status_code == 302
        assert "/login/" in response.headers["Location"]
        assert not Queue.objects.exists()
