"""One line for each event, with its values and never the payload; logging changes no outcome."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.dispatch import Signal

from jobqueue import logs, signals
from jobqueue.claims import Claim, Failure, Settlement
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome, Reason, Status
from tests import tasks
from tests.in_process import run_until_empty

CLAIM = Claim(
    id=12,
    fence=3,
    task="orders.send_receipt",
    args='["a secret"]',
    kwargs='{"password": "another"}',
    version=1,
    queue_name="mail",
    priority=0,
    run_after=datetime(2026, 1, 1, tzinfo=UTC),
    attempts=2,
    max_attempts=5,
    attempts_forgiven=0,
    losses=0,
    claimed_by="me",
    correlation_id="request-7",
    actor="",
    trace=None,
)


@pytest.fixture
def records() -> Iterator[list[logging.LogRecord]]:
    """What was logged, at every level."""
    found: list[logging.LogRecord] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record)

    keeper, level = Keeper(), logs.logger.level
    logs.logger.addHandler(keeper)
    logs.logger.setLevel(logging.DEBUG)
    yield found
    logs.logger.removeHandler(keeper)
    logs.logger.setLevel(level)


def settled(outcome: Outcome, status: Status | None, **fields: Any) -> Settlement:
    return Settlement(CLAIM, outcome, status, started=10.0, finished=10.25, **fields)


class TestLines:
    @pytest.mark.parametrize(
        ("settlement", "event", "level"),
        [
            (settled(Outcome.SUCCEEDED, Status.SUCCEEDED), "job.succeeded", "INFO"),
            (settled(Outcome.FAILED, Status.SCHEDULED), "job.retrying", "WARNING"),
            (settled(Outcome.TIMED_OUT, Status.SCHEDULED), "job.retrying", "WARNING"),
            (settled(Outcome.SNOOZED, Status.SCHEDULED), "job.snoozed", "INFO"),
            (settled(Outcome.RELEASED, Status.PENDING), "job.released", "INFO"),
            (settled(Outcome.INTERRUPTED, Status.PENDING), "job.interrupted", "INFO"),
            (settled(Outcome.LOST, Status.PENDING), "job.lost", "WARNING"),
            (settled(Outcome.FAILED, None, reason=Reason.DISCARDED), "job.dead", "ERROR"),
            (settled(Outcome.LOST, None, reason=Reason.WORKER_LOST), "job.dead", "ERROR"),
        ],
    )
    def test_say_what_became_of_a_job(
        self,
        settlement: Settlement,
        event: str,
        level: str,
        records: list[logging.LogRecord],
    ) -> None:
        logs.ended([settlement], recorded=[settlement.claim.key])
        [record] = records
        line = record.getMessage()
        assert (record.levelname, line.split()[0]) == (level, event)
        assert "job=12 task=orders.send_receipt queue=mail attempt=2/5" in line
        assert "worker=me correlation_id=request-7 duration_ms=250" in line
        assert "secret" not in line
        assert "another" not in line

    def test_have_the_delay_the_reason_and_the_class_of_the_error(
        self, records: list[logging.LogRecord]
    ) -> None:
        failure = Failure(error_class="ValueError", message="with a secret")
        retried = settled(
            Outcome.FAILED, Status.SCHEDULED, delay=timedelta(seconds=3), failure=failure
        )
        logs.ended([retried], recorded=[retried.claim.key])
        dead = settled(Outcome.FAILED, None, reason=Reason.NOT_RETRYABLE, failure=failure)
        logs.ended([dead], recorded=[dead.claim.key])
        assert "retry_in_s=3.0 err=ValueError" in records[0].getMessage()
        assert "reason=not_retryable err=ValueError" in records[1].getMessage()
        assert not any("secret" in record.getMessage() for record in records)

    def test_say_which_outcome_was_refused_with_a_lost_lease(
        self, records: list[logging.LogRecord]
    ) -> None:
        logs.ended([settled(Outcome.SUCCEEDED, Status.SUCCEEDED)], recorded=())
        assert records[0].levelname == "WARNING"
        assert records[0].getMessage().startswith("job.lease_lost job=12 ")
        assert "refused=succeeded" in records[0].getMessage()

    def test_cannot_be_forged_by_what_a_row_holds(self, records: list[logging.LogRecord]) -> None:
        claim = CLAIM._replace(correlation_id="x\njob.succeeded job=13\x1b[2J")
        settlement = Settlement(claim, Outcome.SUCCEEDED, Status.SUCCEEDED)
        logs.ended([settlement], recorded=[settlement.claim.key])
        assert records[0].getMessage().isprintable()
        assert r"x\njob.succeeded" in records[0].getMessage()

    def test_name_the_job_where_nothing_correlates_it(
        self, records: list[logging.LogRecord]
    ) -> None:
        logs.started(CLAIM._replace(correlation_id=""))
        assert records[0].levelname == "DEBUG"
        assert "correlation_id=job-12" in records[0].getMessage()

    def test_are_only_one_for_what_the_database_says(
        self, records: list[logging.LogRecord]
    ) -> None:
        logs.problem("worker.database_away", RuntimeError("first\nLINE 1: second"), retry_in=1)
        logs.problem("worker.database_away", RuntimeError(""))
        lines = [record.getMessage() for record in records]
        assert lines == [
            "worker.database_away retry_in=1 err=first",
            "worker.database_away err=RuntimeError",
        ]


class TestShowInForeground:
    @pytest.fixture
    def logger(self, monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
        """A logger of its own, since pytest gives the root logger handlers."""
        logger = logging.Logger("jobqueue")  # noqa: LOG001 - that is the point
        monkeypatch.setattr(logs, "logger", logger)
        return logger

    @pytest.mark.parametrize(
        ("verbosity", "level"), [(0, logging.ERROR), (1, logging.INFO), (2, logging.DEBUG)]
    )
    def test_adds_a_handler_where_there_is_none(
        self, verbosity: int, level: int, logger: logging.Logger
    ) -> None:
        logs.show_in_foreground(verbosity)
        assert len(logger.handlers) == 1
        assert logger.level == level

    def test_leaves_the_projects_logging_alone(self, logger: logging.Logger) -> None:
        handler = logging.NullHandler()
        logger.addHandler(handler)
        logs.show_in_foreground(1)
        assert logger.handlers == [handler]
        assert logger.level == logging.NOTSET

    @pytest.fixture
    def shown(self, logger: logging.Logger) -> logs.ForegroundHandler:
        """The handler, with a stream that keeps what it was given."""
        logs.show_in_foreground(1)
        [handler] = logger.handlers
        assert isinstance(handler, logs.ForegroundHandler)
        handler.setStream(Stream())
        return handler

    def test_writes_what_belongs_together_with_one_call(
        self, shown: logs.ForegroundHandler
    ) -> None:
        done = settled(Outcome.SUCCEEDED, Status.SUCCEEDED)

        logs.ended([done, done, done], recorded=[CLAIM.key])
        logs.event(logging.INFO, "worker.started")

        together, alone = shown.stream.calls
        assert [line.split()[3] for line in together.splitlines()] == ["job.succeeded"] * 3
        assert alone.endswith(" INFO worker.started\n")

    def test_keeps_no_other_threads_line_back(self, shown: logs.ForegroundHandler) -> None:
        with shown.together():
            logs.event(logging.INFO, "first")
            other = threading.Thread(target=logs.event, args=(logging.INFO, "second"))
            other.start()
            other.join()
            assert [line.split()[3] for line in "".join(shown.stream.calls).splitlines()] == [
                "first",
                "second",
            ]

    def test_shows_a_traceback(self, shown: logs.ForegroundHandler) -> None:
        try:
            raise ValueError("seen")
        except ValueError:
            logs.event(logging.ERROR, "worker.thread_failed", with_traceback=True)
        [text] = shown.stream.calls
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ERROR worker.thread_failed\n", text)
        assert "ValueError: seen" in text

    def test_survives_that_nobody_reads_it_any_more(self, shown: logs.ForegroundHandler) -> None:
        shown.stream.close()
        logs.event(logging.INFO, "worker.started")


class Stream(io.StringIO):
    """Keeps what it was given with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def write(self, text: str) -> int:
        self.calls.append(text)
        return len(text)


@pytest.mark.django_db(transaction=True)
class TestFaultyHooks:
    """C-39: each job's outcome is what its handler did."""

    @staticmethod
    def run_jobs() -> None:
        works = [tasks.noop.enqueue() for _ in range(5)]
        fails = [tasks.fail.using(max_attempts=2).enqueue() for _ in range(5)]
        worker = run_until_empty()
        assert worker.exit_code == 0
        assert set(Job.objects.values_list("pk", "status")) == {
            (job.pk, Status.SUCCEEDED) for job in works
        }
        letters = DeadLetter.objects.values_list("pk", "error_class")
        assert set(letters) == {(job.pk, "RuntimeError") for job in fails}
        assert Attempt.objects.count() == 15

    def test_receivers_that_raise_change_nothing_and_are_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(**kwargs: Any) -> None:
            raise ValueError("a broken receiver")

        ours = [signal for signal in vars(signals).values() if isinstance(signal, Signal)]
        for signal in ours:
            signal.connect(broken)
        try:
            self.run_jobs()
        finally:
            for signal in ours:
                signal.disconnect(broken)
        assert "a broken receiver" in caplog.text

    def test_a_filter_that_raises_changes_nothing_and_is_shown(
        self, capsys: pytest.CaptureFixture[str], records: list[logging.LogRecord]
    ) -> None:
        def broken(record: logging.LogRecord) -> bool:
            raise ValueError("a broken filter")

        logs.logger.addFilter(broken)
        try:
            self.run_jobs()
        finally:
            logs.logger.removeFilter(broken)
        assert "a broken filter" in capsys.readouterr().err
        assert not records

    def test_a_handler_that_raises_changes_nothing(
        self, capsys: pytest.CaptureFixture[str], records: list[logging.LogRecord]
    ) -> None:
        class Broken(logging.Handler):
            def handle(self, record: logging.LogRecord) -> bool:
                raise ValueError("a broken handler")

        handler = Broken()
        logs.logger.addHandler(handler)
        try:
            self.run_jobs()
        finally:
            logs.logger.removeHandler(handler)
        assert "a broken handler" in capsys.readouterr().err
