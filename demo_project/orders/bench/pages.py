"""Every page of the queue's admin that can be reached, found as a visitor finds them: by links.

The tests use it too, so that a new page is looked at, timed and tried in a browser by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urljoin, urlsplit

from django.contrib import admin
from django.http import HttpResponseBase
from django.test import Client
from django.urls import Resolver404, resolve, reverse

APP = "jobqueue"
#: Of addresses that differ in the values of their parameters only, so many are taken: all choices
#: of a filter, but not a link for each of a hundred rows.
MOST_CHOICES = 10


class Page(NamedTuple):
    """One kind of page, and an address of it."""

    name: str
    url: str

    @property
    def is_list(self) -> bool:
        """Whether it is a list of rows, however filtered."""
        return self.name.partition("?")[0].endswith("_changelist")


class _Links(HTMLParser):
    """Collects where the links of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value or "" for name, value in attrs if name == "href"]


def every_page(client: Client, *, choices: int = MOST_CHOICES) -> list[Page]:
    """Return one page of each kind that the client's user can open, lists and details alike.

    Of a list there are some for the choices of each filter, one for each kind of search, and some
    of its other pages. Begins at the index of the app, and at each list that the admin has.
    """
    found: dict[str, Page] = {}
    taken: Counter[tuple[str, ...]] = Counter()
    line = [reverse("admin:app_list", args=[APP]), *_starts()]
    for url in line:  # it grows while it is read
        view, parameters = _kind(url)
        name = f"{view}?{urlencode(parameters)}" if parameters else view
        alike = (view, *(key for key, _ in parameters))
        if not view or name in found or taken[alike] == choices:
            continue
        response = client.get(url)
        if response.status_code != HTTPStatus.OK:
            continue
        found[name] = Page(name, url)
        taken[alike] += 1
        line += [each for each in _links(response, url) if _is_new(url, each)]
    return list(found.values())


def _starts() -> Iterator[str]:
    """Yield the addresses of the lists, with searches: a form is no link."""
    for model, model_admin in admin.site._registry.items():  # noqa: SLF001 - is_registered() needs the model
        if model._meta.app_label != APP:
            continue
        url = reverse(f"admin:{APP}_{model._meta.model_name}_changelist")
        yield url
        row = model._default_manager.order_by("pk").last()
        if row is not None:
            yield from _own_pages(model_admin, row)
        if model_admin.search_fields:
            for term in (row.pk if row else 1, "no-such-word", "args.order_id:42", "order_id:42"):
                yield f"{url}?{urlencode({'q': term})}"


def _own_pages(model_admin: Any, row: Any) -> Iterator[str]:
    """Yield the addresses that the admin of a model has for a row, linked to or not."""
    for pattern in model_admin.get_urls():
        converters = pattern.pattern.converters
        # Nobody adds or deletes rows by hand; to ask would only fill the log.
        is_forbidden = str(pattern.name).endswith(("_add", "_delete"))
        if pattern.name and not is_forbidden and set(converters) <= {"object_id"}:
            arguments = dict.fromkeys(converters, row.pk)
            yield reverse(f"admin:{pattern.name}", kwargs=arguments)


def _links(response: HttpResponseBase, url: str) -> Iterable[str]:
    if response.streaming or "html" not in response.headers["Content-Type"]:
        response.close()
        return []
    parser = _Links()
    parser.feed(response.content.decode())  # type: ignore[attr-defined]
    own = reverse("admin:app_list", args=[APP])
    links = (urljoin(url, each.partition("#")[0]) for each in parser.found)
    return [each for each in links if each.startswith(own)]


def _is_new(url: str, link: str) -> bool:
    """Tell whether a link leads to something new: not to a second filter on top of the first."""
    return not (urlsplit(url).query and urlsplit(link).query)


def _kind(url: str) -> tuple[str, list[tuple[str, str]]]:
    """Return the view that an address leads to, and what it asks of it; no view for a dead link."""
    parts = urlsplit(url)
    try:
        match = resolve(parts.path)
    except Resolver404:
        return "", []
    return (match.url_name or "").removeprefix(f"{APP}_"), sorted(parse_qsl(parts.query))
