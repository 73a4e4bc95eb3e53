"""One clock, the database's: a worker's host may be an hour off, and nothing is early or late."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now

from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.querysets import ago, from_now
from jobqueue.states import Outcome
from tests import tasks
from tests.factories import JobFactory
from tests.processes import Gate, Marks, WorkerProcess, wait_until
from tests.test_worker_lease import QUICK, outcomes, succeeded

LIBRARY = next(map(str, Path("/usr/lib").glob("**/faketime/libfaketime.so.1")), None)
SECOND, HOUR = timedelta(seconds=1), timedelta(hours=1)

pytestmark = [
    pytest.mark.network,
    pytest.mark.postgresql,  # SQLite has no clock but that of the process
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(LIBRARY is None, reason="needs faketime"),
    pytest.mark.parametrize("off", [HOUR, -HOUR], ids=["ahead", "behind"]),
]

StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_off(worker_process: StartWorker, off: timedelta) -> StartWorker:
    """Start a worker on whose host it is an hour later, or earlier, than it is."""
    environment = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME": f"{off.total_seconds():+.0f}",
        # A clock that is set does not change the time since the start of the machine.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }

    def start(*arguments: str, **extra: Any) -> WorkerProcess:
        return worker_process("--name", "off", *QUICK, *arguments, **environment, **extra)

    return start


def test_is_what_the_worker_of_these_tests_really_has(
    start_off: StartWorker, off: timedelta
) -> None:
    job = tasks.read_clock.enqueue()
    worker = start_off("--until-empty")
    assert worker.wait() == 0
    job.refresh_from_db()
    assert (
        abs(float(str(job.result)) - time.time() - off.total_seconds()) < HOUR.total_seconds() / 2
    )


def test_shortens_no_lease_and_makes_no_other_seem_to_have_ended(
    start_off: StartWorker, worker_process: StartWorker, marks: Marks, gate: Gate
) -> None:
    """C-83: each of two workers holds a job for many leases, and looks at that of the other."""
    jobs = {
        name: tasks.hold.using(queue_name=name).enqueue(gate=gate.path, marks=marks.path)
        for name in ("off", "right")
    }
    lease = ("--lease", "1")
    start_off(*lease, "--queues", "off")
    worker_process("--name", "right", *QUICK, *lease, "--queues", "right")
    marks.wait_for("start", count=2)
    wait_until(lambda: Job.objects.claimed().filter(claimed_at__lt=ago(4 * SECOND)).count() == 2)
    assert not Job.objects.filter(claimed_until__gt=from_now(SECOND)).exists()
    gate.open()
    wait_until(succeeded(*jobs.values()))
    for name, job in jobs.items():
        assert outcomes(job) == [(1, Outcome.SUCCEEDED, name)]
    assert [mark["lease_lost"] for mark in marks.read("end")] == [False, False]
    for attempt in Attempt.objects.all():
        enqueued_at = Job.objects.get(pk=attempt.job_id).enqueued_at
        assert enqueued_at <= attempt.started_at <= attempt.finished_at
    assert not Attempt.objects.filter(finished_at__gt=Now()).exists()


@pytest.mark.parametrize("killed", ["off", "right"])
def test_rescues_and_is_rescued_when_the_lease_ends(
    killed: str, start_off: StartWorker, worker_process: StartWorker, marks: Marks, gate: Gate
) -> None:
    start = {
        "off": start_off,
        "right": lambda *arguments: worker_process("--name", "right", *QUICK, *arguments),
    }
    job = tasks.hold.enqueue(gate=gate.path, marks=marks.path)
    first = start.pop(killed)("--lease", "2")
    marks.wait_for("start")
    first.kill()
    ends = Job.objects.claimed().get().claimed_until
    [(name, start_other)] = start.items()
    start_other("--lease", "2")
    gate.open()
    wait_until(succeeded(job))
    assert outcomes(job) == [(1, Outcome.LOST, killed), (2, Outcome.SUCCEEDED, name)]
    assert Attempt.objects.get(job_id=job.pk, number=2).started_at > ends


def test_makes_nothing_due_early_or_late(start_off: StartWorker) -> None:
    """C-83: a span counts from the database's now, an instant is kept as it was given."""
    at = JobFactory(scheduled=True, due_in=4 * SECOND).run_after
    job = tasks.enqueue_for_later.enqueue(at.isoformat(), seconds=2)
    start_off()
    wait_until(succeeded(job))
    job.refresh_from_db()
    instant, span = (Job.objects.get(pk=pk) for pk in job.result)
    assert instant.run_after == at
    assert span.run_after - span.enqueued_at == 2 * SECOND
    wait_until(succeeded(instant, span))
    for later in (instant, span):
        assert Attempt.objects.get(job_id=later.pk).started_at >= later.run_after


def test_neither_cuts_nor_stretches_a_backoff(start_off: StartWorker) -> None:
    job = tasks.retry.using(max_attempts=3).enqueue(1.0)
    start_off()
    wait_until(DeadLetter.objects.filter(pk=job.pk).exists)
    attempts = Attempt.objects.of(job.pk).order_by("number")
    assert len(attempts) == 3
    for one, two in itertools.pairwise(attempts):
        assert two.started_at - one.finished_at > 0.99 * SECOND
