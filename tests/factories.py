"""Any row in any state in one call: the shortest way from a test's "given" to its "when".

Instants are given as ages and computed by the database, so that the past is the database's past.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import factory
from django.db.models import Model

from jobqueue import stats
from jobqueue.measures import (
    ALL,
    DISTRIBUTIONS,
    EVER,
    MINUTE,
    NUMBERS,
    QUARTER,
    beginning,
    for_ever,
)
from jobqueue.models import (
    Attempt,
    BulkOperation,
    DeadLetter,
    Job,
    OperationLog,
    Queue,
    Rollup,
    Sample,
    Worker,
)
from jobqueue.querysets import ago, from_now
from jobqueue.states import BulkKind, BulkState, Outcome, Reason, Status

M = TypeVar("M", bound=Model)
NOW = timedelta(0)


class Rows(factory.django.DjangoModelFactory, Generic[M]):
    """Reads each row back, since the database computed a part of it."""

    class Meta:
        abstract = True

    @classmethod
    def _create(cls, model_class: type[M], *args: Any, **kwargs: Any) -> M:
        row: M = super()._create(model_class, *args, **kwargs)
        row.refresh_from_db()
        return row


class JobFactory(Rows[Job]):
    """A pending job, or one in the state whose name is given: ``JobFactory(claimed=True)``.

    ``due_in`` is the time until a scheduled job is due, ``lease_left`` what is left of a claimed
    job's lease, ``finished_ago`` the age of the end; all may be negative.
    """

    class Meta:
        model = Job

    class Params:
        age = NOW
        due_in = timedelta(hours=1)
        lease_left = timedelta(minutes=1)
        claimed_ago = timedelta(seconds=1)
        finished_ago = NOW

        pending = factory.Trait(status=Status.PENDING)
        scheduled = factory.Trait(
            status=Status.SCHEDULED,
            run_after=factory.LazyAttribute(lambda job: from_now(job.due_in)),
        )
        claimed = factory.Trait(
            status=Status.CLAIMED,
            attempts=1,
            fence=1,
            claimed_by="worker-a",
            claimed_at=factory.LazyAttribute(lambda job: ago(job.claimed_ago)),
            claimed_until=factory.LazyAttribute(lambda job: from_now(job.lease_left)),
        )
        succeeded = factory.Trait(
            status=Status.SUCCEEDED,
            attempts=1,
            fence=1,
            finished_at=factory.LazyAttribute(lambda job: ago(job.finished_ago)),
        )
        cancelled = factory.Trait(
            status=Status.CANCELLED,
            finished_at=factory.LazyAttribute(lambda job: ago(job.finished_ago)),
        )

    task = "tests.tasks.noop"
    args = factory.LazyFunction(list)
    kwargs = factory.LazyFunction(dict)
    enqueued_at = factory.LazyAttribute(lambda job: ago(job.age))
    run_after = factory.LazyAttribute(lambda job: ago(job.age))


class AttemptFactory(Rows[Attempt]):
    """The last attempt of a job, failed just now; ``AttemptFactory(job=job, lost=True)``."""

    class Meta:
        model = Attempt

    class Params:
        finished_ago = NOW
        took = timedelta(seconds=1)

        succeeded = factory.Trait(
            outcome=Outcome.SUCCEEDED, error_class="", message="", traceback="", fingerprint=""
        )
        lost = factory.Trait(outcome=Outcome.LOST, error_class="LeaseLost", traceback="")

    job = factory.SubFactory(JobFactory, attempts=1, fence=1)
    number = factory.SelfAttribute("job.attempts")
    fence = factory.SelfAttribute("job.fence")
    task = factory.SelfAttribute("job.task")
    queue_name = factory.SelfAttribute("job.queue_name")
    worker = "worker-a"
    started_at = factory.LazyAttribute(lambda attempt: ago(attempt.finished_ago + attempt.took))
    finished_at = factory.LazyAttribute(lambda attempt: ago(attempt.finished_ago))
    outcome = Outcome.FAILED
    error_class = "RuntimeError"
    message = "failed"
    traceback = "Traceback (most recent call last):\nRuntimeError: failed\n"
    fingerprint = "0123456789abcdef"


def _free_job_id() -> int:
    """Return an id as a job would have got it, so that a replay finds it free."""
    job = JobFactory()
    Job.objects.filter(pk=job.pk).delete()
    return int(job.pk)


class DeadLetterFactory(Rows[DeadLetter]):
    """A job that failed in all of its five attempts, ``died_ago``."""

    class Meta:
        model = DeadLetter

    class Params:
        died_ago = NOW
        age = timedelta(hours=1)

    id = factory.LazyFunction(_free_job_id)
    task = "tests.tasks.fail"
    args = factory.LazyFunction(list)
    kwargs = factory.LazyFunction(dict)
    attempts = 5
    max_attempts = 5
    fence = 5
    enqueued_at = factory.LazyAttribute(lambda letter: ago(letter.age))
    run_after = factory.LazyAttribute(lambda letter: ago(letter.age))
    died_at = factory.LazyAttribute(lambda letter: ago(letter.died_ago))
    reason = Reason.ATTEMPTS_EXHAUSTED
    error_class = "RuntimeError"
    message = "failed"
    last_error = "RuntimeError: failed"
    fingerprint = "0123456789abcdef"


class WorkerFactory(Rows[Worker]):
    """A live worker; ``silent_for`` is the age of its last heartbeat."""

    class Meta:
        model = Worker

    class Params:
        silent_for = NOW

    name = factory.Sequence("worker-{}".format)
    host = "host.example"
    pid = factory.Sequence(lambda number: 1000 + number)
    concurrency = 8
    started_at = factory.LazyAttribute(lambda worker: ago(worker.silent_for + timedelta(hours=1)))
    heartbeat_at = factory.LazyAttribute(lambda worker: ago(worker.silent_for))


class QueueFactory(Rows[Queue]):
    """A queue; ``paused=True`` paused just now, for ever or for ``paused_for``."""

    class Meta:
        model = Queue

    class Params:
        paused_for = timedelta(hours=1)

        paused = factory.Trait(
            paused_at=factory.LazyAttribute(lambda _: ago(NOW)),
            paused_by="alice",
            pause_reason="the mail server is down",
        )
        paused_for_a_while = factory.Trait(
            paused=True,
            paused_until=factory.LazyAttribute(lambda queue: from_now(queue.paused_for)),
        )

    name = factory.Sequence("queue-{}".format)


class OperationLogFactory(Rows[OperationLog]):
    """A line of the audit: somebody cancelled a job, ``done_ago``."""

    class Meta:
        model = OperationLog

    class Params:
        done_ago = NOW

    at = factory.LazyAttribute(lambda line: ago(line.done_ago))
    actor_id = "1"
    actor = "alice"
    action = "cancel"
    target_type = "job"
    target_id = "42"
    before = factory.LazyFunction(lambda: {"status": "pending"})
    after = factory.LazyFunction(lambda: {"status": "cancelled"})
    reason = "sent twice"
    correlation_id = "op-0123456789abcdef"


def minutes_ago(minutes: int, *, span: int = MINUTE) -> datetime:
    """Return the beginning of the minute, or other span, that was going on so long ago."""
    return beginning(stats.now("default") - timedelta(minutes=minutes), span)


class RollupFactory(Rows[Rollup]):
    """What became of jobs in the minute, or other ``span``, that lay ``minutes`` ago."""

    class Meta:
        model = Rollup

    class Params:
        minutes = 1

    span = MINUTE
    start = factory.LazyAttribute(
        lambda rollup: (
            for_ever() if rollup.span == EVER else minutes_ago(rollup.minutes, span=rollup.span)
        )
    )
    queue_name = "default"
    task = "tests.tasks.noop"

    @classmethod
    def _create(cls, model_class: type[Rollup], *args: Any, **kwargs: Any) -> Rollup:
        """Add it to all that a worker adds it to: its quarter, and what all queues did together."""
        row = model_class(*args, **kwargs)
        add_rollup(row)
        return model_class.objects.get(
            span=row.span, start=row.start, queue_name=row.queue_name, task=row.task
        )


def add_rollup(row: Rollup) -> None:
    """Add what one minute or more of one task counted, to all the rows that a worker adds it to."""
    spans = {row.span: row.start}
    if row.span == MINUTE:
        spans[QUARTER] = beginning(row.start, QUARTER)
    for span, start in spans.items():
        for queue_name, task in ((row.queue_name, row.task), ALL)[: 1 + (span != EVER)]:
            key = {"span": span, "start": start, "queue_name": queue_name, "task": task}
            _add_to(Rollup.objects.get_or_create(**key)[0], row)


def _add_to(rollup: Rollup, row: Rollup) -> None:
    for name in NUMBERS:
        setattr(rollup, name, getattr(rollup, name) + getattr(row, name))
    for name in DISTRIBUTIONS:
        total = Counter(getattr(rollup, name))
        total.update(getattr(row, name))
        setattr(rollup, name, total)
    rollup.save()


class SampleFactory(Rows[Sample]):
    """How all queues together, or one, stood ``minutes`` ago."""

    class Meta:
        model = Sample

    class Params:
        minutes = 1

    minute = factory.LazyAttribute(lambda sample: minutes_ago(sample.minutes))
    queue_name = ""


class BulkOperationFactory(Rows[BulkOperation]):
    """A replay of all dead letters that is just beginning; ``paused=True`` is one that rests."""

    class Meta:
        model = BulkOperation

    class Params:
        paused = factory.Trait(state=BulkState.PAUSED)

    kind = BulkKind.REPLAY
    expected = 3
    rate = 1.0
    actor = "alice"
    reason = "the mail server is back"
