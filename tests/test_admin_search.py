"""The search that reads payloads: what it finds, what it refuses, and how far it looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobqueue.admin import search
from jobqueue.models import DeadLetter, Job
from tests.factories import DeadLetterFactory, JobFactory
from tests.test_admin_operations import staff
from tests.test_admin_pages import list_url, listed, log_in, registered, text_of, write

pytestmark = pytest.mark.django_db

FACTORIES: dict[type[Model], Callable[..., Any]] = {Job: JobFactory, DeadLetter: DeadLetterFactory}
both = pytest.mark.parametrize("model", [Job, DeadLetter], ids=["job", "letter"])


def take(order_id: int, note: str = "", *, urgent: bool = False) -> None:
    """Be a task with arguments of all kinds."""


def refusal(client: Client, term: str, model: type[Model] = Job) -> str:
    """Return why a search was refused; it finds nothing then."""
    response = client.get(list_url(model, q=term))
    assert response.status_code == 200
    assert not response.context["cl"].result_count
    [message] = response.context["messages"]
    return str(message)


class TestTerm:
    @both
    @pytest.mark.parametrize(
        "term",
        [
            "kwargs.order.id:42",
            'kwargs.order.id:"42"',
            "kwargs.note:plain",
            'kwargs.note2:"two words: and a colon"',
            'kwargs.quoted:"say \\"hello\\" twice"',
            "kwargs.text:42",
            "kwargs.ok:true",
            "kwargs.lines.1.sku:b-2",
            "kwargs.some-key:x",
            "kwargs.umläut:ö",
            "kwargs.nothing:null",
            "args.order_id:42",
            "args.0:42",
            "args.1:first",
            "kwargs.note:plain args.order_id:42 kwargs.ok:true",
        ],
    )
    def test_finds_the_rows_that_hold_the_value(
        self, admin_client: Client, model: type[Model], term: str
    ) -> None:
        kwargs = {
            "order": {"id": 42},
            "note": "plain",
            "note2": "two words: and a colon",
            "quoted": 'say "hello" twice',
            "text": "42",
            "ok": True,
            "lines": [{"sku": "a-1"}, {"sku": "b-2"}],
            "some-key": "x",
            "umläut": "ö",
            "nothing": None,
        }
        wanted = FACTORIES[model](task="tests.take", args=[42, "first"], kwargs=kwargs)
        FACTORIES[model](task="tests.take", args=[421], kwargs={"note": "plainer", "id": 42})
        FACTORIES[model](task="tests.take", args=["x 42"], kwargs={"order": 42, "ok": "yes"})
        with registered("tests.take", take):
            assert listed(admin_client, list_url(model, q=term)) == {wanted.pk}

    def test_of_an_argument_finds_it_by_keyword_and_by_position(self, admin_client: Client) -> None:
        by_keyword = JobFactory(task="tests.take", kwargs={"order_id": 42})
        by_position = JobFactory(task="tests.take", args=[42])
        JobFactory(task="tests.take", args=[7, 42])
        JobFactory(task="tests.tasks.noop", args=[42])  # another task's first argument
        with registered("tests.take", take):
            found = listed(admin_client, list_url(Job, q="args.order_id:42"))
        assert found == {by_keyword.pk, by_position.pk}

    def test_is_one_of_several_that_must_all_be_met(self, admin_client: Client) -> None:
        wanted = JobFactory(kwargs={"a": 1, "b": 2}, correlation_id="req-1")
        JobFactory(kwargs={"a": 1, "b": 3}, correlation_id="req-1")
        JobFactory(kwargs={"a": 1, "b": 2})
        assert listed(admin_client, list_url(Job, q="kwargs.a:1 req-1 kwargs.b:2")) == {wanted.pk}

    def test_goes_together_with_filters(self, admin_client: Client) -> None:
        wanted = JobFactory(kwargs={"a": 1}, succeeded=True)
        JobFactory(kwargs={"a": 1})
        url = list_url(Job, q="kwargs.a:1", status="succeeded")
        assert listed(admin_client, url) == {wanted.pk}

    def test_does_not_find_what_holds_the_value_deeper_down(self, admin_client: Client) -> None:
        JobFactory(kwargs={"a": {"b": 1}})
        JobFactory(kwargs={"a": [1]})
        for term in ('kwargs.a:"{\\"b\\": 1}"', 'kwargs.a:"{\\"b\\":1}"', "kwargs.a:[1]"):
            assert listed(admin_client, list_url(Job, q=term)) == set()

    def test_is_not_stopped_by_rows_that_cannot_be_read(self, admin_client: Client) -> None:
        """C-99"""
        wanted = JobFactory(kwargs={"a": 1})
        for bad in ('{"a": ' + "9" * 5000 + "}", "[" * 3000 + "]" * 3000, "null", '"text"', "7"):
            write(JobFactory(), kwargs=bad, args=bad)
        if connection.vendor == "sqlite":
            write(JobFactory(), kwargs="{not json", args="")
        for term in ("kwargs.a:1", "args.0:1 kwargs.a:1", "args.a:1"):
            assert listed(admin_client, list_url(Job, q=term)) <= {wanted.pk}
        assert listed(admin_client, list_url(Job, q="kwargs.a:1")) == {wanted.pk}


class TestRefusal:
    @both
    @pytest.mark.parametrize(
        "term",
        [
            *("args.", "args.:1", "args.a", "args.a:", "kwargs..a:1", "kwargs.a b:1", "args.a.:1"),
            *("kwargs.a'b:1", 'kwargs."a":1', "kwargs.$[0]:1", "kwargs.a)--:1"),
            "kwargs." + "a." * 20 + "a:1",
            "args." + "9" * 30 + ":1",
            'kwargs.a:"open',
            'kwargs.a:"x"y',
        ],
    )
    def test_of_what_is_no_term_is_a_message(
        self, admin_client: Client, model: type[Model], term: str
    ) -> None:
        FACTORIES[model](kwargs={"a": 1})
        assert refusal(admin_client, term, model)

    @pytest.mark.parametrize(
        "term", ["kwargs.password:x", "args.password:x", "kwargs.user.API-Key:x", "args.0.token:x"]
    )
    def test_of_what_is_masked_is_a_message(self, admin_client: Client, term: str) -> None:
        """C-98: a search must not confirm what a page hides."""
        JobFactory(args=[{"token": "x"}], kwargs={"password": "x", "user": {"API-Key": "x"}})
        assert "is masked" in refusal(admin_client, term)

    def test_does_not_find_a_masked_argument_by_its_position(self, admin_client: Client) -> None:
        JobFactory(task="tests.log_in", args=["me", "hunter2"])
        with registered("tests.log_in", log_in):
            assert len(listed(admin_client, list_url(Job, q="args.0:me"))) == 1
            assert not listed(admin_client, list_url(Job, q="args.1:hunter2"))

    @both
    def test_without_the_permission_to_see_payloads(self, model: type[Model]) -> None:
        FACTORIES[model](kwargs={"a": 1})
        client = staff("view_job", "view_deadletter")
        text = refusal(client, "kwargs.a:1", model)
        assert text == "To search payloads needs the permission jobqueue.view_payload."
        allowed = staff("view_job", "view_deadletter", "view_payload")
        assert len(listed(allowed, list_url(model, q="kwargs.a:1"))) == 1


class TestReach:
    @both
    def test_is_the_newest_rows_and_the_page_says_so(
        self, admin_client: Client, settings: Any, model: type[Model]
    ) -> None:
        settings.JOBQUEUE = {"ADMIN_SCAN_LIMIT": 2}
        rows = [FACTORIES[model](kwargs={"a": 1}) for _ in range(3)]
        found = listed(admin_client, list_url(model, q="kwargs.a:1"))
        assert found == {row.pk for row in rows[1:]}
        html = admin_client.get(list_url(model)).content.decode()
        assert "In the payloads of the newest 2:" in text_of(html)

    @both
    def test_of_other_searches_is_every_row(
        self, admin_client: Client, settings: Any, model: type[Model]
    ) -> None:
        settings.JOBQUEUE = {"ADMIN_SCAN_LIMIT": 1}
        rows = [FACTORIES[model]() for _ in range(3)]
        assert listed(admin_client, list_url(model, q=str(rows[0].pk))) == {rows[0].pk}

    def test_bounds_what_is_read(self, admin_client: Client) -> None:
        JobFactory(kwargs={"a": 1})
        with CaptureQueriesContext(connection) as captured:
            listed(admin_client, list_url(Job, q="kwargs.a:1"))
        statements = [each["sql"] for each in captured if "kwargs" in each["sql"]]
        assert statements
        for sql in statements:
            assert '"jobqueue_job"."id" >= ' in sql
            assert " LIKE " not in sql.upper()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("a b", ["a", "b"]),
        ('"a b" c', ["a b", "c"]),
        ("kwargs.a:b:c", [search.Term("kwargs", ["a"], "b:c")]),
        ('kwargs.a:""', [search.Term("kwargs", ["a"], "")]),
        ("args.x:=1", [search.Term("args", ["x"], "=1")]),
    ],
)
def test_a_search_is_read_word_by_word(text: str, terms: list[Any]) -> None:
    assert list(search.read(text)) == terms
