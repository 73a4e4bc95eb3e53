"""Operations from a list and from a row's page: one way to ask, do and report for both."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.utils import model_ngettext, quote, unquote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_POST

from jobqueue.admin import display, operations
from jobqueue.admin.base import M, ReadOnlyAdmin
from jobqueue.admin.operations import DeedForm, Operation, Order, Tally

#: How many rows a question names, and how many refusals a report does.
MOST_NAMED = 20


class Selection(NamedTuple):
    """The rows that an operation is for, and how the confirmation asks for them again."""

    rows: QuerySet[Any]
    #: How many rows were picked; None when it is all that match the filters.
    picked: int | None
    hidden: list[tuple[str, str]]
    back: str


class Button(NamedTuple):
    """An operation on one row's page."""

    label: Any
    url: str
    is_destructive: bool


class OperatedAdmin(ReadOnlyAdmin[M]):
    """Offers operations on rows to those who may, from the list and from a row's page."""

    operations: ClassVar[tuple[Operation, ...]] = ()

    def may(self, request: HttpRequest, operation: Operation) -> bool:
        """Tell whether the user has the operation's permission."""
        user: Any = request.user
        return bool(user.has_perm(f"{self.opts.app_label}.{operation.permission}"))

    def operate_on_selected(
        self, request: HttpRequest, queryset: QuerySet[M], operation: Operation
    ) -> HttpResponse | None:
        """Do it to the rows picked in the list, or to all that match its filters."""
        return self._operate(request, operation, _selection(request, queryset, operation))

    @method_decorator(require_POST)
    def operate_on_one(
        self, request: HttpRequest, object_id: str, *, operation: Operation
    ) -> HttpResponse:
        """Do it to one row, from its page."""
        if not (self.has_view_permission(request) and self.may(request, operation)):
            raise PermissionDenied
        pk = self.read_pk(object_id)
        if pk is None:
            raise Http404
        rows, back = self.get_queryset(request).filter(pk=pk), self.page_url(pk)
        asked = self._operate(request, operation, Selection(rows, 1, [], back))
        return asked or HttpResponseRedirect(self.url_after(request, pk))

    def _operate(
        self, request: HttpRequest, operation: Operation, selection: Selection
    ) -> HttpResponse | None:
        """Ask first if there is a question; otherwise do it and say what was done."""
        is_answered = "confirmed" in request.POST or not operation.question
        form = operation.form(request.POST if is_answered else None)
        if form.is_valid():
            tally = operations.run(operation, selection.rows, Order.of(request, form))
        else:
            applicable = operation.among(selection.rows)
            if applicable.exists():
                return self._ask(request, operation, selection, applicable, form)
            tally = Tally(seen=_count(selection.rows))
        for level, text in _report(operation, tally, selection.picked):
            self.message_user(request, text, level)
        return None

    def _ask(
        self,
        request: HttpRequest,
        operation: Operation,
        selection: Selection,
        applicable: QuerySet[Any],
        form: DeedForm,
    ) -> HttpResponse:
        count = _count(applicable)
        return self.page(
            request,
            "admin/jobqueue/confirmation.html",
            operation.title,
            operation=operation,
            form=form,
            count=display.capped(count),
            name=model_ngettext(self.opts, count),
            others=(selection.picked or count) - count,
            named=applicable.order_by("-pk")[:MOST_NAMED],
            unnamed=count > MOST_NAMED,
            hidden=selection.hidden,
            back=selection.back,
        )

    def get_urls(self) -> list[URLPattern]:
        """Add an address for each operation on one row."""
        own = [
            path(
                f"<path:object_id>/{each.name}/",
                self.admin_site.admin_view(partial(self.operate_on_one, operation=each)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_{each.name}",
            )
            for each in self.operations
        ]
        return [*own, *super().get_urls()]

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> HttpResponse:
        """Add the buttons."""
        extra = {"buttons": self.buttons(request, context["original"])}
        return super().render_change_form(request, context | extra, *args, **kwargs)

    def buttons(self, request: HttpRequest, row: M) -> list[Button]:
        """Return what the user may do to this row as it is now."""
        return [
            Button(each.label, self._operation_url(each, row.pk), each.is_destructive)
            for each in self.operations
            if self.may(request, each) and each.rows(row._state.db).filter(pk=row.pk).exists()
        ]

    def _operation_url(self, operation: Operation, pk: Any) -> str:
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{operation.name}"
        return reverse(name, args=[quote(pk)], current_app=self.admin_site.name)

    def read_pk(self, object_id: str) -> Any:
        """Return the key that an address names; None when it can be none."""
        try:
            return self.opts.pk.to_python(unquote(object_id))
        except ValidationError:
            return None

    def page_url(self, pk: Any) -> str:
        """Return the address of a row's page."""
        return display.change_url(self.admin_site, self.model, pk)

    def url_after(self, request: HttpRequest, pk: Any) -> str:
        """Return where to go after an operation: the row's page, or the list if it is gone."""
        if self.get_queryset(request).filter(pk=pk).exists():
            return self.page_url(pk)
        return display.list_url(self.admin_site, self.model)


def _count(rows: QuerySet[Any]) -> int:
    return rows.order_by().values("pk")[: display.MOST_COUNTED + 1].count()


def _selection(request: HttpRequest, rows: QuerySet[Any], operation: Operation) -> Selection:
    """Read what was picked in the list; Django has narrowed the rows down to it."""
    picked = list(dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME)))
    back = request.get_full_path()
    hidden = [("action", operation.name)]
    if not forms.BooleanField(required=False).clean(request.POST.get("select_across")):
        hidden += [(ACTION_CHECKBOX_NAME, each) for each in picked]
        return Selection(rows, len(picked), hidden, back)
    now = operations.now(rows)
    if now is None:
        rows = rows.none()
    else:
        until = operations.read_until(request.POST.get("until", ""), now)
        rows = rows.filter(**{f"{operation.since}__lte": until})
        hidden += [("until", until.isoformat())]
    # Django does not look at an action for which no row was picked.
    hidden += [("select_across", "1"), (ACTION_CHECKBOX_NAME, picked[0] if picked else "0")]
    return Selection(rows, None, hidden, back)


def _report(operation: Operation, tally: Tally, picked: int | None) -> list[tuple[int, str]]:
    """Return what to tell the user: what was done, what was not, and why."""
    asked = tally.seen if picked is None else picked
    left = asked - tally.done - len(tally.refused)
    reports = []
    if tally.done:
        reports.append((messages.SUCCESS, operation.done(tally.done)))
    if tally.stopped:
        text = _("Stopped early (%(why)s): what is left can be done by asking again.")
        reports.append((messages.WARNING, text % {"why": tally.stopped}))
    elif left > 0 or not (tally.done or tally.refused):
        reports.append((messages.WARNING, _left(left, operation.unfit)))
    if tally.refused:
        reports.append((messages.ERROR, _refused(tally)))
    return reports


def _refused(tally: Tally) -> str:
    named = "; ".join(f"{pk} ({why})" for pk, why in tally.refused[:MOST_NAMED])
    return ngettext(
        "The database refused %(count)s: %(named)s",
        "The database refused %(count)s, such as these: %(named)s",
        len(tally.refused),
    ) % {"count": len(tally.refused), "named": named}


def _left(count: int, why: Any) -> str:
    return ngettext(
        "%(count)s was left as it is: %(why)s.", "%(count)s were left as they are: %(why)s.", count
    ) % {"count": count, "why": why}
