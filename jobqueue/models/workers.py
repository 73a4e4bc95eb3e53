"""Who works, and what operators have said of the queues."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.models.jobs import MAX_REASON, MAX_WORKER_NAME
from jobqueue.options import MAX_ACTOR, MAX_NAME
from jobqueue.querysets import QueueQuerySet, WorkerQuerySet
from jobqueue.states import WorkerState


class Worker(models.Model):
    """One live worker process, written by itself."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=MAX_WORKER_NAME, unique=True)
    host = models.CharField(_("host"), max_length=255)
    pid = models.PositiveIntegerField(_("process id"))
    #: As given on the command line: "default, mail:2"; empty: all queues.
    queues = models.TextField(_("queues"), db_default="", blank=True)
    concurrency = models.PositiveIntegerField(_("concurrency"))
    #: How long its claims last, where the task does not say otherwise.
    lease = models.DurationField(_("lease"), null=True)
    state = models.CharField(
        _("state"), max_length=10, choices=WorkerState.choices, db_default=WorkerState.RUNNING
    )
    #: Idle, and to be notified of new jobs: whoever enqueues looks at it.
    listens = models.BooleanField(_("listens"), db_default=False)
    started_at = models.DateTimeField(_("started at"), db_default=Now())
    heartbeat_at = models.DateTimeField(_("last heartbeat"), db_default=Now())

    objects = WorkerQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_worker"
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """A queue that has been seen or paused; jobs need no row of this for their queue."""

    name = models.CharField(_("name"), max_length=MAX_NAME, primary_key=True)
    #: While this is set, and ``paused_until`` has not come, no job of the queue is claimed.
    paused_at = models.DateTimeField(_("paused at"), null=True)
    paused_until = models.DateTimeField(_("paused until"), null=True)
    paused_by = models.CharField(_("paused by"), max_length=MAX_ACTOR, db_default="", blank=True)
    pause_reason = models.CharField(
        _("reason of the pause"), max_length=MAX_REASON, db_default="", blank=True
    )

    objects = QueueQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_queue"
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions: ClassVar = [("pause_queue", _("Can pause and resume queues"))]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(paused_at__isnull=False)
                | Q(paused_until__isnull=True, paused_by="", pause_reason=""),
                name="jobqueue_a_pause_has_a_beginning",
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Overview(Queue):
    """All queues on one page."""

    class Meta:
        proxy = True
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
        default_permissions = ("view",)
