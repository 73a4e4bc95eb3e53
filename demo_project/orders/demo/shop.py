"""Customers and their orders, made up from a seed and placed for real."""

from __future__ import annotations

import random
from decimal import Decimal

from django.db import transaction

from demo_project.orders.demo.evidence import MAIL_DOMAIN, Evidence
from demo_project.orders.models import Customer, Order
from demo_project.orders.services import Line, OverCreditLimit, place_order

NAMES = ("Ada", "Barbara", "Edsger", "Grace", "Leslie", "Niklaus", "Tony", "Ørjan")
ARTICLES = ("anvil", "bell", "compass", "drum", "easel", "flute", "globe", "hammock")
CREDIT_LIMIT = Decimal(1000)
#: One order in so many costs too much. Every other one of those is in a larger transaction, which
#: goes on after the savepoint and places a smaller order.
TOO_MUCH_EVERY = 10


class Shop:
    """Places a run's orders and notes in its journal what became of each."""

    def __init__(self, evidence: Evidence, *, seed: int) -> None:
        self.evidence = evidence
        self.placed = 0
        self._random = random.Random(seed)
        self._customers: list[Customer] = []

    def open(self) -> None:
        """Make the customers known."""
        for name in NAMES:
            email = f"{name.lower().replace('ø', 'o')}@{MAIL_DOMAIN}"
            given = {"name": name, "credit_limit": CREDIT_LIMIT}
            self._customers.append(Customer.objects.get_or_create(email=email, defaults=given)[0])

    def place_one(self) -> None:
        """Place the next order; some are refused, and then sometimes a smaller one is placed."""
        self.placed += 1
        customer = self._random.choice(self._customers)
        if self.placed % TOO_MUCH_EVERY:
            self._note(self._place(customer, self._lines()))
        elif self.placed % (2 * TOO_MUCH_EVERY):
            self._try_too_much(customer)
            self._note_refusal()
        else:
            with transaction.atomic():
                self._try_too_much(customer)
                order = self._place(customer, self._lines(), suffix="b")
            self._note_refusal()
            self._note(order)

    def _try_too_much(self, customer: Customer) -> None:
        try:
            self._place(customer, self._lines(price=2 * CREDIT_LIMIT))
        except OverCreditLimit:
            return
        raise AssertionError("an order above the credit limit was accepted")

    def _place(self, customer: Customer, lines: list[Line], *, suffix: str = "") -> Order:
        reference = self.evidence.reference(self.placed) + suffix
        return place_order(customer, lines, reference=reference)

    def _note(self, order: Order) -> None:
        jobs = list(order.jobs.values_list("job_id", flat=True))
        self.evidence.orders.append(reference=order.reference, committed=True, jobs=jobs)

    def _note_refusal(self) -> None:
        reference = self.evidence.reference(self.placed)
        self.evidence.orders.append(reference=reference, committed=False)

    def _lines(self, *, price: Decimal | None = None) -> list[Line]:
        articles = self._random.sample(ARTICLES, self._random.randint(1, 3))
        return [
            Line(article, self._random.randint(1, 3), price or self._price())
            for article in articles
        ]

    def _price(self) -> Decimal:
        return Decimal(self._random.randint(100, 9999)) / 100
