"""Move and change the priority: what people do to jobs that wait in the wrong place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, connection

from jobqueue import lifecycle
from jobqueue.exceptions import InvalidJob
from jobqueue.lifecycle import Actor
from jobqueue.models import Job, OperationLog, Worker
from tests import tasks, verbs
from tests.factories import DeadLetterFactory, JobFactory, WorkerFactory
from tests.in_process import running_worker
from tests.processes import wait_until

ALICE = Actor("7", "alice")
HOUR = timedelta(hours=1)
FOREIGN = ("claimed", "succeeded", "cancelled")


@pytest.mark.django_db
class TestMove:
    @pytest.mark.parametrize("state", ["pending", "scheduled"])
    def test_a_job_that_waits_goes_to_the_other_queue_as_it_is(self, state: str) -> None:
        job = JobFactory(**{state: True})
        before = Job.objects.values().get()
        assert lifecycle.move([job.pk], "mail") == 1
        assert Job.objects.values().get() == before | {"queue_name": "mail"}

    def test_is_claimed_from_there(self) -> None:
        job = JobFactory()
        lifecycle.move([job.pk], "mail")
        assert not verbs.claim(9)
        assert verbs.claim_one(queue_name="mail").id == job.pk

    def test_leaves_what_runs_or_has_ended_where_it_is(self) -> None:
        ids = [JobFactory(**{state: True}).pk for state in FOREIGN] + [DeadLetterFactory().pk]
        before = verbs.everything()
        assert lifecycle.move([*ids, 10**9], "mail", by=ALICE) == 0
        assert verbs.everything() == before
        assert not OperationLog.objects.exists()

    def test_to_the_same_queue_is_no_move(self) -> None:
        job = JobFactory()
        assert lifecycle.move([job.pk], "default", by=ALICE) == 0
        assert not OperationLog.objects.exists()

    @pytest.mark.parametrize("name", ["", "Mail", "a b", "ä", "x" * 65, "a\0b", None])
    def test_to_a_queue_that_cannot_be_is_refused(self, name: Any) -> None:
        job = JobFactory()
        with pytest.raises(InvalidJob, match="queue_name"):
            lifecycle.move([job.pk], name)
        assert Job.objects.get() == job

    def test_is_logged_with_the_queues(self) -> None:
        job = JobFactory()
        lifecycle.move([job.pk], "mail", by=ALICE, reason="flooded", correlation_id="op-1")
        [line] = OperationLog.objects.of(Job, job.pk)
        assert (line.action, line.actor, line.reason) == ("move", "alice", "flooded")
        assert (line.before, line.after) == ({"queue_name": "default"}, {"queue_name": "mail"})


@pytest.mark.django_db
class TestPrioritise:
    @pytest.mark.parametrize("state", ["pending", "scheduled"])
    def test_a_job_that_waits_gets_another_place(self, state: str) -> None:
        job = JobFactory(**{state: True})
        before = Job.objects.values().get()
        assert lifecycle.prioritise([job.pk], 100) == 1
        assert Job.objects.values().get() == before | {"priority": 100}

    def test_is_claimed_in_the_new_order(self) -> None:
        first, second = JobFactory(age=HOUR), JobFactory()
        lifecycle.prioritise([second.pk], 1)
        assert [claim.id for claim in verbs.claim(9)] == [second.pk, first.pk]

    def test_leaves_what_runs_or_has_ended_as_it_is(self) -> None:
        ids = [JobFactory(**{state: True}).pk for state in FOREIGN]
        before = verbs.everything()
        assert lifecycle.prioritise(ids, 5, by=ALICE) == 0
        assert verbs.everything() == before

    @pytest.mark.parametrize("priority", [-101, 101, 2**31, "1", 1.0, None, True])
    def test_beyond_the_range_is_refused(self, priority: Any) -> None:
        job = JobFactory()
        with pytest.raises(InvalidJob, match="priority"):
            lifecycle.prioritise([job.pk], priority)
        assert Job.objects.get() == job

    def test_is_logged_with_the_priorities(self) -> None:
        job = JobFactory(priority=3)
        lifecycle.prioritise([job.pk], -7, by=ALICE)
        line = OperationLog.objects.get()
        assert (line.action, line.before, line.after) == (
            "prioritise",
            {"priority": 3},
            {"priority": -7},
        )


ACTS: dict[str, tuple[Callable[[int], Any], dict[str, bool]]] = {
    "cancel": (lambda pk: lifecycle.cancel([pk], by=ALICE), {}),
    "cancel of what runs": (lambda pk: lifecycle.cancel([pk], by=ALICE), {"claimed": True}),
    "run_now": (lambda pk: lifecycle.run_now([pk], by=ALICE), {"scheduled": True}),
    "move": (lambda pk: lifecycle.move([pk], "mail", by=ALICE), {}),
    "prioritise": (lambda pk: lifecycle.prioritise([pk], 1, by=ALICE), {}),
    "extend_lease": (lambda pk: lifecycle.extend_leases([pk], HOUR, by=ALICE), {"claimed": True}),
    "release_lease": (lambda pk: lifecycle.release_leases([pk], by=ALICE), {"claimed": True}),
}


@pytest.mark.django_db
class TestLog:
    @pytest.mark.parametrize("name", ACTS)
    def test_has_a_line_for_what_was_done(self, name: str) -> None:
        act, state = ACTS[name]
        job = JobFactory(**state)
        act(job.pk)
        [line] = OperationLog.objects.of(Job, job.pk)
        assert line.action == name.split(maxsplit=1)[0]
        assert line.before
        assert line.after
        assert line.before != line.after

    @pytest.mark.parametrize("name", ACTS)
    def test_and_what_was_done_fail_together(self, name: str) -> None:
        act, state = ACTS[name]
        job = JobFactory(**state)
        before = verbs.everything()
        with verbs.refusing("INSERT", "jobqueue_operationlog"), pytest.raises(DatabaseError):
            act(job.pk)
        assert verbs.everything() == before

    def test_tells_what_was_cancelled_from_what_was_asked_to_stop(self) -> None:
        waiting, running = JobFactory(), JobFactory(claimed=True)
        lifecycle.cancel([waiting.pk, running.pk], by=ALICE)
        [of_waiting] = OperationLog.objects.of(Job, waiting.pk)
        [of_running] = OperationLog.objects.of(Job, running.pk)
        assert of_waiting.after == {"status": "cancelled"}
        assert of_running.after == {"cancel_requested": True}


def heard_of(act: Callable[[], Any]) -> str | None:
    """Return the queue that idle workers are told of when this is done."""
    WorkerFactory(listens=True)
    with connection.cursor() as cursor:
        cursor.execute("LISTEN jobqueue")
    driver: Any = connection.connection
    act()
    found = [each.payload for each in driver.notifies(timeout=5, stop_after=1)]
    with connection.cursor() as cursor:
        cursor.execute("UNLISTEN jobqueue")
    return found[0] if found else None


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
class TestWaking:
    """What makes a job claimable tells those who wait, as an enqueue does."""

    @pytest.mark.parametrize("act", ["move", "run_now", "release_lease"])
    def test_notifies_at_commit(self, act: str) -> None:
        do, state = ACTS[act]
        job = JobFactory(**state)
        assert heard_of(lambda: do(job.pk)) == ("mail" if act == "move" else "default")

    @pytest.mark.parametrize("queue_name", ["", "mail"])
    def test_notifies_of_a_replay(self, queue_name: str) -> None:
        letter = DeadLetterFactory()
        found = heard_of(lambda: lifecycle.replay([letter.pk], target_queue=queue_name))
        assert found == (queue_name or "default")

    def test_an_idle_worker_takes_a_job_that_was_moved_to_it(self) -> None:
        job = tasks.noop.using(queue_name="nobody").enqueue()
        with running_worker(queues={"mail": None}, poll_interval=timedelta(hours=1)):
            wait_until(Worker.objects.filter(listens=True).exists)
            lifecycle.move([job.pk], "mail")
            wait_until(lambda: verbs.where(job.pk) == "succeeded", doing="the job to be run")
