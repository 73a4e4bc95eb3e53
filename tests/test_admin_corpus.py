"""Whatever texts there are in the rows: every page opens, and shows them as text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import models
from django.db.models import Model
from django.test import Client

from jobqueue.models import OperationLog, Queue
from tests.admin_site import each_admin, make, pages
from tests.test_admin_pages import assert_harmless

pytestmark = [pytest.mark.django_db, pytest.mark.pages]

CORPUS = {
    "markup": '</pre></td></script><script>alert(1)</script><img src=x onerror="alert(2)">\'',
    "templates": "{{7*7}} {% debug %} {# x #} ${7*7} <%= 7*7 %> %s%n%(x)s {0} {x.__class__}",
    "control": "a\r\nINFO fake=1\x1b[31mred\x1b[0m\x07\x08\x7f\u2028\u2029\ufeff",
    "directions": "\u202egnp.exe\u202c \U0001f468\u200d\U0001f469\u200d\U0001f467 e\u0301 \u00e9",
    "formulas": "=cmd|'/c calc'!A1",
    "names": "__proto__ __class__ constructor ../../../etc/passwd os.system javascript:alert(1)",
    "urls": "a/b?c=d&e=f#g;h:i@j%00%2e%2e _5F /change/ 100%",
    "quotes": "\"'`\\ ' OR 1=1 -- ; DROP TABLE jobqueue_job; /* */",
    "long": "x" * 4096,
    "numbers": "9" * 400,
    "null": "null",
    "empty": " ",
}


def filled(row: Any, text: str) -> dict[str, Any]:
    """Return what a row looks like with the text in every column that takes one."""
    return dict(_fill(row, text))


def _fill(row: Any, text: str) -> Iterator[tuple[str, Any]]:
    for field in row._meta.concrete_fields:
        value = getattr(row, field.attname)
        if field.primary_key or field.choices or value is None:
            continue
        if isinstance(field, models.JSONField):
            content = [text, {text: [text]}]
            yield field.attname, content if isinstance(value, list) else {text: content}
        elif isinstance(field, models.CharField | models.TextField):
            if field.name == "target_type":  # a name of a model, or there would be no page
                continue
            yield field.attname, text[: field.max_length]


def row_with(model: type[Model], text: str) -> Any:
    """Return a new row; a queue has the text for its name, and may well be paused."""
    if issubclass(model, Queue):
        return make(model, name=text[: Queue._meta.get_field("name").max_length], paused=True)
    return make(model)


every_model = pytest.mark.parametrize("model", each_admin(), ids=lambda model: model.__name__)


@every_model
def test_in_a_row_opens_every_page_and_is_text_there(
    admin_client: Client, model: type[Model]
) -> None:
    """C-97, C-101: the corpus of bad input, through every page of every model there is."""
    rows = {name: row_with(model, text) for name, text in CORPUS.items()}
    for name, row in rows.items():
        concrete = row._meta.concrete_model
        changed = concrete._base_manager.filter(pk=row.pk).update(**filled(row, CORPUS[name]))
        assert changed == 1
    for page in pages(model, list(rows.values())):
        response = admin_client.get(page.url, follow=True)
        assert response.status_code < 500, page
        if page.name in ("changelist", "change", "history"):
            assert response.status_code == 200, page
        html = response.content.decode()
        assert_harmless(html)
        assert "49" not in html.partition("{{7*7}}")[0][-40:]


@every_model
def test_in_an_address_opens_the_list(admin_client: Client, model: type[Model]) -> None:
    [url] = [page.url for page in pages(model, [make(model)]) if page.name == "changelist"]
    cl = admin_client.get(url).context.get("cl")  # the overview has none
    names = {each.parameter_name for each in cl.list_filter} if cl else {"queue", "span", "task"}
    for name, text in CORPUS.items():
        for parameters in ({"q": text}, dict.fromkeys(names, text)):
            response = admin_client.get(url, parameters, follow=True)
            assert response.status_code == 200, (name, parameters)
            assert_harmless(response.content.decode())
    assert not OperationLog.objects.filter(action="export").exists()
