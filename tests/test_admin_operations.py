"""What operators do in the admin: who may, what is asked, what is done, said and logged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection, connections
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import lifecycle
from jobqueue.admin import dead_letters, operations
from jobqueue.lifecycle import Actor
from jobqueue.models import Attempt, DeadLetter, Job, Worker
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from tests.factories import DeadLetterFactory, JobFactory

pytestmark = pytest.mark.django_db

VIEW = ("view_job", "view_attempt", "view_deadletter", "view_worker")


class Case(NamedTuple):
    """One operation, a row that it can be done to, and how to see that it was done."""

    name: str
    permission: str
    model: type[Model]
    make: Callable[[], Any]
    is_done: Callable[[int], bool]
    asks: bool


CASES = [
    Case(
        "replay",
        "replay_deadletter",
        DeadLetter,
        DeadLetterFactory,
        lambda pk: Job.objects.filter(pk=pk, status=Status.PENDING).exists(),
        asks=False,
    ),
    Case(
        "discard",
        "discard_deadletter",
        DeadLetter,
        DeadLetterFactory,
        lambda pk: not DeadLetter.objects.filter(pk=pk).exists(),
        asks=True,
    ),
    Case(
        "cancel",
        "cancel_job",
        Job,
        JobFactory,
        lambda pk: Job.objects.filter(pk=pk, status=Status.CANCELLED).exists(),
        asks=True,
    ),
    Case(
        "run_now",
        "run_job_now",
        Job,
        lambda: JobFactory(scheduled=True),
        lambda pk: Job.objects.filter(pk=pk, status=Status.PENDING).exists(),
        asks=False,
    ),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_path = pytest.mark.parametrize("path", ["list", "page"])


def staff(*codenames: str) -> Client:
    """Log in a member of staff who has these permissions and no others."""
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def list_url(model: type[Model]) -> str:
    return reverse(f"admin:jobqueue_{model._meta.model_name}_changelist")


def page_url(model: type[Model], pk: int) -> str:
    return reverse(f"admin:jobqueue_{model._meta.model_name}_change", args=[pk])


def operation_url(case: Case, pk: int) -> str:
    return reverse(f"admin:jobqueue_{case.model._meta.model_name}_{case.name}", args=[pk])


def ask(client: Client, case: Case, path: str, *pks: int, **extra: str) -> Any:
    """Press the button: of the list with the rows picked, or of the row's page."""
    if path == "page":
        return client.post(operation_url(case, pks[0]), extra)
    data = {"action": case.name, "_selected_action": pks, "index": "0"}
    return client.post(list_url(case.model), data | extra)


def confirm(client: Client, response: Any) -> Any:
    """Send the form of a confirmation page as a browser would."""
    data: dict[str, list[str]] = {"confirmed": ["yes"]}
    for name, value in response.context_data["hidden"]:
        data.setdefault(name, []).append(value)
    return client.post(response.wsgi_request.get_full_path(), data)


def do(client: Client, case: Case, path: str, *pks: int, **extra: str) -> list[str]:
    """Press the button, confirm if asked, and return what the page says then."""
    response = ask(client, case, path, *pks, **extra)
    if case.asks and response.status_code == 200:
        response = confirm(client, response)
    return said(client, response)


def said(client: Client, response: Any) -> list[str]:
    assert response.status_code == 302, response.content
    page = client.get(response.url, follow=True)
    return [str(message) for message in page.context["messages"]]


class TestPermission:
    @each_case
    @each_path
    def test_with_its_own_it_is_done(self, case: Case, path: str) -> None:
        row = case.make()
        do(staff(*VIEW, case.permission), case, path, row.pk)
        assert case.is_done(row.pk)

    @each_case
    @each_path
    def test_with_every_other_it_is_refused(self, case: Case, path: str) -> None:
        """C-96: one permission each, and none of them implies another."""
        row = case.make()
        others = [each.permission for each in CASES if each is not case]
        client = staff(*VIEW, *others)
        response = ask(client, case, path, row.pk, confirmed="yes")
        assert response.status_code in (302, 403)
        assert not case.is_done(row.pk)
        assert not LogEntry.objects.exists()

    @each_case
    @each_path
    @pytest.mark.parametrize("permissions", [VIEW, ()], ids=["viewer", "nobody"])
    def test_without_it_a_forged_post_is_refused(
        self, case: Case, path: str, permissions: tuple[str, ...]
    ) -> None:
        """C-96: what is not offered is not done either."""
        row = case.make()
        ask(staff(*permissions), case, path, row.pk, confirmed="yes")
        assert not case.is_done(row.pk)

    @each_case
    def test_without_it_a_forged_post_for_all_that_match_is_refused(self, case: Case) -> None:
        row = case.make()
        ask(staff(*VIEW), case, "list", row.pk, confirmed="yes", select_across="1")
        assert not case.is_done(row.pk)

    @each_case
    @each_path
    def test_alone_without_viewing_is_not_enough(self, case: Case, path: str) -> None:
        row = case.make()
        response = ask(staff(case.permission), case, path, row.pk, confirmed="yes")
        assert response.status_code == 403
        assert not case.is_done(row.pk)

    @each_case
    @each_path
    def test_anonymous_visitors_are_sent_to_log_in(self, case: Case, path: str) -> None:
        row = case.make()
        response = ask(Client(), case, path, row.pk, confirmed="yes")
        assert response.url.startswith("/admin/login/")
        assert not case.is_done(row.pk)

    @each_case
    def test_decides_which_controls_are_shown(self, case: Case) -> None:
        row = case.make()
        for client, is_shown in ((staff(*VIEW), False), (staff(*VIEW, case.permission), True)):
            page = client.get(page_url(case.model, row.pk)).content.decode()
            rows = client.get(list_url(case.model)).content.decode()
            assert (operation_url(case, row.pk) in page) is is_shown
            assert (f'value="{case.name}"' in rows) is is_shown
            assert ('name="_selected_action"' in rows) is is_shown

    @pytest.mark.parametrize("model", [Job, DeadLetter])
    def test_viewers_can_neither_add_change_nor_delete(self, model: type[Model]) -> None:
        """C-100: an open page cannot be saved over a job that moved on."""
        row: Any = JobFactory() if model is Job else DeadLetterFactory()
        client = staff(*VIEW)
        User.objects.update(is_superuser=True)
        before = model._default_manager.values().get(pk=row.pk)
        base = f"admin:jobqueue_{model._meta.model_name}"
        for url in (
            reverse(f"{base}_add"),
            reverse(f"{base}_change", args=[row.pk]),
            reverse(f"{base}_delete", args=[row.pk]),
        ):
            data = {"task": "x", "queue_name": "x", "status": "succeeded", "post": "yes"}
            assert client.post(url, data | {"_save": "Save"}).status_code == 403
        assert model._default_manager.values().get(pk=row.pk) == before


class TestRequest:
    @each_case
    def test_get_changes_nothing(self, case: Case) -> None:
        """C-96: a link on somebody's page must not trigger anything."""
        row = case.make()
        client = staff(*VIEW, case.permission)
        url = operation_url(case, row.pk)
        query = f"?action={case.name}&_selected_action={row.pk}&index=0&confirmed=yes"
        assert client.get(url + "?confirmed=yes").status_code == 405
        assert client.head(url).status_code == 405
        client.get(list_url(case.model) + query, follow=True)
        assert not case.is_done(row.pk)

    @each_case
    @each_path
    def test_without_the_csrf_token_it_is_refused(self, case: Case, path: str) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        client.handler.enforce_csrf_checks = True
        assert ask(client, case, path, row.pk, confirmed="yes").status_code == 403
        assert not case.is_done(row.pk)

    @each_case
    def test_from_the_page_brings_the_csrf_token(self, case: Case) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        client.handler.enforce_csrf_checks = True
        page = client.get(page_url(case.model, row.pk)).content.decode()
        form = page.partition(f'action="{operation_url(case, row.pk)}"')[2].partition("</form>")[0]
        [token] = re.findall(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
        client.post(operation_url(case, row.pk), {"csrfmiddlewaretoken": token, "confirmed": "yes"})
        assert case.is_done(row.pk)

    @each_case
    def test_a_number_that_is_none_is_not_found(self, case: Case) -> None:
        client = staff(*VIEW, case.permission)
        url = operation_url(case, 1).replace("/1/", "/x/")
        assert client.post(url).status_code == 404

    @each_case
    @pytest.mark.parametrize("number", [10**17, 10**30])
    def test_a_number_without_a_row_is_reported(self, case: Case, number: int) -> None:
        client = staff(*VIEW, case.permission)
        [text] = said(client, client.post(operation_url(case, number)))
        assert "left as it is" in text


class TestQuestion:
    @pytest.mark.parametrize(
        "case", [each for each in CASES if each.asks], ids=lambda case: case.name
    )
    @each_path
    def test_comes_before_what_cannot_be_undone(self, case: Case, path: str) -> None:
        row = case.make()
        response = ask(staff(*VIEW, case.permission), case, path, row.pk)
        assert response.status_code == 200
        assert f"#{row.pk}" in response.content.decode()
        assert not case.is_done(row.pk)
        assert not LogEntry.objects.exists()

    def test_counts_only_what_it_is_for(self) -> None:
        waiting, done = JobFactory(), JobFactory(succeeded=True)
        client = staff(*VIEW, "cancel_job")
        response = ask(client, CASES[2], "list", waiting.pk, done.pk)
        assert response.context_data["count"] == "1"
        assert response.context_data["others"] == 1
        assert [row.pk for row in response.context_data["named"]] == [waiting.pk]

    def test_is_not_asked_when_there_is_nothing_to_do(self) -> None:
        job = JobFactory(succeeded=True)
        client = staff(*VIEW, "cancel_job")
        [text] = said(client, ask(client, CASES[2], "list", job.pk))
        assert text.startswith("1 was left as it is")

    def test_for_all_that_match_carries_the_filter_and_no_row(self) -> None:
        """C-95: a hundred thousand rows must not become as many fields of a form."""
        wanted = [DeadLetterFactory(task="tests.tasks.fail") for _ in range(3)]
        other = DeadLetterFactory(task="tests.tasks.noop")
        client = staff(*VIEW, "discard_deadletter")
        url = list_url(DeadLetter) + "?task=tests.tasks.fail"
        data = {"action": "discard", "_selected_action": wanted[0].pk, "select_across": "1"}
        response = client.post(url, data)
        assert response.context_data["count"] == "3"
        names = [name for name, _value in response.context_data["hidden"]]
        assert names.count("_selected_action") == 1
        assert said(client, confirm(client, response)) == ["3 dead letters were discarded."]
        assert list(DeadLetter.objects.values_list("pk", flat=True)) == [other.pk]

    def test_for_all_that_match_does_not_cover_what_came_after_it(self) -> None:
        seen = DeadLetterFactory(died_ago=timedelta(minutes=1))
        client = staff(*VIEW, "discard_deadletter")
        response = ask(client, CASES[1], "list", seen.pk, select_across="1")
        newer = DeadLetterFactory()
        confirm(client, response)
        assert list(DeadLetter.objects.values_list("pk", flat=True)) == [newer.pk]

    @pytest.mark.parametrize("until", ["", "x", "2026-13-45T00:00:00", "2026-01-01T00:00:00"])
    def test_survives_an_instant_that_is_none(self, until: str) -> None:
        letter = DeadLetterFactory()
        client = staff(*VIEW, "discard_deadletter")
        ask(client, CASES[1], "list", letter.pk, select_across="1", until=until, confirmed="yes")
        assert not DeadLetter.objects.exists()


class TestCount:
    @each_case
    def test_says_how_many_were_done_and_how_many_were_not(self, case: Case) -> None:
        """C-106: the message claims no more than was done."""
        rows = [case.make() for _ in range(3)]
        gone = 10**15
        texts = do(staff(*VIEW, case.permission), case, "list", *(row.pk for row in rows), gone)
        assert [text.split()[0] for text in texts] == ["3", "1"]
        assert "left as it is" in texts[1]
        assert all(case.is_done(row.pk) for row in rows)

    @each_case
    def test_is_the_same_from_the_list_and_from_the_page(self, case: Case) -> None:
        """C-106: one way in, two doors."""
        client = staff(*VIEW, case.permission)
        one, other = case.make(), case.make()
        assert do(client, case, "list", one.pk) == do(client, case, "page", other.pk)

    def test_of_a_selection_with_a_row_picked_twice(self) -> None:
        letter = DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        texts = do(client, CASES[0], "list", letter.pk, letter.pk)
        assert texts == ["1 dead letter was replayed: it is a pending job again."]

    def test_of_an_empty_selection(self) -> None:
        letter = DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        response = client.post(list_url(DeadLetter), {"action": "replay", "index": "0"})
        assert "No items have been changed" in said(client, response)[0]
        assert DeadLetter.objects.get() == letter

    def test_of_all_that_match_without_any(self) -> None:
        client = staff(*VIEW, "replay_deadletter")
        [text] = do(client, CASES[0], "list", 0, select_across="1")
        assert text.startswith("0 were left")


class TestReplay:
    def test_twice_starts_one_run(self) -> None:
        """C-104: a double click replays once, and the second is told."""
        letter = DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        [first] = do(client, CASES[0], "page", letter.pk)
        [second] = do(client, CASES[0], "page", letter.pk)
        assert (first[:1], second.split(":")[0]) == ("1", "1 was left as it is")
        assert Job.objects.count() == 1

    def test_leads_to_the_job_that_it_has_become(self) -> None:
        letter = DeadLetterFactory()
        response = ask(staff(*VIEW, "replay_deadletter"), CASES[0], "page", letter.pk)
        assert response.url == page_url(Job, letter.pk)

    def test_leads_to_the_list_for_those_who_may_not_see_jobs(self) -> None:
        letter = DeadLetterFactory()
        client = staff("view_deadletter", "replay_deadletter")
        assert ask(client, CASES[0], "page", letter.pk).url == list_url(DeadLetter)

    def test_that_fails_again_leaves_one_dead_letter(self) -> None:
        """C-104 and C-107: a full budget again, due now, and one entry after failing again."""
        letter = DeadLetterFactory(task="tests.tasks.fail", attempts=5, max_attempts=5)
        client = staff(*VIEW, "replay_deadletter")
        for replays in (1, 2):
            do(client, CASES[0], "page", letter.pk)
            run_jobs()
            again = DeadLetter.objects.get()
            assert (again.pk, again.replays) == (letter.pk, replays)
            assert not Job.objects.exists()
        assert Attempt.objects.of(letter.pk).count() == 10

    @pytest.mark.parametrize("name", ["replay", "discard"])
    @each_path
    def test_needs_no_task_to_be_registered(self, name: str, path: str) -> None:
        """C-105: a dead letter of a vanished task can be dealt with."""
        [case] = [each for each in CASES if each.name == name]
        letter = DeadLetterFactory(task="gone.tasks.vanished")
        do(staff(*VIEW, case.permission), case, path, letter.pk)
        assert case.is_done(letter.pk)

    def test_of_what_the_database_refuses_names_it_and_does_the_others(self) -> None:
        """C-103: one bad row does not make it fail for everybody."""
        letters = [DeadLetterFactory() for _ in range(9)]
        bad = [letters[2].pk, letters[7].pk]
        for pk in bad:
            JobFactory(id=pk)  # the number is taken
        client = staff(*VIEW, "replay_deadletter")
        texts = do(client, CASES[0], "list", *(letter.pk for letter in letters))
        assert texts[0].startswith("7 dead letters were replayed")
        assert all(f"{pk} (IntegrityError: " in texts[1] for pk in bad)
        assert list(DeadLetter.objects.order_by("pk").values_list("pk", flat=True)) == bad
        assert LogEntry.objects.count() == 7

    def test_of_a_payload_that_nobody_can_read(self) -> None:
        """C-103: it is moved unread, and comes back as what it is."""
        letter = DeadLetterFactory()
        spoil(DeadLetter, letter.pk, "9" * 5000)
        do(staff(*VIEW, "replay_deadletter"), CASES[0], "page", letter.pk)
        assert Job.objects.filter(pk=letter.pk).exists()


def spoil(model: type[Model], pk: int, json: str) -> None:
    """Put something into a row that no enqueue would have let through."""
    with connection.cursor() as cursor:
        table = model._meta.db_table
        cursor.execute(f"UPDATE {table} SET kwargs = %s WHERE id = %s", [json, pk])


class TestCancel:
    def test_asks_a_running_job_to_stop(self) -> None:
        job = JobFactory(claimed=True)
        client = staff(*VIEW, "cancel_job")
        [text] = do(client, CASES[2], "page", job.pk)
        assert text == "1 job was cancelled or, if it runs, asked to stop."
        job.refresh_from_db()
        assert (job.status, job.cancel_requested) == (Status.CLAIMED, True)

    @pytest.mark.parametrize("trait", ["succeeded", "cancelled"])
    def test_is_not_offered_for_a_finished_job(self, trait: str) -> None:
        job = JobFactory(**{trait: True})
        page = staff(*VIEW, "cancel_job", "run_job_now").get(page_url(Job, job.pk))
        assert page.context["buttons"] == []


class TestRunNow:
    @pytest.mark.parametrize("trait", ["pending", "claimed", "succeeded"])
    @each_path
    def test_leaves_alone_what_is_not_scheduled(self, trait: str, path: str) -> None:
        job = JobFactory(**{trait: True})
        client = staff(*VIEW, "run_job_now")
        [text] = do(client, CASES[3], path, job.pk)
        assert text.startswith("1 was left as it is")
        assert Job.objects.get() == job
        assert not LogEntry.objects.exists()


class TestLog:
    @each_case
    @each_path
    def test_names_who_did_what_to_which_row(self, case: Case, path: str) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        do(client, case, path, row.pk)
        entry = LogEntry.objects.get()
        assert entry.user == User.objects.get()
        assert (entry.object_id, entry.content_type.model_class()) == (str(row.pk), case.model)
        assert entry.object_repr == f"{row.task} #{row.pk}"
        assert entry.action_flag == (DELETION if case.name == "discard" else CHANGE)

    def test_is_not_written_for_what_was_not_done(self) -> None:
        waiting, done = JobFactory(), JobFactory(succeeded=True)
        do(staff(*VIEW, "cancel_job"), CASES[2], "list", waiting.pk, done.pk)
        assert LogEntry.objects.get().object_id == str(waiting.pk)

    def test_keeps_no_payload(self) -> None:
        letter = DeadLetterFactory(kwargs={"plain": "confidential"}, message="confidential")
        do(staff(*VIEW, "discard_deadletter"), CASES[1], "list", letter.pk)
        entry = LogEntry.objects.get()
        assert "confidential" not in entry.object_repr + entry.change_message

    @each_case
    def test_and_what_was_done_commit_together(
        self, case: Case, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise OperationalError("no room for the log")

        row = case.make()
        monkeypatch.setattr(LogEntry.objects, "log_actions", refuse)
        [text] = do(staff(*VIEW, case.permission), case, "list", row.pk)
        assert "no room for the log" in text
        assert not case.is_done(row.pk)


class TestManyRows:
    """C-95: everything that matches, in batches, and never half of it without saying so."""

    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operations, "BATCH", 10)

    @each_case
    def test_are_all_done_batch_by_batch(self, case: Case) -> None:
        rows = [case.make() for _ in range(25)]
        client = staff(*VIEW, case.permission)
        [text] = do(client, case, "list", rows[0].pk, select_across="1")
        assert text.startswith("25 ")
        assert all(case.is_done(row.pk) for row in rows)
        assert LogEntry.objects.count() == 25

    def test_are_all_done_without_javascript_too(self) -> None:
        """The box sends its value after that of the hidden field."""
        rows = [DeadLetterFactory() for _ in range(3)]
        client = staff(*VIEW, "replay_deadletter")
        page = client.get(list_url(DeadLetter)).content.decode()
        assert page.index('name="select_across"') < page.rindex(
            'type="checkbox" name="select_across"'
        )
        data = {"action": "replay", "_selected_action": rows[0].pk, "select_across": ["0", "1"]}
        [text] = said(client, client.post(list_url(DeadLetter), data | {"index": "0"}))
        assert text.startswith("3 ")

    def test_beyond_what_the_list_shows_are_done_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.admin.paginator.CappedPaginator.most", 5)
        rows = [DeadLetterFactory() for _ in range(12)]
        client = staff(*VIEW, "replay_deadletter")
        [text] = do(client, CASES[0], "list", rows[0].pk, select_across="1")
        assert text.startswith("12 ")

    def test_that_take_too_long_are_done_in_part_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "TIME_LIMIT", timedelta(0))
        rows = [DeadLetterFactory() for _ in range(15)]
        client = staff(*VIEW, "replay_deadletter")
        done, stopped = do(client, CASES[0], "list", rows[0].pk, select_across="1")
        assert done.startswith("10 ")
        assert stopped.startswith("Stopped early")
        assert DeadLetter.objects.count() == 5
        [rest] = do(client, CASES[0], "list", rows[-1].pk, select_across="1")
        assert rest.startswith("5 ")

    def test_that_meet_a_failing_database_are_done_in_part_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []

        def replay(ids: list[int], **given: Any) -> list[int]:
            calls.append(len(ids))
            if len(calls) == 2:
                raise OperationalError("deadlock detected\nDETAIL: rows and all")
            return lifecycle.replay(ids, **given)

        monkeypatch.setitem(vars(dead_letters.REPLAY), "perform", replay)
        rows = [DeadLetterFactory() for _ in range(25)]
        client = staff(*VIEW, "replay_deadletter")
        done, stopped = do(client, CASES[0], "list", rows[0].pk, select_across="1")
        assert done.startswith("10 ")
        assert "deadlock detected)" in stopped
        assert DeadLetter.objects.count() == LogEntry.objects.count() + 5 == 15

    def test_take_few_statements(self, django_assert_max_num_queries: Any) -> None:
        rows = [DeadLetterFactory() for _ in range(30)]
        client = staff(*VIEW, "replay_deadletter")
        with django_assert_max_num_queries(60) as captured:
            ask(client, CASES[0], "list", rows[0].pk, select_across="1")
        assert DeadLetter.objects.count() == 0
        assert not [
            each for each in captured if "args" in each["sql"] and "SELECT" in each["sql"][:6]
        ]


class JobsElsewhere:
    """Routes jobqueue to an alias of its own."""

    def db_for_read(self, model: type[Model], **hints: object) -> str | None:
        return "jobs" if model._meta.app_label == "jobqueue" else None

    def db_for_write(self, model: type[Model], **hints: object) -> str | None:
        return "jobs" if model._meta.app_label == "jobqueue" else None


class ReadsElsewhere(JobsElsewhere):
    """Writes jobs to their alias and reads them from the other, as from a replica."""

    def db_for_read(self, model: type[Model], **hints: object) -> str | None:
        return None


@pytest.fixture
def other_alias(transactional_db: None, settings: Any) -> Iterator[None]:
    """Reach the jobs through another alias, with a connection of its own, to the same database."""
    connections.settings["jobs"] = connections.settings["default"]
    connections["jobs"].connect()  # Django's tests refuse to do it for an alias they do not know
    settings.DATABASE_ROUTERS = [JobsElsewhere()]
    yield
    connections["jobs"].close()
    del connections["jobs"]
    del connections.settings["jobs"]


@pytest.mark.usefixtures("other_alias")
class TestAnotherAlias:
    """C-108: everything about jobs happens where the routers put them."""

    @pytest.mark.postgresql  # elsewhere the second connection waits for the first one's transaction
    @each_case
    @each_path
    def test_is_used_for_all_that_is_done(self, case: Case, path: str) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        with CaptureQueriesContext(connections["default"]) as on_default:
            do(client, case, path, row.pk)
        assert case.is_done(row.pk)
        assert LogEntry.objects.count() == 1
        assert not [each for each in on_default if '"jobqueue_' in each["sql"]]

    @pytest.mark.postgresql
    def test_to_write_to_is_read_from_too_before_writing(self, settings: Any) -> None:
        """What a replica says may be out of date."""
        settings.DATABASE_ROUTERS = [ReadsElsewhere()]
        letter = DeadLetterFactory()
        user = User.objects.create_user("operator")
        with CaptureQueriesContext(connections["default"]) as on_replica:
            rows = DeadLetter.objects.all()
            order = operations.Order(user_id=user.pk, by=Actor(str(user.pk), "operator"))
            tally = operations.run(dead_letters.REPLAY, rows, order)
        assert tally.done == 1
        assert Job.objects.get().pk == letter.pk
        assert not [each for each in on_replica if '"jobqueue_' in each["sql"]]

    @pytest.mark.parametrize("model", [Job, Attempt, DeadLetter, Worker])
    def test_is_used_for_all_that_is_shown(self, model: type[Model]) -> None:
        client = staff(*VIEW)
        with CaptureQueriesContext(connections["default"]) as on_default:
            assert client.get(list_url(model)).status_code == 200
        assert not [each for each in on_default if '"jobqueue_' in each["sql"]]
