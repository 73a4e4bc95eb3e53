"""What can be done to jobs from the admin: cancel, run now, move, change the priority."""

from __future__ import annotations

from django import forms
from django.contrib.admin.models import CHANGE
from django.db.models import Q
from django.utils.translation import gettext_lazy, ngettext

from jobqueue import lifecycle
from jobqueue.admin.operations import DeedForm, Operation
from jobqueue.exceptions import InvalidJob
from jobqueue.models import Job
from jobqueue.options import MAX_NAME, MAX_PRIORITY, MIN_PRIORITY, check_queue_name
from jobqueue.states import Status


def _cancelled(count: int) -> str:
    return ngettext(
        "%(count)s job was cancelled or, if it runs, asked to stop.",
        "%(count)s jobs were cancelled or, if they run, asked to stop.",
        count,
    ) % {"count": count}


def _made_due(count: int) -> str:
    return ngettext("%(count)s job is due now.", "%(count)s jobs are due now.", count) % {
        "count": count
    }


def _moved(count: int) -> str:
    return ngettext("%(count)s job was moved.", "%(count)s jobs were moved.", count) % {
        "count": count
    }


def _prioritised(count: int) -> str:
    return ngettext(
        "%(count)s job has the new priority.", "%(count)s jobs have the new priority.", count
    ) % {"count": count}


class MoveForm(DeedForm):
    """Asks for a queue."""

    queue_name = forms.CharField(label=gettext_lazy("To the queue"), max_length=MAX_NAME)

    def clean_queue_name(self) -> str:
        """Take what a job could be enqueued with."""
        name: str = self.cleaned_data["queue_name"]
        try:
            check_queue_name(name)
        except InvalidJob as error:
            raise forms.ValidationError(str(error)) from error
        return name


class PriorityForm(DeedForm):
    """Asks for a priority."""

    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        help_text=gettext_lazy("From -100 to 100; higher runs first."),
        min_value=MIN_PRIORITY,
        max_value=MAX_PRIORITY,
    )


_WAITS = Q(status__in=[Status.SCHEDULED, Status.PENDING])
CANCEL = Operation(
    name="cancel",
    model=Job,
    permission="cancel_job",
    label=gettext_lazy("Cancel"),
    applies=_WAITS | Q(status=Status.CLAIMED, cancel_requested=False),
    since="enqueued_at",
    perform=lifecycle.cancel,
    flag=CHANGE,
    log="Cancelled, or asked to stop.",
    done=_cancelled,
    title=gettext_lazy("Cancel jobs?"),
    question=gettext_lazy(
        "A job that waits is cancelled and never runs. One that runs is asked to stop, and is not "
        "tried again. A cancelled job cannot be brought back."
    ),
    is_destructive=True,
)
RUN_NOW = Operation(
    name="run_now",
    model=Job,
    permission="run_job_now",
    label=gettext_lazy("Run now"),
    applies=Q(status=Status.SCHEDULED),
    since="enqueued_at",
    perform=lifecycle.run_now,
    flag=CHANGE,
    log="Made due now.",
    done=_made_due,
)
MOVE = Operation(
    name="move",
    model=Job,
    permission="move_job",
    label=gettext_lazy("Move"),
    applies=_WAITS,
    since="enqueued_at",
    perform=lifecycle.move,
    flag=CHANGE,
    log="Moved to the queue {queue_name}.",
    done=_moved,
    title=gettext_lazy("Move jobs to another queue?"),
    question=gettext_lazy(
        "A job that waits is claimed from the other queue from now on: make sure that a worker "
        "serves it. One that runs is left as it is."
    ),
    form=MoveForm,
    unfit=gettext_lazy("no longer there, not waiting any more, or already in that queue"),
)
PRIORITISE = Operation(
    name="prioritise",
    model=Job,
    permission="prioritise_job",
    label=gettext_lazy("Change priority"),
    applies=_WAITS,
    since="enqueued_at",
    perform=lifecycle.prioritise,
    flag=CHANGE,
    log="Given the priority {priority}.",
    done=_prioritised,
    title=gettext_lazy("Change the priority of jobs?"),
    question=gettext_lazy(
        "Of the jobs of a queue that can run, those with a higher priority are claimed first. One "
        "that runs is left as it is."
    ),
    form=PriorityForm,
    unfit=gettext_lazy("no longer there, not waiting any more, or of that priority already"),
)
