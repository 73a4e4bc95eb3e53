"""The words of the lifecycle: where a job stands, how an attempt ended, why a job gave up."""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Status(TextChoices):
    """Where a live job stands; a dead one is a :class:`~jobqueue.models.DeadLetter` instead."""

    SCHEDULED = "scheduled", _("scheduled")
    PENDING = "pending", _("pending")
    CLAIMED = "claimed", _("claimed")
    SUCCEEDED = "succeeded", _("succeeded")
    CANCELLED = "cancelled", _("cancelled")


FINISHED = (Status.SUCCEEDED, Status.CANCELLED)


class Outcome(TextChoices):
    """How one claim of a job ended."""

    SUCCEEDED = "succeeded", _("succeeded")
    FAILED = "failed", _("failed")
    TIMED_OUT = "timed_out", _("timed out")
    LOST = "lost", _("worker lost")
    SNOOZED = "snoozed", _("snoozed")
    INTERRUPTED = "interrupted", _("interrupted by shutdown")
    # The handler never started: the claim is handed back and leaves no attempt behind.
    RELEASED = "released", _("released")


class Reason(TextChoices):
    """Why a job became a dead letter."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted", _("attempts exhausted")
    WORKER_LOST = "worker_lost", _("its worker was lost on the last attempt")
    TIMED_OUT = "timed_out", _("timed out on the last attempt")
    NOT_RETRYABLE = "not_retryable", _("failed in a way that is not retried")
    DISCARDED = "discarded", _("discarded by the task")
    UNKNOWN_TASK = "unknown_task", _("no such task is registered")
    UNSUPPORTED_VERSION = "unsupported_version", _("payload version not supported")
    INVALID_PAYLOAD = "invalid_payload", _("payload does not fit the task")
    NOT_AUTHORISED = "not_authorised", _("its actor may no longer do this")


class WorkerState(TextChoices):
    """What a worker process says of itself."""

    RUNNING = "running", _("running")
    DRAINING = "draining", _("draining")


class BulkKind(TextChoices):
    """What a bulk operation does to each dead letter."""

    REPLAY = "replay", _("replay")
    DISCARD = "discard", _("discard")


class BulkState(TextChoices):
    """Where a bulk operation stands."""

    RUNNING = "running", _("running")
    PAUSED = "paused", _("paused")
    CANCELLED = "cancelled", _("cancelled")
    DONE = "done", _("done")
    # Its actor lost the right to do it, or the database would not have it.
    FAILED = "failed", _("failed")
