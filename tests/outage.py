"""A shop whose carrier has been away for half an hour: rows for the pictures of the documentation.

All of it lies in the past by the database's clock, and but for that it is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from math import sin
from typing import Any, NamedTuple

from demo_project.orders import tasks
from jobqueue.measures import EVER, bucket, for_ever
from jobqueue.models import DeadLetter, Replay, Rollup, Sample
from jobqueue.querysets import ago
from jobqueue.registry import Task
from jobqueue.states import Reason
from tests.factories import (
    AttemptFactory,
    DeadLetterFactory,
    JobFactory,
    OperationLogFactory,
    QueueFactory,
    WorkerFactory,
    add_rollup,
    minutes_ago,
)

MINUTE = timedelta(minutes=1)
#: What is drawn, and how long the carrier has been away, in minutes.
DRAWN, AWAY = 60, 28
TRACEBACK = """\
Traceback (most recent call last):
  File "/srv/shop/orders/tasks.py", line 51, in post_webhook
    answer = webhooks.post(
  File "/srv/shop/orders/webhooks.py", line 23, in post
    raise CarrierUnavailable(f"no answer from the carrier within {timeout:.0f} s")
shop.errors.CarrierUnavailable: no answer from the carrier within 5 s
"""


class Fault(NamedTuple):
    """What letters died of: how many, and how far apart."""

    task: Task[Any, Any]
    error_class: str
    message: str
    letters: int
    apart: timedelta


FAULTS = (
    Fault(
        tasks.post_webhook,
        "shop.errors.CarrierUnavailable",
        "no answer from the carrier within 5 s",
        *(64, timedelta(seconds=25)),
    ),
    Fault(
        tasks.send_receipt,
        "smtplib.SMTPRecipientsRefused",
        "{'kim@shop.invalid': (550, b'5.1.1 User unknown')}",
        *(9, timedelta(minutes=140)),
    ),
    Fault(tasks.write_document, "KeyError", "'tax_id'", 3, timedelta(hours=4)),
)


class Work(NamedTuple):
    """What is done of a task in a minute, and how long it takes in seconds."""

    task: Task[Any, Any]
    jobs: int
    takes: float


WORK = (
    Work(tasks.send_receipt, 48, 0.18),
    Work(tasks.post_webhook, 30, 0.7),
    Work(tasks.write_document, 12, 16.0),
)


def write() -> DeadLetter:
    """Write the rows; return the letter that tells the most."""
    _workers_and_jobs()
    now = minutes_ago(0)
    for row in _rollups(now):
        add_rollup(row)
    Sample.objects.bulk_create(_samples(now))
    return _letters()


def _workers_and_jobs() -> None:
    names = [f"web-{number}:{4000 + number}" for number in (1, 2)]
    for number, name in enumerate(names, start=1):
        WorkerFactory(name=name, host=f"web-{number}", pid=4000 + number, lease=MINUTE)
    WorkerFactory(name="web-3:4003", host="web-3", pid=4003, lease=MINUTE, silent_for=9 * MINUTE)
    for number in range(34):
        work = WORK[1] if number > 1 else WORK[2 * number]
        age = number * MINUTE / 2 if number > 1 else timedelta(0)
        JobFactory(**_row(work), age=age, kwargs={"order_id": 4710 + number})
    for number in range(12):
        work = WORK[number % 2 + 1]  # the others are done at once
        held = {"claimed_by": names[number // 2 % 2], "claimed_ago": timedelta(seconds=number / 4)}
        JobFactory(**_row(work), claimed=True, **held)
        JobFactory(**_row(WORK[0]), succeeded=True, finished_ago=number * MINUTE)
    held = {"claimed_by": "web-3:4003", "claimed_ago": 11 * MINUTE}
    for left in (-8, -7):
        JobFactory(**_row(WORK[2]), claimed=True, lease_left=left * MINUTE, **held)
    for name in ("mail", "webhooks", "documents"):
        QueueFactory(name=name)


def _row(work: Work) -> dict[str, Any]:
    return {"task": work.task.name, "queue_name": work.task.queue_name}


def _rollups(now: datetime) -> Iterator[Rollup]:
    for work in WORK:
        for back in range(DRAWN + 1):
            yield _rollup(work, back, start=now - back * MINUTE, span=60)
        yield _rollup(work, 1, start=for_ever(), span=EVER)


def _rollup(work: Work, back: int, **when: Any) -> Rollup:
    """Return a minute so long ago: webhooks fail since the carrier left."""
    is_away = work.task is tasks.post_webhook and back <= AWAY
    jobs = round(work.jobs * (1 + 0.3 * sin(back / 5) + 0.1 * sin(back * 2)))
    failed = jobs * 8 // 10 if is_away else jobs // 20
    died = failed // 8 if is_away else 0
    good = jobs - failed
    slow = 5.0 if is_away else work.takes * 2.2
    waits = (12 + 2 * (AWAY - back) if is_away else 0.02, 0.05, 0.2)
    return Rollup(
        **when,
        queue_name=work.task.queue_name,
        task=work.task.name,
        claimed=jobs,
        succeeded=good,
        retried=failed - died,
        died=died,
        waits=_spread(jobs, *waits),
        runs=_spread(jobs, slow if is_away else work.takes, work.takes * 1.4, slow),
        tries={"1": good - good // 9 - good // 30, "2": good // 9, "3": good // 30},
    )


def _spread(count: int, usual: float, longer: float, longest: float) -> dict[str, int]:
    """Return a distribution: most take as long as usual, a tenth longer, a few longest."""
    few, some = max(count // 25, 1), count // 10
    found: dict[str, int] = {}
    for seconds, number in ((usual, count - some - few), (longer, some), (longest, few)):
        key = str(bucket(seconds))
        found[key] = found.get(key, 0) + number
    return found


def _samples(now: datetime) -> Iterator[Sample]:
    for back in range(1, DRAWN + 1):
        minute, away = now - back * MINUTE, max(AWAY - back, 0)
        depth = round(6 + 3 * sin(back / 4) + 1.1 * away)
        row = {"minute": minute, "in_flight": 12, "dead_letters": 12 + 2 * away}
        age = timedelta(seconds=2 + 38 * away)
        yield Sample(queue_name="", depth=depth + 4, oldest_age=age, **row)
        yield Sample(queue_name="webhooks", depth=depth, oldest_age=age, **row)


def _letters() -> DeadLetter:
    for number, fault in enumerate(FAULTS, start=1):
        for back in range(fault.letters):
            DeadLetterFactory(
                task=fault.task.name,
                queue_name=fault.task.queue_name,
                kwargs={"order_id": 4700 - back},
                died_ago=MINUTE + back * fault.apart,
                age=30 * MINUTE + back * fault.apart,
                error_class=fault.error_class,
                message=fault.message,
                last_error=f"{fault.error_class}: {fault.message}",
                fingerprint=f"{number:016x}",
                reason=Reason.ATTEMPTS_EXHAUSTED,
            )
    letter = DeadLetter.objects.filter(task=tasks.post_webhook.name).latest("died_at")
    _story(letter)
    return letter


def _story(letter: DeadLetter) -> None:
    """Give a letter an earlier life, and the attempts of this one."""
    lived = {"replays": 1, "fence": 10, "attempts": 10, "max_attempts": 10}
    DeadLetter.objects.filter(pk=letter.pk).update(**lived)
    deed = {"actor_id": "1", "actor": "alice", "reason": "the carrier says that all is well"}
    told = {"fingerprint": letter.fingerprint, "last_error": letter.last_error}
    Replay.objects.create(
        job_id=letter.pk,
        fence=5,
        died_at=ago(26 * MINUTE),
        replayed_at=ago(24 * MINUTE),
        death_reason=letter.reason,
        from_queue=letter.queue_name,
        to_queue=letter.queue_name,
        **deed,
        **told,
    )
    OperationLogFactory(
        **deed,
        action="replay",
        target_type="deadletter",
        target_id=str(letter.pk),
        before=None,
        after=None,
        done_ago=24 * MINUTE,
    )
    for fence in range(1, 11):
        AttemptFactory(
            job=None,
            job_id=letter.pk,
            number=fence,
            fence=fence,
            task=letter.task,
            queue_name=letter.queue_name,
            worker=f"web-{fence % 2 + 1}:{fence % 2 + 4001}",
            error_class=letter.error_class,
            message=letter.message,
            fingerprint=letter.fingerprint,
            traceback=TRACEBACK,
            took=timedelta(seconds=5),
            finished_ago=(11 - fence) * MINUTE * (3 if fence < 6 else 1),
        )
