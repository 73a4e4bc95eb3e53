"""The pictures of the documentation, taken of real pages: ``--screenshots docs/images``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from django.urls import reverse

from demo_project.orders import tasks
from jobqueue.models import DeadLetter
from jobqueue.states import Reason
from tests.browser import BrowserTestCase, superuser
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory, WorkerFactory
from tests.populated import TRACEBACK

TALLEST = 1000
MINUTE = timedelta(minutes=1)
FAULTS = (
    ("shop.errors.CarrierUnavailable", "no answer from the carrier within 5 s", 14),
    ("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 6),
    ("KeyError", "'tax_id'", 2),
)


class TestPictures(BrowserTestCase):
    @pytest.fixture(autouse=True)
    def folder_of_pictures(self, request: pytest.FixtureRequest, tmp_path: Path) -> None:
        self.folder = request.config.getoption("screenshots") or tmp_path

    def setUp(self) -> None:
        super().setUp()
        workers = [
            WorkerFactory(name=f"web-{number}:{4000 + number}", host=f"web-{number}")
            for number in (1, 2)
        ]
        for number in range(12):
            task = (tasks.send_receipt, tasks.post_webhook, tasks.write_document)[number % 3]
            work = {"task": task.name, "queue_name": task.queue_name}
            JobFactory(**work, age=number * MINUTE, kwargs={"order_id": 4710 + number})
            if number % 3 == 0:
                JobFactory(**work, claimed=True, claimed_by=workers[number % 2].name)
            JobFactory(**work, succeeded=True, finished_ago=number * MINUTE)
        JobFactory(
            task=tasks.post_webhook.name,
            queue_name="webhooks",
            claimed=True,
            claimed_by="web-3:4003",
            lease_left=-3 * MINUTE,
        )
        for number, (error_class, message, count) in enumerate(FAULTS):
            for back in range(count):
                DeadLetterFactory(
                    task=tasks.post_webhook.name,
                    queue_name="webhooks",
                    kwargs={"order_id": 4700 + back},
                    died_ago=(back * 7 + number) * MINUTE,
                    error_class=error_class,
                    message=message,
                    fingerprint=f"{number + 1:016x}",
                    reason=Reason.ATTEMPTS_EXHAUSTED,
                )
        self.letter = DeadLetter.objects.order_by("-died_at")[0]
        for tried in range(1, 6):
            AttemptFactory(
                job=None,
                job_id=self.letter.pk,
                number=tried,
                fence=tried,
                task=self.letter.task,
                queue_name=self.letter.queue_name,
                error_class=self.letter.error_class,
                message=self.letter.message,
                traceback=TRACEBACK,
                finished_ago=(6 - tried) * MINUTE,
            )
        self.log_in(superuser("alice"))

    def take(self, name: str, path: str) -> None:
        self.open(path)
        self.save_picture(self.folder / f"{name}.png", tallest=TALLEST)

    def test_are_taken(self) -> None:
        letter = reverse("admin:jobqueue_deadletter_change", args=[self.letter.pk])
        self.take("jobs", reverse("admin:jobqueue_job_changelist"))
        self.take("dead-letter", letter)
        self.prefer("dark")
        self.take("dead-letter-dark", letter)
        assert self.complaints() == []
