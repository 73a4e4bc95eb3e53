"""C-96: who may only look finds no control on any page, and each of their POSTs is refused."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client
from django.urls import resolve

from demo_project.orders.bench.pages import every_page
from tests.populated import populate

pytestmark = [pytest.mark.django_db, pytest.mark.pages]

#: Where Django's own chrome posts to: they are not about the queue.
CHROME = ("/admin/logout/",)
#: How the pages end that are only for those who may do what they are about.
CONTROLS = ("_pause", "_bulk_replay", "_bulk_discard", "_edit", "_move", "_prioritise")


class Form(NamedTuple):
    """A form that changes something, with what it would send as it stands."""

    url: str
    fields: dict[str, str]
    #: Fields that offer choices: an action of a list, most of all.
    choices: dict[str, list[str]]
    buttons: list[str]


class _Forms(HTMLParser):
    def __init__(self, url: str) -> None:
        super().__init__()
        self.url = url
        self.found: list[Form] = []
        self.form: Form | None = None
        self.select = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            url = urljoin(self.url, given.get("action") or self.url)
            is_post = given.get("method", "").lower() == "post"
            self.form = Form(url, {}, {}, []) if is_post else None
            self.found += [self.form] if self.form else []
        elif self.form and (tag == "button" or given.get("type") == "submit"):
            self.form.buttons.append(given.get("name", ""))
        elif self.form and tag in ("input", "textarea"):
            self.form.fields.setdefault(given.get("name", ""), given.get("value", ""))
        elif self.form and tag == "select":
            self.select = given.get("name", "")
        elif self.form and tag == "option" and given.get("value"):
            self.form.choices.setdefault(self.select, []).append(given["value"])

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self.form = None


class Reader(Client):
    """Keeps the forms of the pages that it gets."""

    def __init__(self, user: User) -> None:
        super().__init__()
        self.force_login(user)
        self.forms: dict[tuple[str, str], Form] = {}

    def get(self, path: str, *args: Any, **kwargs: Any) -> Any:
        response = super().get(path, *args, **kwargs)
        if not response.streaming and "html" in response.headers.get("Content-Type", ""):
            parser = _Forms(path)
            parser.feed(response.content.decode())
            views = [(form, resolve(urlsplit(form.url).path).url_name) for form in parser.found]
            self.forms |= {
                (str(view), str(sorted(form.fields))): form
                for form, view in views
                if form.url not in CHROME
            }
        return response


def payloads(form: Form) -> Iterator[dict[str, Any]]:
    """Yield what the form can send: as it stands, and with each action of a list."""
    for number, name in enumerate(form.buttons or [""]):
        base = {**form.fields, **{key: each[0] for key, each in form.choices.items()}}
        yield base | {name: "1", "reason": "because", "confirmed": "yes"}
        for action in form.choices.get("action", []) if number == 0 else []:
            sent = base | {"action": action, "confirmed": "yes", "reason": "because", "index": "0"}
            yield sent
            yield sent | {"select_across": "1"}


def rows() -> dict[type[Model], list[Any]]:
    """Return all there is in the queue's tables."""
    models = apps.get_app_config("jobqueue").get_models()
    return {model: list(model._base_manager.order_by("pk").values_list()) for model in models}


@pytest.fixture
def viewer() -> Reader:
    """Someone who may look at everything, payloads and all, and do nothing."""
    user = User.objects.create_user("viewer", is_staff=True)
    looking = Permission.objects.filter(
        content_type__app_label="jobqueue", codename__startswith="view_"
    )
    user.user_permissions.set(looking)
    return Reader(user)


class TestAViewer:
    def test_sees_every_page_no_control_and_is_refused_whatever_they_send(
        self, viewer: Reader, admin_user: User
    ) -> None:
        populate()
        operator = Reader(admin_user)
        allowed = {page.name for page in every_page(operator, choices=1)}
        seen = {page.name for page in every_page(viewer, choices=1)}
        # What asks a question, or what to replay with, is a control.
        asking = {name for name in allowed - seen if name.partition("?")[0].endswith(CONTROLS)}
        assert allowed - seen == asking
        assert seen <= allowed
        controls = [each for each in viewer.forms.values() if each.buttons or each.choices]
        assert controls == []

        before = rows()
        for (view, _fields), form in operator.forms.items():
            for sent in payloads(form):
                response = viewer.post(form.url, sent)
                assert view.endswith("_changelist") or response.status_code == 403, (form, sent)
            assert rows() == before, form

        # Else the above would hold for forms that nobody could send.
        forms = operator.forms.items()
        replays = [form for (view, _), form in forms if view.endswith("deadletter_replay")]
        for sent in payloads(replays[0]):
            operator.post(replays[0].url, sent)
        assert rows() != before
