"""What the demo claims, against all the evidence: each proof yields what contradicts it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

from django.conf import settings
from django.db.models import QuerySet

from demo_project.orders import tasks
from demo_project.orders.demo.evidence import Evidence
from demo_project.orders.models import Document, Order, OrderJob
from demo_project.orders.services import CONSEQUENCES
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.states import Outcome, Status

#: What may end an attempt of a task, by the class of the error.
PLANNED = {
    tasks.post_webhook.name: {"WebhookFailed", "Retry", "Discard", "TimeoutError"},
    tasks.always_fails.name: {"RuntimeError"},
    tasks.exits.name: {"SystemExit"},
}

Proof = Callable[[Evidence], Iterator[str]]


def no_order_without_its_jobs(evidence: Evidence) -> Iterator[str]:
    """No order without its jobs."""
    expected = sorted(task.name for task in CONSEQUENCES)
    orders = dict(_orders(evidence).values_list("reference", "pk"))
    noted = _noted(evidence)
    for reference, told in evidence.placed.items():
        if reference not in orders:
            yield f"{reference} was committed and is not there"
            continue
        jobs = noted.get(reference, {})
        if sorted(jobs.values()) != expected:
            yield f"{reference} has the jobs {sorted(jobs.values())}"
        for pk in {*jobs, *told}:
            job = evidence.all_jobs.get(pk)
            if job is None or job.correlation_id != reference or job.task != jobs.get(pk):
                yield f"{reference} has lost job {pk}"


def no_job_without_its_order(evidence: Evidence) -> Iterator[str]:
    """No job without its order: what was rolled back left nothing, inside or outside."""
    orders = dict(_orders(evidence).values_list("reference", "pk"))
    noted = _noted(evidence)
    for reference in evidence.refused & orders.keys():
        yield f"{reference} was rolled back and is there"
    for pk, job in _consequences(evidence).items():
        reference = job.correlation_id
        if job.args != [orders.get(reference)] or pk not in noted.get(reference, {}):
            yield f"{job.task} #{pk} belongs to no order"
    for attempt in Attempt.objects.filter(worker__startswith=evidence.run):
        if attempt.job_id not in evidence.all_jobs:
            yield f"{attempt} belongs to no job"
    outside = {("mail", reference) for _, reference in evidence.mails}
    outside |= {("webhook", request["order"]) for request in evidence.requests}
    for what, reference in sorted(outside):
        if reference not in evidence.placed:
            yield f"a {what} went out for {reference}, which was never placed"


def nothing_lost(evidence: Evidence) -> Iterator[str]:
    """Nothing lost: every job succeeded or is a dead letter that says why."""
    for job in evidence.jobs.values():
        if job.status != Status.SUCCEEDED:
            yield f"{job} is {job.status}"
    for letter in evidence.dead.values():
        if not letter.reason or not letter.message:
            yield f"{letter} does not say why"


def every_success_has_its_effect(evidence: Evidence) -> Iterator[str]:
    """Every success has its effect: the mail, the receiver's yes, the document's row and file."""
    mailed = {key for key, _ in evidence.mails}
    accepted = _accepted(evidence)
    documents = _documents(evidence)
    for pk, job in evidence.jobs.items():
        if job.status != Status.SUCCEEDED:
            continue
        key = f"{job.task}:{pk}"
        if job.task == tasks.send_receipt.name and _mail_key(key) not in mailed:
            yield f"{job} succeeded and there is no mail"
        if job.task == tasks.post_webhook.name and not accepted[key]:
            yield f"{job} succeeded and the receiver knows nothing of it"
        if job.task == tasks.write_document.name and job.correlation_id not in documents:
            yield f"{job} succeeded and there is no document"


def documents_exactly_once(evidence: Evidence) -> Iterator[str]:
    """Documents exactly once: a row if and only if its job succeeded, and its file is whole."""
    succeeded = {
        job.correlation_id
        for job in evidence.jobs.values()
        if job.task == tasks.write_document.name and job.status == Status.SUCCEEDED
    }
    documents = _documents(evidence)
    for reference in documents.keys() ^ succeeded:
        yield f"the document of {reference} and its job do not agree"
    for document in documents.values():
        path = Path(settings.MEDIA_ROOT) / document.file.name
        if not path.exists() or sha256(path.read_bytes()).hexdigest() != document.sha256:
            yield f"{path} is missing or not what was written"


def nothing_settled_twice(evidence: Evidence) -> Iterator[str]:
    """Nothing settled twice: one success at most, as the last attempt, and all are counted."""
    for pk, job in evidence.all_jobs.items():
        attempts = evidence.attempts[pk]
        numbers = [attempt.number for attempt in attempts]
        if numbers != list(range(1, job.attempts + 1)):
            yield f"{job} counts {job.attempts} attempts, and the attempts are {numbers}"
        outcomes = [attempt.outcome for attempt in attempts]
        has_succeeded = pk in evidence.jobs and evidence.jobs[pk].status == Status.SUCCEEDED
        expected = [len(outcomes) - 1] if has_succeeded else []
        if [at for at, outcome in enumerate(outcomes) if outcome == Outcome.SUCCEEDED] != expected:
            yield f"{job} has the attempts {outcomes}"


def one_lease_at_a_time(evidence: Evidence) -> Iterator[str]:
    """One lease at a time: by the database's clock no two attempts of a job overlap."""
    for pk, attempts in evidence.attempts.items():
        for one, other in pairwise(attempts):
            if one.finished_at > other.started_at or one.fence >= other.fence:
                yield f"attempts {one.number} and {other.number} of job {pk} overlap"


def late_outcomes_changed_nothing(evidence: Evidence) -> Iterator[str]:
    """Late outcomes changed nothing: each that was refused is on record as a lost attempt."""
    if not evidence.late_outcomes:
        yield "no outcome came late, so the fence was not put to the test"
    for late in evidence.late_outcomes:
        history = evidence.attempts.get(late.job_id, [])
        outcomes = [attempt.outcome for attempt in history if attempt.number == late.attempt]
        if outcomes != [Outcome.LOST]:
            yield f"attempt {late.attempt} of job {late.job_id} came late and is {outcomes}"


def every_duplicate_is_explained(evidence: Evidence) -> Iterator[str]:
    """Every duplicate is explained: what was done twice lost a worker or an answer in between."""
    for pk, extra in duplicates(evidence).items():
        if extra > len(explanations(evidence.attempts[pk])):
            yield f"{evidence.all_jobs[pk]} took effect more often than its attempts explain"


def only_the_planned_failed(evidence: Evidence) -> Iterator[str]:
    """Only what was meant to fail failed: webhooks as they were answered, and the poison."""
    for attempts in evidence.attempts.values():
        for attempt in attempts:
            planned = attempt.outcome in (Outcome.SUCCEEDED, Outcome.LOST)
            if not planned and _error(attempt) not in PLANNED.get(attempt.task, ()):
                yield f"{attempt}: {attempt.error_class} {attempt.message:.80}"


def workers_ended_as_asked(evidence: Evidence) -> Iterator[str]:
    """Workers ended as asked: SIGTERM gives exit code 0; only their killer job kills others."""
    killers = sum(
        attempt.task == tasks.kills_its_worker.name and attempt.outcome == Outcome.LOST
        for attempts in evidence.attempts.values()
        for attempt in attempts
    )
    fallen = [end for end in evidence.ends if end.expected is None]
    for end in evidence.ends:
        if end.code != (-signal.SIGKILL if end in fallen else end.expected):
            yield str(end)
    if len(fallen) > killers:
        yield f"{len(fallen)} workers were killed by {killers} attempts of the job that kills"


PROOFS: tuple[Proof, ...] = (
    no_order_without_its_jobs,
    no_job_without_its_order,
    nothing_lost,
    nothing_settled_twice,
    one_lease_at_a_time,
    late_outcomes_changed_nothing,
    every_success_has_its_effect,
    documents_exactly_once,
    every_duplicate_is_explained,
    only_the_planned_failed,
    workers_ended_as_asked,
)


def duplicates(evidence: Evidence) -> dict[int, int]:
    """Return the jobs whose effect reached the outside more than once, and how often too many."""
    mailed = Counter(key for key, _ in evidence.mails)
    accepted = _accepted(evidence)
    extra = {}
    for pk, job in evidence.all_jobs.items():
        key = f"{job.task}:{pk}"
        if (times := max(mailed[_mail_key(key)], accepted[key])) > 1:
            extra[pk] = times - 1
    return extra


def explanations(attempts: list[Attempt]) -> list[Attempt]:
    """Return the attempts that may have taken effect and could not say so."""
    return [
        attempt
        for attempt in attempts
        if attempt.outcome == Outcome.LOST or _error(attempt) == "TimeoutError"
    ]


def _error(attempt: Attempt) -> str:
    return attempt.error_class.rpartition(".")[2]


def _accepted(evidence: Evidence) -> Counter[str]:
    return Counter(request["key"] for request in evidence.requests if request["answer"] == 200)


def _mail_key(key: str) -> str:
    return tasks.message_id(key, "").partition("@")[0].lstrip("<")


def _orders(evidence: Evidence) -> QuerySet[Order]:
    return Order.objects.filter(reference__startswith=f"{evidence.run}-")


def _noted(evidence: Evidence) -> dict[str, dict[int, str]]:
    """Return the jobs that the orders' own table knows: reference to id to task."""
    noted: dict[str, dict[int, str]] = {}
    rows = OrderJob.objects.filter(order__in=_orders(evidence))
    for reference, pk, task in rows.values_list("order__reference", "job_id", "task"):
        noted.setdefault(reference, {})[pk] = task
    return noted


def _documents(evidence: Evidence) -> dict[str, Document]:
    rows = Document.objects.filter(order__in=_orders(evidence)).select_related("order")
    return {document.order.reference: document for document in rows}


def _consequences(evidence: Evidence) -> dict[int, Job | DeadLetter]:
    names = {task.name for task in CONSEQUENCES}
    return {pk: job for pk, job in evidence.all_jobs.items() if job.task in names}
