"""What all of our admin pages have in common: rows are looked at, and never edited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import django
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import SuspiciousOperation, ValidationError
from django.db.models import Count, Min, Model, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from jobqueue.admin import deeds, display, figures, filters
from jobqueue.admin.checks import PermissionChecks
from jobqueue.admin.paginator import CappedPaginator

M = TypeVar("M", bound=Model)

if TYPE_CHECKING:

    class _ModelAdmin(admin.ModelAdmin[M]):
        """A model's admin, as generic as the stubs have it."""
else:

    class _ModelAdmin(admin.ModelAdmin, Generic[M]):
        """A model's admin, as generic as the stubs have it."""


#: Where no index finds what a filter asks for, so many of the newest rows are looked through.
MOST_SEARCHED = display.MOST_COUNTED


class OrderedChangeList(ChangeList):
    """A list in its one order, whatever the address asks for: another would sort the table."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order of the list."""
        return list(self.model_admin.get_ordering(request))

    def get_results(self, request: HttpRequest) -> None:
        """Count, then read the page; what was not found once is not looked for again."""
        self.most_searched = f"{MOST_SEARCHED:,}"
        self.has_more_to_search = self._look_through_the_newest_only()
        super().get_results(request)
        if not self.result_count:
            self.result_list = self.queryset.none()

    def _look_through_the_newest_only(self) -> bool:
        """Leave out old rows where no index finds what is asked for; tell whether there are any.

        A filter that few rows match would else read the whole table, twice. What an action is done
        to is not limited so.
        """
        rows = self.model._default_manager.using(self.root_queryset.db)
        own: Any = self.model_admin
        rows, column = own.search_through(rows, self.get_filters_params())
        if self.query or not column:
            return False
        newest = rows.order_by(f"-{column}").values(column)[:MOST_SEARCHED]
        found = newest.aggregate(first=Min(column), count=Count(column))
        if found["count"] < MOST_SEARCHED:
            return False
        self.queryset = self.queryset.filter(**{f"{column}__gte": found["first"]})
        return True


class ReadOnlyAdmin(_ModelAdmin[M]):
    """Shows rows without loading what is large, counting what is many, or offering to edit."""

    checks_class = PermissionChecks
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
        """Allow filters of the list only: any other could find out what a payload holds."""
        listed = self.get_list_filter(request) if request else self.list_filter
        if lookup in filters.parameters(listed):
            return True
        return not {lookup, lookup.rpartition("__")[0]}.isdisjoint(filters.columns(listed))

    def get_object(
        self, request: HttpRequest, object_id: str, from_field: str | None = None
    ) -> M | None:
        """Return the row; none for a key that no database can hold."""
        return None if "\0" in object_id else super().get_object(request, object_id, from_field)

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that is never sorted otherwise."""
        return OrderedChangeList

    def search_through(
        self, rows: QuerySet[Any], parameters: Mapping[str, Any]
    ) -> tuple[QuerySet[Any], str]:
        """Return which rows are looked through for what filters ask for, and in whose order.

        No order: an index finds what is asked for, or the table is never large.
        """
        return rows, ""

    def get_queryset(self, request: HttpRequest) -> QuerySet[M]:
        """Leave what is large, or may not be readable, in the database."""
        return super().get_queryset(request).defer(*self.deferred)

    def changelist_view(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the list; where asked for, with the figures of the whole queue above it."""
        _refuse_odd_keys(request, self.opts.pk)
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

    def page(
        self,
        request: HttpRequest,
        template: str,
        title: Any,
        *,
        under: Sequence[tuple[Any, str]] = (),
        **context: Any,
    ) -> TemplateResponse:
        """Return a page of our own, with what every page of this site has.

        ``under`` which pages it stands, after that of the list: their names and addresses.
        """
        request.current_app = self.admin_site.name
        name = capfirst(self.opts.verbose_name_plural)
        lists = [(name, display.list_url(self.admin_site, self.model))]
        common = {
            **self.admin_site.each_context(request),
            "title": title,
            "opts": self.opts,
            "media": self.media,
            "crumbs": [*(lists if self.has_view_permission(request) else []), *under],
            "lists_breadcrumbs": django.VERSION >= (6, 1),
        }
        return TemplateResponse(request, template, common | context)


def _refuse_odd_keys(request: HttpRequest, pk: Any) -> None:
    """Refuse to act on keys that no row can have; Django would fail with them."""
    try:
        for key in request.POST.getlist(ACTION_CHECKBOX_NAME):
            pk.to_python(key)
    except ValidationError:
        raise SuspiciousOperation("a key that no row can have") from None
