"""A job that kills its workers does not spend the attempts of the jobs beside it (C-04)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db.models import Max

from jobqueue import enqueue_many, lifecycle
from jobqueue.models import DeadLetter, Job
from jobqueue.states import Reason, Status
from jobqueue.worker import caution
from jobqueue.worker.caution import Caution
from tests import tasks, verbs
from tests.factories import JobFactory
from tests.in_process import running_worker
from tests.processes import Gate, Marks, WorkerProcess, wait_until
from tests.test_logs import CLAIM

database = pytest.mark.django_db(transaction=True)


def admitted(careful: Caution, *losses: int) -> list[int]:
    """Return the losses of those claims that are admitted."""
    claims = [CLAIM._replace(id=number, losses=each) for number, each in enumerate(losses)]
    return [each.losses for each in careful.admit(claims)]


class TestAdmitting:
    def test_takes_what_was_never_lost(self) -> None:
        assert admitted(Caution(), 0, 0) == [0, 0]

    def test_hands_back_what_was_lost_until_it_is_claimed_with_care(self) -> None:
        careful = Caution()
        assert admitted(careful, 0, 1, 0) == [0, 0]
        assert admitted(careful, 1, 0) == [1, 0]

    def test_wants_to_be_alone_with_what_was_lost_again(self) -> None:
        careful = Caution()
        assert admitted(careful, 1, 2, 3) == []
        assert careful.wants_to_be_alone
        assert admitted(careful, 3) == [3]
        assert careful.wants_to_be_alone

    def test_ends_with_the_last_job_that_calls_for_it(self) -> None:
        careful = Caution()
        admitted(careful, 2)
        assert admitted(careful, 0) == [0]
        assert not careful.wants_to_be_alone
        assert careful.level == 0


@database
class TestCounting:
    def test_counts_losses_in_a_row(self) -> None:
        JobFactory(max_attempts=9)
        for losses in (1, 2):
            verbs.expire(verbs.claim_one().id)
            lifecycle.rescue()
            assert Job.objects.get().losses == losses

    def test_starts_again_when_an_attempt_ended_by_itself(self) -> None:
        JobFactory(losses=2)
        lifecycle.settle([verbs.retried(verbs.claim_one())])
        assert Job.objects.get().losses == 0

    def test_is_not_misled_by_a_release(self) -> None:
        JobFactory(losses=2)
        lifecycle.release([verbs.claim_one()])
        assert Job.objects.get().losses == 2


@database
def test_other_work_goes_on_while_a_worker_cannot_be_idle(
    monkeypatch: pytest.MonkeyPatch, gate: Gate, marks: Marks
) -> None:
    monkeypatch.setattr(caution, "PATIENCE", 0.2)
    with running_worker(concurrency=3):
        tasks.hold.enqueue(gate=gate.path, marks=marks.path)
        marks.wait_for("start")
        JobFactory(task=tasks.noop.name, losses=2)
        enqueue_many(tasks.noop.bind() for _ in range(5))
        wait_until(lambda: Job.objects.filter(status=Status.SUCCEEDED).count() == 6)
        assert not marks.read("end")
        gate.open()


@database
def test_a_killer_among_many_dies_alone(worker_process: Callable[..., WorkerProcess]) -> None:
    enqueue_many([tasks.noop.bind() for _ in range(100)])
    killer = tasks.kill_self.using(max_attempts=4).enqueue()
    enqueue_many([tasks.noop.bind() for _ in range(300)])
    for _ in range(4):
        worker_process("--lease", "1", "--poll-interval", "0.1").wait()
    last = worker_process("--lease", "1", "--poll-interval", "0.1")
    wait_until(lambda: not Job.objects.exclude(status=Status.SUCCEEDED).exists())
    last.signal(signal.SIGTERM)
    assert last.wait() == 0
    assert DeadLetter.objects.get().pk == killer.pk
    assert DeadLetter.objects.get().reason == Reason.WORKER_LOST
    spent: dict[str, Any] = Job.objects.aggregate(most=Max("attempts"))
    assert spent["most"] <= 3  # two losses beside the killer, and then success
