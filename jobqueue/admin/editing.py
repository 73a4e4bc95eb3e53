"""Edit and replay: the payload of one dead letter as a form."""

from __future__ import annotations

from itertools import islice
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import Error, transaction
from django.db.models import TextField
from django.db.models.functions import Cast, Left
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.decorators import method_decorator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from jobqueue import lifecycle, payload
from jobqueue.admin import operations, payloads, unmasking
from jobqueue.admin.actions import OperatedAdmin
from jobqueue.admin.base import M
from jobqueue.exceptions import (
    InvalidArguments,
    InvalidPayload,
    JobQueueError,
    UnsupportedVersion,
)
from jobqueue.models import MAX_REASON, DeadLetter, Job
from jobqueue.options import MAX_NAME

#: Arguments by position are known by name up to so many.
MOST_NAMES = 1000
#: What it takes: to edit, to replay, and to see what is edited.
PERMISSIONS = ("edit_payload", "replay_deadletter", "view_payload")
TOO_LATE = gettext_lazy("It was left as it is: somebody has dealt with it already.")


class PayloadForm(forms.Form):
    """A payload with masks where it is sensitive, and where the job goes."""

    args = forms.CharField(label=gettext_lazy("Arguments"), widget=forms.Textarea)
    kwargs = forms.CharField(label=gettext_lazy("Keyword arguments"), widget=forms.Textarea)
    version = forms.IntegerField(
        label=gettext_lazy("Payload version"), min_value=1, max_value=32_767
    )
    target_queue = forms.CharField(
        label=gettext_lazy("Target queue"),
        help_text=gettext_lazy("Where the job goes; empty: to the queue that it came from."),
        max_length=MAX_NAME,
        required=False,
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        help_text=gettext_lazy("Optional; kept with the replay and in the operation log."),
        max_length=MAX_REASON,
        required=False,
        widget=forms.TextInput(attrs={"class": "vTextField"}),
    )

    def __init__(
        self, *args: Any, letter: DeadLetter, stored: dict[str, Any], **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.stored = stored
        # A task that takes any number of arguments has no end of names.
        self.names = list(islice(payloads.argument_names(letter.task), MOST_NAMES))

    def clean_args(self) -> list[Any]:
        """Read the list, and put back what masks stand for."""
        return list(self._read("args", list, _('This must be a list, such as [1, "a"].')))

    def clean_kwargs(self) -> dict[str, Any]:
        """Read the object, and put back what masks stand for."""
        return dict(self._read("kwargs", dict, _('This must be an object, such as {"a": 1}.')))

    def _read(self, name: str, kind: type, otherwise: str) -> Any:
        names = self.names if name == "args" else ()
        try:
            value = unmasking.read(self.cleaned_data[name])
            if not isinstance(value, kind):
                raise ValidationError(otherwise)
            payload.check(value, name=name)
            return unmasking.unmask(value, self.stored[name], names=names, where=name)
        except ValueError as error:
            raise ValidationError(str(error)) from None

    def add_refusal(self, error: JobQueueError) -> None:
        """Show beside its field why the payload is refused."""
        text = str(error)
        if isinstance(error, UnsupportedVersion):
            field: str | None = "version"
        elif isinstance(error, InvalidPayload) and not isinstance(error, InvalidArguments):
            field = "kwargs" if text.startswith(("kwargs", "a key of kwargs")) else "args"
        else:
            field = "target_queue" if text.startswith("queue_name") else None
        self.add_error(field, text)


class EditedAdmin(OperatedAdmin[M]):
    """Has a page for each dead letter on which it can be edited and replayed."""

    def get_urls(self) -> list[URLPattern]:
        """Add the page."""
        view = self.admin_site.admin_view(self.edit_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_edit"
        return [path("<path:object_id>/edit/", view, name=name), *super().get_urls()]

    def edit_url(self, pk: Any) -> str:
        """Return the address of the page."""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_edit"
        return reverse(name, args=[quote(pk)], current_app=self.admin_site.name)

    def may_edit(self, request: HttpRequest) -> bool:
        """Tell whether the user may see, edit and replay payloads."""
        user: Any = request.user
        names = [f"{self.opts.app_label}.{each}" for each in PERMISSIONS]
        return self.has_view_permission(request) and bool(user.has_perms(names))

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def edit_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show the payload, and replay the letter with what it was made."""
        if not self.may_edit(request):
            raise PermissionDenied
        pk = self.read_pk(object_id)
        letters: Any = self.get_queryset(request).using(lifecycle.alias())
        letter = letters.open().filter(pk=pk).first()
        if letter is None:
            return self._too_late(request, pk)
        form = _form(request, letter)
        if form.is_valid() and self._replay_edited(request, letter, form):
            return HttpResponseRedirect(self.url_after(request, letter.pk))
        return self._show_edit(request, letter, form)

    def _too_late(self, request: HttpRequest, pk: Any) -> HttpResponse:
        """Say that a letter is no longer open, and lead to what it has become."""
        was_open = any(each._default_manager.filter(pk=pk).exists() for each in (DeadLetter, Job))
        if not (was_open and request.method == "POST"):
            raise Http404
        self.message_user(request, TOO_LATE, messages.WARNING)
        return HttpResponseRedirect(self.url_after(request, pk))

    def _replay_edited(self, request: HttpRequest, letter: DeadLetter, form: PayloadForm) -> bool:
        """Replay it; where it is refused, add that to the form."""
        given, using = form.cleaned_data, lifecycle.alias()
        try:
            with transaction.atomic(using=using):
                done = lifecycle.replay_edited(
                    letter.pk,
                    args=given["args"],
                    kwargs=given["kwargs"],
                    version=given["version"],
                    target_queue=given["target_queue"],
                    by=operations.actor(request),
                    reason=given["reason"],
                    correlation_id=operations.new_correlation_id(),
                    using=using,
                )
                if done:
                    user_id: Any = request.user.pk
                    log = "Replayed with an edited payload."
                    LogEntry.objects.log_actions(user_id, [letter], CHANGE, log)
        except JobQueueError as error:
            form.add_refusal(error)
            return False
        except Error as error:
            form.add_error(None, operations.explain(error))
            return False
        if done:
            self.message_user(request, _("The dead letter was replayed with the edited payload."))
        else:
            self.message_user(request, TOO_LATE, messages.WARNING)
        return True

    def _show_edit(
        self, request: HttpRequest, letter: DeadLetter, form: PayloadForm
    ) -> HttpResponse:
        url = self.page_url(letter.pk)
        return self.page(
            request,
            "admin/jobqueue/edit.html",
            _("Edit and replay %(letter)s") % {"letter": letter},
            under=[(letter, url)],
            form=form,
            mask=payloads.MASK,
            back=url,
        )


def _form(request: HttpRequest, letter: DeadLetter) -> PayloadForm:
    texts = _stored_texts(letter)
    stored = {name: _loaded(text) for name, text in texts.items()}
    names = payloads.argument_names(letter.task)
    initial = {
        "args": payloads.as_text(texts["args"], names),
        "kwargs": payloads.as_text(texts["kwargs"]),
        "version": letter.version,
    }
    data = request.POST if request.method == "POST" else None
    return PayloadForm(data, letter=letter, stored=stored, initial=initial)


def _stored_texts(letter: DeadLetter) -> dict[str, Any]:
    """Read the columns as text: a JSONField would parse them, and a bad one would raise."""
    texts: dict[str, Any] = {
        f"{name}_text": Left(Cast(name, TextField()), payloads.MOST_CHARACTERS + 1)
        for name in ("args", "kwargs")
    }
    rows = DeadLetter.objects.using(letter._state.db).filter(pk=letter.pk)
    row: Any = rows.values(**texts).first()
    return {name: row[f"{name}_text"] if row else "" for name in ("args", "kwargs")}


def _loaded(text: str) -> Any:
    """Return what is stored, to put it back in the place of masks; nothing where none are shown."""
    try:
        return unmasking.read(text)
    except ValueError:
        return None
