"""The operator's story in a real browser, under a policy that forbids everything inline."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.contrib.staticfiles.testing import StaticLiveServerTestCase
from django.http import HttpRequest, HttpResponse
from django.test import override_settings
from django.urls import reverse

from jobqueue import lifecycle
from jobqueue.admin.overview import OverviewAdmin
from jobqueue.models import Attempt, BulkOperation, DeadLetter, Job, Queue
from jobqueue.states import Status
from jobqueue.testing import run_jobs
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    RollupFactory,
    SampleFactory,
    WorkerFactory,
)
from tests.processes import PATIENCE

webdriver = pytest.importorskip("selenium.webdriver")
ui = pytest.importorskip("selenium.webdriver.support.ui")
WebDriverException = pytest.importorskip("selenium.common.exceptions").WebDriverException

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CHROMEDRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1400,1000",
)
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; "
    "font-src 'self'; form-action 'self'"
)
#: Whether the page that was marked as old has gone, and its successor is complete.
IS_NEW = "return !window.isOld && document.readyState === 'complete'"
#: A page that breaks the policy, to show that it would be noticed.
CONTROL = "/breaks-the-policy/"


class StrictPolicy:
    """Sends the policy with every page."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path == CONTROL:
            response = HttpResponse("<script>alert(1)</script>")
        else:
            response = self.get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response


@pytest.mark.browser
@pytest.mark.skipif(not (CHROMIUM and CHROMEDRIVER), reason="needs Chromium and its driver")
@override_settings(
    MIDDLEWARE=[f"{__name__}.StrictPolicy", *settings.MIDDLEWARE], ALLOWED_HOSTS=["*"]
)
class TestInTheBrowser(StaticLiveServerTestCase):
    driver: ClassVar[Any]
    profile: ClassVar[str]

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.profile = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.profile, ignore_errors=True)
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        for flag in (*FLAGS, f"--user-data-dir={Path(cls.profile)}"):
            options.add_argument(flag)
        service = webdriver.ChromeService(CHROMEDRIVER)
        cls.driver = webdriver.Chrome(service=service, options=options)
        cls.addClassCleanup(cls.driver.quit)

    def setUp(self) -> None:
        User.objects.create_superuser("operator", password="secret")
        self.driver.get_log("browser")  # what came before is another test's
        self.open(reverse("admin:login"))
        self.field("username").send_keys("operator")
        self.field("password").send_keys("secret")
        self.press("[type=submit]")

    def open(self, path: str) -> None:
        self.driver.get(self.live_server_url + path)

    def field(self, name: str) -> Any:
        return self.driver.find_element("name", name)

    def press(self, selector: str) -> None:
        """Press what leads to another page, and wait until that is there.

        The old page carries a mark: to ask after one of its elements while it is being replaced is
        an error of the driver's own now and then.
        """
        self.driver.execute_script("window.isOld = true")
        self.driver.find_element("css selector", selector).click()
        wait = ui.WebDriverWait(self.driver, PATIENCE, ignored_exceptions=[WebDriverException])
        wait.until(lambda driver: driver.execute_script(IS_NEW))

    def choose(self, action: str) -> None:
        ui.Select(self.field("action")).select_by_value(action)
        self.press("button[name=index]")

    @property
    def text(self) -> str:
        return str(self.driver.find_element("tag name", "body").text)

    @property
    def path(self) -> str:
        return str(self.driver.current_url.removeprefix(self.live_server_url))

    def complaints(self) -> list[str]:
        """Return what the browser complained of, but for the icon that the demo has not."""
        entries = self.driver.get_log("browser")
        return [each["message"] for each in entries if "/favicon.ico" not in each["message"]]

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

    def test_no_page_breaks_the_policy(self) -> None:
        WorkerFactory()
        job = JobFactory(claimed=True, lease_left=timedelta(0))
        attempt = AttemptFactory(job=job)
        letter = DeadLetterFactory()
        for row in (job, attempt, letter):
            name = f"admin:jobqueue_{row._meta.model_name}"
            self.open(reverse(f"{name}_changelist"))
            self.open(reverse(f"{name}_changelist") + "?q=nothing&task=none")
            self.open(reverse(f"{name}_change", args=[row.pk]))
            self.open(reverse(f"{name}_history", args=[row.pk]))
        self.open(reverse("admin:jobqueue_worker_changelist"))
        QueueFactory(name="mail", paused=True)
        SampleFactory(depth=3)
        RollupFactory(succeeded=1, retried=1, waits={"3": 1}, runs={"3": 1}, tries={"1": 1})
        self.open(reverse("admin:app_list", args=["jobqueue"]))
        self.open(reverse("admin:jobqueue_overview_changelist"))
        assert len(self.driver.find_elements("css selector", ".jobqueue-chart > svg")) == 6
        self.open(reverse("admin:jobqueue_queue_changelist"))
        for page in ("change", "pause", "history"):
            self.open(reverse(f"admin:jobqueue_queue_{page}", args=["mail"]))
        operation = lifecycle.bulk.ask("replay", expected=1, rate=1)
        for name in ("groups", "bulk_replay", "bulk_discard"):
            self.open(reverse(f"admin:jobqueue_deadletter_{name}"))
        self.open(reverse("admin:jobqueue_deadletter_edit", args=[letter.pk]))
        self.open(reverse("admin:jobqueue_bulkoperation_changelist"))
        self.open(reverse("admin:jobqueue_bulkoperation_change", args=[operation.pk]))
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
            self.driver.execute_script("window.isOld = true")
            wait = ui.WebDriverWait(self.driver, PATIENCE, ignored_exceptions=[WebDriverException])
            wait.until(lambda driver: driver.execute_script(IS_NEW))
            is_open = "return document.getElementById('jobqueue-depth-numbers').open"
            wait.until(lambda driver: driver.execute_script(is_open))
            self.driver.execute_script(
                "window.isOld = true; window.ticks = 0;"
                "getSelection().selectAllChildren(document.querySelector('h1'));"
                "setInterval(function () { window.ticks += 1; }, 500)"
            )
            wait.until(lambda driver: driver.execute_script("return window.ticks > 5"))
            assert self.driver.execute_script("return window.isOld")
            self.driver.execute_script("getSelection().removeAllRanges()")
            wait.until(lambda driver: driver.execute_script(IS_NEW))
        assert self.complaints() == []

    def test_a_page_that_breaks_it_would_be_noticed(self) -> None:
        self.open(CONTROL)
        [complaint] = self.complaints()
        assert "Content Security Policy" in complaint
