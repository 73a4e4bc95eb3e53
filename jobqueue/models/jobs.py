"""What there is to do, what was tried, and what gave up."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.options import MAX_ACTOR, MAX_NAME, MAX_PRIORITY, MIN_PRIORITY
from jobqueue.querysets import AttemptQuerySet, DeadLetterQuerySet, JobQuerySet
from jobqueue.states import FINISHED, Outcome, Reason, Status

MAX_TASK_NAME = 200
MAX_WORKER_NAME = 120
MAX_LAST_ERROR = 500
MAX_REASON = 500

_CLAIMED = Q(status=Status.CLAIMED)
_LEASED = Q(claimed_by__isnull=False, claimed_at__isnull=False, claimed_until__isnull=False)
_NOT_LEASED = Q(claimed_by__isnull=True, claimed_at__isnull=True, claimed_until__isnull=True)
_OPEN = Q(discarded_at__isnull=True)


class Request(models.Model):
    """What was asked for, by whom, and how far it has come: shared by jobs and dead letters."""

    task = models.CharField(_("task"), max_length=MAX_TASK_NAME)
    args = models.JSONField(_("args"), default=list)
    kwargs = models.JSONField(_("kwargs"), default=dict)
    version = models.PositiveSmallIntegerField(_("payload version"), db_default=1)
    queue_name = models.CharField(_("queue"), max_length=MAX_NAME, db_default="default")
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    correlation_id = models.CharField(
        _("correlation id"), max_length=MAX_NAME, db_default="", blank=True
    )
    actor = models.CharField(_("actor"), max_length=MAX_ACTOR, db_default="", blank=True)
    trace = models.JSONField(_("trace headers"), null=True, blank=True)
    # What changes stands last: PostgreSQL logs an update from the first column that differs.
    #: Attempts so far, counted at the claim.
    attempts = models.PositiveIntegerField(_("attempts"), db_default=0)
    #: The number of the last attempt that the job will get.
    max_attempts = models.PositiveIntegerField(_("max attempts"), db_default=5)
    #: Attempts that do not count against the budget: snoozes, and those of earlier lives.
    attempts_forgiven = models.PositiveIntegerField(_("attempts forgiven"), db_default=0)
    replays = models.PositiveIntegerField(_("replays"), db_default=0)
    #: How often in a row a worker was lost with the job in hand: it may be what kills them.
    losses = models.PositiveSmallIntegerField(_("losses in a row"), db_default=0)
    #: The fencing token: grows at every claim and never goes back.
    fence = models.PositiveBigIntegerField(_("fence"), db_default=0)
    last_error = models.CharField(
        _("last error"), max_length=MAX_LAST_ERROR, db_default="", blank=True
    )

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    @property
    def budget(self) -> int:
        """How many attempts the job gets in one life, snoozes aside."""
        return self.max_attempts - self.attempts_forgiven


class Job(Request):
    """One live request to run a task, and for a while a finished one.

    Only :mod:`jobqueue.lifecycle` changes a row, and what settles a claim carries its fence.
    """

    id = models.BigAutoField(primary_key=True)
    status = models.CharField(
        _("status"), max_length=10, choices=Status.choices, db_default=Status.PENDING
    )
    run_after = models.DateTimeField(_("run after"), db_default=Now())
    claimed_by = models.CharField(_("claimed by"), max_length=MAX_WORKER_NAME, null=True)  # noqa: DJ001 - null is "no lease"
    claimed_at = models.DateTimeField(_("claimed at"), null=True)
    claimed_until = models.DateTimeField(_("claimed until"), null=True)
    cancel_requested = models.BooleanField(_("cancel requested"), db_default=False)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    result = models.JSONField(_("result"), null=True)

    objects = JobQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_job"  # stores/ name it, whatever label the project gives the app
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("cancel_job", _("Can cancel jobs")),
            ("run_job_now", _("Can run scheduled jobs now")),
            ("move_job", _("Can move jobs to another queue")),
            ("prioritise_job", _("Can change the priority of jobs")),
            ("view_payload", _("Can see payloads, results and tracebacks")),
            ("export_rows", _("Can export rows as CSV")),
        ]
        indexes: ClassVar = [
            # The claim: exactly its ORDER BY, and only what can run now.
            models.Index(
                F("queue_name"),
                F("priority").desc(),
                F("run_after"),
                F("id"),
                name="jobqueue_job_pending",
                condition=Q(status=Status.PENDING),
            ),
            # Promote: the next due first.
            models.Index(
                fields=["run_after"],
                name="jobqueue_job_scheduled",
                condition=Q(status=Status.SCHEDULED),
            ),
            # Rescue reads this small set; claimed_until is in no index, so that heartbeats are HOT,
            # and no other index has this order, so that the planner takes this one.
            models.Index(fields=["claimed_at"], name="jobqueue_job_claimed", condition=_CLAIMED),
            models.Index(
                fields=["finished_at"],
                name="jobqueue_job_finished",
                condition=Q(status__in=FINISHED),
            ),
            # The admin's search. Most jobs have none, and then there is nothing to write here.
            models.Index(
                fields=["correlation_id"],
                name="jobqueue_job_correlation",
                condition=~Q(correlation_id=""),
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=(_CLAIMED & _LEASED) | (~_CLAIMED & _NOT_LEASED),
                name="jobqueue_claimed_iff_leased",
            ),
            models.CheckConstraint(
                condition=Q(status__in=FINISHED, finished_at__isnull=False)
                | (~Q(status__in=FINISHED) & Q(finished_at__isnull=True)),
                name="jobqueue_finished_iff_finished_at",
            ),
            models.CheckConstraint(
                condition=Q(status__in=Status.values), name="jobqueue_status_is_known"
            ),
            # A job that waits has an attempt left: a claim counts it, and must not fail for all.
            models.CheckConstraint(
                condition=Q(attempts__lt=F("max_attempts"))
                | (
                    ~Q(status__in=(Status.PENDING, Status.SCHEDULED))
                    & Q(attempts__lte=F("max_attempts"))
                ),
                name="jobqueue_nothing_retries_for_ever",
            ),
            models.CheckConstraint(
                condition=Q(priority__gte=MIN_PRIORITY, priority__lte=MAX_PRIORITY),
                name="jobqueue_priority_in_range",
            ),
        ]


class Lease(Job):
    """A claimed job, seen as the lease on it."""

    class Meta:
        proxy = True
        verbose_name = _("lease")
        verbose_name_plural = _("leases")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("extend_lease", _("Can extend leases")),
            ("release_lease", _("Can release leases that others hold")),
        ]


class Attempt(models.Model):
    """One try of a job: written once, when it ended, with what settled the job; never changed."""

    id = models.BigAutoField(primary_key=True)
    # The job may since have become a dead letter of the same id, or have been pruned.
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="history",
    )
    number = models.PositiveIntegerField(_("number"))
    fence = models.PositiveBigIntegerField(_("fence"))
    task = models.CharField(_("task"), max_length=MAX_TASK_NAME)
    queue_name = models.CharField(_("queue"), max_length=MAX_NAME)
    worker = models.CharField(_("worker"), max_length=MAX_WORKER_NAME)
    started_at = models.DateTimeField(_("started at"))
    finished_at = models.DateTimeField(_("finished at"))
    outcome = models.CharField(_("outcome"), max_length=12, choices=Outcome.choices)
    error_class = models.CharField(_("error class"), max_length=200, db_default="", blank=True)
    message = models.TextField(_("message"), db_default="", blank=True)
    traceback = models.TextField(_("traceback"), db_default="", blank=True)
    fingerprint = models.CharField(_("error fingerprint"), max_length=16, db_default="", blank=True)

    objects = AttemptQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_attempt"
        verbose_name = _("attempt")
        verbose_name_plural = _("attempts")
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["job", "number"], name="jobqueue_attempt_recorded_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.job_id}, attempt {self.number}: {self.outcome}"

    @property
    def duration(self) -> timedelta:
        """How long the attempt took; for a lost one, until its lease ended."""
        return self.finished_at - self.started_at


class DeadLetter(Request):
    """A job that gave up, moved here whole under its own id, with the reason.

    Only :mod:`jobqueue.lifecycle` changes a row: it is replayed, or discarded, which marks it. One
    that is discarded can be restored.
    """

    id = models.BigIntegerField(primary_key=True)
    run_after = models.DateTimeField(_("run after"))
    died_at = models.DateTimeField(_("died at"), db_default=Now())
    reason = models.CharField(_("reason"), max_length=20, choices=Reason.choices)
    error_class = models.CharField(_("error class"), max_length=200, db_default="", blank=True)
    message = models.TextField(_("message"), db_default="", blank=True)
    fingerprint = models.CharField(_("error fingerprint"), max_length=16, db_default="", blank=True)
    discarded_at = models.DateTimeField(_("discarded at"), null=True)
    discarded_by = models.CharField(
        _("discarded by"), max_length=MAX_ACTOR, db_default="", blank=True
    )
    discard_reason = models.CharField(
        _("reason for discarding"), max_length=MAX_REASON, db_default="", blank=True
    )

    objects = DeadLetterQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_deadletter"
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)
        permissions: ClassVar = [
            ("replay_deadletter", _("Can replay dead letters")),
            ("edit_payload", _("Can replay dead letters with an edited payload")),
            ("discard_deadletter", _("Can discard and restore dead letters")),
            ("delete_deadletter", _("Can delete dead letters for ever")),
        ]
        indexes: ClassVar = [
            models.Index(fields=["died_at"], name="jobqueue_deadletter_died_at"),
            # What is to be dealt with: counted, listed, and grouped by error, from indexes alone.
            models.Index(
                fields=["died_at", "id"], name="jobqueue_deadletter_open", condition=_OPEN
            ),
            models.Index(
                fields=["fingerprint", "task", "died_at", "id"],
                name="jobqueue_deadletter_error",
                condition=_OPEN,
            ),
            models.Index(fields=["queue_name"], name="jobqueue_deadletter_queue", condition=_OPEN),
        ]
