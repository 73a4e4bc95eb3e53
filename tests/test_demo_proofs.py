"""Each proof of the demo holds for a real run, and fails when someone has tampered with it."""

from __future__ import annotations

import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from io import StringIO
from pathlib import Path

import django
import pytest
from django.core.management.base import CommandError
from django.db import transaction
from django.db.models.functions import Now
from pytest_django import Settings

from demo_project.orders import tasks
from demo_project.orders.demo import evidence, proofs
from demo_project.orders.demo.evidence import End, Evidence
from demo_project.orders.demo.receiver import Receiver
from demo_project.orders.demo.shop import Shop
from demo_project.orders.management.commands.demo import Command
from demo_project.orders.models import Customer, Document, Order
from jobqueue import lifecycle
from jobqueue.claims import Turn
from jobqueue.models import Attempt, DeadLetter, Job
from jobqueue.querysets import ago
from jobqueue.states import Outcome, Status
from jobqueue.testing import run_jobs
from tests.processes import wait_until


@pytest.fixture
def run(db: None, tmp_path: Path, settings: Settings) -> Evidence:
    """The evidence of a dozen orders, really placed and worked off; one attempt was lost."""
    point_to(tmp_path, settings)
    keep_mail_in_files(settings)
    run = evidence.begin(tmp_path)
    with Receiver(run.requests, seed=5, slowest=0) as receiver:
        settings.WEBHOOK_URL, settings.WEBHOOK_TIMEOUT = receiver.url, 0.3
        shop = Shop(run, seed=1)
        shop.open()
        while shop.placed < 12:
            shop.place_one()
        lose_an_attempt(run)
        wait_until(lambda: work_off(run))
    return Evidence(run.run, tmp_path, ends=[End("w01", 0, 0)])


def point_to(folder: Path, settings: Settings) -> None:
    settings.DEMO_DIR = folder
    settings.MEDIA_ROOT, settings.OUTBOX = folder / "media", folder / "outbox"


def keep_mail_in_files(settings: Settings) -> None:
    backend = "django.core.mail.backends.filebased.EmailBackend"
    if django.VERSION >= (6, 1):
        mailer = {"BACKEND": backend, "OPTIONS": {"file_path": settings.OUTBOX}}
        settings.MAILERS = {"default": mailer}
    else:
        settings.EMAIL_BACKEND, settings.EMAIL_FILE_PATH = backend, settings.OUTBOX


def lose_an_attempt(run: Evidence) -> None:
    """Let the lease of a claim run out, and its worker note in its log that it was refused."""
    worker = f"{run.run}-w01"
    span = timedelta(seconds=60)
    [claim] = lifecycle.claim([Turn("mail", 1)], worker=worker, lease=span)
    Job.objects.filter(pk=claim.id).update(
        claimed_at=ago(2 * span), claimed_until=ago(span), enqueued_at=ago(3 * span)
    )
    assert lifecycle.rescue() == 1
    note_refusal(run, claim.id)


def note_refusal(run: Evidence, job_id: int) -> None:
    run.logs.mkdir(exist_ok=True)
    with (run.logs / f"{run.run}-w01.log").open("a") as log:
        log.write(f"WARNING job.lease_lost job={job_id} task=x queue=mail attempt=1/8 worker=w\n")


def work_off(run: Evidence) -> bool:
    """Run what is due, without waiting for retries; return whether nothing is left."""
    run_jobs()
    left = Job.objects.filter(status=Status.SCHEDULED)
    lifecycle.run_now(left.values_list("pk", flat=True))
    return not left.exists() and not Job.objects.pending().exists()


def violated(run: Evidence) -> list[proofs.Proof]:
    fresh = Evidence(run.run, run.folder, ends=run.ends)
    return [proof for proof in proofs.PROOFS if list(proof(fresh))]


def succeeded(task: str) -> Job:
    return Job.objects.filter(task=task, status=Status.SUCCEEDED).earliest("pk")


def unfinish_a_job(run: Evidence) -> None:
    job = succeeded("orders.send_receipt")
    Job.objects.filter(pk=job.pk).update(status=Status.PENDING, finished_at=None)


def empty_a_reason(run: Evidence) -> None:
    DeadLetter.objects.update(message="")


def delete_a_job(run: Evidence) -> None:
    succeeded("orders.post_webhook").delete()


def delete_an_order(run: Evidence) -> None:
    Order.objects.earliest("pk").delete()


def place_what_was_refused(run: Evidence) -> None:
    reference = min(run.refused)
    Order.objects.create(reference=reference, customer=Customer.objects.earliest("pk"))


def enqueue_for_no_order(run: Evidence) -> None:
    tasks.send_receipt.using(correlation_id=min(run.refused)).enqueue(10**9)


def mail_what_was_refused(run: Evidence) -> None:
    path = next((run.folder / "outbox").glob("*.log"))
    text = path.read_text()
    for reference in run.placed:
        text = text.replace(reference, min(run.refused))
    (run.folder / "outbox" / "forged.log").write_text(text)


def attempt_a_job_that_never_was(run: Evidence) -> None:
    record_success(succeeded("orders.send_receipt"), number=1, job_id=10**9)


def settle_twice(run: Evidence) -> None:
    job = succeeded("orders.send_receipt")
    Job.objects.filter(pk=job.pk).update(attempts=job.attempts + 1)
    record_success(job, number=job.attempts + 1)


def lose_an_attempt_record(run: Evidence) -> None:
    Attempt.objects.filter(task="orders.write_document").earliest("pk").delete()


def record_success(job: Job, *, number: int, job_id: int | None = None) -> None:
    Attempt.objects.create(
        job_id=job_id or job.pk,
        number=number,
        fence=number,
        task=job.task,
        queue_name=job.queue_name,
        worker=f"{job.correlation_id[:-6]}-w01",
        started_at=Now(),
        finished_at=Now(),
        outcome=Outcome.SUCCEEDED,
    )


def let_leases_overlap(run: Evidence) -> None:
    retried = Attempt.objects.filter(number=2).earliest("pk")
    Attempt.objects.filter(job_id=retried.job_id, number=1).update(
        finished_at=retried.started_at + timedelta(milliseconds=1)
    )


def refuse_what_was_recorded(run: Evidence) -> None:
    note_refusal(run, succeeded("orders.write_document").pk)


def refuse_nothing(run: Evidence) -> None:
    shutil.rmtree(run.logs)


def lose_a_mail(run: Evidence) -> None:
    next((run.folder / "outbox").glob("*.log")).unlink()


def lose_what_the_receiver_knew(run: Evidence) -> None:
    run.requests.path.write_text("")


def damage_a_document(run: Evidence) -> None:
    next((run.folder / "media" / "documents").iterdir()).write_text("nothing of value")


def delete_a_document_row(run: Evidence) -> None:
    Document.objects.earliest("pk").delete()


def send_a_mail_twice(run: Evidence) -> None:
    for path in (run.folder / "outbox").glob("*.log"):
        shutil.copy(path, path.with_suffix(".copy.log"))


def fail_to_explain(run: Evidence) -> None:
    send_a_mail_twice(run)
    receipts = Attempt.objects.filter(task="orders.send_receipt", number=1)
    receipts.update(outcome=Outcome.FAILED, error_class="ValueError")


def fail_a_document(run: Evidence) -> None:
    documents = Attempt.objects.filter(task="orders.write_document")
    documents.update(outcome=Outcome.FAILED, error_class="ValueError")


def end_a_worker_badly(run: Evidence) -> None:
    run.ends = [End("w01", 1, 0)]


def kill_a_worker_for_no_reason(run: Evidence) -> None:
    run.ends = [End("w01", -signal.SIGKILL, None)]


TAMPERINGS: tuple[tuple[Callable[[Evidence], None], proofs.Proof], ...] = (
    (delete_a_job, proofs.no_order_without_its_jobs),
    (delete_an_order, proofs.no_order_without_its_jobs),
    (place_what_was_refused, proofs.no_job_without_its_order),
    (enqueue_for_no_order, proofs.no_job_without_its_order),
    (mail_what_was_refused, proofs.no_job_without_its_order),
    (attempt_a_job_that_never_was, proofs.no_job_without_its_order),
    (unfinish_a_job, proofs.nothing_lost),
    (empty_a_reason, proofs.nothing_lost),
    (settle_twice, proofs.nothing_settled_twice),
    (lose_an_attempt_record, proofs.nothing_settled_twice),
    (let_leases_overlap, proofs.one_lease_at_a_time),
    (refuse_what_was_recorded, proofs.late_outcomes_changed_nothing),
    (refuse_nothing, proofs.late_outcomes_changed_nothing),
    (lose_a_mail, proofs.every_success_has_its_effect),
    (lose_what_the_receiver_knew, proofs.every_success_has_its_effect),
    (delete_a_document_row, proofs.every_success_has_its_effect),
    (delete_a_document_row, proofs.documents_exactly_once),
    (damage_a_document, proofs.documents_exactly_once),
    (send_a_mail_twice, proofs.every_duplicate_is_explained),
    (fail_to_explain, proofs.every_duplicate_is_explained),
    (fail_a_document, proofs.only_the_planned_failed),
    (end_a_worker_badly, proofs.workers_ended_as_asked),
    (kill_a_worker_for_no_reason, proofs.workers_ended_as_asked),
)


@contextmanager
def in_a_copy(run: Evidence, settings: Settings) -> Iterator[Evidence]:
    """Give evidence to tamper with: its files are copies, its rows are as before in the end."""
    with tempfile.TemporaryDirectory() as folder, transaction.atomic():
        shutil.copytree(run.folder, folder, dirs_exist_ok=True)
        point_to(Path(folder), settings)
        try:
            yield Evidence(run.run, Path(folder), ends=run.ends)
        finally:
            point_to(run.folder, settings)
            transaction.set_rollback(True)


class TestAProof:
    def test_holds_for_untouched_evidence(self, run: Evidence) -> None:
        assert violated(run) == []

    def test_fails_when_the_evidence_says_otherwise(
        self, run: Evidence, settings: Settings, subtests: pytest.Subtests
    ) -> None:
        for tamper, proof in TAMPERINGS:
            with subtests.test(tamper.__name__), in_a_copy(run, settings) as copy:
                tamper(copy)
                assert proof in violated(copy)
        assert violated(run) == []

    def test_is_put_to_the_test(self) -> None:
        assert {proof for _, proof in TAMPERINGS} == set(proofs.PROOFS)

    def test_that_fails_makes_the_demo_fail(self, run: Evidence) -> None:
        lose_a_mail(run)
        output = StringIO()
        with pytest.raises(CommandError, match="1 of the proofs are VIOLATED") as failure:
            Command(stdout=output).conclude(run, "password")
        assert failure.value.returncode == 1
        assert re.search("^VIOLATED +Every success has its effect", output.getvalue(), re.MULTILINE)


class TestForgettingEarlierRuns:
    def test_takes_what_the_demo_left_and_nothing_else(self, run: Evidence) -> None:
        others = Customer.objects.create(name="O", email="o@example.com", credit_limit=9)
        kept = Order.objects.create(reference="kept", customer=others)
        job = tasks.send_receipt.using(correlation_id="kept").enqueue(kept.pk)
        run_jobs(["mail"])

        evidence.forget_earlier_runs(run.folder)

        assert list(Order.objects.all()) == [kept]
        assert list(Customer.objects.all()) == [others]
        assert list(Job.objects.values_list("pk", flat=True)) == [job.pk]
        assert set(Attempt.objects.values_list("job_id", flat=True)) == {job.pk}
        assert not DeadLetter.objects.exists()
        assert not list((run.folder / "media" / "documents").iterdir())
