"""The operator's story in a real browser, under a policy that forbids everything inline."""

from __future__ import annotations

from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from tests.browser import BrowserTestCase, superuser
from tests.factories import AttemptFactory, DeadLetterFactory


class TestOneDeadLetter(BrowserTestCase):
    def setUp(self) -> None:
        super().setUp()
        superuser()
        self.open(reverse("admin:login"))
        self.fill(username="operator", password="secret")
        self.press("[type=submit]")

    def test_a_dead_letter_is_understood_and_replayed(self) -> None:
        letter = DeadLetterFactory(message="<b>no such</b> user", kwargs={"message": "again"})
        for number in range(1, 6):
            AttemptFactory(
                job=None,
                job_id=letter.pk,
                number=number,
                fence=number,
                task=letter.task,
                queue_name=letter.queue_name,
            )
        self.open(reverse("admin:jobqueue_deadletter_changelist"))
        assert "<b>no such</b> user" in self.text
        self.press("th.field-id a")
        assert "Why it gave up" in self.text
        assert "Traceback" in self.text
        assert '"message": "again"' in self.text
        self.press(f"form[action$='/{letter.pk}/replay/'] button")
        assert "1 dead letter was replayed" in self.text
        assert self.path == reverse("admin:jobqueue_job_change", args=[letter.pk])
        assert Job.objects.get().status == Status.PENDING

        run_jobs()
        self.driver.refresh()
        assert self.path == reverse("admin:jobqueue_deadletter_change", args=[letter.pk])
        assert DeadLetter.objects.get().replays == 1
        assert Attempt.objects.count() == 10

        self.press(f"form[action$='/{letter.pk}/discard/'] button")
        assert "Discard dead letters?" in self.text
        self.press("a.cancel-link")
        assert self.path == reverse("admin:jobqueue_deadletter_change", args=[letter.pk])
        self.press(f"form[action$='/{letter.pk}/discard/'] button")
        self.press("input[type=submit]")
        assert "1 dead letter was discarded" in self.text
        assert not DeadLetter.objects.exists()
        assert LogEntry.objects.count() == 2
        assert self.complaints() == []

    def test_all_that_match_are_discarded_after_a_question(self) -> None:
        for _ in range(105):
            DeadLetterFactory()
        self.open(reverse("admin:jobqueue_deadletter_changelist"))
        self.driver.find_element("id", "action-toggle").click()
        self.driver.find_element("css selector", ".question a").click()
        self.choose("discard")
        assert "105 dead letters" in self.text
        self.press("input[type=submit]")
        assert "105 dead letters were discarded" in self.text
        assert self.complaints() == []
