"""Every page of the admin, found by asking the site, so that none is left out of a test."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Model
from django.urls import URLPattern, reverse

from jobqueue.models import BulkOperation, DeadLetter, Job, Lease, Overview, Queue, Worker
from tests import factories
from tests.factories import DeadLetterFactory, JobFactory, Rows, WorkerFactory
from tests.test_admin_operations import dead_worker, lease_row

#: Pages of Django's own that answer a POST with what they show anyway.
SHOWN_ANYWAY = ("changelist", "history")


def admins() -> list[Any]:
    """Return our pages' admins, in the order of their models' names."""
    ours = [
        each for model, each in admin.site._registry.items() if model._meta.app_label == "jobqueue"
    ]
    return sorted(ours, key=lambda each: str(each.opts.model_name))


def each_admin() -> list[type[Model]]:
    """Return the models that have pages."""
    return [each.model for each in admins()]


def _factories() -> dict[type[Model], Callable[..., Any]]:
    classes = [each for _, each in inspect.getmembers(factories, inspect.isclass)]
    made = [each for each in classes if issubclass(each, Rows) and each is not Rows]
    return {each._meta.model: each for each in made}


def make(model: type[Model], **options: Any) -> Any:
    """Return a new row of any model that has pages."""
    if model is Lease:
        return lease_row(**options)
    if model is Overview:
        return Overview.objects.get(pk=_factories()[Queue](**options).pk)
    return _factories()[model](**options)


def make_all(model: type[Model]) -> list[Any]:
    """Return rows of a model in every state that matters to what can be done to them."""
    if model is Job:
        states = ("pending", "scheduled", "claimed", "succeeded", "cancelled")
        return [JobFactory(**{state: True}) for state in states]
    if model is Worker:
        return [WorkerFactory(), dead_worker()]
    if model is DeadLetter:
        return [DeadLetterFactory()]
    if model in (Queue, Overview):
        rows = [make(model), make(Queue, paused=True)]
        return [model._default_manager.get(pk=row.pk) for row in rows]
    if model is BulkOperation:
        return [make(model), make(model, paused=True)]
    return [make(model)]


class Page(NamedTuple):
    """One address of the admin; ``name`` is the last part of its name."""

    name: str
    url: str


def pages(model: type[Model], rows: list[Any]) -> Iterator[Page]:
    """Yield every address that the admin of a model has, for each of the rows."""
    for pattern in admin.site._registry[model].get_urls():
        if isinstance(pattern, URLPattern) and pattern.name:
            yield from _pages(pattern, rows)


def _pages(pattern: URLPattern, rows: list[Any]) -> Iterator[Page]:
    name = str(pattern.name).split("_", 2)[-1]
    arguments = pattern.pattern.converters
    for row in rows if arguments else rows[:1]:
        given = {key: _argument(key, converter, row) for key, converter in arguments.items()}
        yield Page(name, reverse(f"admin:{pattern.name}", kwargs=given))


def _argument(key: str, converter: Any, row: Any) -> Any:
    if key == "object_id":
        return quote(row.pk)
    return 1 if type(converter).__name__ == "IntConverter" else "x"
