"""What operators did, and what they have asked the workers to do."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from jobqueue.models.jobs import MAX_LAST_ERROR, MAX_REASON, Job
from jobqueue.options import MAX_ACTOR, MAX_NAME
from jobqueue.querysets import BulkOperationQuerySet, OperationLogQuerySet, ReplayQuerySet
from jobqueue.states import BulkKind, BulkState, Reason


class Deed(models.Model):
    """Who did something, and why; the name is kept as text, since users come and go."""

    #: The primary key of the user; empty for what was not done by a user.
    actor_id = models.CharField(_("actor's id"), max_length=MAX_ACTOR, db_default="", blank=True)
    actor = models.CharField(_("actor"), max_length=MAX_ACTOR, db_default="", blank=True)
    reason = models.CharField(_("reason"), max_length=MAX_REASON, db_default="", blank=True)

    class Meta:
        abstract = True


class BulkOperation(Deed):
    """Something to be done to many dead letters, by workers, a batch at a time.

    Which letters: those of ``ids``, or all that match ``filters``; in either case only those that
    were there ``until`` the operation was asked for, in the order of their ids.
    """

    id = models.BigAutoField(primary_key=True)
    kind = models.CharField(_("kind"), max_length=10, choices=BulkKind.choices)
    state = models.CharField(
        _("state"), max_length=10, choices=BulkState.choices, db_default=BulkState.RUNNING
    )
    filters = models.JSONField(_("filters"), default=dict)
    ids = models.JSONField(_("picked"), null=True)
    until = models.DateTimeField(_("letters until"), db_default=Now())
    #: How many letters the actor was told that it would be.
    expected = models.PositiveBigIntegerField(_("expected"))
    #: At most so many letters a second; null: as fast as it goes.
    rate = models.FloatField(_("letters a second"), null=True)
    #: Where replayed jobs go; empty: to the queue they came from.
    target_queue = models.CharField(
        _("target queue"), max_length=MAX_NAME, db_default="", blank=True
    )
    created_at = models.DateTimeField(_("asked for at"), db_default=Now())
    finished_at = models.DateTimeField(_("finished at"), null=True)
    #: When the latest batch was carried out: the rate is reckoned from it.
    advanced_at = models.DateTimeField(_("last batch at"), null=True)
    #: The id of the last letter that was dealt with.
    position = models.BigIntegerField(_("position"), db_default=0)
    done = models.PositiveBigIntegerField(_("done"), db_default=0)
    #: Letters that could not be dealt with, and stayed as they were.
    refused = models.PositiveBigIntegerField(_("refused"), db_default=0)
    last_error = models.CharField(
        _("last error"), max_length=MAX_LAST_ERROR, db_default="", blank=True
    )

    objects = BulkOperationQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_bulkoperation"
        verbose_name = _("bulk operation")
        verbose_name_plural = _("bulk operations")
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(
                fields=["id"],
                name="jobqueue_bulkoperation_running",
                condition=Q(state=BulkState.RUNNING),
            ),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(rate__isnull=True) | Q(rate__gt=0),
                name="jobqueue_bulkoperation_gets_on",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} #{self.pk}"


class Replay(Deed):
    """One dead letter's return to life: what it was, who wanted it, and the payload it had."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey(
        Job,
        verbose_name=_("job"),
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,  # the constraint below has one
        related_name="replays_of",
    )
    #: The fence that the letter had: it tells this death of the job from the others.
    fence = models.PositiveBigIntegerField(_("fence"))
    replayed_at = models.DateTimeField(_("replayed at"), db_default=Now())
    operation = models.ForeignKey(
        BulkOperation,
        verbose_name=_("bulk operation"),
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        null=True,
        related_name="replays",
    )
    died_at = models.DateTimeField(_("died at"))
    death_reason = models.CharField(_("reason of death"), max_length=20, choices=Reason.choices)
    fingerprint = models.CharField(_("error fingerprint"), max_length=16, db_default="", blank=True)
    last_error = models.CharField(
        _("last error"), max_length=MAX_LAST_ERROR, db_default="", blank=True
    )
    from_queue = models.CharField(_("from queue"), max_length=MAX_NAME)
    to_queue = models.CharField(_("to queue"), max_length=MAX_NAME)
    #: The payload before it was edited; null when it was not.
    args = models.JSONField(_("args before"), null=True)
    kwargs = models.JSONField(_("kwargs before"), null=True)

    objects = ReplayQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_replay"
        verbose_name = _("replay")
        verbose_name_plural = _("replays")
        default_permissions = ("view",)
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["job", "fence"], name="jobqueue_letter_replayed_once"),
        ]

    def __str__(self) -> str:
        return f"replay of #{self.job_id}"


class OperationLog(Deed):
    """One line of the audit: written with the change that it tells of, and never changed."""

    id = models.BigAutoField(primary_key=True)
    at = models.DateTimeField(_("at"), db_default=Now())
    #: A verb: "pause", "replay"...
    action = models.CharField(_("action"), max_length=30)
    #: What it was done to: a model's name and a key; the key is empty where there were many.
    target_type = models.CharField(_("kind of target"), max_length=30)
    target_id = models.CharField(_("target"), max_length=MAX_NAME, db_default="", blank=True)
    #: Of many: which, as a filter or as a list of keys, and how many.
    targets = models.JSONField(_("targets"), null=True)
    count = models.PositiveBigIntegerField(_("count"), db_default=1)
    before = models.JSONField(_("before"), null=True)
    after = models.JSONField(_("after"), null=True)
    correlation_id = models.CharField(
        _("correlation id"), max_length=MAX_NAME, db_default="", blank=True
    )

    objects = OperationLogQuerySet.as_manager()

    class Meta:
        db_table = "jobqueue_operationlog"
        verbose_name = _("operation")
        verbose_name_plural = _("operation log")
        default_permissions = ("view",)
        indexes: ClassVar = [
            models.Index(fields=["target_type", "target_id"], name="jobqueue_operationlog_target"),
        ]

    def __str__(self) -> str:
        return f"{self.action} {self.target_type} {self.target_id}".rstrip()

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Write a new line; refuse to write an old one anew."""
        if not self._state.adding:
            raise TypeError("a line of the operation log is never changed")
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        """Refuse it."""
        raise TypeError("a line of the operation log is never deleted")
