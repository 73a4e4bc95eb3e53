"""What workers have counted and measured, in spans of time: cheap to write, and to draw."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from jobqueue.models.jobs import MAX_TASK_NAME
from jobqueue.options import MAX_NAME


class Rollup(models.Model):
    """What became of one task's jobs of one queue in one span of time.

    Minutes and quarters also have a row of all together, whose queue and task are empty. Workers
    add to the rows what they have counted in memory, every few seconds. The distributions
    are objects from the number of a bucket (:mod:`jobqueue.measures`) to how many fell into it.
    """

    id = models.BigAutoField(primary_key=True)
    #: How long the span is, in seconds; 0: since for ever, for counters that never go back.
    span = models.PositiveIntegerField(_("span"))
    start = models.DateTimeField(_("start"))
    queue_name = models.CharField(_("queue"), max_length=MAX_NAME)
    task = models.CharField(_("task"), max_length=MAX_TASK_NAME)
    #: Claims, less those that were handed back unstarted; for ever, before they were added.
    claimed = models.PositiveBigIntegerField(_("claimed"), default=0)
    succeeded = models.PositiveBigIntegerField(_("succeeded"), default=0)
    #: Attempts that failed and will be followed by another.
    retried = models.PositiveBigIntegerField(_("retried"), default=0)
    #: Attempts that ended in a dead letter.
    died = models.PositiveBigIntegerField(_("died"), default=0)
    #: Of the last two, those that were lost with their worker.
    lost = models.PositiveBigIntegerField(_("lost"), default=0)
    #: From due to claimed.
    waits = models.JSONField(_("waits"), default=dict)
    #: From started to finished.
    runs = models.JSONField(_("runs"), default=dict)
    #: The number of the attempt that succeeded, within the job's present life.
    tries = models.JSONField(_("attempts to success"), default=dict)

    class Meta:
        db_table = "jobqueue_rollup"
        verbose_name = _("rollup")
        verbose_name_plural = _("rollups")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["span", "start", "queue_name", "task"], name="jobqueue_rollup_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} in {self.queue_name}, {self.span} s from {self.start}"


class Sample(models.Model):
    """How one queue stood at one minute; the queue "" stands for all of them together.

    Whichever worker comes first writes it. Depths are counted no further than a limit.
    """

    id = models.BigAutoField(primary_key=True)
    minute = models.DateTimeField(_("minute"))
    queue_name = models.CharField(_("queue"), max_length=MAX_NAME, blank=True)
    depth = models.PositiveBigIntegerField(_("depth"), default=0)
    oldest_age = models.DurationField(_("oldest age"), null=True)
    in_flight = models.PositiveBigIntegerField(_("in flight"), default=0)
    dead_letters = models.PositiveBigIntegerField(_("dead letters"), default=0)

    class Meta:
        db_table = "jobqueue_sample"
        verbose_name = _("sample")
        verbose_name_plural = _("samples")
        default_permissions = ()
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["minute", "queue_name"], name="jobqueue_sample_once"),
        ]

    def __str__(self) -> str:
        return f"{self.queue_name or 'all queues'} at {self.minute}"
