"""What operators do in the admin: who may, what is asked, what is done, said and logged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.db import OperationalError, connection, connections
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from jobqueue import lifecycle
from jobqueue.admin import letter_operations, operations
from jobqueue.lifecycle import Actor
from jobqueue.models import Attempt, DeadLetter, Job, Lease, OperationLog, Worker
from jobqueue.querysets import from_now
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory, WorkerFactory

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)

VIEW = ("view_job", "view_attempt", "view_deadletter", "view_worker", "view_lease")


def lease_row(**options: Any) -> Lease:
    """Return a claimed job as the lease on it."""
    return Lease.objects.get(pk=JobFactory(claimed=True, **options).pk)


def dead_worker() -> Worker:
    """Return a worker that is gone, and has left a lease behind."""
    worker: Worker = WorkerFactory(silent_for=timedelta(hours=1))
    JobFactory(claimed=True, claimed_by=worker.name)
    return worker


def holds_nothing(worker_id: int) -> bool:
    name = Worker.objects.get(pk=worker_id).name
    return not Job.objects.claimed().filter(claimed_by=name).exists()


class Case(NamedTuple):
    """One operation, a row that it can be done to, and how to see that it was done."""

    name: str
    permission: str
    model: type[Model]
    make: Callable[[], Any]
    is_done: Callable[[int], bool]
    asks: bool
    #: What the question asks for.
    values: Mapping[str, str] = MappingProxyType({})


def make_discarded() -> DeadLetter:
    letter = DeadLetterFactory()
    lifecycle.discard([letter.pk])
    return letter


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
        lambda pk: DeadLetter.objects.discarded().filter(pk=pk).exists(),
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
    Case(
        "move",
        "move_job",
        Job,
        JobFactory,
        lambda pk: Job.objects.filter(pk=pk, queue_name="elsewhere").exists(),
        asks=True,
        values={"queue_name": "elsewhere", "reason": "flooded"},
    ),
    Case(
        "prioritise",
        "prioritise_job",
        Job,
        JobFactory,
        lambda pk: Job.objects.filter(pk=pk, priority=42).exists(),
        asks=True,
        values={"priority": "42"},
    ),
    Case(
        "extend",
        "extend_lease",
        Lease,
        lease_row,
        lambda pk: Job.objects.filter(pk=pk, claimed_until__gt=from_now(HOUR)).exists(),
        asks=True,
        values={"by_span": "120"},
    ),
    Case(
        "release",
        "release_lease",
        Lease,
        lease_row,
        lambda pk: Job.objects.filter(pk=pk, status=Status.PENDING).exists(),
        asks=True,
    ),
    Case("release_leases", "release_lease", Worker, dead_worker, holds_nothing, asks=True),
    Case(
        "restore",
        "discard_deadletter",
        DeadLetter,
        make_discarded,
        lambda pk: DeadLetter.objects.open().filter(pk=pk).exists(),
        asks=False,
    ),
]
REPLAY, DISCARD, CANCEL, RUN_NOW = CASES[:4]
RESTORE = CASES[-1]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_path = pytest.mark.parametrize("path", ["list", "page"])
#: From the list, dead letters are replayed and discarded by workers: see test_admin_letters.
BY_WORKERS = ("replay", "discard")


def named(value: Any) -> str:
    return value if isinstance(value, str) else str(value.name)


each_way = pytest.mark.parametrize(
    ("case", "path"),
    [
        (case, path)
        for case in CASES
        for path in ("list", "page")
        if path == "page" or case.name not in BY_WORKERS
    ],
    ids=named,
)
each_in_lists = pytest.mark.parametrize(
    "case", [each for each in CASES if each.name not in BY_WORKERS], ids=named
)


def staff(*codenames: str) -> Client:
    """Log in a member of staff who has these permissions and no others."""
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


def list_url(model: type[Model]) -> str:
    return reverse(f"admin:jobqueue_{model._meta.model_name}_changelist")


def acting_url(case: Case) -> str:
    """Return the list that offers it: what is restored is not among the open letters."""
    return list_url(case.model) + ("?discarded=yes" if case is RESTORE else "")


def page_url(model: type[Model], pk: int) -> str:
    return reverse(f"admin:jobqueue_{model._meta.model_name}_change", args=[pk])


def operation_url(case: Case, pk: int) -> str:
    return reverse(f"admin:jobqueue_{case.model._meta.model_name}_{case.name}", args=[pk])


def ask(client: Client, case: Case, path: str, *pks: int, **extra: str) -> Any:
    """Press the button: of the list with the rows picked, or of the row's page."""
    extra = {**case.values, **extra}
    if path == "page":
        return client.post(operation_url(case, pks[0]), extra)
    data = {"action": case.name, "_selected_action": pks, "index": "0"}
    return client.post(acting_url(case), data | extra)


def confirm(client: Client, response: Any, **values: str) -> Any:
    """Send the form of a confirmation page as a browser would."""
    data: dict[str, Any] = {"confirmed": ["yes"], **values}
    for name, value in response.context_data["hidden"]:
        data.setdefault(name, []).append(value)
    return client.post(response.wsgi_request.get_full_path(), data)


def said(client: Client, response: Any) -> list[str]:
    """Return what the next page would say, without opening it: see `shown`."""
    assert response.status_code == 302, response.content
    client.cookies.pop("messages", None)
    return [str(message) for message in get_messages(response.wsgi_request)]


def shown(client: Client, response: Any) -> list[str]:
    """Follow to the next page, and return what it says."""
    assert response.status_code == 302, response.content
    page = client.get(response.url, follow=True)
    texts = [str(message) for message in page.context["messages"]]
    assert all(escape(text) in page.content.decode() for text in texts)
    return texts


def perform(client: Client, case: Case, path: str, *pks: int, **extra: str) -> Any:
    """Press the button, confirm if asked, and return the last answer."""
    response = ask(client, case, path, *pks, **extra)
    if case.asks and response.status_code == 200:
        response = confirm(client, response, **case.values)
    return response


def do(client: Client, case: Case, path: str, *pks: int, **extra: str) -> list[str]:
    """Press the button, confirm if asked, and return what the next page would say then."""
    return said(client, perform(client, case, path, *pks, **extra))


class TestPermission:
    @each_way
    def test_with_its_own_it_is_done_and_both_logs_say_who_did_it(
        self, case: Case, path: str
    ) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        [text] = shown(client, perform(client, case, path, row.pk))
        assert text.startswith("1 ")
        assert case.is_done(row.pk)
        user = User.objects.get()

        entry = LogEntry.objects.get()
        assert entry.user == user
        assert (entry.object_id, entry.content_type.model_class()) == (str(row.pk), case.model)
        assert entry.object_repr == str(row)
        assert entry.action_flag == CHANGE

        model: Any = case.model._meta.concrete_model
        [line] = OperationLog.objects.of(model, row.pk)
        assert (line.actor_id, line.actor) == (str(user.pk), user.username)
        assert line.reason == case.values.get("reason", "")
        assert re.fullmatch(r"op-[0-9a-f]{16}", line.correlation_id)

    @each_way
    def test_without_it_a_forged_post_is_refused(self, case: Case, path: str) -> None:
        """C-96: what is not offered is not done either, and no permission implies another."""
        row = case.make()
        others = {each.permission for each in CASES} - {case.permission}
        for permissions in ((*VIEW, *others), VIEW, ()):
            client = staff(*permissions)
            response = ask(client, case, path, row.pk, confirmed="yes")
            assert response.status_code in (200, 302, 403)
            assert b'name="confirmed"' not in response.content
            ask(client, case, "list", row.pk, confirmed="yes", select_across="1")
        # The permission without that to see the rows is not enough.
        alone = ask(staff(case.permission), case, path, row.pk, confirmed="yes")
        assert alone.status_code == 403
        anonymous = ask(Client(), case, path, row.pk, confirmed="yes")
        assert anonymous.url.startswith("/admin/login/")
        assert not case.is_done(row.pk)
        assert not LogEntry.objects.exists()

    @each_case
    def test_decides_which_controls_are_shown(self, case: Case) -> None:
        row = case.make()
        for client, is_shown in ((staff(*VIEW), False), (staff(*VIEW, case.permission), True)):
            page = client.get(page_url(case.model, row.pk)).content.decode()
            rows = client.get(acting_url(case)).content.decode()
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
        query += "&discarded=yes"
        assert client.get(url + "?confirmed=yes").status_code == 405
        assert client.head(url).status_code == 405
        client.get(list_url(case.model) + query, follow=True)
        assert not case.is_done(row.pk)

    @each_way
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
        data = {"csrfmiddlewaretoken": token, "confirmed": "yes", **case.values}
        client.post(operation_url(case, row.pk), data)
        assert case.is_done(row.pk)

    @each_case
    def test_a_number_that_is_none_is_not_found(self, case: Case) -> None:
        client = staff(*VIEW, case.permission)
        url = operation_url(case, 1).replace("/1/", "/x/")
        assert client.post(url).status_code == 404

    @each_case
    def test_a_number_without_a_row_is_reported(self, case: Case) -> None:
        client = staff(*VIEW, case.permission)
        for number in (10**17, 10**30):
            [text] = said(client, client.post(operation_url(case, number)))
            assert "left as it is" in text


class TestQuestion:
    @pytest.mark.parametrize(
        ("case", "path"), [(DISCARD, "page"), (CANCEL, "page"), (CANCEL, "list")], ids=named
    )
    def test_comes_before_what_cannot_be_undone(self, case: Case, path: str) -> None:
        row = case.make()
        response = ask(staff(*VIEW, case.permission), case, path, row.pk)
        assert response.status_code == 200
        assert str(row) in response.content.decode()
        assert not case.is_done(row.pk)
        assert not LogEntry.objects.exists()

    def test_counts_only_what_it_is_for(self) -> None:
        waiting, done = JobFactory(), JobFactory(succeeded=True)
        client = staff(*VIEW, "cancel_job")
        response = ask(client, CANCEL, "list", waiting.pk, done.pk)
        assert response.context_data["count"] == "1"
        assert response.context_data["others"] == 1
        assert [row.pk for row in response.context_data["named"]] == [waiting.pk]

    def test_is_not_asked_when_there_is_nothing_to_do(self) -> None:
        job = JobFactory(succeeded=True)
        client = staff(*VIEW, "cancel_job")
        [text] = said(client, ask(client, CANCEL, "list", job.pk))
        assert text.startswith("1 was left as it is")

    def test_for_all_that_match_carries_the_filter_and_no_row(self) -> None:
        """C-95: a hundred thousand rows must not become as many fields of a form."""
        wanted = [JobFactory(queue_name="mail") for _ in range(3)]
        other = JobFactory()
        client = staff(*VIEW, "cancel_job")
        url = list_url(Job) + "?queue=mail"
        data = {"action": "cancel", "_selected_action": wanted[0].pk, "select_across": "1"}
        response = client.post(url, data)
        assert response.context_data["count"] == "3"
        names = [name for name, _value in response.context_data["hidden"]]
        assert names.count("_selected_action") == 1
        [text] = said(client, confirm(client, response))
        assert text.startswith("3 jobs were cancelled")
        assert list(Job.objects.pending().values_list("pk", flat=True)) == [other.pk]

    def test_for_all_that_match_does_not_cover_what_came_after_it(self) -> None:
        seen = JobFactory(age=timedelta(minutes=1))
        client = staff(*VIEW, "cancel_job")
        response = ask(client, CANCEL, "list", seen.pk, select_across="1")
        newer = JobFactory()
        confirm(client, response)
        assert list(Job.objects.pending().values_list("pk", flat=True)) == [newer.pk]

    @pytest.mark.parametrize("until", ["", "x", "2026-13-45T00:00:00", "2026-01-01T00:00:00"])
    def test_survives_an_instant_that_is_none(self, until: str) -> None:
        job = JobFactory()
        client = staff(*VIEW, "cancel_job")
        ask(client, CANCEL, "list", job.pk, select_across="1", until=until, confirmed="yes")
        assert not Job.objects.pending().exists()


class TestCount:
    @each_in_lists
    def test_says_how_many_were_done_and_how_many_were_not(self, case: Case) -> None:
        """C-106: the message claims no more than was done."""
        rows = [case.make() for _ in range(3)]
        gone = 10**15
        texts = do(staff(*VIEW, case.permission), case, "list", *(row.pk for row in rows), gone)
        assert [text.split()[0] for text in texts] == ["3", "1"]
        assert "left as it is" in texts[1]
        assert all(case.is_done(row.pk) for row in rows)

    @each_in_lists
    def test_is_the_same_from_the_list_and_from_the_page(self, case: Case) -> None:
        """C-106: one way in, two doors."""
        client = staff(*VIEW, case.permission)
        one, other = case.make(), case.make()
        assert do(client, case, "list", one.pk) == do(client, case, "page", other.pk)

    def test_of_a_selection_with_a_row_picked_twice(self) -> None:
        letter = make_discarded()
        client = staff(*VIEW, "discard_deadletter")
        texts = do(client, RESTORE, "list", letter.pk, letter.pk)
        assert texts == ["1 dead letter is open again."]

    def test_of_an_empty_selection(self) -> None:
        letter = DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        response = client.post(list_url(DeadLetter), {"action": "replay", "index": "0"})
        assert "No items have been changed" in said(client, response)[0]
        assert DeadLetter.objects.get() == letter

    def test_of_all_that_match_without_any(self) -> None:
        client = staff(*VIEW, "discard_deadletter")
        [text] = do(client, RESTORE, "list", 0, select_across="1")
        assert text.startswith("0 were left")


class TestReplay:
    def test_twice_starts_one_run(self) -> None:
        """C-104: a double click replays once, and the second is told."""
        letter = DeadLetterFactory()
        client = staff(*VIEW, "replay_deadletter")
        [first] = do(client, REPLAY, "page", letter.pk)
        [second] = do(client, REPLAY, "page", letter.pk)
        assert (first[:1], second.split(":")[0]) == ("1", "1 was left as it is")
        assert Job.objects.count() == 1

    def test_leads_to_the_job_that_it_has_become(self) -> None:
        letter = DeadLetterFactory()
        response = ask(staff(*VIEW, "replay_deadletter"), REPLAY, "page", letter.pk)
        assert response.url == page_url(Job, letter.pk)

    def test_leads_to_the_list_for_those_who_may_not_see_jobs(self) -> None:
        letter = DeadLetterFactory()
        client = staff("view_deadletter", "replay_deadletter")
        assert ask(client, REPLAY, "page", letter.pk).url == list_url(DeadLetter)

    def test_that_fails_again_leaves_one_dead_letter(self) -> None:
        """C-104 and C-107: a full budget again, due now, and one entry after failing again."""
        letter = DeadLetterFactory(task="tests.tasks.fail", attempts=5, max_attempts=5)
        client = staff(*VIEW, "replay_deadletter")
        for replays in (1, 2):
            do(client, REPLAY, "page", letter.pk)
            run_jobs()
            again = DeadLetter.objects.get()
            assert (again.pk, again.replays) == (letter.pk, replays)
            assert not Job.objects.exists()
        assert Attempt.objects.of(letter.pk).count() == 10

    @pytest.mark.parametrize("case", [REPLAY, DISCARD], ids=named)
    def test_needs_no_task_to_be_registered(self, case: Case) -> None:
        """C-105: a dead letter of a vanished task can be dealt with."""
        letter = DeadLetterFactory(task="gone.tasks.vanished")
        do(staff(*VIEW, case.permission), case, "page", letter.pk)
        assert case.is_done(letter.pk)

    def test_of_what_the_database_refuses_says_why(self) -> None:
        """C-103: of many, workers do the others: see test_bulk."""
        letter = DeadLetterFactory()
        JobFactory(id=letter.pk)  # the number is taken
        [text] = do(staff("view_deadletter", "replay_deadletter"), REPLAY, "page", letter.pk)
        assert f"{letter.pk} (IntegrityError: " in text
        assert DeadLetter.objects.get() == letter
        assert not LogEntry.objects.exists()

    def test_of_a_payload_that_nobody_can_read(self) -> None:
        """C-103: it is moved unread, and comes back as what it is."""
        letter = DeadLetterFactory()
        spoil(DeadLetter, letter.pk, "9" * 5000)
        do(staff(*VIEW, "replay_deadletter"), REPLAY, "page", letter.pk)
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
        [text] = do(client, CANCEL, "page", job.pk)
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
        [text] = do(client, RUN_NOW, path, job.pk)
        assert text.startswith("1 was left as it is")
        assert Job.objects.get() == job
        assert not LogEntry.objects.exists()


class TestLog:
    def test_is_not_written_for_what_was_not_done(self) -> None:
        waiting, done = JobFactory(), JobFactory(succeeded=True)
        do(staff(*VIEW, "cancel_job"), CANCEL, "list", waiting.pk, done.pk)
        assert LogEntry.objects.get().object_id == str(waiting.pk)

    def test_keeps_no_payload(self) -> None:
        letter = DeadLetterFactory(kwargs={"plain": "confidential"}, message="confidential")
        do(staff(*VIEW, "discard_deadletter"), DISCARD, "page", letter.pk)
        entry = LogEntry.objects.get()
        assert "confidential" not in entry.object_repr + entry.change_message

    @each_way
    def test_and_what_was_done_commit_together(
        self, case: Case, path: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*args: object, **kwargs: object) -> None:
            raise OperationalError("no room for the log")

        row = case.make()
        monkeypatch.setattr(LogEntry.objects, "log_actions", refuse)
        [text] = do(staff(*VIEW, case.permission), case, path, row.pk)
        assert "no room for the log" in text
        assert not case.is_done(row.pk)


class TestForm:
    """What a question asks for is checked, and asked for again."""

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("move", {"queue_name": ""}),
            ("move", {"queue_name": "No Such Queue"}),
            ("move", {"queue_name": "x" * 65}),
            ("move", {"queue_name": "a\0b"}),
            ("prioritise", {"priority": ""}),
            ("prioritise", {"priority": "101"}),
            ("prioritise", {"priority": "-1e400"}),
            ("prioritise", {"priority": "9" * 5000}),
            ("extend", {"by_span": "1000000"}),
            ("extend", {"by_span": ""}),
            ("cancel", {"reason": "x" * 501}),
        ],
        ids=str,
    )
    @each_path
    def test_with_a_wrong_value_is_shown_again(
        self, name: str, values: dict[str, str], path: str
    ) -> None:
        [case] = [each for each in CASES if each.name == name]
        row = case.make()
        client = staff(*VIEW, case.permission)
        before = Job.objects.values().get(pk=row.pk)
        response = ask(client, case, path, row.pk, confirmed="yes", **values)
        assert response.status_code == 200
        assert 'class="errorlist"' in response.content.decode()
        assert Job.objects.values().get(pk=row.pk) == before
        again = confirm(client, response, **case.values)
        assert said(client, again)[0].startswith("1 ")
        assert case.is_done(row.pk)

    def test_has_no_say_in_what_is_not_asked_for(self) -> None:
        """C-96: a forged field must not reach the lifecycle."""
        job = JobFactory()
        client = staff(*VIEW, "move_job")
        forged = {"using": "other", "by": "eve", "correlation_id": "op-eve", "priority": "99"}
        do(client, CASES[4], "page", job.pk, **forged)
        job.refresh_from_db()
        assert (job.queue_name, job.priority) == ("elsewhere", 0)
        assert OperationLog.objects.get().actor == User.objects.get().username

    def test_names_why_what_is_left_is_left(self) -> None:
        worker = WorkerFactory()
        JobFactory(claimed=True, claimed_by=worker.name)
        client = staff(*VIEW, "release_lease")
        [text] = do(client, CASES[8], "page", worker.pk)
        assert "heard of a moment ago, so it lives" in text
        assert not holds_nothing(worker.pk)


class TestAudit:
    @each_way
    def test_and_what_was_done_commit_together(self, case: Case, path: str) -> None:
        row = case.make()
        with verbs.refusing("INSERT", "jobqueue_operationlog"):
            [text] = do(staff(*VIEW, case.permission), case, path, row.pk)
        assert "refused" in text
        assert not case.is_done(row.pk)
        assert not LogEntry.objects.exists()

    def test_has_one_id_for_all_that_one_request_did(self) -> None:
        rows = [JobFactory() for _ in range(3)]
        client = staff(*VIEW, "cancel_job")
        do(client, CASES[2], "list", *(row.pk for row in rows))
        ids = OperationLog.objects.values_list("correlation_id", flat=True)
        assert (len(ids), len(set(ids))) == (3, 1)

    def test_is_shown_on_the_page_of_what_it_was_done_to(self) -> None:
        job = JobFactory()
        client = staff(*VIEW, "move_job", "view_operationlog")
        do(client, CASES[4], "page", job.pk)
        page = client.get(page_url(Job, job.pk))
        [line] = page.context["deeds"].lines
        assert (line.action, line.reason) == ("move", "flooded")
        assert line.changes == ["queue_name: default → elsewhere"]
        assert "What operators did" in page.content.decode()

    def test_is_not_shown_to_those_who_may_not_see_the_log(self) -> None:
        job = JobFactory()
        client = staff(*VIEW, "move_job")
        do(client, CASES[4], "page", job.pk)
        assert "What operators did" not in client.get(page_url(Job, job.pk)).content.decode()


class TestManyRows:
    """C-95: everything that matches, in batches, and never half of it without saying so."""

    @pytest.fixture(autouse=True)
    def small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(operations, "BATCH", 10)

    @each_in_lists
    def test_are_all_done_batch_by_batch(self, case: Case) -> None:
        rows = [case.make() for _ in range(25)]
        client = staff(*VIEW, case.permission)
        [text] = do(client, case, "list", rows[0].pk, select_across="1")
        assert text.startswith("25 ")
        assert all(case.is_done(row.pk) for row in rows)
        assert LogEntry.objects.count() == 25

    def test_are_all_done_without_javascript_too(self) -> None:
        """The box sends its value after that of the hidden field."""
        rows = [make_discarded() for _ in range(3)]
        client = staff(*VIEW, "discard_deadletter")
        page = client.get(acting_url(RESTORE)).content.decode()
        assert page.index('name="select_across"') < page.rindex(
            'type="checkbox" name="select_across"'
        )
        data = {"action": "restore", "_selected_action": rows[0].pk, "select_across": ["0", "1"]}
        [text] = said(client, client.post(acting_url(RESTORE), data | {"index": "0"}))
        assert text.startswith("3 ")

    def test_beyond_what_the_list_shows_are_done_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("jobqueue.admin.paginator.CappedPaginator.most", 5)
        rows = [make_discarded() for _ in range(12)]
        client = staff(*VIEW, "discard_deadletter")
        [text] = do(client, RESTORE, "list", rows[0].pk, select_across="1")
        assert text.startswith("12 ")

    def test_that_take_too_long_are_done_in_part_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "TIME_LIMIT", timedelta(0))
        rows = [make_discarded() for _ in range(15)]
        client = staff(*VIEW, "discard_deadletter")
        done, stopped = do(client, RESTORE, "list", rows[0].pk, select_across="1")
        assert done.startswith("10 ")
        assert stopped.startswith("Stopped early")
        assert DeadLetter.objects.discarded().count() == 5
        [rest] = do(client, RESTORE, "list", rows[-1].pk, select_across="1")
        assert rest.startswith("5 ")

    def test_that_meet_a_failing_database_are_done_in_part_and_that_is_said(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[int] = []

        def restore(ids: list[int], **given: Any) -> int:
            calls.append(len(ids))
            if len(calls) == 2:
                raise OperationalError("deadlock detected\nDETAIL: rows and all")
            return lifecycle.restore(ids, **given)

        monkeypatch.setitem(vars(letter_operations.RESTORE), "perform", restore)
        rows = [make_discarded() for _ in range(25)]
        client = staff(*VIEW, "discard_deadletter")
        done, stopped = do(client, RESTORE, "list", rows[0].pk, select_across="1")
        assert done.startswith("10 ")
        assert "deadlock detected)" in stopped
        assert DeadLetter.objects.discarded().count() == LogEntry.objects.count() + 5 == 15

    def test_take_few_statements(self, django_assert_max_num_queries: Any) -> None:
        rows = [make_discarded() for _ in range(30)]
        client = staff(*VIEW, "discard_deadletter")
        with django_assert_max_num_queries(60) as captured:
            ask(client, RESTORE, "list", rows[0].pk, select_across="1")
        assert not DeadLetter.objects.discarded().exists()
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
    @each_way
    def test_is_used_for_all_that_is_done(self, case: Case, path: str) -> None:
        row = case.make()
        client = staff(*VIEW, case.permission)
        with CaptureQueriesContext(connections["default"]) as on_default:
            do(client, case, path, row.pk)
        assert case.is_done(row.pk)
        assert LogEntry.objects.count() == 1
        assert OperationLog.objects.exists()
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
            tally = operations.run(letter_operations.REPLAY, rows, order)
        assert tally.done == 1
        assert Job.objects.get().pk == letter.pk
        assert not [each for each in on_replica if '"jobqueue_' in each["sql"]]

    @pytest.mark.parametrize("model", [Job, Attempt, DeadLetter, Worker])
    def test_is_used_for_all_that_is_shown(self, model: type[Model]) -> None:
        client = staff(*VIEW)
        with CaptureQueriesContext(connections["default"]) as on_default:
            assert client.get(list_url(model)).status_code == 200
        assert not [each for each in on_default if '"jobqueue_' in each["sql"]]
