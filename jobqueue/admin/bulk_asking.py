"""Ask for a bulk operation: see what it would do, say how and why, and let workers do it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import IncorrectLookupParameters
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_http_methods

from jobqueue import lifecycle, options
from jobqueue.admin import display, dry_run, filters, operations, payloads, samples
from jobqueue.admin.base import M, ReadOnlyAdmin
from jobqueue.admin.samples import Newest
from jobqueue.exceptions import InvalidJob
from jobqueue.models import MAX_REASON, BulkOperation, DeadLetter
from jobqueue.options import MAX_NAME
from jobqueue.states import BulkKind

#: From so many letters on their number has to be typed.
TYPED_BEYOND = 1000
DEFAULT_RATE = 50

#: What of the list's parameters an operation remembers as a filter, and under which name.
REMEMBERED = {
    "task": "task",
    "queue": "queue_name",
    "reason": "reason",
    "fingerprint": "fingerprint",
    "died": "died_since",
}
#: What says how the list is shown, or what an operation goes by in any case.
_IGNORED = {"discarded", "p"}
TITLES: dict[str, Any] = {
    BulkKind.REPLAY: gettext_lazy("Replay dead letters"),
    BulkKind.DISCARD: gettext_lazy("Discard dead letters"),
}


class TooMany(Exception):
    """More letters match what no filter can remember than can be named one by one."""


class BulkForm(forms.Form):
    """How to do it, and why."""

    rate = forms.FloatField(
        label=gettext_lazy("Letters a second"),
        help_text=gettext_lazy("At most so many; empty: as fast as it goes."),
        min_value=lifecycle.bulk.SLOWEST,
        max_value=lifecycle.bulk.FASTEST,
        required=False,
    )
    target_queue = forms.CharField(
        label=gettext_lazy("Target queue"),
        help_text=gettext_lazy("Where the jobs go; empty: each to the queue that it came from."),
        max_length=MAX_NAME,
        required=False,
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Kept with the operation, its letters and in the operation log."),
        max_length=MAX_REASON,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )
    typed = forms.IntegerField(label=gettext_lazy("Number of letters"))
    until = forms.CharField(widget=forms.HiddenInput, required=False)

    def __init__(self, *args: Any, kind: str, count: int, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.count = min(count, display.MOST_COUNTED)
        if kind != BulkKind.REPLAY:
            del self.fields["target_queue"]
        if count <= TYPED_BEYOND:
            del self.fields["typed"]
        else:
            text = _("So many that it is asked for twice: type %(count)s.")
            self.fields["typed"].help_text = text % {"count": self.count}

    def clean_target_queue(self) -> str:
        """Refuse what can be no queue's name."""
        name: str = self.cleaned_data["target_queue"]
        if name:
            try:
                options.check_queue_name(name)
            except InvalidJob as error:
                raise ValidationError(str(error)) from None
        return name

    def clean_typed(self) -> int:
        """Refuse any other number."""
        typed: int = self.cleaned_data["typed"]
        if typed != self.count:
            raise ValidationError(_("There are %(count)s."), params={"count": self.count})
        return typed


class Asked(NamedTuple):
    """What a bulk operation would be for."""

    kind: str
    found: Newest
    until: datetime | None
    filters: dict[str, Any]
    ids: list[int] | None


class BulkAdmin(ReadOnlyAdmin[M]):
    """Has a page that asks for bulk operations, to which the list's actions and groups lead."""

    def get_urls(self) -> list[URLPattern]:
        """Add a page for each kind, before what takes any text for a row's key."""
        pages = [
            path(
                f"bulk/{kind}/",
                self.admin_site.admin_view(partial(self.bulk_view, kind=kind)),
                name=f"{self.opts.app_label}_{self.opts.model_name}_bulk_{kind}",
            )
            for kind in BulkKind.values
        ]
        return [*pages, *super().get_urls()]

    def bulk_url(self, kind: str, **parameters: Any) -> str:
        """Return the address of the page that asks for it, for the letters that match."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_bulk_{kind}"
        url = reverse(name, current_app=self.admin_site.name)
        return f"{url}?{urlencode(parameters)}" if parameters else url

    def ask_for_selected(self, request: HttpRequest, kind: str) -> HttpResponse:
        """Lead from the list to the page, with what was picked or the filters in the address."""
        if "1" in request.POST.getlist("select_across"):
            filters_given = {name: each for name, each in request.GET.items() if name != "p"}
            return HttpResponseRedirect(self.bulk_url(kind, **filters_given))
        picked = dict.fromkeys(request.POST.getlist(ACTION_CHECKBOX_NAME))
        return HttpResponseRedirect(self.bulk_url(kind, ids=",".join(picked)))

    def may_do(self, request: HttpRequest, kind: str) -> bool:
        """Tell whether the user may look at the letters and do this to them."""
        user: Any = request.user
        return self.has_view_permission(request) and user.has_perm(lifecycle.bulk.permission(kind))

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def bulk_view(self, request: HttpRequest, *, kind: str) -> HttpResponse:
        """Show what would be done, and have it done once the form is sent."""
        if not self.may_do(request, kind):
            raise PermissionDenied
        try:
            changes = self.get_changelist_instance(request)
            asked = _asked(kind, request, changes)
        except IncorrectLookupParameters:
            return HttpResponseRedirect(display.list_url(self.admin_site, self.model))
        except TooMany:
            self.message_user(request, _too_many(), messages.ERROR)
            return HttpResponseRedirect(
                display.list_url(self.admin_site, self.model, **request.GET.dict())
            )
        count = asked.found.size
        data = request.POST if request.method == "POST" else None
        initial = {"rate": DEFAULT_RATE, "until": asked.until and asked.until.isoformat()}
        form = BulkForm(data, kind=kind, count=count, initial=initial)
        if count and form.is_valid():
            return self._start_bulk(request, asked, form, count)
        return self._show_bulk(request, asked, form, changes)

    def _start_bulk(
        self, request: HttpRequest, asked: Asked, form: BulkForm, count: int
    ) -> HttpResponse:
        operation = lifecycle.bulk.ask(
            asked.kind,
            filters=asked.filters,
            ids=asked.ids,
            until=asked.until,
            rate=form.cleaned_data["rate"],
            target_queue=form.cleaned_data.get("target_queue", ""),
            expected=count,
            by=operations.actor(request),
            reason=form.cleaned_data["reason"],
        )
        self.message_user(request, _started(asked.kind, count), messages.SUCCESS)
        if display.may_view(request, self.admin_site, BulkOperation):
            url = display.change_url(self.admin_site, BulkOperation, operation.pk)
        else:
            url = display.list_url(self.admin_site, self.model)
        return HttpResponseRedirect(url)

    def _show_bulk(
        self, request: HttpRequest, asked: Asked, form: BulkForm, changes: Any
    ) -> HttpResponse:
        found = dry_run.look_into(
            asked.found,
            checks_payloads=asked.kind == BulkKind.REPLAY,
            quotes_payloads=payloads.may_see(request),
        )
        return self.page(
            request,
            "admin/jobqueue/bulk.html",
            TITLES[asked.kind],
            kind=asked.kind,
            form=form,
            found=found,
            size=asked.found.size,
            is_part=found.sample is not None and found.sample.size < asked.found.size,
            would_go=_would_go(asked.found.size),
            words=list(in_words(changes)),
            back=display.list_url(self.admin_site, self.model, **request.GET.dict()),
        )


def _asked(kind: str, request: HttpRequest, changes: Any) -> Asked:
    """Read which letters are meant: the open ones that the list would show."""
    letters = changes.queryset.using(lifecycle.alias()).open()
    asked = request.POST.get("until", "")
    now = operations.now(DeadLetter.objects.all()) if asked else None
    until = operations.read_until(asked, now) if now else None
    if until:
        letters = letters.filter(died_at__lte=until)
    found = samples.newest(letters, display.MOST_COUNTED)
    until = until or found.now
    remembered = _remembered(changes, until)
    if remembered is not None:
        return Asked(kind, found, until, remembered, None)
    most = lifecycle.bulk.MOST_IDS
    if found.size > most:
        raise TooMany
    ids = list(letters.order_by("pk").values_list("pk", flat=True)[:most])
    return Asked(kind, found, until, {}, ids)


def _remembered(changes: Any, until: datetime | None) -> dict[str, Any] | None:
    """Return the list's filters as an operation keeps them; None where it cannot keep one."""
    given = {name: values[-1] for name, values in changes.get_filters_params().items()}
    used = {name: value for name, value in given.items() if value and name not in _IGNORED}
    # Nor can it keep what a project's own get_queryset() leaves out, such as others' letters.
    is_narrowed = bool(changes.root_queryset.query.where)
    if is_narrowed or changes.query or not used.keys() <= REMEMBERED.keys():
        return None
    found = {REMEMBERED[name]: value for name, value in used.items()}
    if found.get("fingerprint") == filters.NONE:
        found["fingerprint"] = ""
    if "died_since" in found:
        spans: Mapping[Any, Any] = filters.DiedFilter.spans
        _label, span = spans.get(found.pop("died_since"), (None, None))
        if span and until:
            found["died_since"] = (until - span).isoformat()
    return found


def in_words(changes: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what the list is narrowed down by: a title and a value for each."""
    if changes.query:
        yield _("search"), changes.query
    for spec in changes.filter_specs:
        value = getattr(spec, "value", lambda: None)()
        if value and getattr(spec, "parameter_name", "") not in _IGNORED:
            labels = {str(key): label for key, label in spec.lookup_choices}
            yield spec.title, labels.get(value, value)


def _would_go(count: int) -> str:
    return ngettext(
        "%(count)s dead letter would go.", "%(count)s dead letters would go.", count
    ) % {"count": display.capped(count)}


def _too_many() -> str:
    return _(
        "More than %(most)s letters match the search. Use filters to say which, or search for less."
    ) % {"most": f"{lifecycle.bulk.MOST_IDS:,}"}


def _started(kind: str, count: int) -> str:
    texts = {
        BulkKind.REPLAY: ngettext(
            "%(count)s dead letter will be replayed by the workers.",
            "%(count)s dead letters will be replayed by the workers.",
            count,
        ),
        BulkKind.DISCARD: ngettext(
            "%(count)s dead letter will be discarded by the workers.",
            "%(count)s dead letters will be discarded by the workers.",
            count,
        ),
    }
    return texts[BulkKind(kind)] % {"count": display.capped(count)}
