"""A job exists if and only if its caller's transaction commits, and never breaks it."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta, timezone
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import AnonymousUser, User
from django.db import Error, connection, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path

from jobqueue import InvalidJob, enqueue_many, lifecycle
from jobqueue.lifecycle import enqueueing
from jobqueue.models import Job
from jobqueue.states import Status
from tests import verbs
from tests.factories import NOW
from tests.models import Mark
from tests.tasks import add, leave_row, noop, send_mail, versioned

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
EAST = timezone(timedelta(hours=5, minutes=30))


class TestEnqueue:
    def test_returns_the_job_as_it_is_stored(self) -> None:
        job = noop.using(priority=7, correlation_id="order-1").enqueue(1, text="ä€😀", rows=[None])
        stored = Job.objects.get()
        fields = [field.attname for field in Job._meta.concrete_fields]
        assert {name: getattr(job, name) for name in fields} == {
            name: getattr(stored, name) for name in fields
        }
        assert job == stored

    def test_returns_a_job_that_can_be_refreshed_and_knows_its_database(self) -> None:
        job = noop.enqueue()
        job.refresh_from_db()
        assert job._state.db == "default"

    def test_a_job_can_run_at_once(self) -> None:
        job = noop.enqueue()
        assert job.status == Status.PENDING
        assert [claimed.id for claimed in verbs.claim(9)] == [job.pk]

    @pytest.mark.parametrize("run_after", [HOUR, dt.datetime(2100, 1, 1, tzinfo=EAST)])
    def test_a_job_for_later_is_scheduled(self, run_after: Any) -> None:
        job = noop.using(run_after=run_after).enqueue()
        assert job.status == Status.SCHEDULED
        assert not verbs.claim(9)

    def test_a_span_counts_from_the_moment_of_the_call(self) -> None:
        job = noop.using(run_after=HOUR).enqueue()
        assert abs(job.run_after - job.enqueued_at - HOUR) < timedelta(seconds=1)

    def test_an_instant_is_kept_in_whatever_zone_it_is_given(self) -> None:
        noon = dt.datetime(2100, 6, 1, 12, 0, 0, 123456, tzinfo=EAST)
        noop.using(run_after=noon).enqueue()
        assert Job.objects.get().run_after == noon

    @pytest.mark.parametrize("run_after", [-HOUR, NOW, dt.datetime(2000, 1, 1, tzinfo=EAST)])
    def test_a_time_that_has_passed_means_now(self, run_after: Any) -> None:
        assert noop.using(run_after=run_after).enqueue().status == Status.PENDING

    def test_options_of_the_call_win_over_those_of_the_task(self) -> None:
        changed = send_mail.using(queue_name="other", priority=-100, max_attempts=1)
        job = changed.enqueue()
        assert (job.queue_name, job.priority, job.max_attempts) == ("other", -100, 1)

    def test_options_of_the_task_hold_where_the_call_says_nothing(self) -> None:
        job = send_mail.using(run_after=HOUR).enqueue()
        assert (job.queue_name, job.priority, job.version) == ("mail", 5, 1)
        assert versioned.enqueue().version == 2

    def test_zero_is_a_priority_of_its_own(self) -> None:
        assert send_mail.using(priority=0).enqueue().priority == 0

    def test_using_leaves_the_task_as_it_was(self) -> None:
        send_mail.using(queue_name="other", priority=1, max_attempts=1, actor="x")
        assert send_mail.enqueue().queue_name == "mail"

    def test_using_can_be_chained(self) -> None:
        job = noop.using(queue_name="other").using(priority=3).enqueue()
        assert (job.queue_name, job.priority) == ("other", 3)

    def test_without_max_attempts_the_setting_holds(self, settings: Any) -> None:
        """C-85."""
        settings.JOBQUEUE = {"MAX_ATTEMPTS": 9}
        assert noop.using(max_attempts=None).enqueue().max_attempts == 9

    def test_an_actor_is_a_user_or_a_text(self) -> None:
        user = User.objects.create(username="ann")
        assert noop.using(actor=user).enqueue().actor == str(user.pk)
        assert noop.using(actor="nightly import").enqueue().actor == "nightly import"

    def test_a_task_is_still_a_function(self) -> None:
        assert add(2, 3) == 5
        assert not Job.objects.exists()

    def test_works_from_async_code_in_the_same_transaction(self) -> None:
        with transaction.atomic():
            job = async_to_sync(noop.aenqueue)(1)
            assert Job.objects.get() == job
            transaction.set_rollback(True)
        assert not Job.objects.exists()

    def test_is_one_statement(self) -> None:
        # SQLite's store asks back what the database decided.
        with CaptureQueriesContext(connection) as queries:
            noop.enqueue()
        inserts = [query for query in queries if "INSERT" in query["sql"]]
        assert len(inserts) == 1
        if connection.vendor == "postgresql":
            assert len(queries) == 1

    def test_ids_go_beyond_32_bits(self) -> None:
        """C-62, through the whole life of a job."""
        _set_sequences(2**31 - 2)
        ids = [noop.using(max_attempts=1).enqueue().pk for _ in range(3)]
        assert ids[-1] > 2**31 - 1
        lifecycle.settle([verbs.buried(claimed) for claimed in verbs.claim(3)])
        assert lifecycle.replay(ids) == ids
        lifecycle.settle([verbs.succeeded(claimed) for claimed in verbs.claim(3)])
        assert [verbs.where(pk) for pk in ids] == ["succeeded"] * 3
        assert verbs.outcomes(ids[-1]) == ["failed", "succeeded"]


def _set_sequences(value: int) -> None:
    tables = ("jobqueue_job", "jobqueue_attempt")
    with connection.cursor() as cursor:
        for table in tables:
            if connection.vendor == "postgresql":
                cursor.execute(
                    "SELECT setval(pg_get_serial_sequence(%s, 'id'), %s)", [table, value]
                )
            else:
                cursor.execute("DELETE FROM sqlite_sequence WHERE name = %s", [table])
                cursor.execute("INSERT INTO sqlite_sequence VALUES (%s, %s)", [table, value])


@pytest.mark.django_db(transaction=True)
class TestTransaction:
    """C-70 and C-71; what others see meanwhile stands in test_interleavings."""

    def test_a_rollback_takes_the_job_with_it(self) -> None:
        with suppress(LookupError), transaction.atomic():
            Mark.objects.create(key="order")
            leave_row.enqueue("order")
            raise LookupError
        assert not Job.objects.exists()
        assert not Mark.objects.exists()

    def test_a_commit_keeps_the_job(self) -> None:
        with transaction.atomic():
            job = leave_row.enqueue("order")
        assert verbs.where(job.pk) == "pending"

    @pytest.mark.parametrize("durable", [False, True])
    def test_a_savepoint_takes_only_its_own_jobs_with_it(self, *, durable: bool) -> None:
        with transaction.atomic(durable=durable):
            first = noop.enqueue("A")
            with suppress(LookupError), transaction.atomic():
                noop.enqueue("B")
                raise LookupError
            third = noop.enqueue("C")
        assert list(Job.objects.order_by("pk")) == [first, third]
        assert [job.args for job in Job.objects.order_by("pk")] == [["A"], ["C"]]

    def test_without_a_savepoint_the_whole_block_goes(self) -> None:
        with suppress(transaction.TransactionManagementError), transaction.atomic():
            noop.enqueue("A")
            with suppress(LookupError), transaction.atomic(savepoint=False):
                noop.enqueue("B")
                raise LookupError
            noop.enqueue("C")
        assert not Job.objects.exists()

    def test_many_jobs_go_with_a_rollback_too(self) -> None:
        with transaction.atomic():
            enqueue_many(noop.bind(number) for number in range(1500))
            transaction.set_rollback(True)
        assert not Job.objects.exists()

    @pytest.mark.parametrize("enqueue", [noop.enqueue, lambda: enqueue_many([noop.bind()])])
    def test_a_refusal_by_the_database_is_raised_inside_the_block(
        self, enqueue: Callable[[], object]
    ) -> None:
        """C-73: nothing is put off until after the commit."""
        with verbs.refusing("INSERT", "jobqueue_job"), suppress(Error), transaction.atomic():
            Mark.objects.create(key="order")
            with pytest.raises(Error, match="refused"), transaction.atomic():
                enqueue()
            raise Error
        assert not Mark.objects.exists()
        assert not Job.objects.exists()


REFUSED: dict[str, Callable[[], object]] = {
    "queue_name": lambda: noop.using(queue_name="a,b"),
    "priority": lambda: noop.using(priority=101),
    "priority is too low": lambda: noop.using(priority=-101),
    "priority is no number": lambda: noop.using(priority="1"),  # type: ignore[arg-type]
    "priority is a float": lambda: noop.using(priority=1.0),  # type: ignore[arg-type]
    "max_attempts": lambda: noop.using(max_attempts=0),
    "max_attempts is negative": lambda: noop.using(max_attempts=-1),
    "max_attempts is true": lambda: noop.using(max_attempts=True),
    "max_attempts is text": lambda: noop.using(max_attempts="3"),  # type: ignore[arg-type]
    "max_attempts is huge": lambda: noop.using(max_attempts=2**31),
    "run_after is naive": lambda: noop.using(run_after=dt.datetime(2100, 1, 1)),  # noqa: DTZ001
    "run_after is a date": lambda: noop.using(run_after=dt.date(2100, 1, 1)),  # type: ignore[arg-type]
    "run_after is too far": lambda: noop.using(run_after=timedelta.max),
    "run_after is too far back": lambda: noop.using(run_after=timedelta.min),
    "run_after is before year 1": lambda: noop.using(
        run_after=dt.datetime.min.replace(tzinfo=EAST)
    ),
    "run_after is after year 9999": lambda: noop.using(
        run_after=dt.datetime.max.replace(tzinfo=timezone(-HOUR))
    ),
    "actor": lambda: noop.using(actor=AnonymousUser()),
    "actor is too long": lambda: noop.using(actor="x" * 151),
    "actor holds a NUL": lambda: noop.using(actor="a\0b"),
    "correlation_id": lambda: noop.using(correlation_id="x" * 65),
    "correlation_id holds a line break": lambda: noop.using(correlation_id="a\nb"),
    "correlation_id holds a surrogate": lambda: noop.using(correlation_id="\ud800"),
    "correlation_id is a number": lambda: noop.using(correlation_id=7),  # type: ignore[arg-type]
    "arguments do not fit": lambda: add.enqueue(1),  # type: ignore[call-arg]
    "arguments do not fit by name": lambda: add.enqueue(1, 2, c=3),  # type: ignore[call-arg]
    "args": lambda: noop.enqueue("a\0b"),
    "kwargs": lambda: noop.enqueue(key=float("nan")),
    "take 70,": lambda: noop.enqueue("x" * 70_000),
}


class TestRefusal:
    """What the database could refuse is refused before any SQL: C-24, C-77, C-85, C-86."""

    @pytest.mark.parametrize("what", REFUSED)
    def test_names_what_is_wrong_and_leaves_the_transaction_usable(
        self, what: str, django_assert_num_queries: Any
    ) -> None:
        named = re.split(r" is | holds | by ", what)[0]
        with transaction.atomic():
            Mark.objects.create(key="order")
            with django_assert_num_queries(0), pytest.raises(InvalidJob, match=named):
                REFUSED[what]()
        assert Mark.objects.exists()
        assert not Job.objects.exists()

    @pytest.mark.parametrize(
        "name",
        [
            *("", " a", "a ", "a,b", "*", "a/b", "a%", "a:1", "-a", ".a", "a b", "\N{FIRE}", "ä"),
            *("x" * 65, "x" * 300, "Default", "a\0", "a\n", "#", "?", ("a",), 1, b"a"),
        ],
    )
    def test_of_a_queue_name_that_could_not_be_served(self, name: Any) -> None:
        """C-77."""
        with pytest.raises(InvalidJob, match="queue_name"):
            noop.using(queue_name=name)

    @pytest.mark.parametrize("name", ["a", "x" * 64, "mail-2.high_9", "0", "_"])
    def test_not_of_one_that_can(self, name: str) -> None:
        job = noop.using(queue_name=name).enqueue()
        assert verbs.claim_one(queue_name=name).id == job.pk


class TestEnqueueMany:
    """C-76: as one by one, all or nothing."""

    def test_writes_them_in_the_order_given_and_returns_their_ids(self) -> None:
        ids = enqueue_many(noop.bind(number) for number in range(2500))
        assert len(set(ids)) == 2500
        jobs = Job.objects.in_bulk(ids)
        assert [jobs[pk].args for pk in ids] == [[number] for number in range(2500)]

    def test_of_nothing_does_nothing(self, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            assert enqueue_many([]) == []

    def test_takes_each_with_its_own_options(self) -> None:
        when = dt.datetime(2100, 1, 1, tzinfo=EAST)
        ids = enqueue_many(
            [
                noop.using(queue_name="a", priority=3, correlation_id="x").bind(1, k="v"),
                send_mail.using(run_after=HOUR, actor="me").bind(),
                versioned.using(run_after=when, max_attempts=2).bind(),
                noop.using(run_after=-HOUR).bind(),
            ]
        )
        first, second, third, fourth = (Job.objects.get(pk=pk) for pk in ids)
        assert (first.queue_name, first.priority, first.correlation_id) == ("a", 3, "x")
        assert (first.args, first.kwargs, first.status) == ([1], {"k": "v"}, Status.PENDING)
        assert (second.queue_name, second.actor, second.status) == ("mail", "me", Status.SCHEDULED)
        assert (third.run_after, third.version, third.max_attempts) == (when, 2, 2)
        assert fourth.status == Status.PENDING

    def test_writes_the_same_as_one_by_one(self) -> None:
        call = send_mail.using(correlation_id="x", actor="me", max_attempts=3)
        [many] = enqueue_many([call.bind("k")])
        one = call.enqueue("k").pk
        unlike = {"id", "run_after", "enqueued_at"}
        rows = [Job.objects.filter(pk=pk).values().get() for pk in (many, one)]
        assert {k: rows[0][k] for k in rows[0].keys() - unlike} == {
            k: rows[1][k] for k in rows[1].keys() - unlike
        }

    @pytest.mark.parametrize("bad", [("a\0b",), ({1, 2},), (float("inf"),)])
    def test_names_the_first_bad_one_before_any_sql(
        self, bad: tuple[Any], django_assert_num_queries: Any
    ) -> None:
        calls = [noop.bind(1)] * 1200 + [noop.bind(*bad)] + [noop.bind(1)]
        refused = pytest.raises(InvalidJob, match=r"job 1200: args\[0\]")
        with transaction.atomic(), django_assert_num_queries(0), refused:
            enqueue_many(calls)
        assert not Job.objects.exists()

    def test_refuses_arguments_that_do_not_fit(self) -> None:
        with pytest.raises(InvalidJob, match=r"job 1: the arguments do not fit tests\.tasks\.add"):
            enqueue_many([add.bind(1, 2), add.bind(1)])  # type: ignore[call-arg]

    def test_all_or_nothing_over_several_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(enqueueing, "BULK", 1000)
        calls = [*[noop.bind(1)] * 1500, noop.using(priority=9).bind(1)]
        refusing = verbs.refusing("INSERT", "jobqueue_job", when="NEW.priority = 9")
        with refusing, pytest.raises(Error, match="refused"):
            enqueue_many(calls)
        assert not Job.objects.exists()


def _view(request: HttpRequest) -> HttpResponse:
    Mark.objects.create(key="order")
    noop.enqueue()
    outcome = request.GET["then"]
    if outcome == "raise":
        raise LookupError
    if outcome == "roll back":
        transaction.set_rollback(True)
    if outcome == "stream":
        return StreamingHttpResponse(iter([b"a", b"b"]))  # type: ignore[return-value]
    return HttpResponse(status=500 if outcome == "fail" else 200)


@transaction.non_atomic_requests
def _non_atomic_view(request: HttpRequest) -> HttpResponse:
    return _view(request)


urlpatterns = [path("atomic/", _view), path("non-atomic/", _non_atomic_view)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.urls(__name__)
class TestAtomicRequests:
    """C-72: a job exists exactly where the view's other rows do."""

    @pytest.fixture(autouse=True)
    def atomic_requests(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    @pytest.mark.parametrize(
        ("then", "kept"),
        [("return", 1), ("raise", 0), ("fail", 1), ("roll back", 0), ("stream", 1)],
    )
    def test_the_job_shares_the_fate_of_the_request(self, then: str, kept: int) -> None:
        Client(raise_request_exception=False).get("/atomic/", {"then": then})
        assert (Job.objects.count(), Mark.objects.count()) == (kept, kept)

    def test_without_a_transaction_the_job_stays_with_the_rows(self) -> None:
        Client(raise_request_exception=False).get("/non-atomic/", {"then": "raise"})
        assert (Job.objects.count(), Mark.objects.count()) == (1, 1)


class TestClock:
    """C-83: no statement carries a time of this process's clock."""

    @pytest.fixture
    def statements(self) -> Iterator[list[str]]:
        found: list[str] = []
        with CaptureQueriesContext(connection) as queries:
            yield found
            found += [query["sql"] for query in queries]
        assert found
        year = str(dt.datetime.now(tz=dt.UTC).year)
        dates = re.compile(rf"\b({year}|{int(year) + 1})-\d\d-\d\d")
        assert not [sql for sql in found if dates.search(sql)]

    def test_nowhere_in_the_life_of_a_job(self, statements: list[str]) -> None:
        one, two = (noop.using(run_after=-HOUR, max_attempts=2).enqueue() for _ in range(2))
        enqueue_many([noop.using(run_after=HOUR).bind()])
        lifecycle.promote()
        claims = verbs.claim(2)
        lifecycle.extend([verbs.lease_on(claimed) for claimed in claims])
        lifecycle.settle([verbs.retried(claimed, delay=HOUR) for claimed in claims])
        lifecycle.run_now([one.pk, two.pk])
        first, second = verbs.claim(2)
        lifecycle.settle([verbs.buried(first), verbs.succeeded(second)])
        lifecycle.replay([first.id])
        verbs.claim(1)
        verbs.expire(first.id)
        lifecycle.rescue()
        lifecycle.cancel([first.id])
        lifecycle.look()
        lifecycle.prune()
