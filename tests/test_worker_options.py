"""What a worker is told on its command line: read as documented, or refused in one line."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from threading import Event, Thread
from time import monotonic, sleep
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from jobqueue import conf, lifecycle
from jobqueue.models import Attempt, Job
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Status
from jobqueue.worker import WorkerOptions, banner
from jobqueue.worker.claimer import Claimer
from jobqueue.worker.options import default_name, parse_queues
from tests import tasks
from tests.in_process import run_to_the_end, run_until_empty, running_worker
from tests.models import Mark
from tests.processes import Gate, Marks, manage, wait_until

SECOND = timedelta(seconds=1)


class TestParseQueues:
    """C-78."""

    @pytest.mark.parametrize(
        ("text", "queues"),
        [
            ("a", {"a": None}),
            ("a,b:2", {"a": None, "b": 2}),
            ("a, b", {"a": None, "b": None}),
            (" b:10 ,a:1", {"b": 10, "a": 1}),
        ],
    )
    def test_reads_names_and_shares_in_their_order(
        self, text: str, queues: dict[str, int | None]
    ) -> None:
        assert list(parse_queues(text).items()) == list(queues.items())

    @pytest.mark.parametrize(
        "text",
        ["", " ", "a,,b", "a,", "a:", "a:0", "a:-1", "a:x", "a:1:2", "a,a", "a,a:2", '"a,b"', "A"],
    )
    def test_refuses_what_it_would_have_to_guess(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"queue|colon"):
            parse_queues(text)

    @pytest.mark.parametrize("text", ["a", "a,b:2", "b:10,a:1"])
    def test_is_the_inverse_of_how_options_show_them(self, text: str) -> None:
        assert WorkerOptions(queues=parse_queues(text)).queues_text == text


class TestOptions:
    def test_default_to_the_settings(self, settings: Any) -> None:
        settings.JOBQUEUE = {"CONCURRENCY": 3, "LEASE": 7 * SECOND}
        options = WorkerOptions()
        assert (options.concurrency, options.lease) == (3, 7 * SECOND)
        assert options.drain_timeout == conf.get().DRAIN_TIMEOUT

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
            ({"max_jobs": 0}, "max-jobs must be at least 1, not 0"),
            ({"lease": SECOND / 2}, "lease must be at least 1 second.*extended in time, not 0.5"),
            ({"poll_interval": 0 * SECOND}, "poll-interval must be more than 0"),
            ({"drain_timeout": -SECOND}, "drain-timeout must not be negative"),
            ({"queues": {"a": None}, "exclude": frozenset("a")}, "a is both served and excluded"),
            ({"name": "x" * 121}, "name must be at most 120 characters"),
        ],
    )
    def test_refuse_what_could_not_work(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            WorkerOptions(**given)

    def test_serve_all_queues_but_those_excluded(self) -> None:
        options = WorkerOptions(exclude=frozenset({"b"}))
        assert options.serves("a")
        assert not options.serves("b")

    def test_serve_only_the_queues_listed(self) -> None:
        options = WorkerOptions(queues={"a": 2})
        assert options.serves("a")
        assert not options.serves("b")
        assert options.share("a") == 2

    def test_have_a_name_that_is_nobody_elses(self) -> None:
        assert default_name() != default_name()
        assert WorkerOptions().name != WorkerOptions().name


class TestBanner:
    def test_says_what_is_served_and_from_where(self) -> None:
        options = WorkerOptions(name="me", queues={"a": None, "b": 2}, lease=90 * SECOND)
        text = banner.text(options, verbosity=2)
        assert "me" in text
        assert "a, b (at most 2 at once)" in text
        assert "90 s" in text
        assert "tests.tasks.noop" in text

    def test_says_which_queues_are_left_out(self) -> None:
        assert "all, but not a, b" in banner.text(WorkerOptions(exclude=frozenset({"b", "a"})))

    def test_shows_no_password(self, settings: Any) -> None:
        password = connection.settings_dict["PASSWORD"]
        assert not password or password not in banner.text(WorkerOptions())

    def test_warns_of_a_queue_that_no_task_goes_to(self) -> None:
        """C-78: it may be a slip of the pen, or used by ``using(queue_name=...)`` alone."""
        text = banner.text(WorkerOptions(queues={"nosuch": None, "mail": None}))
        assert "no task goes to nosuch by itself" in text
        assert "no task goes to" not in banner.text(WorkerOptions(queues={"mail": None}))


class TestTheCommandLine:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--queues", ""], "queue"),
            (["--queues", "a,,b"], "queue"),
            (["--queues", "a:none"], "number of at least 1"),
            (["--exclude-queues", ""], "queue"),
            (["--queues", "a", "--exclude-queues", "a"], "both served and excluded"),
            (["--lease", "0.2"], "lease must be at least 1 second"),
            (["--lease", "soon"], "no number of seconds"),
            (["--lease", "inf"], "no number of seconds"),
            (["--lease", "nan"], "no number of seconds"),
            (["--concurrency", "0"], "concurrency"),
            (["--concurrency", "many"], "invalid int value"),
            (["--max-jobs", "0"], "max-jobs"),
            (["--drain-timeout", "-1"], "drain-timeout"),
            (["--processes", "0"], "processes must be at least 1"),
            (["--processes", "2", "--lease", "0.2"], "lease must be at least 1 second"),
            (["--processes", "2", "--queues", ","], "queue"),
            (["--database", "nosuch"], "nosuch"),
            (["--name", "x" * 200], "name must be at most 120"),
        ],
    )
    def test_is_refused_in_one_line(self, arguments: list[str], message: str) -> None:
        with pytest.raises(CommandError, match=message) as caught:
            call_command("runworker", *arguments)
        assert "\n" not in str(caught.value)

    @pytest.mark.django_db(transaction=True)
    def test_reaches_the_worker_under_either_name(self) -> None:
        mail = tasks.send_mail.enqueue("a")
        other = tasks.noop.enqueue()
        ran = manage(
            "jobqueue_worker", "--until-empty", "--name", "me", "--queues", "mail:1", "--lease", "5"
        )
        assert ran.returncode == 0, ran.stderr
        assert "mail (at most 1 at once)" in ran.stdout
        assert "lease:         5 s" in ran.stdout
        assert Attempt.objects.get(job_id=mail.pk).worker == "me"
        assert Job.objects.get(pk=other.pk).status == Status.PENDING

    @pytest.mark.django_db(transaction=True)
    def test_ends_in_an_exit_code(self) -> None:
        tasks.noop.enqueue()
        call_command("runworker", "--until-empty", "-v0", stdout=StringIO())
        assert Job.objects.get().status == Status.SUCCEEDED


@pytest.mark.django_db(transaction=True)
class TestQueues:
    def test_a_share_is_how_many_run_at_once(self, marks: Marks, gate: Gate) -> None:
        """--queues a:1,b"""
        hold = tasks.hold.using(queue_name="a")
        for _ in range(3):
            hold.enqueue(gate=gate.path, marks=marks.path)
        with running_worker(queues=parse_queues("a:1,b"), concurrency=4):
            marks.wait_for("start")
            for number in range(3):
                job = tasks.leave_mark.using(queue_name="b").enqueue(marks=marks.path)
                marks.wait_for("run", count=number + 1)
                wait_until(Job.objects.filter(pk=job.pk, status=Status.SUCCEEDED).exists)
            assert len(marks.read("start")) == 1
            assert Job.objects.pending().filter(queue_name="a").count() == 2
            gate.open()
            marks.wait_for("end", count=3)

    def test_are_asked_in_the_order_given(self, marks: Marks) -> None:
        for name in ("a", "b", "c"):
            tasks.leave_mark.using(queue_name=name).enqueue(name, marks=marks.path)
        run_until_empty(queues=parse_queues("c,a,b"), concurrency=1)
        assert [mark["key"] for mark in marks.read("run")] == ["c", "a", "b"]

    def test_a_flood_in_one_does_not_hold_up_another(self, marks: Marks) -> None:
        for number in range(50):
            tasks.leave_mark.enqueue(f"flood-{number}", marks=marks.path)
        tasks.leave_mark.using(queue_name="other").enqueue("other", marks=marks.path)
        run_until_empty(concurrency=1)
        keys = [mark["key"] for mark in marks.read("run")]
        assert keys.index("other") < 25

    def test_that_are_excluded_are_left_alone(self) -> None:
        mail, other = tasks.send_mail.enqueue("a"), tasks.noop.enqueue()
        run_until_empty(exclude=frozenset({"mail"}))
        assert Job.objects.get(pk=mail.pk).status == Status.PENDING
        assert Job.objects.get(pk=other.pk).status == Status.SUCCEEDED


@pytest.mark.django_db(transaction=True)
class TestUntilEmpty:
    """C-46: run what is due, and what that leads to, and end."""

    def test_ends_with_nothing_to_do(self) -> None:
        assert run_until_empty().exit_code == 0

    def test_runs_what_a_job_enqueues(self) -> None:
        tasks.enqueue_more.enqueue("more")
        assert run_until_empty().exit_code == 0
        assert Mark.objects.filter(key="more").count() == 1

    def test_runs_what_is_tried_again_at_once(self) -> None:
        job = tasks.fail_until.enqueue(3)
        run_until_empty()
        job.refresh_from_db()
        assert (job.status, job.attempts, job.result) == (Status.SUCCEEDED, 3, "at last")

    def test_waits_for_nothing_that_is_due_later_or_in_other_queues(self) -> None:
        later = tasks.noop.using(run_after=timedelta(hours=1)).enqueue()
        failed = tasks.fail_and_wait_an_hour.enqueue()
        other = tasks.send_mail.enqueue("other")
        worker = run_until_empty(queues={"default": None})
        assert worker.exit_code == 0
        states = dict(Job.objects.values_list("pk", "status"))
        assert states == {
            later.pk: Status.SCHEDULED,
            failed.pk: Status.SCHEDULED,
            other.pk: Status.PENDING,
        }
        assert Attempt.objects.count() == 1

    def test_waits_for_its_last_outcome_without_asking_all_the_time(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settle, look = lifecycle.settle, Claimer.look
        looks: list[Claimer] = []
        asked_on: list[bool] = []

        def counted(claimer: Claimer) -> None:
            looks.append(claimer)
            look(claimer)

        def late(*args: Any, **kwargs: Any) -> Any:
            before, ends = len(looks), monotonic() + 0.3
            while len(looks) < before + 3 and monotonic() < ends:
                sleep(0.01)
            asked_on.append(len(looks) >= before + 3)
            return settle(*args, **kwargs)

        monkeypatch.setattr(lifecycle, "settle", late)
        monkeypatch.setattr(Claimer, "look", counted)
        job = tasks.noop.enqueue()
        run_until_empty(poll_interval=timedelta(hours=1))
        assert Job.objects.get(pk=job.pk).status == Status.SUCCEEDED
        assert asked_on == [False]


@pytest.mark.django_db(transaction=True)
class TestMaxJobs:
    """C-36."""

    def test_is_how_many_handlers_run_and_idle_time_does_not_count(self, marks: Marks) -> None:
        worker_done = Event()
        ended: list[Any] = []

        def work() -> None:
            ended.append(run_to_the_end(max_jobs=3, concurrency=5))
            worker_done.set()

        Thread(target=work, name="runner", daemon=True).start()
        wait_until(WorkerRow.objects.exists)
        for _ in range(10):
            tasks.leave_mark.enqueue(marks=marks.path)
        assert worker_done.wait(30)
        assert ended[0].exit_code == 0
        assert len(marks.read("run")) == 3
        assert Job.objects.pending().filter(attempts=0).count() == 7
        assert not Job.objects.claimed().exists()
