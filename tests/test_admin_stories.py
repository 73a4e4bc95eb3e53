"""What people on call do in the admin, from the first look to the last, with real workers."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.urls import reverse

from jobqueue.models import Attempt, BulkOperation, DeadLetter, Job, OperationLog, Queue, Worker
from jobqueue.querysets import ago
from jobqueue.states import BulkState, Outcome, Status
from tests import tasks
from tests.browser import BrowserTestCase, staff, superuser
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory, WorkerFactory
from tests.processes import Gate, Marks, WorkerProcess, wait_until

OVERVIEW = "admin:jobqueue_overview_changelist"
LEASES = "admin:jobqueue_lease_changelist"
LISTS = ("job", "lease", "deadletter", "queue", "worker")
QUICK = ("--poll-interval", "0.1")
HOUR = timedelta(hours=1)
FAULTS = (
    ("smtplib.SMTPServerDisconnected", "Connection unexpectedly closed", 12),
    ("KeyError", "'tax_id'", 3),
    ("shop.errors.CarrierUnavailable", "no answer within 5 s", 2),
)
#: Sends what the viewer's page has no form for: with a token, and with a reason, as a form would.
FORGE = """
const form = document.createElement('form');
form.method = 'post';
form.action = arguments[0];
for (const [name, value] of Object.entries(arguments[1])) {
    const field = document.createElement('input');
    [field.type, field.name, field.value] = ['hidden', name, value];
    form.append(field);
}
document.body.append(form);
window.isOld = true;
form.submit();
"""
TOKEN = "return document.querySelector('[name=csrfmiddlewaretoken]').value"


class StoryTestCase(BrowserTestCase):
    @pytest.fixture(autouse=True)
    def processes(
        self,
        worker_process: Callable[..., WorkerProcess],
        marks: Marks,
        gate: Gate,
        tmp_path: Path,
    ) -> None:
        self._worker_process = worker_process
        self.marks = marks
        self.gate = gate
        self.folder = tmp_path

    def start_worker(self, *arguments: str) -> WorkerProcess:
        """Start a worker that is gone before the tables are emptied."""
        worker = self._worker_process(*QUICK, *arguments, ready=False)
        self.addCleanup(worker.clean_up)
        worker.wait_for_line("worker.started")
        return worker

    def open_view(self, name: str, *arguments: Any) -> None:
        self.open(reverse(name, args=arguments))

    def open_overview(self) -> None:
        """Open it as it stays, so that it does not change under the test's hands."""
        self.open(reverse(OVERVIEW) + "?refresh=0")

    def texts(self, selector: str) -> list[str]:
        """Return the texts of all such elements."""
        found = self.driver.find_elements("css selector", selector)
        return [" ".join(each.text.split()) for each in found]


class TestANightOnCall(StoryTestCase):
    """Red overview, dead letters by error, a replay with a dry run, the audit, and calm."""

    def setUp(self) -> None:
        super().setUp()
        mail = {"task": tasks.send_mail.name, "queue_name": "mail"}
        for number in range(3):
            JobFactory(**mail, age=HOUR, kwargs={"key": f"new {number}", "marks": self.marks.path})
        for fault, (error_class, message, count) in enumerate(FAULTS):
            for number in range(count):
                letter = DeadLetterFactory(
                    **mail,
                    kwargs={"key": f"dead {number}", "marks": self.marks.path},
                    error_class=error_class,
                    message=message,
                    fingerprint=f"{fault:016x}",
                    died_ago=HOUR,
                )
                AttemptFactory(job=None, job_id=letter.pk, number=5, fence=5, **mail)
        self.log_in(superuser("alice"))

    def test_ends_with_a_calm_overview(self) -> None:
        self.see_what_is_wrong()
        self.ask_for_the_largest_group_again()
        self.watch_it_being_done()
        self.read_the_audit()
        self.discard_the_others()
        self.find_it_calm()
        assert self.complaints() == []

    def see_what_is_wrong(self) -> None:
        self.open_view("admin:app_list", "jobqueue")
        self.press_link("Overview")
        assert "Jobs are waiting and no worker has checked in" in self.find(".errornote").text
        oldest, letters = self.texts(".jobqueue-alarms .jobqueue-bad")
        assert oldest.startswith("Oldest waits ⚠ 1 h")
        assert letters == "Dead letters ⚠ 17 in mail"
        self.press_link("17")
        assert self.texts(".jobqueue-groups .jobqueue-number") == ["12", "3", "2"]

    def ask_for_the_largest_group_again(self) -> None:
        largest = self.find(".jobqueue-groups tbody tr")
        assert "SMTPServerDisconnected" in largest.text
        self.press_element(largest.find_element("partial link text", "Replay"))
        assert "12 dead letters would go." in self.text
        assert "All payloads fit their tasks" in self.text
        assert not BulkOperation.objects.exists()  # so far it was a dry run
        self.fill(rate=1, reason="the relay is back")
        self.press_button("Replay them")
        assert "12 dead letters will be replayed by the workers." in self.text
        assert "0 of 12 done" in self.text

    def watch_it_being_done(self) -> None:
        """One a second: slow enough to be stopped for a look when some are done."""
        operation = BulkOperation.objects.get()
        worker = self.start_worker()
        self.marks.wait_for("run", key="dead 0")
        self.driver.refresh()
        self.press_button("Pause")
        assert "The operation is paused." in self.text
        operation.refresh_from_db()
        assert 0 < operation.done < 12
        assert f"{operation.done} of 12 done" in self.text
        assert DeadLetter.objects.open().count() == 17 - operation.done
        BulkOperation.objects.update(rate=None)  # nobody waits for the rest
        self.press_button("Proceed")
        self.reload_until("12 of 12 done")
        replayed = {mark["key"] for mark in self.marks.wait_for("run", count=15)}
        assert len(replayed) == 15
        wait_until(lambda: Job.objects.filter(status=Status.SUCCEEDED).count() == 15)
        assert {mark["pid"] for mark in self.marks.read("run")} == {worker.pid}
        assert not worker.lines_with("job.retrying")

    def read_the_audit(self) -> None:
        self.press_link("replay done")
        entry = OperationLog.objects.get(action="replay done")
        assert self.path == reverse("admin:jobqueue_operationlog_change", args=[entry.pk])
        shown = self.text
        for fact in ("alice", "the relay is back", '"fingerprint": "0000000000000000"'):
            assert fact in shown
        assert '"expected": 12' in shown
        assert '"done": 12' in shown
        self.press_link(entry.correlation_id)
        deeds = self.texts("#result_list .field-action")
        assert deeds == ["replay done", "proceed replay", "pause replay", "ask replay"]

    def discard_the_others(self) -> None:
        for left in ("3", "2"):
            self.open_view("admin:jobqueue_deadletter_groups")
            assert self.texts(".jobqueue-groups .jobqueue-number")[0] == left
            self.press_link("Discard")
            self.fill(rate="", reason="sent by hand")
            self.press_button("Discard them")
            self.reload_until(f"{left} of {left} done")

    def find_it_calm(self) -> None:
        wait_until(lambda: not BulkOperation.objects.exclude(state=BulkState.DONE).exists())
        self.open_overview()
        assert not self.has(".errornote, .jobqueue-bad, .jobqueue-paused")
        assert self.texts(".jobqueue-alarms div") == [
            "Oldest waits - no job waits",
            "Dead letters 0 nothing has given up",
        ]
        assert "Live workers 1" in self.texts(".jobqueue-figures div")


class TestAQueueIsPaused(StoryTestCase):
    """Nobody takes its jobs, everybody reads why, and then they run."""

    def test_and_resumed_from_the_overview(self) -> None:
        self.log_in(superuser("alice"))
        mail = {"queue_name": "mail"}
        running = tasks.hold.using(**mail).enqueue(gate=self.gate.path, marks=self.marks.path)
        self.start_worker()
        self.marks.wait_for("start")
        self.open_overview()
        self.press_link("Pause")
        self.fill(reason="the relay is down")
        self.press("input[type=submit]")
        assert "Queue mail is paused." in self.text

        waiting = tasks.send_mail.enqueue("waits", marks=self.marks.path)
        for number in range(3):  # the worker looks again and again, and takes what it may
            key = f"other {number}"
            tasks.leave_mark.enqueue(key, marks=self.marks.path)
            self.marks.wait_for("run", key=key)
        self.gate.open()  # what runs goes on to its end
        wait_until(lambda: Job.objects.get(pk=running.pk).status == Status.SUCCEEDED)
        waiting.refresh_from_db()
        assert (waiting.status, waiting.attempts, waiting.fence) == (Status.PENDING, 0, 0)
        for name in LISTS:
            self.open_view(f"admin:jobqueue_{name}_changelist")
            [line] = self.texts(".jobqueue-paused")
            assert line.startswith("‖ Queue mail is paused since"), name
            assert line.endswith("by alice: the relay is down"), name

        self.open_overview()
        assert self.has(".jobqueue-paused")
        self.press(".jobqueue-controls button")
        assert "Queue mail goes on." in self.text
        self.marks.wait_for("run", key="waits")
        assert not self.has(".jobqueue-paused")
        assert not Queue.objects.paused().exists()
        deeds = OperationLog.objects.order_by("pk").values_list("action", "actor")
        assert list(deeds) == [("pause", "alice"), ("resume", "alice")]
        assert self.complaints() == []


class TestAWorkerIsStuck(StoryTestCase):
    """Its lease is released, the job runs elsewhere, and what the stuck one reports is refused."""

    def test_and_wakes_up_too_late(self) -> None:
        self.log_in(superuser("alice"))
        job = tasks.hold_each.enqueue("ack", gate=self.gate.path, marks=self.marks.path)
        sleeper = self.start_worker("--name", "sleeper")
        self.marks.wait_for("start", attempt=1)
        sleeper.signal(signal.SIGSTOP)
        Worker.objects.update(heartbeat_at=ago(HOUR))  # it has been so for long

        self.open_view(LEASES)
        [holder] = self.texts("#result_list .field-holder")
        where = Worker.objects.get()
        assert f"{where.host}, process {sleeper.pid}" in holder
        assert "stale: heartbeat 1 h" in holder
        self.press("#result_list th a")
        self.press_button("Release now")
        assert "Its holder is fenced" in self.text
        assert "what it does may happen twice" in self.text
        assert Job.objects.get().status == Status.CLAIMED  # so far it was a question
        self.fill(reason="the machine is stuck")
        self.press(".jobqueue-question input[type=submit]")
        assert "1 lease was released: its holder is fenced." in self.text

        self.start_worker("--name", "heir")
        self.marks.wait_for("start", attempt=2)
        Path(f"{self.gate.path}.1").touch()
        sleeper.signal(signal.SIGCONT)
        sleeper.wait_for_line("job.lease_lost", f"job={job.pk} ", "refused=succeeded")
        job.refresh_from_db()
        assert (job.status, job.claimed_by) == (Status.CLAIMED, "heir")
        Path(f"{self.gate.path}.2").touch()
        wait_until(lambda: Job.objects.get().status == Status.SUCCEEDED)

        self.open_view("admin:jobqueue_job_change", job.pk)
        shown = self.text
        assert "alice released its lease: the machine is stuck" in shown
        assert "attempt 2" in shown
        attempts = Attempt.objects.order_by("number").values_list("outcome", "worker")
        assert list(attempts) == [(Outcome.LOST, "sleeper"), (Outcome.SUCCEEDED, "heir")]
        assert self.complaints() == []


class TestAViewer(StoryTestCase):
    """Sees everything, finds nothing to press, and is refused whatever they send."""

    def setUp(self) -> None:
        super().setUp()
        holder = WorkerFactory(silent_for=HOUR)
        self.letter = DeadLetterFactory(kwargs={"order_id": 4711})
        self.lease = JobFactory(claimed=True, claimed_by=holder.name)
        self.job = JobFactory(queue_name="mail")
        self.holder = holder
        looking = Permission.objects.filter(
            content_type__app_label="jobqueue", codename__startswith="view_"
        )
        self.log_in(staff("viewer", *looking.values_list("codename", flat=True)))

    def test_sees_everything_and_no_control(self) -> None:
        pages = [
            (reverse(OVERVIEW), "Dead letters"),
            (reverse("admin:jobqueue_deadletter_groups"), "RuntimeError failed"),
            (reverse("admin:jobqueue_deadletter_change", args=[self.letter.pk]), "4711"),
            (reverse("admin:jobqueue_lease_change", args=[self.lease.pk]), self.holder.name),
            (reverse("admin:jobqueue_worker_change", args=[self.holder.pk]), "stale"),
            *((reverse(f"admin:jobqueue_{name}_changelist"), "") for name in LISTS),
        ]
        for url, fact in pages:
            self.open(url)
            assert fact in self.text, url
            assert not self.has(
                "#content button, #content select[name=action], #content a.button,"
                "#content .jobqueue-button, #content .submit-row input, .jobqueue-tool"
            ), url
        assert self.complaints() == []

    def test_is_refused_by_a_forged_form(self) -> None:
        before = self.everything()
        letters = {"ids": str(self.letter.pk)}
        for name, arguments in (
            ("deadletter_replay", [self.letter.pk]),
            ("deadletter_discard", [self.letter.pk]),
            ("lease_release", [self.lease.pk]),
            ("worker_release_leases", [self.holder.pk]),
            ("job_cancel", [self.job.pk]),
            ("queue_pause", ["mail"]),
            ("deadletter_bulk_replay", []),
        ):
            query = f"?ids={letters['ids']}" if not arguments else ""
            url = reverse(f"admin:jobqueue_{name}", args=arguments) + query
            self.open_overview()
            token = self.script(TOKEN)
            self.forge(url, csrfmiddlewaretoken=token, confirmed="yes", reason="because")
            assert "403 Forbidden" in self.text, name
            assert "CSRF" not in self.text, name
        assert self.everything() == before

    def test_is_not_the_only_one_who_needs_the_token(self) -> None:
        """Who may do it may be led to another site's form: without the token it does nothing."""
        self.log_in(superuser("alice"))
        before = self.everything()
        self.open_overview()
        replay = reverse("admin:jobqueue_deadletter_replay", args=[self.letter.pk])
        self.forge(replay, confirmed="yes")
        assert "CSRF verification failed" in self.text
        assert self.everything() == before
        self.open_overview()
        self.forge(replay, csrfmiddlewaretoken=self.script(TOKEN), confirmed="yes")
        assert not DeadLetter.objects.exists()

    def forge(self, url: str, **fields: str) -> None:
        """Send a form that the page does not have."""
        self.script(FORGE, self.live_server_url + url, fields)
        self.wait_until(lambda: self.script("return !window.isOld"), doing="an answer")

    def everything(self) -> list[Any]:
        """Return all that a forged form could have changed."""
        models = (Job, DeadLetter, Queue, BulkOperation, OperationLog)
        return [list(each._base_manager.order_by("pk").values()) for each in models]
