"""Dead letters: what gave up, and why; replay and discard."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.models import CHANGE, DELETION
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import lifecycle
from jobqueue.admin import display, filters
from jobqueue.admin.common import RequestAdmin
from jobqueue.admin.operations import Operation
from jobqueue.models import DeadLetter, Job
from jobqueue.states import Reason
from jobqueue.stats import age_of


def _replayed(count: int) -> str:
    return ngettext(
        "%(count)s dead letter was replayed: it is a pending job again.",
        "%(count)s dead letters were replayed: they are pending jobs again.",
        count,
    ) % {"count": count}


def _discarded(count: int) -> str:
    return ngettext(
        "%(count)s dead letter was discarded.", "%(count)s dead letters were discarded.", count
    ) % {"count": count}


REPLAY = Operation(
    name="replay",
    model=DeadLetter,
    permission="replay_deadletter",
    label=gettext_lazy("Replay"),
    applies=Q(),
    since="died_at",
    perform=lifecycle.replay,
    flag=CHANGE,
    log="Replayed.",
    done=_replayed,
)
DISCARD = Operation(
    name="discard",
    model=DeadLetter,
    permission="discard_deadletter",
    label=gettext_lazy("Discard"),
    applies=Q(),
    since="died_at",
    perform=lifecycle.discard,
    flag=DELETION,
    log="Discarded.",
    is_destructive=True,
    done=_discarded,
    title=gettext_lazy("Discard dead letters?"),
    question=gettext_lazy(
        "A discarded dead letter is deleted with its payload and cannot be replayed any more. Its "
        "attempts stay until they are pruned."
    ),
)


@admin.register(DeadLetter)
class DeadLetterAdmin(RequestAdmin[DeadLetter]):
    """Dead letters, each with what went wrong and everything that was tried."""

    ordering = ("-died_at", "-pk")
    list_display = ("id", "task_name", "queue_name", "why", "error", "died")
    list_filter = (
        filters.ReasonFilter,
        filters.QueueFilter,
        filters.DiedFilter,
        filters.TaskFilter,
        filters.FingerprintFilter,
    )
    deferred = (*RequestAdmin.deferred, "message")
    search_help_text = gettext_lazy("A job's number or a correlation id.")
    other_model = Job
    shows_figures = True
    operations = (REPLAY, DISCARD)
    actions = ("replay", "discard")
    empty_text = gettext_lazy(
        "No dead letters. A job lands here when it has used up its attempts, or when trying again "
        "is pointless."
    )
    fieldsets: ClassVar[Any] = (
        (None, {"fields": ["task_name", ("queue_name", "priority", "died_at")]}),
        (
            gettext_lazy("Why it gave up"),
            {
                "fields": [
                    "why",
                    ("error_class", "same_error"),
                    "whole_message",
                    ("tries", "replays", "losses", "fence"),
                ]
            },
        ),
        RequestAdmin.payload_fieldset,
        RequestAdmin.origin_fieldset,
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[DeadLetter]:
        """Add the start of the message, and how long ago it died by the database's clock."""
        letters = super().get_queryset(request)
        return letters.annotate(
            summary=Left("message", display.MOST_OF_A_LINE), age=age_of(F("died_at"))
        )

    @admin.display(description=gettext_lazy("died"))
    def died(self, letter: Any) -> Any:
        """Return how long ago the job gave up."""
        return display.when(letter.died_at, letter.age)

    @admin.display(description=gettext_lazy("reason"))
    def why(self, letter: DeadLetter) -> Any:
        """Return the reason as a word with a symbol."""
        return display.mark("dead", "✗", dict(Reason.choices).get(letter.reason, letter.reason))

    @admin.display(description=gettext_lazy("error"))
    def error(self, letter: Any) -> Any:
        """Return the class of the error and the start of its message."""
        return display.error(letter.error_class, letter.summary)

    @admin.display(description=gettext_lazy("message"))
    def whole_message(self, letter: DeadLetter) -> Any:
        """Return the whole message."""
        return display.preformatted(letter.message)

    @admin.display(description=gettext_lazy("error fingerprint"))
    def same_error(self, letter: DeadLetter) -> Any:
        """Return the fingerprint, with a link to the dead letters of the same error."""
        if not letter.fingerprint:
            return display.NOTHING
        url = display.list_url(self.admin_site, DeadLetter, fingerprint=letter.fingerprint)
        return display.link(url, letter.fingerprint)

    @admin.action(permissions=["replay"], description=gettext_lazy("Replay selected dead letters"))
    def replay(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Make dead letters pending jobs again."""
        return self.operate_on_selected(request, queryset, REPLAY)

    @admin.action(
        permissions=["discard"], description=gettext_lazy("Discard selected dead letters")
    )
    def discard(self, request: HttpRequest, queryset: QuerySet[DeadLetter]) -> HttpResponse | None:
        """Delete dead letters, after a question."""
        return self.operate_on_selected(request, queryset, DISCARD)

    def has_replay_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may replay dead letters."""
        return self.may(request, REPLAY)

    def has_discard_permission(self, request: HttpRequest) -> bool:
        """Tell whether the user may discard dead letters."""
        return self.may(request, DISCARD)
