"""The operator's story in a real browser, under a policy that forbids everything inline."""

from __future__ import annotations

from unittest.mock import patch

from django.contrib.admin.models import LogEntry
from django.urls import reverse

from jobqueue import lifecycle
from jobqueue.admin.overview import OverviewAdmin
from jobqueue.models import Attempt, BulkOperation, DeadLetter, Job, Queue
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from tests.browser import IS_NEW, BrowserTestCase, superuser
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    SampleFactory,
)


class TestInTheBrowser(BrowserTestCase):
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
        assert not DeadLetter.objects.open().exists()
        assert LogEntry.objects.count() == 2
        assert self.complaints() == []

    def test_all_that_match_are_discarded_after_a_question(self) -> None:
        for _ in range(105):
            DeadLetterFactory()
        self.open(reverse("admin:jobqueue_deadletter_changelist"))
        self.driver.find_element("id", "action-toggle").click()
        self.driver.find_element("css selector", ".question a").click()
        self.choose("discard")
        assert "105 dead letters would go" in self.text
        self.field("reason").send_keys("sent by hand")
        self.press("input[type=submit]")
        assert "105 dead letters will be discarded" in self.text
        assert "0 of 105 done" in self.text
        self.press("form[action$='/pause/'] button")
        assert "The operation is paused" in self.text
        self.press("form[action$='/proceed/'] button")
        BulkOperation.objects.update(rate=None)
        while lifecycle.bulk.advance() is not None:
            pass
        self.driver.refresh()
        assert "105 of 105 done" in self.text
        assert not DeadLetter.objects.open().exists()
        assert self.complaints() == []

    def test_a_group_is_understood_and_replayed(self) -> None:
        for number in range(3):
            DeadLetterFactory(message=f"<i>no route</i> {number}")
        self.open(reverse("admin:jobqueue_deadletter_changelist"))
        self.press(".jobqueue-tabs a")
        assert "<i>no route</i> 2" in self.text
        assert self.driver.find_elements("css selector", "svg.jobqueue-sparkline rect")
        self.press("a.jobqueue-button[href*='/replay/']")
        assert "3 dead letters would go" in self.text
        self.field("reason").send_keys("the route is back")
        self.press("input[type=submit]")
        assert "the route is back" in self.text
        assert BulkOperation.objects.get().filters == {"fingerprint": "0123456789abcdef"}
        assert self.complaints() == []

    def test_a_payload_is_edited_and_replayed(self) -> None:
        letter = DeadLetterFactory(kwargs={"message": "old"})
        self.open(reverse("admin:jobqueue_deadletter_change", args=[letter.pk]))
        self.press("a[href$='/edit/']")
        for text, is_done in (("[", False), ('{"message": "new"}', True)):
            field = self.field("kwargs")
            field.clear()
            field.send_keys(text)
            self.press("input[type=submit]")
            assert Job.objects.exists() is is_done
        assert Job.objects.get().kwargs == {"message": "new"}
        assert "edited by operator" in self.text
        assert self.complaints() == []

    def test_a_queue_is_paused_and_resumed_from_the_overview(self) -> None:
        JobFactory(queue_name="mail")
        self.open(reverse("admin:jobqueue_overview_changelist"))
        self.press(".jobqueue-controls a")
        self.field("reason").send_keys("the relay is down")
        self.press("input[type=submit]")
        assert self.path == reverse("admin:jobqueue_overview_changelist")
        assert "by operator: the relay is down" in self.text
        assert Queue.objects.paused().exists()
        self.press(".jobqueue-controls button")
        assert "Queue mail goes on." in self.text
        assert not Queue.objects.paused().exists()
        assert self.complaints() == []

    def test_the_overview_refreshes_itself_unless_somebody_is_at_it(self) -> None:
        """What is unfolded stays so, and no selection is lost."""
        SampleFactory(depth=3)
        with patch.object(OverviewAdmin, "refresh_every", 1):
            self.open(reverse("admin:jobqueue_overview_changelist"))
            self.driver.find_element("css selector", "#jobqueue-depth-numbers summary").click()
            self.script("window.isOld = true")
            self.wait_until(lambda: self.script(IS_NEW), doing="a refresh")
            is_open = "return document.getElementById('jobqueue-depth-numbers').open"
            self.wait_until(lambda: self.script(is_open), doing="what was open")
            self.script(
                "window.isOld = true; window.ticks = 0;"
                "getSelection().selectAllChildren(document.querySelector('h1'));"
                "setInterval(function () { window.ticks += 1; }, 500)"
            )
            self.wait_until(lambda: self.script("return window.ticks > 5"), doing="some seconds")
            assert self.script("return window.isOld")
            self.script("getSelection().removeAllRanges()")
            self.wait_until(lambda: self.script(IS_NEW), doing="a refresh")
        assert self.complaints() == []
