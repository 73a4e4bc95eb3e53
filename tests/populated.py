"""A queue in which a bit of everything has happened, so that each page of the admin has content."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from django.db.models.functions import Now, TruncMinute

from jobqueue.measures import ALL, MINUTE, QUARTER
from jobqueue.models import (
    BulkOperation,
    DeadLetter,
    OperationLog,
    Replay,
    Rollup,
    Sample,
)
from jobqueue.querysets import ago
from jobqueue.states import BulkKind, BulkState, Reason
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    WorkerFactory,
)

#: What must come out as text, wherever it went in.
MARKUP = '</pre></script><script>alert(1)</script><img src=x onerror="alert(2)">\'{{7*7}}'
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "shop/deliveries.py", line 12, in deliver\n'
    "    carrier.send(order)\n"
    "shop.errors.CarrierUnavailable: no answer within 5 s\n"
)
QUEUE = "line"
HOUR = timedelta(hours=1)


def populate(numbers: Iterable[int] = (0,)) -> None:
    """Write rows of every kind: jobs and leases in each state, letters, deeds and figures.

    Each number stands for as much again, in the same queues: there are few of these everywhere.
    """
    for number in numbers:
        _jobs(number)
        _letters(number)
        _deeds(number)
        _figures(number)


def _jobs(number: int) -> None:
    queue = QUEUE
    holder = WorkerFactory(queues=queue, lease=timedelta(minutes=1))
    WorkerFactory(state="draining")
    WorkerFactory(silent_for=HOUR)
    JobFactory(age=HOUR, queue_name=queue, correlation_id=f"request-{number}")
    JobFactory(scheduled=True, queue_name=queue)
    succeeded = JobFactory(succeeded=True, queue_name=queue, result={"sent": True})
    AttemptFactory(job=succeeded, succeeded=True)
    JobFactory(cancelled=True)
    JobFactory(task="gone.tasks.vanished", kwargs={"order_id": 42, "note": MARKUP})
    held = {"claimed": True, "queue_name": queue, "kwargs": {"order_id": 42}}
    JobFactory(**held, claimed_by=holder.name)
    JobFactory(**held, claimed_by=holder.name, cancel_requested=True)
    lost = JobFactory(**held, claimed_by="gone", lease_left=-HOUR, attempts=2, fence=2, losses=1)
    AttemptFactory(job=lost, number=1, fence=1, lost=True)


def _letters(number: int) -> None:
    fault = {
        "error_class": "shop.errors.CarrierUnavailable",
        "message": "no answer within 5 s",
        "fingerprint": f"{number:016x}",
    }
    letter = DeadLetterFactory(**fault)
    DeadLetter.objects.filter(pk=letter.pk).update(
        discarded_at=Now(), discarded_by="alice", discard_reason="a customer who left"
    )
    for reason in (Reason.ATTEMPTS_EXHAUSTED, Reason.UNKNOWN_TASK):
        letter = DeadLetterFactory(
            **fault, reason=reason, died_ago=HOUR, kwargs={"order_id": number}
        )
        for tried in range(1, 6):
            AttemptFactory(
                **fault,
                job=None,
                job_id=letter.pk,
                number=tried,
                fence=tried,
                task=letter.task,
                queue_name=letter.queue_name,
                traceback=TRACEBACK,
            )
    DeadLetterFactory(message=MARKUP, error_class=MARKUP[:100], kwargs={"note": MARKUP})


def _deeds(number: int) -> None:
    if number == 0:
        QueueFactory(name=QUEUE)
        QueueFactory(name="paused", paused=True)
        QueueFactory(name="resumes", paused_for_a_while=True)
    deed = {"actor_id": "1", "actor": "alice", "reason": "the carrier is back"}
    letter = DeadLetter.objects.latest("pk")
    for state in BulkState.values:
        operation = BulkOperation.objects.create(
            **deed,
            kind=BulkKind.REPLAY,
            state=state,
            filters={"fingerprint": letter.fingerprint},
            expected=10,
            done=4,
            rate=5.0,
            finished_at=None if state in ("running", "paused") else Now(),
        )
    replayed = JobFactory(replays=1, fence=5)
    Replay.objects.create(
        **deed,
        job=replayed,
        fence=5,
        operation=operation,
        died_at=ago(HOUR),
        death_reason=Reason.ATTEMPTS_EXHAUSTED,
        fingerprint=letter.fingerprint,
        last_error="CarrierUnavailable: no answer within 5 s",
        from_queue="default",
        to_queue="default",
        args=[],
        kwargs={"order_id": number},
    )
    target = {"target_type": "deadletter", "target_id": str(letter.pk)}
    for action, before, after in (("discard", {}, {"discarded": True}), ("replay", None, None)):
        OperationLog.objects.create(
            **deed, **target, action=action, before=before, after=after, correlation_id="op-1"
        )
    OperationLog.objects.create(**deed, action="pause", target_type="queue", target_id="mail")


def _figures(number: int) -> None:
    counts = {"claimed": 50, "succeeded": 40, "retried": 8, "died": 2, "lost": 1}
    shapes = {"waits": {"8": 30, "14": 20}, "runs": {"16": 45, "29": 5}, "tries": {"1": 38, "2": 2}}
    tasks = ("tests.tasks.noop", "gone.tasks.vanished")
    for back in range(1, 6):
        minute = TruncMinute(ago(timedelta(minutes=back + 5 * number)))
        # The next minute may begin between two of these, and then a row is there already.
        Rollup.objects.bulk_create(
            [
                Rollup(span=span, start=minute, queue_name=name, task=task, **counts, **shapes)
                for span in (MINUTE, QUARTER)
                for name, task in (*((QUEUE, task) for task in tasks), ALL)
            ],
            ignore_conflicts=True,
        )
        depths = {"depth": 3 * back, "oldest_age": HOUR, "in_flight": 2, "dead_letters": 3}
        Sample.objects.bulk_create(
            [Sample(minute=minute, queue_name=name, **depths) for name in (QUEUE, "")],
            ignore_conflicts=True,
        )
