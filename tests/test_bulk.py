"""Bulk operations: asked for by people, carried out by workers, a letter once and at a rate."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from threading import enumerate as threads
from typing import Any

import pytest
from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from jobqueue import lifecycle
from jobqueue.exceptions import InvalidOperation
from jobqueue.lifecycle import Actor, advancing, bulk
from jobqueue.models import BulkOperation, DeadLetter, Job, OperationLog, Replay
from jobqueue.querysets import ago
from jobqueue.states import BulkState
from jobqueue.worker.operator import Operator
from tests import tasks, verbs
from tests.factories import DeadLetterFactory, JobFactory
from tests.in_process import run_until_empty, running_worker
from tests.processes import Gate, OtherConnection, WorkerProcess, wait_until
from tests.soundness import violations

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)


def letters(count: int, **given: Any) -> list[int]:
    """Make dead letters whose jobs do nothing once they are replayed; return their ids."""
    pks = sorted(JobFactory.create_batch(count), key=lambda job: job.pk)
    Job.objects.filter(pk__in=[job.pk for job in pks]).delete()
    plain = {"task": "tests.tasks.noop", "attempts": 0, "fence": 0, "died_ago": MINUTE}
    return [DeadLetterFactory(id=job.pk, **plain | given).pk for job in pks]


def operator(*codenames: str) -> Actor:
    """Return a user with these permissions, as an actor."""
    user = User.objects.create_user(f"user-{User.objects.count()}")
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return Actor(str(user.pk), user.username)


def ask(kind: str = "replay", **given: Any) -> BulkOperation:
    return bulk.ask(kind, **{"expected": 0, **given})


def rest_for(operation: BulkOperation, span: timedelta) -> None:
    """Let the latest batch have been so long ago."""
    BulkOperation.objects.filter(pk=operation.pk).update(advanced_at=ago(span))


def finish() -> None:
    """Do batch after batch until no operation runs."""
    while bulk.advance() is not None:
        pass


def states() -> list[str]:
    return list(BulkOperation.objects.order_by("pk").values_list("state", flat=True))


class TestAsk:
    def test_writes_down_who_wants_what_and_why(self) -> None:
        by = operator()
        filters = {"task": "tests.tasks.fail", "queue_name": "mail"}
        asked = ask(
            filters=filters, rate=2.5, target_queue="slow", expected=7, by=by, reason="mended"
        )
        found = BulkOperation.objects.get()
        assert (found.filters, found.ids, found.rate) == (filters, None, 2.5)
        assert (found.target_queue, found.expected, found.state) == ("slow", 7, "running")
        assert (found.actor_id, found.actor, found.reason) == (*by, "mended")
        line = OperationLog.objects.get()
        assert (line.action, line.target_id) == ("ask replay", str(asked.pk))
        assert line.targets == {"filters": filters}
        assert line.correlation_id == f"bulk-{asked.pk}"

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"kind": "delete"}, "'delete' is none of"),
            ({"filters": {"kwargs__password": "x"}}, "no filter 'kwargs__password'"),
            ({"rate": 0.0}, "rate"),
            ({"rate": float("nan")}, "rate"),
            ({"rate": float("inf")}, "rate"),
            ({"rate": 1e-9}, "rate"),
            ({"rate": 1e308}, "rate"),
            ({"filters": {"task": None}}, "task"),
            ({"filters": {"task": "x" * 201}}, "task"),
            ({"filters": {"fingerprint": "\0"}}, "fingerprint"),
            ({"filters": {"died_since": "yesterday"}}, "died_since"),
            ({"filters": {"died_since": "2026-13-01T00:00:00Z"}}, "died_since"),
            ({"filters": {"died_since": 5}}, "died_since"),
            ({"until": datetime(2026, 11, 29)}, "naive"),  # noqa: DTZ001 - that is the point
            ({"target_queue": "A b"}, "queue_name"),
            ({"kind": "discard", "target_queue": "mail"}, "only replayed jobs"),
            ({"ids": range(10_001)}, "more than 10,000"),
        ],
    )
    def test_refuses_what_cannot_be_carried_out(self, given: dict[str, Any], said: str) -> None:
        with pytest.raises(InvalidOperation, match=said):
            bulk.ask(given.pop("kind", "replay"), **{"expected": 1, **given})
        assert not BulkOperation.objects.exists()

    def test_is_no_line_of_the_audit_for_the_code_of_the_project(self) -> None:
        ask()
        finish()
        assert states() == [BulkState.DONE]
        assert not OperationLog.objects.exists()


class TestAdvance:
    def test_replays_what_matches_and_leaves_the_rest(self) -> None:
        ids = letters(5)
        other = letters(1, queue_name="mail")
        discarded = letters(1)
        lifecycle.discard(discarded)
        operation = ask(filters={"queue_name": "default"}, target_queue="slow", expected=5)
        finish()
        assert sorted(Job.objects.values_list("pk", flat=True)) == ids
        assert set(Job.objects.values_list("queue_name", flat=True)) == {"slow"}
        assert sorted(DeadLetter.objects.values_list("pk", flat=True)) == other + discarded
        operation.refresh_from_db()
        assert (operation.state, operation.done, operation.refused) == ("done", 5, 0)
        assert operation.finished_at is not None
        assert set(Replay.objects.values_list("operation_id", flat=True)) == {operation.pk}

    @pytest.mark.parametrize(
        ("filters", "given"),
        [
            ({"task": "a.task"}, {"task": "a.task"}),
            ({"reason": "timed_out"}, {"reason": "timed_out"}),
            ({"fingerprint": "f"}, {"fingerprint": "f"}),
            ({"fingerprint": ""}, {"fingerprint": ""}),
        ],
        ids=str,
    )
    def test_goes_by_each_filter(self, filters: dict[str, str], given: dict[str, str]) -> None:
        letters(2)
        wanted = letters(2, **given)
        ask("discard", filters=filters)
        finish()
        found = DeadLetter.objects.discarded().values_list("pk", flat=True)
        assert sorted(found) == wanted

    def test_goes_by_when_they_died(self) -> None:
        letters(1, died_ago=timedelta(hours=2))
        young = letters(1)
        since = DeadLetter.objects.get(pk=young[0]).died_at - MINUTE
        ask("discard", filters={"died_since": since.isoformat()})
        finish()
        assert list(DeadLetter.objects.discarded().values_list("pk", flat=True)) == young

    def test_goes_by_the_letters_that_were_picked(self) -> None:
        ids = letters(4)
        ask("discard", ids=[ids[3], ids[1], ids[1], 10**15])
        finish()
        found = DeadLetter.objects.discarded().values_list("pk", flat=True)
        assert sorted(found) == [ids[1], ids[3]]

    def test_names_of_thousands_that_were_picked_those_of_the_batch(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With all of them each batch took half a second."""
        monkeypatch.setattr(advancing, "BATCH", 2)
        ids = letters(5)
        ask("discard", ids=ids)
        DeadLetter.objects.filter(pk=ids[0]).delete()
        with CaptureQueriesContext(connection) as queries:
            bulk.advance()
        looks = [each["sql"] for each in queries if 'FROM "jobqueue_deadletter"' in each["sql"]]
        named = ",".join(part for sql in looks for part in re.findall(r"IN \(([\d, ]+)\)", sql))
        assert set(map(int, named.split(","))) == set(ids[:2])
        finish()
        assert BulkOperation.objects.get().done == DeadLetter.objects.discarded().count() == 4

    def test_marks_what_it_discards_with_who_and_why(self) -> None:
        [pk] = letters(1)
        by = operator("discard_deadletter")
        ask("discard", by=by, reason="sent by hand")
        finish()
        letter = DeadLetter.objects.get(pk=pk)
        assert (letter.discarded_by, letter.discard_reason) == (by.name, "sent by hand")

    def test_leaves_alone_what_died_after_it_was_asked_for(self) -> None:
        ids = letters(1)
        ask()
        letters(2, died_ago=-MINUTE)
        finish()
        assert list(Job.objects.values_list("pk", flat=True)) == ids

    def test_does_not_replay_again_what_dies_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """C-104: no copies, no loop."""
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(5, task="tests.tasks.discard")
        ask()
        while bulk.advance() is not None:
            for _ in range(Job.objects.count()):
                verbs.run_next()
        assert DeadLetter.objects.filter(replays=1).count() == 5
        assert Replay.objects.count() == 5
        assert BulkOperation.objects.get().done == 5

    def test_moves_in_batches_each_a_transaction(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        ids = letters(5)
        operation = ask()
        seen = []
        while bulk.advance() is not None:
            operation.refresh_from_db()
            seen.append((operation.done, operation.position, operation.state))
        assert seen == [(2, ids[1], "running"), (4, ids[3], "running"), (5, ids[4], "done")]

    def test_of_nothing_says_so(self) -> None:
        assert bulk.advance() is None
        letters(1)
        assert bulk.advance() is None

    def test_reads_no_payload(self) -> None:
        letters(3)
        ask()
        with CaptureQueriesContext(connection) as captured:
            finish()
        assert not [
            each["sql"]
            for each in captured
            if each["sql"].startswith("SELECT") and '"args"' in each["sql"]
        ]

    def test_takes_as_many_statements_for_many_as_for_one(self) -> None:
        counts = []
        for number in (1, 50):
            letters(number)
            ask()
            with CaptureQueriesContext(connection) as captured:
                bulk.advance()
            counts.append(len(captured))
        assert counts[0] == counts[1]

    def test_takes_turns_among_operations(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(4)
        letters(4, queue_name="mail")
        ask("discard", filters={"queue_name": "default"})
        ask("discard", filters={"queue_name": "mail"})
        bulk.advance()
        bulk.advance()
        assert list(BulkOperation.objects.order_by("pk").values_list("done", flat=True)) == [2, 2]


class TestRefusal:
    def test_of_one_letter_does_not_stop_the_others(self) -> None:
        """C-103: what the database will not have is counted and named, and stays."""
        ids = letters(9)
        bad = [ids[2], ids[7]]
        for pk in bad:
            JobFactory(id=pk)  # the number is taken
        operation = ask(expected=9)
        finish()
        operation.refresh_from_db()
        assert (operation.state, operation.done, operation.refused) == ("done", 7, 2)
        assert operation.last_error.startswith(f"letter {bad[1]}: IntegrityError")
        assert sorted(DeadLetter.objects.values_list("pk", flat=True)) == bad
        assert Replay.objects.count() == 7

    def test_of_unknown_tasks_and_bad_payloads_there_is_none(self) -> None:
        """C-103, C-105: they are moved unread."""
        letters(1, task="nobody.knows")
        [broken] = letters(1)
        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE jobqueue_deadletter SET kwargs = %s WHERE id = %s", ["9" * 5000, broken]
            )
        ask()
        finish()
        assert BulkOperation.objects.get().done == 2


class TestFault:
    """What is wrong with one operation is no affair of the workers, or of other operations."""

    def test_that_would_come_every_time_ends_the_operation(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        letters(2)
        strange = ask(by=operator("replay_deadletter"))
        BulkOperation.objects.filter(pk=strange.pk).update(filters={"colour": "red"})
        ask("discard")
        finish()
        assert states() == [BulkState.FAILED, BulkState.DONE]
        strange.refresh_from_db()
        assert strange.last_error == "KeyError: 'colour'"
        line = OperationLog.objects.get(action="replay failed")
        assert line.after["last_error"] == strange.last_error
        assert f"bulk.failed operation={strange.pk}" in caplog.text

    def test_of_the_code_that_knows_the_rights_ends_it(self, settings: Any) -> None:
        by = operator("replay_deadletter")
        settings.AUTHENTICATION_BACKENDS = ["tests.test_bulk.BrokenBackend"]
        ask(by=by)
        finish()
        assert BulkOperation.objects.get().last_error == "ConnectionError: no directory"

    def test_in_a_row_written_by_hand_ends_no_worker(self) -> None:
        ask(rate=1)
        BulkOperation.objects.update(rate=1e308, filters={"died_since": 5})
        bulk.advance()
        assert states() == [BulkState.FAILED]

    @pytest.mark.postgresql
    @pytest.mark.django_db(transaction=True)
    def test_that_passes_lets_the_others_go_first(self, second_connection: OtherConnection) -> None:
        [held] = letters(1, queue_name="mail")
        letters(2)
        ask(filters={"queue_name": "mail"})
        ask(filters={"queue_name": "default"})
        with transaction.atomic():
            DeadLetter.objects.select_for_update().get(pk=held)
            impatient = second_connection.start(advance_impatiently)
            with pytest.raises(OperationalError, match="lock timeout"):
                impatient.result(30)
            second_connection.start(bulk.advance).result(30)
            assert states() == ["running", "done"]
        finish()
        assert states() == ["done", "done"]


def advance_impatiently() -> float | None:
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'")
    try:
        return bulk.advance()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("RESET lock_timeout")


class BrokenBackend(ModelBackend):
    """Cannot say who may do what."""

    def has_perm(self, *_: Any, **__: Any) -> bool:
        raise ConnectionError("no directory")


class TestRate:
    @pytest.mark.parametrize(
        ("rate", "rested", "count", "wait"),
        [
            (None, 0, advancing.BATCH, 0.0),
            (50, None, 12, 0.24),  # the first batch: a quarter of a second's worth
            (50, 0.1, 0, 0.15),
            (50, 1, 50, 0.25),
            (50, 3600, 100, 0.25),  # two seconds are made up for, and no more
            (0.5, None, 1, 2.0),
            (0.5, 1.5, 0, 0.5),
            (0.1, 12, 1, 10.0),
            (10_000, 2, advancing.BATCH, 0.0),
        ],
    )
    def test_allows_so_many_letters(
        self, rate: float | None, rested: float | None, count: int, wait: float
    ) -> None:
        elapsed = None if rested is None else timedelta(seconds=rested)
        allowed = advancing.allowance(rate, elapsed)
        assert allowed.letters == count
        assert allowed.wait == pytest.approx(wait, abs=1e-6)

    def test_loses_no_part_of_a_letter(self) -> None:
        """Three a second, looked at every quarter: as many as a clock would say."""
        given, since = 0, timedelta(0)
        for _ in range(400):
            since += timedelta(seconds=0.25)
            allowed = advancing.allowance(3, since)
            if allowed.letters:
                given, since = given + allowed.letters, allowed.rest
        assert given in (299, 300)

    def test_is_kept_by_the_clock_of_the_database(self) -> None:
        letters(30)
        operation = ask(rate=10)
        assert bulk.advance() == pytest.approx(0.2)
        assert DeadLetter.objects.count() == 28
        rest = bulk.advance()
        assert rest is not None
        assert 0 < rest < 0.3
        assert DeadLetter.objects.count() == 28
        rest_for(operation, timedelta(hours=1))
        bulk.advance()
        assert DeadLetter.objects.count() == 8

    def test_of_one_operation_does_not_hold_up_another(self) -> None:
        letters(2)
        letters(2, queue_name="mail")
        slow = ask("discard", filters={"queue_name": "default"}, rate=0.01)
        bulk.advance()
        ask("discard", filters={"queue_name": "mail"})
        bulk.advance()
        assert states() == ["running", "done"]
        assert bulk.advance() == pytest.approx(100, abs=10)
        slow.refresh_from_db()
        assert slow.done == 1


class TestPermission:
    """Who asked must still hold the right when it is done."""

    def test_is_looked_at_with_every_batch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(5)
        by = operator("replay_deadletter")
        operation = ask(by=by)
        bulk.advance()
        User.objects.get(pk=by.id).user_permissions.clear()
        bulk.advance()
        assert bulk.advance() is None
        operation.refresh_from_db()
        assert (operation.state, operation.done) == (BulkState.FAILED, 2)
        assert (
            operation.last_error == f"{by.name} does not hold jobqueue.replay_deadletter any more"
        )
        assert operation.finished_at is not None
        line = OperationLog.objects.get(action="replay failed")
        assert (line.actor, line.after["done"]) == (by.name, 2)
        assert "does not hold" in line.after["last_error"]

    @pytest.mark.parametrize("change", ["inactive", "gone", "other"])
    def test_that_is_lost_ends_it(self, change: str) -> None:
        letters(1)
        by = operator("discard_deadletter" if change == "other" else "replay_deadletter")
        if change == "inactive":
            User.objects.filter(pk=by.id).update(is_active=False)
        elif change == "gone":
            User.objects.filter(pk=by.id).delete()
        ask(by=by)
        finish()
        assert states() == [BulkState.FAILED]
        assert DeadLetter.objects.open().count() == 1


class TestTurns:
    def test_pause_stops_it_and_proceed_goes_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(5)
        operation = ask()
        bulk.advance()
        assert bulk.pause(operation.pk)
        assert not bulk.pause(operation.pk)
        assert bulk.advance() is None
        assert DeadLetter.objects.count() == 3
        assert bulk.proceed(operation.pk)
        finish()
        assert not DeadLetter.objects.exists()

    def test_proceed_does_not_make_up_for_the_pause(self) -> None:
        letters(30)
        operation = ask(rate=10)
        rest_for(operation, timedelta(hours=1))
        bulk.pause(operation.pk)
        bulk.proceed(operation.pk)
        bulk.advance()
        assert DeadLetter.objects.count() == 30

    def test_cancel_keeps_what_is_done_and_ends_the_rest(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(5)
        operation = ask()
        bulk.advance()
        assert bulk.cancel(operation.pk)
        assert not bulk.proceed(operation.pk)
        assert not bulk.cancel(operation.pk)
        assert bulk.advance() is None
        assert (Job.objects.count(), DeadLetter.objects.count()) == (2, 3)
        operation.refresh_from_db()
        assert operation.finished_at is not None

    def test_are_told_to_the_audit(self) -> None:
        letters(2)
        by, other = operator("discard_deadletter"), operator()
        operation = ask("discard", filters={"queue_name": "default"}, expected=2, by=by)
        bulk.pause(operation.pk, by=other, reason="wait")
        bulk.proceed(operation.pk, by=other)
        finish()
        lines = OperationLog.objects.order_by("pk")
        actions = ["ask discard", "pause discard", "proceed discard", "discard done"]
        assert [line.action for line in lines] == actions
        assert [line.actor for line in lines] == [by.name, other.name, other.name, by.name]
        assert (lines[1].before, lines[1].reason) == ({"state": "running"}, "wait")
        assert lines[3].targets == {"filters": {"queue_name": "default"}}
        assert lines[3].after == {"state": "done", "expected": 2, "done": 2, "refused": 0}


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
class TestAtOnce:
    def test_two_workers_do_not_do_one_batch(self, second_connection: OtherConnection) -> None:
        letters(3)
        operation = ask()
        with transaction.atomic():
            bulk.advance()
            assert second_connection.run(bulk.advance) == advancing.BUSY
        operation.refresh_from_db()
        assert (operation.done, operation.state) == (3, "done")
        assert Replay.objects.count() == 3

    def test_another_worker_goes_on_with_the_next_operation(
        self, second_connection: OtherConnection
    ) -> None:
        letters(1)
        letters(1, queue_name="mail")
        ask("discard", filters={"queue_name": "default"})
        ask("discard", filters={"queue_name": "mail"})
        with transaction.atomic():
            bulk.advance()
            second_connection.run(bulk.advance)
        assert states() == ["done", "done"]

    def test_a_letter_that_is_being_replayed_by_hand_is_replayed_once(
        self, second_connection: OtherConnection
    ) -> None:
        ids = letters(3)
        operation = ask()
        with transaction.atomic():
            lifecycle.replay([ids[1]])
            advancing_there = second_connection.start(bulk.advance)
        advancing_there.result(30)
        operation.refresh_from_db()
        assert operation.done == 2
        assert Replay.objects.count() == Job.objects.count() == 3


@pytest.mark.django_db(transaction=True)
class TestWorkers:
    """Check 5 of the operator's list, smaller."""

    def test_carry_it_out_at_its_rate_and_run_the_jobs(self) -> None:
        letters(200)
        by = operator("replay_deadletter")
        operation = ask(rate=100, expected=200, by=by)
        with running_worker(), running_worker():
            wait_until(lambda: states() == ["done"])
            wait_until(lambda: Job.objects.filter(status="succeeded").count() == 200)
        operation.refresh_from_db()
        took = operation.finished_at - operation.created_at
        # The first batch comes at once, and two seconds' worth at most is made up for.
        assert took >= timedelta(seconds=200 / 100 - advancing.TICK)
        assert (operation.done, Replay.objects.count()) == (200, 200)
        assert violations() == []
        line = OperationLog.objects.get(action="replay done")
        assert (line.actor, line.after["done"]) == (by.name, 200)

    def test_obey_a_cancel(self) -> None:
        letters(100)
        operation = ask(rate=20)
        with running_worker():
            wait_until(lambda: Replay.objects.count() >= 5)
            bulk.cancel(operation.pk)
            done = Replay.objects.count()
            asked = ask("discard", filters={"queue_name": "default"}, rate=20)
            wait_until(lambda: BulkOperation.objects.get(pk=asked.pk).done >= 10)
        assert Replay.objects.count() == done < 100

    def test_that_stop_when_empty_do_it_first(self) -> None:
        letters(30)
        ask(rate=100)
        run_until_empty()
        assert Job.objects.filter(status="succeeded").count() == 30
        assert states() == ["done"]

    def test_that_stop_when_empty_do_not_wait_for_one_that_is_paused(self) -> None:
        letters(1)
        operation = ask()
        bulk.pause(operation.pk)
        run_until_empty()
        assert DeadLetter.objects.count() == 1

    def test_that_are_killed_leave_nothing_half_done(
        self, worker_process: Callable[..., WorkerProcess]
    ) -> None:
        """Killed inside a batch, and once more between two; the next worker goes on."""
        letters(40)
        operation = ask(rate=20, expected=40)
        first = worker_process(JOBQUEUE_FAILPOINTS="advance.inside=kill@3")
        assert first.wait() == -signal.SIGKILL
        operation.refresh_from_db()
        assert operation.done == Replay.objects.count() == 40 - DeadLetter.objects.count() > 0
        second = worker_process()
        wait_until(lambda: BulkOperation.objects.get().done > operation.done)
        second.kill()
        third = worker_process("--until-empty", "--lease", "1", ready=False)
        assert third.wait() == 0
        wait_until(lambda: states() == ["done"])
        assert Replay.objects.count() == 40
        assert not DeadLetter.objects.exists()

    def test_say_what_keeps_them_from_it_and_try_again(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        faults = [OperationalError("the server closed the connection")]
        advance = bulk.advance

        def advance_later(**given: Any) -> float | None:
            if faults:
                raise faults.pop()
            return advance(**given)

        monkeypatch.setattr(bulk, "advance", advance_later)
        letters(1)
        ask()
        run_until_empty()
        assert "worker.bulk_failed" in caplog.text
        assert states() == ["done"]

    def test_begin_with_one_while_another_waits_for_its_rate(self) -> None:
        """At the slowest rate that is a minute and a half."""
        letters(3)
        letters(1, queue_name="mail")
        ask(filters={"queue_name": "default"}, rate=bulk.SLOWEST)
        with running_worker():
            wait_until(Replay.objects.exists)
            ask(filters={"queue_name": "mail"})
            wait_until(lambda: states() == ["running", "done"])

    def test_carry_out_nothing_more_once_they_drain(self, gate: Gate) -> None:
        letters(5)
        tasks.hold.enqueue(gate=gate.path)
        ask(rate=1)
        with running_worker(drain_timeout=timedelta(minutes=5)) as worker:
            wait_until(worker.hand.running)
            wait_until(Replay.objects.exists)
            worker.request_stop()
            wait_until(lambda: "jobqueue-operate" not in {thread.name for thread in threads()})
            assert worker.hand.running()
            gate.open()


@pytest.mark.django_db(transaction=True)
class TestOperator:
    def test_learns_of_work_from_the_look(self) -> None:
        look = lifecycle.look()
        assert not look.has_operations
        ask()
        assert lifecycle.look().has_operations
        finish()
        assert not lifecycle.look().has_operations

    def test_rests_without_a_connection(self, monkeypatch: pytest.MonkeyPatch) -> None:
        closed: list[bool] = []
        monkeypatch.setattr(connections, "close_all", lambda: closed.append(operator.is_at_work))
        letters(2)
        ask()
        operator = Operator(using="default")
        monkeypatch.setattr(operator, "_is_closed_within", lambda _: False)
        operator.poke()
        operator._calls.put(False)
        operator.work()
        assert states() == ["done"]
        assert closed == [False]

    def test_rests_as_long_as_it_worked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On SQLite nobody else writes while a batch is carried out."""
        operator, nothing = Operator(using="default"), Event()
        monkeypatch.setattr(bulk, "advance", lambda **_: float(nothing.wait(0.2)))
        assert operator._advance() >= 0.2

    def test_survives_whatever_an_operation_does(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(bulk, "advance", lambda **_: 1 / 0)
        assert Operator(using="default")._advance() > 0
        assert "worker.bulk_failed" in caplog.text

    def test_ends_after_the_batch_that_it_is_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(advancing, "BATCH", 2)
        letters(6)
        ask()
        operator = Operator(using="default")
        operator.poke()
        with monkeypatch.context() as patched:
            patched.setattr(operator, "_advance", lambda: operator.close() or bulk.advance())
            operator.work()
        assert BulkOperation.objects.get().done == 2
