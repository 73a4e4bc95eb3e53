"""What the shop does later: its jobs, and a few that misbehave on purpose."""

from __future__ import annotations

import os
import signal
import time
from datetime import timedelta
from hashlib import sha256

from django.conf import settings
from django.core.mail import EmailMessage

from demo_project.orders import documents, webhooks
from demo_project.orders.models import Document, Order
from jobqueue import Discard, JobContext, Retry, task


@task(name="orders.send_receipt", queue_name="mail", takes_context=True, max_attempts=8)
def send_receipt(context: JobContext, order_id: int) -> None:
    """Mail the customer a receipt.

    Mail cannot be taken back: a worker that dies after sending makes the next one send again. The
    Message-ID is the same each time, so that mail systems can show the two as one.
    """
    order = Order.objects.select_related("customer").get(pk=order_id)
    EmailMessage(
        subject=f"Your order {order.reference}",
        body=f"Thank you, {order.customer.name}. We have charged {order.total:.2f}.",
        to=[order.customer.email],
        headers={"Message-ID": message_id(context.idempotency_key, order.reference)},
    ).send()


def message_id(key: str, reference: str) -> str:
    """Return the Message-ID of the receipt that a job sends."""
    return f"<{key.replace(':', '.')}@{reference}.invalid>"


@task(
    name="orders.post_webhook",
    queue_name="webhooks",
    takes_context=True,
    max_attempts=6,
    timeout=timedelta(seconds=20),
)
def post_webhook(context: JobContext, order_id: int) -> int:
    """Tell another system about an order; return the status it answered with."""
    order = Order.objects.get(pk=order_id)
    answer = webhooks.post(
        settings.WEBHOOK_URL,
        {"order": order.reference, "total": str(order.total)},
        key=context.idempotency_key,
        timeout=settings.WEBHOOK_TIMEOUT,
    )
    if answer.status == 410:
        raise Discard("gone: the receiver answered 410")
    if answer.status == 503:
        raise Retry("the receiver answered 503", delay=answer.retry_after)
    if not answer.is_success:
        raise WebhookFailed(f"the receiver answered {answer.status}")
    return answer.status


class WebhookFailed(Exception):
    """The receiver of a webhook had trouble of its own."""


@task(name="orders.write_document", queue_name="documents", atomic=True, max_attempts=8)
def write_document(order_id: int) -> str:
    """Write an order's delivery note: a file, then the row that names it.

    The row commits with the job's acknowledgement or not at all, so there is one. The file takes
    part in no transaction: it is written before the row, under a name and with bytes that depend
    on the order alone. So no row ever lacks its file, and an attempt that lost its lease leaves
    at most a file that the next one replaces with its equal.
    """
    order = Order.objects.select_related("customer").get(pk=order_id)
    content = documents.render(order)
    name = documents.name(order)
    documents.write(name, content)
    Document.objects.create(order=order, file=name, sha256=sha256(content).hexdigest())
    return name


@task(name="orders.always_fails", queue_name="poison", max_attempts=3)
def always_fails(why: str) -> None:
    """Fail, whatever happens."""
    raise RuntimeError(why)


@task(name="orders.exits", queue_name="poison", max_attempts=2)
def exits() -> None:
    """Try to end the worker, as a library does that calls sys.exit()."""
    raise SystemExit(3)


@task(name="orders.kills_its_worker", queue_name="poison", max_attempts=2)
def kills_its_worker(*, really: bool) -> None:
    """Kill the worker's own process, as running out of memory does; only if ``really``."""
    if really:
        os.kill(os.getpid(), signal.SIGKILL)


@task(name="orders.noop", queue_name="bench")
def noop() -> None:
    """Do nothing: what is left is the cost of the queue."""


@task(name="orders.clock", queue_name="bench")
def clock() -> float:
    """Return when the handler ran, on the monotonic clock that all processes here share."""
    return time.monotonic()


@task(name="orders.swallow", queue_name="bench")
def swallow(text: str) -> None:
    """Do nothing with a text: what is left is the cost of carrying it."""


@task(name="orders.stumble", queue_name="bench", takes_context=True, backoff=timedelta(0))
def stumble(context: JobContext, times: int) -> None:
    """Fail at the first attempts, and be tried again at once."""
    if context.attempt <= times:
        raise Stumbled(f"attempt {context.attempt}")


class Stumbled(Exception):
    """A failure that the bench asked for."""
