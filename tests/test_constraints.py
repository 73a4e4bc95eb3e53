"""What must never be false is a constraint: the database itself refuses the row that breaks it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.apps import apps
from django.db import IntegrityError, transaction
from django.db.models import F, Model
from django.db.models.functions import Now
from django.utils import timezone

from jobqueue.models import Attempt, BulkOperation, Job, Queue, Replay, Rollup, Sample
from jobqueue.states import BulkKind, Status
from tests.factories import AttemptFactory, JobFactory

pytestmark = pytest.mark.django_db

TOMORROW = timezone.now() + timedelta(days=1)


class Wrong(NamedTuple):
    """A change to a row in some state that would break a promise."""

    constraint: str
    state: str
    changes: dict[str, Any]


WRONG = [
    Wrong("jobqueue_claimed_iff_leased", "claimed", {"claimed_by": None}),
    Wrong("jobqueue_claimed_iff_leased", "claimed", {"claimed_at": None}),
    Wrong("jobqueue_claimed_iff_leased", "claimed", {"claimed_until": None}),
    Wrong("jobqueue_claimed_iff_leased", "claimed", {"status": Status.PENDING}),
    Wrong("jobqueue_claimed_iff_leased", "pending", {"status": Status.CLAIMED}),
    Wrong("jobqueue_claimed_iff_leased", "pending", {"claimed_until": Now()}),
    Wrong("jobqueue_claimed_iff_leased", "succeeded", {"claimed_by": "worker-a"}),
    Wrong("jobqueue_finished_iff_finished_at", "succeeded", {"finished_at": None}),
    Wrong("jobqueue_finished_iff_finished_at", "cancelled", {"finished_at": None}),
    Wrong("jobqueue_finished_iff_finished_at", "pending", {"finished_at": Now()}),
    Wrong("jobqueue_finished_iff_finished_at", "scheduled", {"status": Status.CANCELLED}),
    Wrong("jobqueue_status_is_known", "pending", {"status": "paused"}),
    Wrong("jobqueue_status_is_known", "pending", {"status": ""}),
    Wrong("jobqueue_nothing_retries_for_ever", "pending", {"attempts": F("max_attempts")}),
    Wrong("jobqueue_nothing_retries_for_ever", "scheduled", {"attempts": F("max_attempts")}),
    Wrong("jobqueue_nothing_retries_for_ever", "claimed", {"attempts": F("max_attempts") + 1}),
    Wrong("jobqueue_nothing_retries_for_ever", "succeeded", {"max_attempts": 0}),
    Wrong("jobqueue_priority_in_range", "pending", {"priority": 101}),
    Wrong("jobqueue_priority_in_range", "pending", {"priority": -101}),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: f"{wrong.state} {[*wrong.changes]}")
def test_a_row_that_breaks_a_promise_is_refused(wrong: Wrong) -> None:
    job = JobFactory(**{wrong.state: True})
    before = Job.objects.values().get()
    with pytest.raises(IntegrityError, match=wrong.constraint), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(**wrong.changes)
    assert Job.objects.values().get() == before


def test_an_attempt_is_recorded_once() -> None:
    attempt = AttemptFactory()
    with pytest.raises(IntegrityError, match=r"recorded_once|job_id.*number"), transaction.atomic():
        AttemptFactory(job=attempt.job)
    assert Attempt.objects.get() == attempt


class Refused(NamedTuple):
    """A row, or the second of two, that the database must refuse."""

    constraint: str
    model: type[Model]
    row: dict[str, Any]
    again: bool = False

    @property
    def message(self) -> str:
        """SQLite names the columns of a constraint that is unique, not the constraint."""
        constraint = next(
            each for each in self.model._meta.constraints if each.name == self.constraint
        )
        return "|".join([self.constraint, ".*".join(getattr(constraint, "fields", ("",)))])


REFUSED = [
    Refused("jobqueue_a_pause_has_a_beginning", Queue, {"name": "mail", "paused_by": "alice"}),
    Refused("jobqueue_a_pause_has_a_beginning", Queue, {"name": "mail", "paused_until": Now()}),
    Refused(
        "jobqueue_bulkoperation_gets_on",
        BulkOperation,
        {"kind": BulkKind.REPLAY, "expected": 1, "rate": 0},
    ),
    Refused(
        "jobqueue_letter_replayed_once",
        Replay,
        {"job_id": 1, "fence": 5, "died_at": Now(), "from_queue": "a", "to_queue": "b"},
        again=True,
    ),
    Refused(
        "jobqueue_rollup_once",
        Rollup,
        {"span": 60, "start": TOMORROW, "queue_name": "mail", "task": "send"},
        again=True,
    ),
    Refused("jobqueue_sample_once", Sample, {"minute": TOMORROW, "queue_name": "mail"}, again=True),
]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: str(refused.constraint))
def test_a_row_that_must_not_be_is_refused(refused: Refused) -> None:
    if refused.again:
        refused.model._base_manager.create(**refused.row)
    with pytest.raises(IntegrityError, match=refused.message), transaction.atomic():
        refused.model._base_manager.create(**refused.row)


def test_every_check_of_the_models_is_tried() -> None:
    ours = apps.get_app_config("jobqueue").get_models()
    names = {constraint.name for model in ours for constraint in model._meta.constraints}
    tried = {each.constraint for each in [*WRONG, *REFUSED]}
    assert tried | {"jobqueue_attempt_recorded_once"} == names
