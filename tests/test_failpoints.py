"""A process that fails at every point of the lifecycle, in every way, loses nothing.

The oracle is outside the database: what the handlers marked. A failpoint says when it is hit, and
one that is not hit fails its test.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

import pytest
from django.core.exceptions import ImproperlyConfigured

from jobqueue import failpoints, lifecycle
from jobqueue.failpoints import ACTIONS, MOMENTS, VERBS
from jobqueue.models import DeadLetter, Job, Queue
from jobqueue.states import Status
from jobqueue.worker.presence import Presence
from tests import tasks, verbs
from tests.factories import DeadLetterFactory, JobFactory, QueueFactory
from tests.in_process import run_until_empty, running_worker
from tests.models import Mark
from tests.processes import (
    CHECKOUT,
    PATIENCE,
    Gate,
    Marks,
    WorkerProcess,
    manage,
    process_environment,
    wait_until,
)
from tests.soundness import violations

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = 1.0
#: Longer than the lease: who comes back from it has lost its jobs.
LONG = 1.3
MINUTE = timedelta(minutes=1)
OF_PEOPLE = (
    *("enqueue", "enqueue_many", "cancel", "run_now", "move", "prioritise", "prune"),
    *("extend_leases", "release_leases", "release_worker", "pause", "resume"),
    *("replay", "replay_edited", "discard", "restore", "delete_letters"),
)
#: What these lose is a count; see test_measuring.
OF_FIGURES = ("count", "sample")
OF_WORKERS = tuple(verb for verb in VERBS if verb not in OF_PEOPLE + OF_FIGURES)
#: Those that are part of every run; all others belong to the long ones.
QUICK = {
    *("claim.committed=kill", "settle.inside=kill"),
    *("rescue.inside=drop", "enqueue.inside=kill", "replay.inside=kill", "advance.inside=kill"),
}


def matrix(names: tuple[str, ...]) -> Iterator[Any]:
    """Yield every point of these verbs with every action."""
    for verb in names:
        for moment in MOMENTS:
            for action in ACTIONS:
                given = f"{verb}.{moment}={action}"
                marks = [] if given in QUICK else [pytest.mark.chaos]
                if action == "drop":
                    marks.append(pytest.mark.postgresql)
                yield pytest.param(verb, moment, action, marks=marks, id=given)


def switched_on(verb: str, moment: str, action: str) -> dict[str, str]:
    """Return the environment in which a process fails once at one point."""
    span = f":{LONG}" if action == "delay" else ""
    return {failpoints.VARIABLE: f"{verb}.{moment}={action}{span}@1"}


def _let_others_do_all_they_can() -> None:
    """Wait until leases have ended and all is done but what the stopped process may have locked."""
    stopped = monotonic()
    wait_until(lambda: monotonic() > stopped + LONG)
    wait_until(lambda: not _unfinished() or monotonic() > stopped + 4 * LONG)


class TestWorkers:
    """C-01, C-02, C-03, C-09, C-10, C-15, C-16."""

    @pytest.mark.parametrize(("verb", "moment", "action"), list(matrix(OF_WORKERS)))
    def test_that_fail_at_a_point_lose_nothing_and_settle_nothing_twice(  # noqa: PLR0917
        self,
        verb: str,
        moment: str,
        action: str,
        worker_process: Callable[..., WorkerProcess],
        marks: Marks,
        gate: Gate,
    ) -> None:
        expected = _workload(marks, verb, gate)
        faulty = worker_process(
            *("--name", "faulty", "--lease", str(LEASE), "--poll-interval", "0.1"),
            *("--concurrency", "4"),
            ready=verb in ("leave", "interrupt"),
            **switched_on(verb, moment, action),
        )
        _provoke(verb, faulty, marks)
        faulty.wait_for_line(f"failpoint {verb}.{moment}: {action}")
        gate.open()
        if action == "kill":
            assert faulty.wait() == -signal.SIGKILL
        with running_worker(name="heir", concurrency=4, lease=timedelta(seconds=LEASE)):
            if action == "stop":
                _let_others_do_all_they_can()
                is_late = not _unfinished()
                faulty.signal(signal.SIGCONT)
            wait_until(lambda: not _unfinished(), timeout=LEASE + 0.1 + PATIENCE)
            if action == "stop":
                if is_late and (verb, moment) == ("settle", "before"):
                    faulty.wait_for_line("job.lease_lost")
                if verb not in ("leave", "interrupt"):
                    faulty.signal(signal.SIGTERM)
                assert faulty.wait() == (verb == "interrupt")
        assert {pk: verbs.where(pk) for pk in expected} == expected
        assert violations() == []
        _compare_with(marks)
        assert Mark.objects.filter(key="atomic").count() == 1
        if action not in ("kill", "stop") and verb not in ("leave", "interrupt"):
            assert faulty.process.poll() is None


def _workload(marks: Marks, verb: str, gate: Gate) -> dict[int, str]:
    """Enqueue a job for each kind of life, and return where each must end."""
    given: dict[str, Any] = {"kwargs": {"marks": marks.path}, "task": "tests.tasks.live"}
    lives = ["plain", "plain", "long", "fails once", "given up"]
    ids = {tasks.live.enqueue(life, marks=marks.path).pk: life for life in lives}
    ids[tasks.leave_row_atomically.enqueue("atomic").pk] = "atomic"
    due = JobFactory(scheduled=True, due_in=-MINUTE, args=["due"], **given)
    ids[due.pk] = "due"
    if verb != "settle":  # or the first to settle would be a rescue
        # Twice lost by now: it is given back, to be run alone.
        lost = JobFactory(claimed=True, lease_left=-MINUTE, losses=1, args=["lost"], **given)
        ids[lost.pk] = "lost"
    if verb == "advance":
        letters = DeadLetterFactory.create_batch(3, attempts=0, fence=0, args=["replayed"], **given)
        ids |= {letter.pk: "replayed" for letter in letters}
        lifecycle.bulk.ask("replay", filters={"task": "tests.tasks.live"}, expected=3)
    if verb == "interrupt":
        ids[tasks.hold.enqueue(gate=gate.path, marks=marks.path).pk] = "held"
    return {pk: "dead" if life == "given up" else "succeeded" for pk, life in ids.items()}


def _provoke(verb: str, faulty: WorkerProcess, marks: Marks) -> None:
    """Do what makes a worker come to a point, where work alone does not."""
    if verb == "leave":
        faulty.signal(signal.SIGTERM)
    if verb == "interrupt":
        wait_until(lambda: [each for each in marks.read("start") if "life" not in each])
        faulty.signal(signal.SIGTERM)
        faulty.wait_for_line("worker.draining")
        faulty.signal(signal.SIGTERM)


def _unfinished() -> list[tuple[int, str]]:
    ends = (Status.SUCCEEDED, Status.CANCELLED)
    return list(Job.objects.exclude(status__in=ends).values_list("pk", "status"))


def _compare_with(marks: Marks) -> None:
    """I15: an attempt that counts was made, and none was made twice under one number."""
    starts = [(mark["job"], mark["attempt"]) for mark in marks.read("start")]
    assert len(starts) == len(set(starts))
    ends = {(mark["job"], mark["attempt"]) for mark in marks.read("end") if "attempt" in mark}
    lives = Job.objects.filter(task="tests.tasks.live", status=Status.SUCCEEDED)
    assert set(lives.values_list("pk", "attempts")) <= ends


class Operation(NamedTuple):
    """What somebody does in a process of its own, and what there is before and after."""

    make: Callable[[dict[str, Any]], list[int]]
    code: str
    before: list[str]
    after: list[str]


def _jobs(**state: Any) -> Callable[[dict[str, Any]], list[int]]:
    return lambda given: [job.pk for job in JobFactory.create_batch(2, **state, **given)]


def _letters(given: dict[str, Any]) -> list[int]:
    unused = {"attempts": 0, "fence": 0}
    return [letter.pk for letter in DeadLetterFactory.create_batch(2, **unused, **given)]


def _paused_queue(_: dict[str, Any]) -> list[int]:
    QueueFactory(name="mail", paused=True)
    return []


def _discarded(given: dict[str, Any]) -> list[int]:
    ids = _letters(given)
    lifecycle.discard(ids)
    return ids


MARK = "from tests.tasks import leave_mark; from jobqueue import enqueue_many; "
VERB = "from jobqueue import lifecycle; lifecycle."
SPAN = "from datetime import timedelta; "
_leased = _jobs(claimed=True)
TWO_DAYS = timedelta(days=2)
OPERATIONS = {
    "enqueue": Operation(
        lambda _: [], MARK + "leave_mark.enqueue(marks={marks!r})", [], ["pending"]
    ),
    "enqueue_many": Operation(
        lambda _: [],
        MARK + "enqueue_many([leave_mark.bind(marks={marks!r}) for _ in range(2)])",
        [],
        ["pending", "pending"],
    ),
    "cancel": Operation(
        _jobs(pending=True), VERB + "cancel({ids})", ["pending"] * 2, ["cancelled"] * 2
    ),
    "run_now": Operation(
        _jobs(scheduled=True), VERB + "run_now({ids})", ["scheduled"] * 2, ["pending"] * 2
    ),
    "move": Operation(
        _jobs(pending=True), VERB + "move({ids}, 'other')", ["pending"] * 2, ["pending"] * 2
    ),
    "prioritise": Operation(
        _jobs(pending=True), VERB + "prioritise({ids}, 7)", ["pending"] * 2, ["pending"] * 2
    ),
    "extend_leases": Operation(
        _leased,
        SPAN + VERB + "extend_leases({ids}, timedelta(hours=1))",
        ["claimed"] * 2,
        ["claimed"] * 2,
    ),
    "release_leases": Operation(
        _leased, VERB + "release_leases({ids})", ["claimed"] * 2, ["pending"] * 2
    ),
    "release_worker": Operation(
        _leased, VERB + "release_worker('worker-a')", ["claimed"] * 2, ["pending"] * 2
    ),
    "replay": Operation(_letters, VERB + "replay({ids})", ["dead"] * 2, ["pending"] * 2),
    "replay_edited": Operation(
        lambda given: _letters(given)[:1],
        VERB + "replay_edited({ids}[0], args=[], kwargs={{'marks': {marks!r}}})",
        ["dead"] * 2,
        ["pending", "dead"],
    ),
    "discard": Operation(_letters, VERB + "discard({ids})", ["dead"] * 2, ["discarded"] * 2),
    "restore": Operation(_discarded, VERB + "restore({ids})", ["discarded"] * 2, ["dead"] * 2),
    "delete_letters": Operation(
        _discarded,
        "from django.test import override_settings\n"
        "with override_settings(JOBQUEUE={{'DELETE_DEAD_LETTERS': True}}):\n    "
        + VERB
        + "delete_letters({ids})",
        ["discarded"] * 2,
        [],
    ),
    "prune": Operation(
        _jobs(cancelled=True, finished_ago=TWO_DAYS), VERB + "prune()", ["cancelled"] * 2, []
    ),
    "pause": Operation(lambda _: [], VERB + "pause('mail')", [], ["paused"]),
    "resume": Operation(_paused_queue, VERB + "resume('mail')", ["paused"], []),
}


class TestPeople:
    """C-20, C-104: what was asked for is done whole or not at all, and can be asked for again."""

    @pytest.mark.parametrize(("verb", "moment", "action"), list(matrix(OF_PEOPLE)))
    def test_whose_process_fails_at_a_point_did_all_or_nothing(
        self, verb: str, moment: str, action: str, tmp_path: Path, marks: Marks
    ) -> None:
        operation = OPERATIONS[verb]
        ids = operation.make({"task": "tests.tasks.leave_mark", "kwargs": {"marks": marks.path}})
        code = operation.code.format(ids=ids, marks=marks.path)
        assert _places() == operation.before
        is_done = moment == "committed"
        with Somebody(code, tmp_path, switched_on(verb, moment, action)) as (process, log):
            if action == "stop":
                hit = f"failpoint {verb}.{moment}: stop"
                wait_until(lambda: hit in log.read_text())
                assert _places() == (operation.after if is_done else operation.before)
                process.send_signal(signal.SIGCONT)
            code_at_end = process.wait(PATIENCE)
        output = log.read_text()
        assert f"failpoint {verb}.{moment}: {action}" in output
        is_done = is_done or action in ("stop", "delay")
        if action == "kill":
            assert code_at_end == -signal.SIGKILL
        else:
            fails = action == "error" or (action == "drop" and not is_done)
            assert ("OperationalError" in output) == fails, output
            assert bool(code_at_end) == fails
        assert _places() == (operation.after if is_done else operation.before)
        if not is_done:
            exec(code, {})
        assert _places() == operation.after
        run_until_empty()
        assert len(marks.read("run")) == operation.after.count("pending")
        assert violations() == []


def _places() -> list[str]:
    letters = DeadLetter.objects
    return [
        *Job.objects.values_list("status", flat=True),
        *["dead"] * letters.open().count(),
        *["discarded"] * letters.discarded().count(),
        *["paused"] * Queue.objects.paused().count(),
    ]


class Somebody:
    """A Python process of somebody who works on the queue."""

    def __init__(self, code: str, folder: Path, environment: dict[str, str]) -> None:
        self.log = folder / "people.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(CHECKOUT / "manage.py"), "shell", "-v", "0", "-c", code],
                cwd=CHECKOUT,
                env=process_environment(**environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def __enter__(self) -> tuple[subprocess.Popen[bytes], Path]:
        return self.process, self.log

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait(PATIENCE)


class TestSwitch:
    def test_leaves_no_trace_when_it_is_off(self) -> None:
        assert not failpoints.are_on()
        for verb in VERBS:
            owner = Presence if verb in ("beat", "leave") else lifecycle
            owner = lifecycle.bulk if verb == "advance" else owner
            assert not hasattr(getattr(owner, verb), "__wrapped__")

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("setle.inside=kill", "setle"),
            ("settle.inisde=kill", "inisde"),
            ("settle.inside=kil", "kil"),
            ("settle.inside", "settle.inside"),
            ("settle.inside=delay", "settle.inside=delay"),
            ("settle.inside=kill:3", "settle.inside=kill:3"),
            ("claim.before=kill; settle.inside=kill@x", "settle.inside=kill@x"),
        ],
    )
    def test_names_what_it_does_not_know(self, text: str, named: str) -> None:
        with pytest.raises(ImproperlyConfigured, match=repr(named)):
            failpoints.parse(text)

    def test_takes_several_with_their_spans_and_numbers(self) -> None:
        points = failpoints.parse("settle.inside=kill@3; claim.committed=delay:0.5;")
        assert list(points) == ["settle.inside", "claim.committed"]
        assert (points["settle.inside"].action, points["settle.inside"].at) == ("kill", 3)
        assert points["claim.committed"].seconds == 0.5

    def test_acts_at_the_hit_with_the_number_alone(self) -> None:
        point = failpoints.parse("settle.inside=error@2")["settle.inside"]
        point.hit("default")
        with pytest.raises(Exception, match="a failpoint"):
            point.hit("default")
        point.hit("default")

    def test_that_is_wrong_keeps_a_process_from_starting(self) -> None:
        done = manage("check", **{failpoints.VARIABLE: "settle.inisde=kill"})
        assert done.returncode
        assert "'inisde'" in done.stderr

    def test_that_is_on_is_an_error_at_deploy(self) -> None:
        on = {failpoints.VARIABLE: "settle.inside=kill"}
        done = manage("check", "--deploy", **on)
        assert done.returncode
        assert "jobqueue.E003" in done.stderr

    def test_every_verb_is_one_of_workers_or_of_people(self) -> None:
        assert set(OPERATIONS) == set(OF_PEOPLE)
        assert set(VERBS) == set(OF_PEOPLE) | set(OF_WORKERS) | set(OF_FIGURES)
        others = {"Actor", "alias", "bulk", "look"}
        assert set(lifecycle.__all__) - others <= set(VERBS)
