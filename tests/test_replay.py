"""Dead letters become jobs again, once, or are dealt with: replay, discard, restore, delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, connection

from jobqueue import lifecycle, registry, task
from jobqueue.exceptions import (
    DeletionIsOff,
    InvalidArguments,
    InvalidJob,
    InvalidPayload,
    UnknownTask,
    UnsupportedVersion,
)
from jobqueue.lifecycle import Actor
from jobqueue.models import Attempt, DeadLetter, Job, OperationLog, Replay
from jobqueue.states import Reason, Status
from tests import verbs
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory
from tests.tasks import fail, noop

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
ALICE, BOB = Actor("1", "alice"), Actor("2", "bob")


def die(task: Any = fail, *args: Any, max_attempts: int = 1) -> int:
    """Let a job fail until it is dead; return its id."""
    job = task.using(max_attempts=max_attempts).enqueue(*args)
    for _ in range(max_attempts):
        verbs.run_next()
        verbs.fall_due(job.pk)
        lifecycle.promote()
    assert verbs.where(job.pk) == "dead"
    return int(job.pk)


class TestReplay:
    def test_makes_a_pending_job_of_the_same_id_and_content(self) -> None:
        letter = DeadLetterFactory(
            args=[1, {"ä": None}], kwargs={"b": 2}, priority=7, queue_name="mail", actor="ann",
            correlation_id="order-1", version=3, trace={"traceparent": "00-1"},
        )  # fmt: skip
        assert lifecycle.replay([letter.pk]) == [letter.pk]
        job = Job.objects.get()
        same = ("id", "task", "args", "kwargs", "version", "queue_name", "priority", "actor")
        same += ("correlation_id", "trace", "enqueued_at", "fence", "attempts", "last_error")
        assert {name: getattr(job, name) for name in same} == {
            name: getattr(letter, name) for name in same
        }
        assert job.status == Status.PENDING
        assert not job.cancel_requested
        assert not DeadLetter.objects.exists()

    def test_gives_a_full_budget_on_top_of_what_was_spent(self) -> None:
        """C-107."""
        pk = die(max_attempts=3)
        lifecycle.replay([pk])
        job = Job.objects.get()
        assert (job.attempts, job.max_attempts, job.budget, job.replays) == (3, 6, 3, 1)
        for _ in range(3):
            verbs.run_next()
            verbs.fall_due(pk)
            lifecycle.promote()
        assert verbs.where(pk) == "dead"
        assert [attempt.number for attempt in Attempt.objects.of(pk)] == [1, 2, 3, 4, 5, 6]
        lifecycle.replay([pk])
        job = Job.objects.get()
        assert (job.attempts, job.max_attempts, job.budget, job.replays) == (6, 9, 3, 2)

    def test_gives_no_attempt_for_a_snooze_of_the_first_life(self) -> None:
        JobFactory(max_attempts=2)
        lifecycle.settle([verbs.snoozed(verbs.claim_one())])
        verbs.fall_due(*Job.objects.values_list("pk", flat=True))
        lifecycle.promote()
        claimed = verbs.claim_one()
        lifecycle.settle([verbs.buried(claimed)])
        lifecycle.replay([claimed.id])
        assert Job.objects.get().budget == 2
        assert verbs.claim_one().tries == 1

    def test_starts_the_backoff_afresh(self) -> None:
        pk = die(max_attempts=3)
        lifecycle.replay([pk])
        claimed = verbs.claim_one()
        assert (claimed.attempts, claimed.tries) == (4, 1)

    @pytest.mark.parametrize("reason", Reason.values)
    def test_works_whatever_it_died_of_and_runs_now(self, reason: str) -> None:
        """C-107: no old time, no old lease."""
        letter = DeadLetterFactory(reason=reason, attempts=1, fence=4, age=-DAY)
        lifecycle.replay([letter.pk])
        claimed = verbs.claim_one(worker="worker-b")
        assert (claimed.id, claimed.fence, claimed.claimed_by) == (letter.pk, 5, "worker-b")
        assert claimed.has_attempts_left

    def test_of_the_same_letter_twice_works_once(self) -> None:
        """C-104; at the same time: test_interleavings."""
        letter = DeadLetterFactory()
        assert lifecycle.replay([letter.pk, letter.pk]) == [letter.pk]
        assert lifecycle.replay([letter.pk]) == []
        assert Job.objects.count() == 1

    def test_and_failing_again_leaves_one_letter(self) -> None:
        """C-104."""
        pk = die()
        lifecycle.replay([pk])
        verbs.run_next()
        assert DeadLetter.objects.get().replays == 1
        assert not Job.objects.exists()
        assert verbs.outcomes(pk) == ["failed", "failed"]

    def test_after_the_task_was_put_right_succeeds_with_one_history(self) -> None:
        pk = die()
        DeadLetter.objects.update(task=noop.name, args=[])
        lifecycle.replay([pk])
        verbs.run_next()
        assert verbs.where(pk) == "succeeded"
        assert verbs.outcomes(pk) == ["failed", "succeeded"]

    def test_of_a_letter_that_cannot_be_read_moves_it_all_the_same(self) -> None:
        """C-103, C-105: no row is looked into, so none can stop the others."""
        good = DeadLetterFactory.create_batch(3)
        unknown = DeadLetterFactory(task="nobody.knows", reason=Reason.UNKNOWN_TASK)
        broken = DeadLetterFactory(args="text", kwargs=[1])
        ids = [letter.pk for letter in (*good, unknown, broken)]
        assert sorted(lifecycle.replay(ids)) == sorted(ids)
        assert Job.objects.pending().count() == 5

    def test_takes_any_number_and_says_which(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C-106."""
        # "jobqueue.lifecycle.alias" is the function of that name; this is its module.
        monkeypatch.setattr(sys.modules["jobqueue.lifecycle.alias"], "BATCH", 3)
        ids = [letter.pk for letter in DeadLetterFactory.create_batch(7)]
        assert sorted(lifecycle.replay(iter([*ids, 10**9]))) == ids
        assert not DeadLetter.objects.exists()

    def test_of_nothing_does_nothing(self) -> None:
        assert lifecycle.replay([]) == []
        assert lifecycle.replay([10**9]) == []

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        ("event", "table"),
        [
            ("INSERT", "jobqueue_job"),
            ("DELETE", "jobqueue_deadletter"),
            ("INSERT", "jobqueue_replay"),
        ],
    )
    def test_that_fails_half_way_leaves_the_letter(self, event: str, table: str) -> None:
        """C-107: the mark of death goes only if the job is there."""
        letter = DeadLetterFactory()
        before = verbs.everything()
        with verbs.refusing(event, table), pytest.raises(Error, match="refused"):
            lifecycle.replay([letter.pk])
        assert verbs.everything() == before

    def test_into_another_queue_leaves_its_own_queue_alone(self) -> None:
        letter = DeadLetterFactory(queue_name="mail")
        lifecycle.replay([letter.pk], target_queue="slow")
        assert Job.objects.get().queue_name == "slow"
        told = Replay.objects.get()
        assert (told.from_queue, told.to_queue) == ("mail", "slow")

    def test_into_what_can_be_no_queue_changes_nothing(self) -> None:
        letter = DeadLetterFactory()
        before = verbs.everything()
        with pytest.raises(InvalidJob, match="queue_name 'No Such' is not valid"):
            lifecycle.replay([letter.pk], target_queue="No Such")
        assert verbs.everything() == before

    def test_is_written_down_with_what_the_letter_was(self) -> None:
        letter = DeadLetterFactory(reason=Reason.TIMED_OUT, queue_name="mail")
        lifecycle.replay([letter.pk], by=ALICE, reason="mended")
        told = Replay.objects.get()
        assert (told.job_id, told.fence, told.died_at) == (letter.pk, letter.fence, letter.died_at)
        assert (told.death_reason, told.fingerprint) == (letter.reason, letter.fingerprint)
        assert (told.from_queue, told.to_queue) == ("mail", "mail")
        assert (told.actor_id, told.actor, told.reason) == ("1", "alice", "mended")
        assert (told.args, told.kwargs, told.operation_id) == (None, None, None)
        assert told.last_error == letter.last_error

    def test_is_written_down_for_every_life(self) -> None:
        pk = die()
        for _ in range(2):
            lifecycle.replay([pk])
            verbs.run_next()
        fences = Replay.objects.of(pk).values_list("fence", flat=True)
        assert list(fences) == [2, 1]

    def test_of_a_payload_that_nobody_can_read_is_written_down_too(self) -> None:
        """C-103."""
        letter = DeadLetterFactory()
        with connection.cursor() as cursor:
            cursor.execute("UPDATE jobqueue_deadletter SET kwargs = %s", ["9" * 5000])
        assert lifecycle.replay([letter.pk], by=ALICE) == [letter.pk]
        assert Replay.objects.count() == 1

    def test_by_a_name_that_no_database_stores_is_made_visible(self) -> None:
        letter = DeadLetterFactory()
        lifecycle.replay([letter.pk], by=Actor("1", "a\0b"), reason="c\0d" + "x" * 600)
        told = Replay.objects.get()
        assert told.actor == "a\\u0000b"
        assert told.reason.startswith("c\\u0000d")


class TestAudit:
    """What operators do is written with it; what the project's own code does is its own affair."""

    @pytest.mark.parametrize(
        ("act", "discarded"),
        [(lifecycle.replay, False), (lifecycle.discard, False), (lifecycle.restore, True)],
    )
    def test_has_a_line_for_each_letter(self, act: Any, *, discarded: bool) -> None:
        letters = DeadLetterFactory.create_batch(2)
        if discarded:
            lifecycle.discard([letter.pk for letter in letters])
        act([letter.pk for letter in letters], by=ALICE, reason="mended", correlation_id="op-1")
        for letter in letters:
            line = OperationLog.objects.of(DeadLetter, letter.pk).get()
            assert (line.action, line.actor, line.reason) == (act.__name__, "alice", "mended")
            assert line.correlation_id == "op-1"

    def test_has_none_for_the_code_of_the_project(self) -> None:
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk])
        lifecycle.restore([letter.pk])
        lifecycle.replay([letter.pk])
        assert not OperationLog.objects.exists()

    def test_has_none_for_what_was_not_done(self) -> None:
        lifecycle.replay([10**9], by=ALICE)
        lifecycle.discard([10**9], by=ALICE)
        assert not OperationLog.objects.exists()


def send(order: int, *, password: str = "") -> None:
    """Be a task."""


def of_version_two(version: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Upgrade a payload, and spoil the given one on the way."""
    kwargs["order"] = kwargs.pop("order_id")
    return args, kwargs


@pytest.fixture
def sending() -> Iterator[str]:
    task(name="tests.send", version=2, upgrade=of_version_two)(send)
    yield "tests.send"
    del registry.tasks["tests.send"]


class TestReplayEdited:
    def test_runs_with_the_new_payload_and_keeps_the_old_one(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, args=["x"], kwargs={"a": 1}, version=2)
        given = {"args": [7], "kwargs": {"password": "p"}}
        assert lifecycle.replay_edited(letter.pk, **given, by=ALICE, reason="wrong order")
        job = Job.objects.get()
        assert (job.pk, job.args, job.kwargs, job.version) == (letter.pk, [7], given["kwargs"], 2)
        told = Replay.objects.get()
        assert (told.args, told.kwargs, told.actor) == (["x"], {"a": 1}, "alice")
        assert verbs.where(letter.pk) == "pending"

    def test_tells_the_audit_that_but_not_what_was_edited(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, version=2)
        lifecycle.replay_edited(letter.pk, args=["hunter2"], kwargs={}, by=ALICE)
        [line] = OperationLog.objects.values()
        assert line["action"] == "replay edited"
        assert "hunter2" not in str(line)

    def test_of_a_payload_that_nobody_can_read_keeps_that(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, version=2)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE jobqueue_deadletter SET kwargs = %s", ["9" * 5000])
        assert lifecycle.replay_edited(letter.pk, args=[1], kwargs={})
        with connection.cursor() as cursor:
            cursor.execute("SELECT CAST(kwargs AS text) FROM jobqueue_replay")
            assert cursor.fetchone() == ("9" * 5000,)

    def test_is_upgraded_like_the_old_one_only_to_be_looked_at(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, version=1)
        assert lifecycle.replay_edited(letter.pk, args=[], kwargs={"order_id": 7})
        job = Job.objects.get()
        assert (job.kwargs, job.version) == ({"order_id": 7}, 1)

    def test_can_say_which_version_it_is_now(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, version=1)
        assert lifecycle.replay_edited(letter.pk, args=[7], kwargs={}, version=2)
        assert Job.objects.get().version == 2

    @pytest.mark.parametrize(
        ("given", "error", "said"),
        [
            ({"args": []}, InvalidArguments, "missing a required argument: 'order'"),
            ({"args": [1], "kwargs": {"x": 1}}, InvalidArguments, "unexpected keyword"),
            ({"args": [float("nan")]}, InvalidPayload, "JSON has no such number"),
            ({"args": ["a\0"]}, InvalidPayload, "a NUL character"),
            ({"args": ["x" * 70_000]}, InvalidPayload, "MAX_PAYLOAD_BYTES"),
            ({"args": [1], "version": 3}, UnsupportedVersion, "has version 3"),
            ({"args": [1], "version": 1}, InvalidArguments, "cannot upgrade it: KeyError"),
            ({"args": [1], "target_queue": "A B"}, InvalidJob, "queue_name"),
        ],
    )
    def test_that_would_not_run_is_refused_before_anything_is_written(
        self, sending: str, given: dict[str, Any], error: type[Exception], said: str
    ) -> None:
        """C-104, and the corpus of payloads that no database keeps."""
        letter = DeadLetterFactory(task=sending, version=2)
        before = verbs.everything()
        with pytest.raises(error, match=said):
            lifecycle.replay_edited(letter.pk, **{"args": [], "kwargs": {}, **given})
        assert verbs.everything() == before
        assert not Replay.objects.exists()

    def test_of_a_vanished_task_is_refused(self) -> None:
        letter = DeadLetterFactory(task="nobody.knows")
        with pytest.raises(UnknownTask, match=r"nobody\.knows"):
            lifecycle.replay_edited(letter.pk, args=[], kwargs={})
        assert verbs.where(letter.pk) == "dead"

    def test_of_what_is_no_open_letter_does_nothing(self, sending: str) -> None:
        letter = DeadLetterFactory(task=sending, version=2)
        lifecycle.discard([letter.pk])
        assert not lifecycle.replay_edited(letter.pk, args=[1], kwargs={})
        assert not lifecycle.replay_edited(10**9, args=[1], kwargs={})
        assert not Job.objects.exists()


class TestRestore:
    def test_makes_the_letter_what_it_was(self) -> None:
        letter, other = DeadLetterFactory.create_batch(2)
        before = DeadLetter.objects.values().get(pk=letter.pk)
        lifecycle.discard([letter.pk], by=ALICE, reason="x")
        assert lifecycle.restore([letter.pk, other.pk, 10**9]) == 1
        assert DeadLetter.objects.values().get(pk=letter.pk) == before
        assert lifecycle.replay([letter.pk]) == [letter.pk]


class TestDeleteLetters:
    def test_is_off(self) -> None:
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk])
        with pytest.raises(DeletionIsOff):
            lifecycle.delete_letters([letter.pk])
        assert DeadLetter.objects.exists()

    def test_deletes_what_was_discarded_and_nothing_else(self, settings: Any) -> None:
        settings.JOBQUEUE = {"DELETE_DEAD_LETTERS": True}
        pk, is_open = die(), DeadLetterFactory().pk
        lifecycle.discard([pk])
        assert lifecycle.delete_letters([pk, is_open], by=ALICE, reason="law") == 1
        assert (verbs.where(pk), verbs.where(is_open)) == ("gone", "dead")
        assert verbs.outcomes(pk) == ["failed"]
        line = OperationLog.objects.get()
        assert (line.action, line.target_id, line.reason) == ("delete", str(pk), "law")


class TestDiscard:
    def test_keeps_the_letter_and_says_who_and_why(self) -> None:
        pk = die()
        before = DeadLetter.objects.values().get()
        assert lifecycle.discard([pk], by=ALICE, reason="sent by hand") == 1
        assert verbs.where(pk) == "discarded"
        assert verbs.outcomes(pk) == ["failed"]
        after = DeadLetter.objects.values().get()
        told = {name for name in after if before[name] != after[name]}
        assert told == {"discarded_at", "discarded_by", "discard_reason"}
        assert (after["discarded_by"], after["discard_reason"]) == ("alice", "sent by hand")
        assert not DeadLetter.objects.open().exists()

    def test_of_what_is_discarded_changes_nothing(self) -> None:
        letter = DeadLetterFactory()
        lifecycle.discard([letter.pk], by=ALICE, reason="first")
        assert lifecycle.discard([letter.pk], by=BOB, reason="second") == 0
        assert DeadLetter.objects.get().discarded_by == "alice"
        assert lifecycle.replay([letter.pk]) == []

    def test_counts_what_was_there(self) -> None:
        letters = DeadLetterFactory.create_batch(2)
        job = JobFactory()
        assert lifecycle.discard([letters[0].pk, job.pk, 10**9]) == 1
        assert lifecycle.discard([letter.pk for letter in letters]) == 1
        assert lifecycle.discard([]) == 0
        assert Job.objects.get() == job

    def test_of_a_vanished_task_works(self) -> None:
        """C-105."""
        letter = DeadLetterFactory(task="nobody.knows", args="text", kwargs=[1])
        AttemptFactory(job=Job(pk=letter.pk, task=letter.task, attempts=1, queue_name="x", fence=1))
        assert lifecycle.discard([letter.pk]) == 1
