"""What the shop does for its customers."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import NamedTuple

from django.db import transaction

from demo_project.orders import tasks
from demo_project.orders.models import Customer, Order, OrderJob, OrderLine
from jobqueue import Task


class OverCreditLimit(Exception):
    """The order costs more than the customer may spend."""


class Line(NamedTuple):
    """One article to be ordered."""

    article: str
    quantity: int
    price: Decimal


#: What follows from every order.
CONSEQUENCES: tuple[Task[[int], None], ...] = (
    tasks.send_receipt,
    tasks.post_webhook,
    tasks.write_document,
)


def place_order(customer: Customer, lines: Iterable[Line], *, reference: str) -> Order:
    """Write an order and its jobs, all or nothing; raise OverCreditLimit when it costs too much.

    The limit is checked last, so a refused order takes back jobs that were already enqueued.
    """
    with transaction.atomic():
        order = Order.objects.create(customer=customer, reference=reference)
        order.total = _add_lines(order, lines)
        order.save(update_fields=["total"])
        for task in CONSEQUENCES:
            job = task.using(correlation_id=reference).enqueue(order.pk)
            OrderJob.objects.create(order=order, job_id=job.pk, task=job.task)
        if order.total > customer.credit_limit:
            raise OverCreditLimit(f"{reference} costs {order.total}")
    return order


def _add_lines(order: Order, lines: Iterable[Line]) -> Decimal:
    rows = [OrderLine(order=order, **line._asdict()) for line in lines]
    OrderLine.objects.bulk_create(rows)
    return sum((row.quantity * row.price for row in rows), Decimal(0))
