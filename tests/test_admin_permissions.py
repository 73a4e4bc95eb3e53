"""Who may only look can change nothing, on no page; and no page is left out of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.core.checks import run_checks
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest
from django.test import Client

from jobqueue.admin.actions import OperatedAdmin
from jobqueue.admin.job_operations import CANCEL
from jobqueue.admin.operations import Operation
from jobqueue.admin.payloads import WITHHELD
from jobqueue.models import Attempt, Job, Overview
from tests.admin_site import SHOWN_ANYWAY, admins, each_admin, make, make_all, pages
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory
from tests.test_admin_operations import page_url, staff

pytestmark = pytest.mark.django_db

every_model = pytest.mark.parametrize("model", each_admin(), ids=lambda model: model.__name__)
VIEW_ALL = [f"view_{model._meta.model_name}" for model in each_admin()]
#: As a browser would send it, and with more than it would.
FORGED = {
    "confirmed": "yes",
    "post": "yes",
    "_save": "Save",
    "queue_name": "elsewhere",
    "priority": "9",
    "by_span": "5",
    "reason": "because",
    "select_across": "1",
    "index": "0",
}


def everything() -> dict[str, list[Any]]:
    """Return every row that a page could change."""
    models = {admin_.model._meta.concrete_model for admin_ in admins()} | {LogEntry}
    return {str(each): list(each._base_manager.order_by("pk").values()) for each in models}


class TestViewer:
    @every_model
    def test_is_refused_every_post_there_is(self, model: type[Model]) -> None:
        """C-96: discovered from the site, so that a new page is covered from its first day."""
        rows = make_all(model)
        client = staff(*VIEW_ALL)
        before = everything()
        for page in pages(model, rows):
            response = client.post(page.url, FORGED)
            refused = response.status_code in (403, 405) or (
                response.status_code == 302 and response.url.startswith("/admin/login/")
            )
            assert refused or page.name in SHOWN_ANYWAY, (page, response.status_code)
        assert everything() == before

    @every_model
    def test_is_refused_every_action_of_the_list(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        rows = make_all(model)
        client = staff(*VIEW_ALL)
        before = everything()
        url = next(page.url for page in pages(model, rows) if page.name == "changelist")
        actions = admin.site.get_model_admin(model).actions or ()
        # With "_save" Django would not look at the action.
        forged = {name: value for name, value in FORGED.items() if name != "_save"}
        for action in [*actions, "delete_selected"]:
            picked = forged | {"action": action, "_selected_action": [row.pk for row in rows]}
            response = client.post(url, picked)
            assert response.status_code in (200, 302), action
            assert b'name="confirmed"' not in response.getvalue()
            assert "bulk" not in response.headers.get("Location", "")
            assert not response.streaming
            assert everything() == before, action
            # Else the above would hold for what nobody could send.
            is_listed = action not in ("delete_selected", "restore", "delete_for_ever")
            with transaction.atomic():
                done = admin_client.post(url, picked)
                leads_on = "bulk" in done.headers.get("Location", "")
                assert (leads_on or everything() != before) == is_listed, action
                transaction.set_rollback(True)

    @every_model
    def test_without_permission_is_refused_the_pages_too(self, model: type[Model]) -> None:
        rows = make_all(model)
        client = staff()
        for page in pages(model, rows):
            assert client.get(page.url).status_code in (302, 403, 405), page

    @every_model
    def test_finds_pages_that_are_there(self, admin_client: Client, model: type[Model]) -> None:
        """What the viewer was refused is no address that nobody could use."""
        rows = make_all(model)
        names = set()
        for page in pages(model, rows):
            names.add(page.name)
            assert admin_client.get(page.url).status_code in (200, 302, 403, 405), page
        assert names >= {"changelist"} | ({"change", "history"} if model is not Overview else set())
        model_admin: Any = admin.site.get_model_admin(model)
        assert {each.name for each in getattr(model_admin, "operations", ())} <= names

    @every_model
    def test_cannot_delete_anything_even_as_superuser(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        rows = make_all(model)
        before = everything()
        for page in pages(model, rows):
            if page.name in ("add", "delete"):
                assert admin_client.post(page.url, FORGED).status_code == 403
        assert everything() == before


SECRET = "only-for-those-who-may"


class TestViewPayload:
    """C-98: seeing that a job failed is one thing, seeing whose it is another."""

    @pytest.fixture
    def rows(self) -> list[Any]:
        given = {"args": [SECRET], "kwargs": {"name": SECRET}, "trace": {"traceparent": SECRET}}
        job = JobFactory(succeeded=True, result={"sent": SECRET}, **given)
        letter = DeadLetterFactory(**given)
        text = f"Traceback\n  {SECRET}\n"
        of_letter = {"number": 1, "fence": 1, "task": "t", "queue_name": "q"}
        attempts = [
            AttemptFactory(job=job, traceback=text),
            AttemptFactory(job=None, job_id=letter.pk, traceback=text, **of_letter),
        ]
        claimed = JobFactory(claimed=True, **given)
        return [job, letter, *attempts, claimed]

    def test_without_it_payloads_results_and_tracebacks_are_hidden(self, rows: list[Any]) -> None:
        client = staff(*VIEW_ALL)
        for row in rows:
            html = client.get(page_url(type(row), row.pk)).content.decode()
            assert SECRET not in html
            assert str(WITHHELD) in html

    def test_with_it_they_are_shown(self, rows: list[Any]) -> None:
        client = staff(*VIEW_ALL, "view_payload")
        for row in rows:
            html = client.get(page_url(type(row), row.pk)).content.decode()
            assert SECRET in html
            assert str(WITHHELD) not in html

    @every_model
    def test_without_it_no_page_at_all_tells_of_them(
        self, rows: list[Any], model: type[Model]
    ) -> None:
        client = staff(*VIEW_ALL)
        of_model = [*model._default_manager.all(), make(model)]
        for page in pages(model, of_model):
            response = client.get(page.url, follow=True)
            assert SECRET not in response.content.decode(), page

    def test_without_a_traceback_nothing_is_said_to_be_hidden(self) -> None:
        job = JobFactory(attempts=1)
        AttemptFactory(job=job, lost=True)
        client = staff("view_job", "view_attempt")
        page = client.get(page_url(Job, job.pk))
        assert [row.traceback for row in page.context["history"].rows] == [""]


def _named(name: str, permissions: list[str] | None) -> Callable[..., None]:
    def act(self: Any, request: HttpRequest, queryset: Any) -> None:
        """Do something."""

    act.__name__ = name
    return admin.action(permissions=permissions)(act)


def _always(*_: Any) -> bool:
    return True


def _unknown(_self: Any, request: Any) -> bool:
    return bool(request.user.has_perm("jobqueue.wipe_all"))


class TestCheck:
    """A system check finds what could be done without a permission."""

    def found(self, **attributes: Any) -> list[str]:
        """Return what the check says of an admin with these attributes."""
        checked = type("Checked", (OperatedAdmin,), attributes)
        errors = checked(Attempt, admin.site).check()
        return [str(each.msg) for each in errors if each.id == "jobqueue.E010"]

    def test_says_nothing_of_the_pages_that_there_are(self) -> None:
        assert [each for each in run_checks() if each.id == "jobqueue.E010"] == []

    @pytest.mark.parametrize("permissions", [None, ["view", "export"]], ids=["none", "any of two"])
    def test_finds_an_action_without_one_permission(self, permissions: list[str] | None) -> None:
        hooks = {"has_export_permission": _always}
        action = _named("wipe", permissions)
        [message] = self.found(actions=("wipe",), wipe=action, **hooks)
        assert "its action 'wipe' needs one permission" in message

    def test_finds_an_action_that_asks_for_nothing(self) -> None:
        hooks = {"has_wipe_permission": _always}
        action = _named("wipe", ["wipe"])
        [message] = self.found(actions=("wipe",), wipe=action, **hooks)
        assert "its action 'wipe' asks for no permission" in message

    def test_finds_an_action_whose_permission_nobody_can_have(self) -> None:
        hooks = {"has_wipe_permission": _unknown}
        action = _named("wipe", ["wipe"])
        [message] = self.found(actions=("wipe",), wipe=action, **hooks)
        assert "needs 'jobqueue.wipe_all', which no model declares" in message

    def test_finds_an_operation_whose_permission_nobody_can_have(self) -> None:
        fields = {name: getattr(CANCEL, name) for name in CANCEL.__dataclass_fields__}
        operation = Operation(**fields | {"permission": "cancel_everything"})
        [message] = self.found(operations=(operation,))
        assert "its operation 'cancel' needs 'jobqueue.cancel_everything'" in message

    #: Every codename that an operation names is one that the models declare.
    ALL: ClassVar = [
        (each, operation) for each in admins() for operation in getattr(each, "operations", ())
    ]

    def test_covers_operations_at_all(self) -> None:
        assert len(self.ALL) >= 9
