"""Filters of dead letters alone: whether they are open, and which were picked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from jobqueue.admin.filters import ExactFilter, read_key

_Lookups = Iterable[tuple[str, Any]]
#: More numbers than a page lists are not picked.
MOST_PICKED = 1000


class DiscardedFilter(SimpleListFilter):
    """Dead letters by whether they were discarded: open ones, unless others are asked for."""

    title = _("state")
    parameter_name = "discarded"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer what is not shown otherwise."""
        return [("yes", _("discarded")), ("any", _("open and discarded"))]

    def choices(self, changelist: Any) -> Iterator[Any]:
        """Call the choice of no value what it is."""
        first, *others = super().choices(changelist)
        yield {**first, "display": _("open")}
        yield from others

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the letters that are open, or were discarded, or all."""
        if self.value() == "any":
            return queryset
        return queryset.filter(discarded_at__isnull=self.value() != "yes")


class PickedFilter(ExactFilter):
    """Rows of certain numbers: those picked in a list before it led to another page."""

    title = _("picked")
    parameter_name = "ids"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin[Any]) -> _Lookups:
        """Offer the numbers in use, as how many they are."""
        value = self.value()
        return [(value, len(self.keys()))] if value else []

    def keys(self) -> list[int]:
        """Return the numbers that the address names."""
        keys = map(read_key, (self.value() or "").split(",")[:MOST_PICKED])
        return [key for key in keys if key is not None]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the rows of these numbers."""
        return queryset.filter(pk__in=self.keys()) if self.value() else queryset
