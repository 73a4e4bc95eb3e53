"""Dead letters in the admin: groups, bulk operations asked for, edited replays, the whole story."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import lifecycle, registry, task
from jobqueue.admin import bulk_asking, display, dry_run, groups, payloads, unmasking
from jobqueue.admin.sparkline import sparkline
from jobqueue.lifecycle import Actor, bulk
from jobqueue.models import BulkOperation, DeadLetter, Job, OperationLog, Replay
from jobqueue.states import BulkState
from tests.factories import DeadLetterFactory, JobFactory, QueueFactory
from tests.test_admin_operations import page_url, said, spoil, staff
from tests.test_admin_pages import MARKUP, assert_harmless, get, list_url, listed, text_of

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
ALICE = Actor("1", "alice")
VIEW = ("view_deadletter", "view_job", "view_bulkoperation", "view_replay")
DOES = {"replay": "replay_deadletter", "discard": "discard_deadletter"}
each_kind = pytest.mark.parametrize("kind", list(DOES))


def groups_url() -> str:
    return reverse("admin:jobqueue_deadletter_groups")


def bulk_url(kind: str, **parameters: Any) -> str:
    url = reverse(f"admin:jobqueue_deadletter_bulk_{kind}")
    return f"{url}?{display.urlencode(parameters)}"


def edit_url(pk: int) -> str:
    return reverse("admin:jobqueue_deadletter_edit", args=[pk])


def turn_url(name: str, operation: BulkOperation) -> str:
    return reverse(f"admin:jobqueue_bulkoperation_{name}", args=[operation.pk])


def post(client: Client, url: str, **given: Any) -> Any:
    """Send the form of a bulk operation with what is needed at least."""
    return client.post(url, {"reason": "mended", "rate": "50", **given})


def start(client: Client, url: str, **given: Any) -> BulkOperation:
    """Ask for a bulk operation, and return it."""
    response = post(client, url, **given)
    assert response.status_code == 302, text_of(response.content.decode())
    return BulkOperation.objects.get()


def finish() -> None:
    BulkOperation.objects.update(rate=None)
    while bulk.advance() is not None:
        pass


class TestList:
    def test_shows_open_letters_and_others_when_asked_to(self, admin_client: Client) -> None:
        is_open, discarded = DeadLetterFactory(), DeadLetterFactory()
        lifecycle.discard([discarded.pk])
        assert listed(admin_client, list_url(DeadLetter)) == {is_open.pk}
        assert listed(admin_client, list_url(DeadLetter, discarded="yes")) == {discarded.pk}
        both = {is_open.pk, discarded.pk}
        assert listed(admin_client, list_url(DeadLetter, discarded="any")) == both

    def test_can_be_narrowed_down_to_what_was_picked(self, admin_client: Client) -> None:
        one, two, _other = DeadLetterFactory.create_batch(3)
        url = list_url(DeadLetter, ids=f"{one.pk},{two.pk},x,,{'9' * 40}")
        assert listed(admin_client, url) == {one.pk, two.pk}

    def test_leads_to_the_groups(self, admin_client: Client) -> None:
        assert f'href="{groups_url()}"' in get(admin_client, list_url(DeadLetter))

    def test_is_led_to_from_the_figures_by_way_of_the_groups(self, admin_client: Client) -> None:
        html = get(admin_client, list_url(Job))
        assert re.search(rf'Dead letters</dt>\s*<dd>\W*<a href="{groups_url()}"', html)

    @each_kind
    def test_leads_with_what_was_picked_to_the_question(self, kind: str) -> None:
        letters = DeadLetterFactory.create_batch(2)
        client = staff(*VIEW, DOES[kind])
        data = {"action": kind, "_selected_action": [each.pk for each in letters], "index": "0"}
        response = client.post(list_url(DeadLetter), data)
        assert response.url == bulk_url(kind, ids=",".join(str(each.pk) for each in letters))
        assert not BulkOperation.objects.exists()

    @each_kind
    def test_leads_with_its_filters_to_the_question(self, kind: str) -> None:
        """C-95: no list of a hundred thousand numbers."""
        letter = DeadLetterFactory()
        client = staff(*VIEW, DOES[kind])
        data = {"action": kind, "_selected_action": letter.pk, "select_across": ["0", "1"]}
        response = client.post(list_url(DeadLetter, task=letter.task, q="a"), data)
        assert response.url == bulk_url(kind, task=letter.task, q="a")


class TestGroups:
    def test_are_by_fingerprint_with_the_largest_first(self, admin_client: Client) -> None:
        DeadLetterFactory.create_batch(2, fingerprint="a", message="no route", died_ago=HOUR)
        DeadLetterFactory.create_batch(3, fingerprint="b", task="tests.tasks.noop")
        DeadLetterFactory(fingerprint="b", task="gone.tasks.vanished", died_ago=5 * HOUR)
        lifecycle.discard([DeadLetterFactory(fingerprint="c").pk])
        response = admin_client.get(groups_url())
        found = response.context_data["found"].groups
        assert [(each.fingerprint, each.size) for each in found] == [("b", "4"), ("a", "2")]
        text = text_of(response.content.decode())
        assert "RuntimeError no route" in text
        assert "gone.tasks.vanished ⚠ not registered" in text
        assert "5 h ago" in text

    def test_stand_beneath_what_is_paused_and_lead_back(self, admin_client: Client) -> None:
        QueueFactory(name="mail", paused=True)
        html = get(admin_client, groups_url())
        text = text_of(html)
        assert "‖ Queue mail is paused" in text
        [way_back, _rest] = html.partition('class="breadcrumbs"')[2].split("Dead letters</a>", 1)
        assert 'href="/admin/jobqueue/deadletter/"' in way_back

    def test_lead_to_their_letters_also_where_there_is_no_fingerprint(
        self, admin_client: Client
    ) -> None:
        ones = {each.pk for each in DeadLetterFactory.create_batch(2, fingerprint="a")}
        others = {DeadLetterFactory(fingerprint="").pk}
        found = admin_client.get(groups_url()).context_data["found"].groups
        assert [listed(admin_client, each.url) for each in found] == [ones, others]
        text = get(admin_client, found[1].replay_url)
        assert "1 dead letter would go" in text_of(text)

    def test_show_how_often_of_late(self, admin_client: Client) -> None:
        DeadLetterFactory.create_batch(2, fingerprint="a")
        DeadLetterFactory(fingerprint="a", died_ago=timedelta(hours=30))
        [group] = admin_client.get(groups_url()).context_data["found"].groups
        counts = re.search(r"hours: ([\d, ]+)<", group.recent)
        assert counts is not None
        numbers = list(map(int, counts[1].split(",")))
        assert (len(numbers), sum(numbers), sum(numbers[-2:])) == (24, 2, 2)

    def test_are_of_the_newest_letters_only(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(groups, "MOST_LETTERS", 2)
        for age in range(4):
            DeadLetterFactory(fingerprint=str(age), died_ago=age * HOUR)
        html = get(admin_client, groups_url())
        assert "only the newest 2 dead letters" in text_of(html)
        assert "fingerprint=3" not in html

    def test_are_so_many_and_no_more(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(groups, "MOST_GROUPS", 2)
        for name in "abc":
            DeadLetterFactory(fingerprint=name)
        assert "Only the 2 largest groups" in text_of(get(admin_client, groups_url()))

    def test_name_some_of_many_tasks(self, admin_client: Client) -> None:
        for number in range(7):
            DeadLetterFactory(task=f"tasks.number_{number}")
        assert "and 2 more" in text_of(get(admin_client, groups_url()))

    def test_say_when_there_are_none(self, admin_client: Client) -> None:
        assert 'class="jobqueue-empty"' in get(admin_client, groups_url())

    def test_take_as_many_statements_for_many_as_for_one(self, admin_client: Client) -> None:
        counts = []
        for name in ("a", "b", "c"):
            DeadLetterFactory(fingerprint=name)
            with CaptureQueriesContext(connection) as captured:
                get(admin_client, groups_url())
            counts.append(len(captured))
        assert counts[1] == counts[2]
        assert not [each for each in captured if '"args"' in each["sql"]]

    def test_offer_only_what_one_may_do(self) -> None:
        DeadLetterFactory()
        html = get(staff("view_deadletter", "discard_deadletter"), groups_url())
        assert "/bulk/discard/" in html
        assert "/bulk/replay/" not in html

    def test_are_for_those_who_may_look(self) -> None:
        assert staff("replay_deadletter").get(groups_url()).status_code == 403
        assert Client().get(groups_url()).status_code == 302


class TestSparkline:
    def test_draws_a_bar_for_each_count_that_is_none(self) -> None:
        html = sparkline([0, 1, 100], "<title>")
        assert html.count("<rect") == 3  # two bars and the line
        assert 'height="22"' in html
        assert 'height="1"' in html
        assert "&lt;title&gt;" in html
        assert "style=" not in html

    def test_draws_nothing_for_nothing(self) -> None:
        assert sparkline([], "").count("<rect") == sparkline([0, 0], "").count("<rect") == 1


class TestDryRun:
    def test_says_how_many_would_go_by_task_and_error(self, admin_client: Client) -> None:
        DeadLetterFactory.create_batch(2, task="tests.tasks.noop")
        DeadLetterFactory(task="gone.tasks.vanished", error_class="UnknownTask", message="?")
        text = text_of(get(admin_client, bulk_url("replay")))
        assert "3 dead letters would go" in text
        assert "all open dead letters" in text
        assert "tests.tasks.noop RuntimeError failed 2" in text
        assert "gone.tasks.vanished ⚠ not registered UnknownTask ? 1" in text

    def test_says_which_in_words(self, admin_client: Client) -> None:
        DeadLetterFactory()
        url = bulk_url("discard", task="tests.tasks.fail", reason="timed_out", died="1h")
        text = text_of(get(admin_client, url))
        assert "reason : timed out on the last attempt" in text
        assert "time of death : the last hour" in text
        assert "task : tests.tasks.fail" in text

    def test_finds_payloads_that_do_not_fit_any_more(self, admin_client: Client) -> None:
        fits = DeadLetterFactory(task="tests.tasks.fail")
        unfit = DeadLetterFactory(task="tests.tasks.fail", kwargs={"surplus": 1})
        spoiled = DeadLetterFactory(task="tests.tasks.fail")
        spoil(DeadLetter, spoiled.pk, "9" * 5000)
        text = text_of(get(admin_client, bulk_url("replay")))
        assert "2 of the newest 3 would not run" in text
        assert f"#{unfit.pk}: the arguments do not fit" in text
        assert f"#{spoiled.pk}: the payload cannot be read" in text
        assert f"#{fits.pk}" not in text
        assert "would not run" not in get(admin_client, bulk_url("discard"))

    def test_looks_into_a_sample_and_says_so(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(dry_run, "SAMPLE", 2)
        DeadLetterFactory.create_batch(3, task="tests.tasks.noop")
        text = text_of(get(admin_client, bulk_url("replay")))
        assert (
            "The payloads of the newest 2 fit their tasks; the others were not looked into" in text
        )

    def test_counts_no_further_than_the_admin_does(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(display, "MOST_COUNTED", 2)
        DeadLetterFactory.create_batch(3)
        assert "2+ dead letters would go" in text_of(get(admin_client, bulk_url("replay")))

    def test_of_nothing_offers_nothing(self, admin_client: Client) -> None:
        html = get(admin_client, bulk_url("replay", task="none"))
        assert "0 dead letters would go" in text_of(html)
        assert 'name="reason"' not in html
        assert post(admin_client, bulk_url("replay", task="none")).status_code == 200
        assert not BulkOperation.objects.exists()

    @each_kind
    def test_changes_nothing(self, admin_client: Client, kind: str) -> None:
        letter = DeadLetterFactory()
        get(admin_client, bulk_url(kind))
        assert DeadLetter.objects.get() == letter
        assert not BulkOperation.objects.exists()


class TestAsk:
    def test_writes_the_operation_down_and_leads_to_it(self) -> None:
        client = staff(*VIEW, "replay_deadletter")
        DeadLetterFactory.create_batch(2)
        other = DeadLetterFactory(queue_name="mail")
        url = bulk_url("replay", queue="default")
        response = post(client, url, rate="2.5", target_queue="slow")
        operation = BulkOperation.objects.get()
        assert response.url == page_url(BulkOperation, operation.pk)
        assert (operation.kind, operation.filters) == ("replay", {"queue_name": "default"})
        assert (operation.rate, operation.target_queue) == (2.5, "slow")
        assert (operation.expected, operation.ids, operation.reason) == (2, None, "mended")
        user = User.objects.get()
        assert (operation.actor_id, operation.actor) == (str(user.pk), user.username)
        assert said(client, response) == ["2 dead letters will be replayed by the workers."]
        assert Job.objects.count() == 0
        finish()
        assert Job.objects.filter(queue_name="slow").count() == 2
        assert DeadLetter.objects.get() == other
        assert OperationLog.objects.filter(actor=user.username).count() == 2

    def test_without_a_rate_is_as_fast_as_it_goes(self, admin_client: Client) -> None:
        DeadLetterFactory()
        assert start(admin_client, bulk_url("discard"), rate="").rate is None

    @pytest.mark.parametrize(
        ("parameters", "remembered"),
        [
            ({}, {}),
            ({"fingerprint": "0123456789abcdef"}, {"fingerprint": "0123456789abcdef"}),
            ({"task": "tests.tasks.fail"}, {"task": "tests.tasks.fail"}),
            ({"reason": "attempts_exhausted"}, {"reason": "attempts_exhausted"}),
            ({"discarded": "any", "p": "1"}, {}),
        ],
        ids=str,
    )
    def test_remembers_the_filters_of_the_list(
        self, admin_client: Client, parameters: dict[str, str], remembered: dict[str, str]
    ) -> None:
        DeadLetterFactory()
        operation = start(admin_client, bulk_url("discard", **parameters))
        assert (operation.filters, operation.ids) == (remembered, None)
        finish()
        assert BulkOperation.objects.get().done == 1

    def test_remembers_a_span_as_an_instant(self, admin_client: Client) -> None:
        DeadLetterFactory(died_ago=2 * HOUR)
        young = DeadLetterFactory()
        operation = start(admin_client, bulk_url("discard", died="1h"))
        assert set(operation.filters) == {"died_since"}
        finish()
        assert DeadLetter.objects.discarded().get() == young

    def test_remembers_no_fingerprint_as_one(self, admin_client: Client) -> None:
        DeadLetterFactory()
        bare = DeadLetterFactory(fingerprint="")
        start(admin_client, bulk_url("discard", fingerprint="-"))
        finish()
        assert DeadLetter.objects.discarded().get() == bare

    @pytest.mark.parametrize("how", ["picked", "searched"])
    def test_names_letters_that_no_filter_can_say(self, admin_client: Client, how: str) -> None:
        wanted = DeadLetterFactory(correlation_id="order-1")
        DeadLetterFactory()
        parameters = {"ids": str(wanted.pk)} if how == "picked" else {"q": "order-1"}
        operation = start(admin_client, bulk_url("discard", **parameters))
        assert (operation.filters, operation.ids) == ({}, [wanted.pk])
        finish()
        assert DeadLetter.objects.discarded().get() == wanted

    def test_names_no_more_of_them_than_an_operation_takes(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk, "MOST_IDS", 2)
        DeadLetterFactory.create_batch(3, correlation_id="order-1")
        response = post(admin_client, bulk_url("discard", q="order-1"))
        assert "More than 2 letters match the search" in said(admin_client, response)[0]
        assert not BulkOperation.objects.exists()

    def test_leaves_alone_what_came_after_the_page_was_shown(self, admin_client: Client) -> None:
        seen = DeadLetterFactory(died_ago=timedelta(minutes=1))
        html = get(admin_client, bulk_url("discard"))
        until = re.search(r'name="until" value="([^"]+)"', html)
        assert until is not None
        DeadLetterFactory(died_ago=-timedelta(seconds=1))
        operation = start(admin_client, bulk_url("discard"), until=until[1])
        assert operation.expected == 1
        finish()
        assert DeadLetter.objects.discarded().get() == seen

    @pytest.mark.parametrize("until", ["", "x", "2026-13-45T00:00:00", "2026-01-01T00:00:00"])
    def test_survives_an_instant_that_is_none(self, admin_client: Client, until: str) -> None:
        DeadLetterFactory(died_ago=timedelta(minutes=1))
        assert start(admin_client, bulk_url("discard"), until=until).expected == 1

    @pytest.mark.parametrize(
        ("given", "field"),
        [
            ({"reason": ""}, "reason"),
            ({"reason": "x" * 501}, "reason"),
            ({"reason": "a\0b"}, "reason"),
            ({"rate": "0"}, "rate"),
            ({"rate": "-1"}, "rate"),
            ({"rate": "nan"}, "rate"),
            ({"rate": "x"}, "rate"),
            ({"target_queue": "No Such"}, "target_queue"),
        ],
    )
    def test_says_beside_the_field_what_is_wrong(
        self, admin_client: Client, given: dict[str, str], field: str
    ) -> None:
        DeadLetterFactory()
        response = post(admin_client, bulk_url("replay"), **given)
        assert list(response.context_data["form"].errors) == [field]
        assert not BulkOperation.objects.exists()

    def test_of_many_wants_their_number_typed(
        self, admin_client: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(bulk_asking, "TYPED_BEYOND", 2)
        DeadLetterFactory.create_batch(3)
        for typed in ("", "2", "x"):
            response = post(admin_client, bulk_url("discard"), typed=typed)
            assert list(response.context_data["form"].errors) == ["typed"]
        assert "type 3" in text_of(response.content.decode())
        assert not BulkOperation.objects.exists()
        assert start(admin_client, bulk_url("discard"), typed="3").expected == 3

    def test_leads_to_the_list_for_those_who_may_not_see_operations(self) -> None:
        DeadLetterFactory()
        client = staff("view_deadletter", "replay_deadletter")
        assert post(client, bulk_url("replay")).url == list_url(DeadLetter).rstrip("?")

    @each_kind
    @pytest.mark.parametrize("method", ["get", "post"])
    def test_needs_its_own_permission(self, kind: str, method: str) -> None:
        """C-96."""
        DeadLetterFactory()
        others = [each for name, each in DOES.items() if name != kind]
        for client in (staff(*VIEW, *others), staff(DOES[kind]), staff(*VIEW)):
            response = getattr(client, method)(bulk_url(kind), {"reason": "x"})
            assert response.status_code == 403
        assert not BulkOperation.objects.exists()

    def test_needs_the_csrf_token(self) -> None:
        DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        client.handler.enforce_csrf_checks = True
        assert post(client, bulk_url("replay")).status_code == 403

    def test_with_a_filter_that_there_is_not_leads_to_the_list(self, admin_client: Client) -> None:
        response = admin_client.get(bulk_url("replay", kwargs__password="x"))
        assert response.status_code in (302, 400)

    def test_of_a_right_that_is_lost_is_not_carried_out(self) -> None:
        """The right is asked for again when it is done."""
        DeadLetterFactory()
        start(staff(*VIEW, "replay_deadletter"), bulk_url("replay"))
        User.objects.get().user_permissions.clear()
        finish()
        assert BulkOperation.objects.get().state == BulkState.FAILED
        assert not Job.objects.exists()


class TestOperation:
    @pytest.fixture
    def operation(self) -> BulkOperation:
        DeadLetterFactory.create_batch(4)
        return bulk.ask(
            "replay",
            filters={"task": "tests.tasks.fail"},
            rate=8,
            expected=4,
            by=ALICE,
            reason="mended",
        )

    def test_shows_who_wants_what_why_and_how_far_it_is(
        self, admin_client: Client, operation: BulkOperation
    ) -> None:
        BulkOperation.objects.update(done=1, refused=1, last_error="letter 1: IntegrityError: x")
        html = get(admin_client, page_url(BulkOperation, operation.pk))
        text = text_of(html)
        for part in ("1 of 4 done, 1 refused", "alice", "mended", "task: tests.tasks.fail"):
            assert part in text
        assert "8 letters a second, about 1 s to go" in text
        assert "letter 1: IntegrityError" in text
        assert '<progress class="jobqueue-progress" max="4" value="2"' in html
        assert "1 of 4 done" in text_of(get(admin_client, list_url(BulkOperation)))

    def test_can_be_paused_go_on_and_be_cancelled(self, operation: BulkOperation) -> None:
        client = staff(*VIEW, "replay_deadletter")
        for name, state, offered in (
            ("pause", "paused", ["proceed", "cancel"]),
            ("proceed", "running", ["pause", "cancel"]),
            ("cancel", "cancelled", []),
        ):
            response = client.post(turn_url(name, operation))
            assert len(said(client, response)) == 1
            operation.refresh_from_db()
            assert operation.state == state
            page = get(client, response.url)
            for other in ("pause", "proceed", "cancel"):
                assert (turn_url(other, operation) in page) is (other in offered)
        assert LogEntry.objects.filter(action_flag=CHANGE).count() == 3
        actions = OperationLog.objects.order_by("pk").values_list("action", flat=True)
        assert list(actions)[1:] == ["pause replay", "proceed replay", "cancel replay"]

    def test_that_is_over_says_so(self, operation: BulkOperation) -> None:
        bulk.cancel(operation.pk)
        client = staff(*VIEW, "replay_deadletter")
        [text] = said(client, client.post(turn_url("pause", operation)))
        assert "no longer in a state" in text
        assert not LogEntry.objects.exists()

    @pytest.mark.parametrize("name", ["pause", "proceed", "cancel"])
    def test_obeys_only_those_who_may_do_its_kind(
        self, name: str, operation: BulkOperation
    ) -> None:
        """C-96: hidden from the others, and refused when forged."""
        for codenames in ((*VIEW, "discard_deadletter"), ("replay_deadletter",), VIEW):
            client = staff(*codenames)
            assert client.post(turn_url(name, operation)).status_code == 403
        page = get(staff(*VIEW), page_url(BulkOperation, operation.pk))
        assert turn_url(name, operation) not in page
        assert staff(*VIEW, "replay_deadletter").get(turn_url(name, operation)).status_code == 405
        operation.refresh_from_db()
        assert operation.state == BulkState.RUNNING

    def test_that_there_is_not_is_not_found(self) -> None:
        client = staff(*VIEW, "replay_deadletter")
        for pk in ("x", "1", "9" * 30):
            url = reverse("admin:jobqueue_bulkoperation_pause", args=[pk])
            assert client.post(url).status_code == 404

    def test_shows_what_people_wrote_as_text(self, admin_client: Client) -> None:
        """C-97."""
        operation = bulk.ask(
            "discard",
            filters={"task": MARKUP},
            expected=1,
            by=Actor("1", MARKUP),
            reason=MARKUP,
        )
        BulkOperation.objects.update(last_error=MARKUP)
        assert_harmless(get(admin_client, page_url(BulkOperation, operation.pk)), is_expected=True)
        assert_harmless(get(admin_client, list_url(BulkOperation)), is_expected=True)

    def test_of_picked_letters_says_how_many(self, admin_client: Client) -> None:
        operation = bulk.ask("discard", ids=[1, 2, 3], expected=3)
        text = text_of(get(admin_client, page_url(BulkOperation, operation.pk)))
        assert "3 picked one by one" in text
        assert "as fast as it goes" in text


class TestDiscarded:
    def test_letter_says_by_whom_and_why_and_can_be_restored(self) -> None:
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk], by=ALICE, reason="sent by hand")
        client = staff(*VIEW, "discard_deadletter", "replay_deadletter")
        html = get(client, page_url(DeadLetter, letter.pk))
        assert "alice" in text_of(html)
        assert "sent by hand" in text_of(html)
        assert f"/{letter.pk}/restore/" in html
        for gone in ("replay", "discard", "edit"):
            assert f"/{letter.pk}/{gone}/" not in html

    @pytest.mark.parametrize("path", ["list", "page"])
    @pytest.mark.parametrize("is_on", [True, False])
    def test_letter_is_deleted_for_ever_only_where_that_is_on(
        self, path: str, settings: Any, *, is_on: bool
    ) -> None:
        settings.JOBQUEUE = {"DELETE_DEAD_LETTERS": is_on}
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk])
        client = staff(*VIEW, "delete_deadletter")
        url = reverse("admin:jobqueue_deadletter_delete_for_ever", args=[letter.pk])
        given = {"confirmed": "yes", "action": "delete_for_ever", "_selected_action": letter.pk}
        assert (url in get(client, page_url(DeadLetter, letter.pk))) is is_on
        assert ("delete_for_ever" in get(client, list_url(DeadLetter, discarded="yes"))) is is_on
        client.post(url if path == "page" else list_url(DeadLetter, discarded="yes"), given)
        assert DeadLetter.objects.exists() is not is_on

    def test_letter_that_is_open_is_not_deleted(self, settings: Any) -> None:
        settings.JOBQUEUE = {"DELETE_DEAD_LETTERS": True}
        letter = DeadLetterFactory()
        client = staff(*VIEW, "delete_deadletter")
        url = reverse("admin:jobqueue_deadletter_delete_for_ever", args=[letter.pk])
        client.post(url, {"confirmed": "yes"})
        assert DeadLetter.objects.get() == letter


class TestStory:
    def test_tells_of_earlier_replays(self, admin_client: Client) -> None:
        letter = DeadLetterFactory(last_error="no route", queue_name="mail")
        lifecycle.replay([letter.pk], by=ALICE, reason="mended", target_queue="slow")
        text = text_of(get(admin_client, page_url(Job, letter.pk)))
        for part in ("Replays", "alice", "mended", "mail → slow", "no route", "unchanged"):
            assert part in text

    def test_tells_who_edited_and_what_it_was(self) -> None:
        letter = DeadLetterFactory(
            task="tests.tasks.noop", kwargs={"plain": "old", "password": "hunter2"}
        )
        lifecycle.replay_edited(letter.pk, args=[], kwargs={}, by=ALICE)
        seen = get(staff(*VIEW, "view_payload"), page_url(Job, letter.pk))
        assert "edited by alice" in text_of(seen)
        assert '"plain": "old"' in text_of(seen)
        assert "hunter2" not in seen
        withheld = get(staff(*VIEW), page_url(Job, letter.pk))
        assert "edited by alice" in text_of(withheld)
        assert '"old"' not in text_of(withheld)
        without = get(staff("view_job", "view_payload"), page_url(Job, letter.pk))
        assert "edited by" not in without

    def test_leads_from_a_bulk_replay_to_its_operation(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        operation = bulk.ask("replay", expected=1, by=Actor("", MARKUP), reason=MARKUP)
        finish()
        html = get(admin_client, page_url(Job, letter.pk))
        assert f'href="{page_url(BulkOperation, operation.pk)}"' in html
        assert_harmless(html, is_expected=True)

    def test_of_many_replays_shows_the_newest(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        lifecycle.replay([letter.pk])
        first = Replay.objects.values().get()
        del first["id"]
        for fence in range(100, 125):
            Replay.objects.create(**first | {"fence": fence})
        text = text_of(get(admin_client, page_url(Job, letter.pk)))
        assert "Only the newest 20 are shown" in text

    def test_of_a_payload_that_nobody_can_read_is_told_too(self, admin_client: Client) -> None:
        letter = DeadLetterFactory(task="tests.tasks.noop")
        spoil(DeadLetter, letter.pk, "[" * 500 + "]" * 500)
        lifecycle.replay_edited(letter.pk, args=[], kwargs={})
        assert "nested too deeply" in get(admin_client, page_url(Job, letter.pk))


def send(order: int, password: str = "", **options: Any) -> None:
    """Be a task with a sensitive argument."""


@pytest.fixture
def letter() -> Iterator[DeadLetter]:
    """A letter with secrets by position, by name and within a list."""
    task(name="tests.send", version=2)(send)
    yield DeadLetterFactory(
        task="tests.send",
        version=2,
        args=[7, "hunter2"],
        kwargs={"to": {"token": "s3cret", "name": "a"}, "list": [{"token": "t0ken", "n": 1}]},
    )
    del registry.tasks["tests.send"]


def shown(client: Client, letter: DeadLetter) -> dict[str, str]:
    """Return what the form holds when it is opened."""
    form = client.get(edit_url(letter.pk)).context_data["form"]
    return {name: str(form[name].value() or "") for name in form.fields}


EDIT = (*VIEW, "edit_payload", "replay_deadletter", "view_payload")


class TestEdit:
    def test_shows_the_payload_with_masks(self, letter: DeadLetter) -> None:
        html = get(staff(*EDIT), edit_url(letter.pk))
        for secret in ("hunter2", "s3cret", "t0ken"):
            assert secret not in html
        assert "&quot;name&quot;: &quot;a&quot;" in html

    def test_replays_with_what_was_changed_and_leaves_masks_alone(self, letter: DeadLetter) -> None:
        client = staff(*EDIT)
        given = shown(client, letter)
        kwargs = json.loads(given["kwargs"])
        kwargs["to"]["name"] = "b"
        changed = given | {"kwargs": json.dumps(kwargs), "reason": "wrong name"}
        response = client.post(edit_url(letter.pk), changed)
        assert response.url == page_url(Job, letter.pk)
        job = Job.objects.get()
        assert job.args == [7, "hunter2"]
        assert job.kwargs["to"] == {"token": "s3cret", "name": "b"}
        assert job.kwargs["list"] == [{"token": "t0ken", "n": 1}]
        told = Replay.objects.get()
        assert (told.args, told.kwargs, told.reason) == (letter.args, letter.kwargs, "wrong name")
        assert told.actor == User.objects.get().username
        [line] = OperationLog.objects.all()
        assert (line.action, line.target_id) == ("replay edited", str(letter.pk))
        assert LogEntry.objects.get().object_id == str(letter.pk)

    def test_can_change_a_secret_and_the_queue(self, letter: DeadLetter) -> None:
        client = staff(*EDIT)
        given = shown(client, letter) | {"args": '[8, "new"]', "target_queue": "slow"}
        client.post(edit_url(letter.pk), given)
        assert Job.objects.values_list("args", "queue_name").get() == ([8, "new"], "slow")

    @pytest.mark.parametrize(
        ("given", "field", "said"),
        [
            ({"args": "[1"}, "args", "This is not JSON"),
            ({"args": "{}"}, "args", "This must be a list"),
            ({"kwargs": "[]"}, "kwargs", "This must be an object"),
            ({"args": "[NaN]"}, "args", "JSON has no NaN"),
            ({"args": "[1e400]"}, "args", "inf"),
            ({"args": '["\\u0000"]'}, "args", "a NUL character"),
            ({"args": '["\\ud800"]'}, "args", "a lone surrogate"),
            ({"args": "[" * 100 + "]" * 100}, "args", "levels deep"),
            ({"args": "[" * 100_000}, "args", "nested too deeply"),
            ({"args": f"[{'9' * 5000}]"}, "args", "digits"),
            ({"args": f"[{2**70}]"}, "args", "beyond 64 bits"),
            ({"kwargs": '{"a": 1e300}'}, "kwargs", "float of 1e16"),
            ({"args": f'[1, "{payloads.MASK}", "{payloads.MASK}"]'}, "args", "args[2] is a mask"),
            ({"kwargs": json.dumps({"password": payloads.MASK})}, "kwargs", "is a mask"),
            ({"kwargs": json.dumps({"x": payloads.MASK})}, "kwargs", "kwargs['x'] is a mask"),
            ({"args": "[]"}, "__all__", "missing a required argument"),
            ({"args": "[1, 2, 3]"}, "__all__", "too many positional"),
            ({"version": "3"}, "version", "reads version 2"),
            ({"version": "1"}, "version", "reads version 2"),
            ({"version": "x"}, "version", "whole number"),
            ({"target_queue": "No Such"}, "target_queue", "queue_name"),
            ({"args": json.dumps(["x" * 70_000])}, "args", "MAX_PAYLOAD_BYTES"),
        ],
    )
    def test_says_beside_the_field_what_is_wrong_and_writes_nothing(
        self, letter: DeadLetter, given: dict[str, str], field: str, said: str
    ) -> None:
        client = staff(*EDIT)
        response = client.post(edit_url(letter.pk), shown(client, letter) | given)
        assert response.status_code == 200
        errors = response.context_data["form"].errors
        assert list(errors) == [field]
        assert said in errors[field][0]
        assert "Nothing was done" in text_of(response.content.decode())
        assert DeadLetter.objects.get() == letter
        for model in (Job, Replay, LogEntry, OperationLog):
            assert not model._default_manager.exists()

    def test_of_a_vanished_task_says_so(self) -> None:
        gone = DeadLetterFactory(task="gone.tasks.vanished")
        client = staff(*EDIT)
        response = client.post(edit_url(gone.pk), shown(client, gone))
        assert "no task is registered" in text_of(response.content.decode())
        assert not Job.objects.exists()

    def test_of_a_payload_that_cannot_be_read_opens_and_can_be_replaced(
        self, letter: DeadLetter
    ) -> None:
        spoil(DeadLetter, letter.pk, "[" * 500 + "]" * 500)
        client = staff(*EDIT)
        given = shown(client, letter)
        assert "not shown" in given["kwargs"]
        assert client.post(edit_url(letter.pk), given).status_code == 200
        client.post(edit_url(letter.pk), given | {"kwargs": "{}"})
        assert Job.objects.get().kwargs == {}

    def test_shows_markup_as_text(self, letter: DeadLetter) -> None:
        DeadLetter.objects.update(kwargs={MARKUP: MARKUP})
        client = staff(*EDIT)
        assert_harmless(get(client, edit_url(letter.pk)), is_expected=True)
        response = client.post(edit_url(letter.pk), {"args": MARKUP, "kwargs": MARKUP})
        assert_harmless(response.content.decode(), is_expected=True)

    @pytest.mark.parametrize("missing", ["edit_payload", "replay_deadletter", "view_payload"])
    @pytest.mark.parametrize("method", ["get", "post"])
    def test_needs_three_permissions(self, letter: DeadLetter, missing: str, method: str) -> None:
        """C-96: to see, to edit and to replay."""
        client = staff(*(each for each in EDIT if each != missing))
        given = {"args": "[1]", "kwargs": "{}", "version": "2"}
        assert getattr(client, method)(edit_url(letter.pk), given).status_code == 403
        assert edit_url(letter.pk) not in get(client, page_url(DeadLetter, letter.pk))
        assert not Job.objects.exists()
        assert edit_url(letter.pk) in get(staff(*EDIT), page_url(DeadLetter, letter.pk))

    def test_of_what_is_no_open_letter_is_not_found(self, letter: DeadLetter) -> None:
        client = staff(*EDIT)
        lifecycle.discard([letter.pk])
        for pk in (letter.pk, 10**15, "x"):
            url = edit_url(letter.pk).replace(str(letter.pk), str(pk))
            assert client.get(url).status_code == 404

    def test_of_a_number_that_is_taken_is_refused(self, letter: DeadLetter) -> None:
        JobFactory(id=letter.pk)
        client = staff("view_deadletter", *EDIT[4:])
        response = client.post(edit_url(letter.pk), shown(client, letter))
        assert "IntegrityError" in response.content.decode()
        assert DeadLetter.objects.get() == letter


class TestUnmask:
    def test_of_a_list_whose_items_were_moved_mixes_no_secrets_up(self) -> None:
        original = [{"n": 1, "token": "one"}, {"n": 2, "token": "two"}]
        moved = [{"n": 2, "token": payloads.MASK}, {"n": 1, "token": payloads.MASK}]
        with pytest.raises(unmasking.MaskLeft, match=r"x\['l'\]\[0\]\['token'\] is a mask"):
            unmasking.unmask({"l": moved}, {"l": original}, where="x")

    def test_of_a_list_with_another_item_keeps_those_that_are_as_they_were(self) -> None:
        original = {"l": [{"n": 1, "token": "one"}]}
        edited = {"l": [{"n": 1, "token": payloads.MASK}, {"n": 2, "token": "new"}]}
        assert unmasking.unmask(edited, original, where="x")["l"] == [
            {"n": 1, "token": "one"},
            {"n": 2, "token": "new"},
        ]

    def test_takes_the_mask_itself_where_that_is_what_was_stored(self) -> None:
        stored = {"token": payloads.MASK}
        assert unmasking.unmask(stored, stored, where="x") == stored
