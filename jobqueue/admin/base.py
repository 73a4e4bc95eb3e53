"""What all of our admin pages have in common: rows are looked at, and never edited."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.db.models import Model, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString

from jobqueue.admin import deeds, display, figures, filters
from jobqueue.admin.paginator import CappedPaginator

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:

    class _ModelAdmin(admin.ModelAdmin[M]):
        """A model's admin, as generic as the stubs have it."""
else:

    class _ModelAdmin(admin.ModelAdmin, Generic[M]):
        """A model's admin, as generic as the stubs have it."""


class OrderedChangeList(ChangeList):
    """A list in its one order, whatever the address asks for: another would sort the table."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order of the list."""
        return list(self.model_admin.ordering or ())

    def get_results(self, request: HttpRequest) -> None:
        """Count, then read the page; what was not found once is not looked for again."""
        super().get_results(request)
        if not self.result_count:
            self.result_list = self.queryset.none()


class ReadOnlyAdmin(_ModelAdmin[M]):
    """Shows rows without loading what is large, counting what is many, or offering to edit."""

    ordering: ClassVar[tuple[str, ...]] = ("-pk",)
    sortable_by = ()
    list_per_page = 100
    list_max_show_all = 0
    paginator = CappedPaginator
    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    change_list_template = "admin/jobqueue/change_list.html"
    change_form_template = "admin/jobqueue/change_form.html"
    #: What is left unread unless a page shows it.
    deferred: ClassVar[Sequence[str]] = ()
    #: What the list says when there is no row at all.
    empty_text: ClassVar[Any] = ""
    shows_figures: ClassVar[bool] = False
    #: Whether a row's page tells what operators did to it.
    shows_deeds: ClassVar[bool] = False

    class Media:
        css: ClassVar = {"all": ("jobqueue/admin.css",)}

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Forbid it: rows are written by the lifecycle only."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: rows are written by the lifecycle only."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: rows are written by the lifecycle only."""
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest | None = None) -> bool:
        """Allow our filters only: any other look-up could find out what a payload holds."""
        return lookup in filters.parameters(self.list_filter)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that is never sorted otherwise."""
        return OrderedChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """Leave what is large, or may not be readable, in the database."""
        return super().get_queryset(request).defer(*self.deferred)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list; where asked for, with the figures of the whole queue above it."""
        extra: dict[str, Any] = {"empty_text": self.empty_text}
        if self.shows_figures:
            # A callable: read when the page is rendered, and not for an action that redirects.
            extra["read_figures"] = partial(figures.strip, request, self.admin_site)
        return super().changelist_view(request, extra | (extra_context or {}))

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add what operators did to the row."""
        if self.shows_deeds and context.get("original"):
            context["deeds"] = deeds.deeds(request, self.admin_site, context["original"])
        return super().render_change_form(request, context, *args, **kwargs)

    def is_visible(self, request: HttpRequest, model: type[Model]) -> Value:
        """Tell, as a column of each row, whether the user may open pages of the model.

        What shows a row knows the row but not the user.
        """
        return Value(display.may_view(request, self.admin_site, model))

    def link_to(self, model: type[Model], pk: Any, text: Any) -> SafeString:
        """Return a link to a row's page on this site."""
        return display.link(display.change_url(self.admin_site, model, pk), text)
