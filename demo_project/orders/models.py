"""What the shop keeps: customers, their orders, the jobs that each order caused, its document."""

from __future__ import annotations

from decimal import Decimal

from django.db import models
from django.utils.translation import gettext_lazy as _


class Customer(models.Model):
    """Someone who buys, up to a limit."""

    name = models.CharField(_("name"), max_length=100)
    email = models.EmailField(_("e-mail"), unique=True)
    credit_limit = models.DecimalField(_("credit limit"), max_digits=10, decimal_places=2)

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """What a customer bought; written by :func:`~demo_project.orders.services.place_order`."""

    #: Also the correlation id of the order's jobs.
    reference = models.CharField(_("reference"), max_length=40, unique=True)
    customer = models.ForeignKey(
        Customer, verbose_name=_("customer"), on_delete=models.CASCADE, related_name="orders"
    )
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2, default=Decimal(0))
    placed_at = models.DateTimeField(_("placed at"), auto_now_add=True)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        ordering = ("-id",)

    def __str__(self) -> str:
        return self.reference


class OrderLine(models.Model):
    """One article of an order."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    article = models.CharField(_("article"), max_length=100)
    quantity = models.PositiveIntegerField(_("quantity"))
    price = models.DecimalField(_("price"), max_digits=10, decimal_places=2)

    class Meta:
        verbose_name = _("order line")
        verbose_name_plural = _("order lines")

    def __str__(self) -> str:
        return f"{self.quantity} x {self.article}"


class OrderJob(models.Model):
    """A job that an order caused, noted in the order's own transaction."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="jobs")
    # A number rather than a foreign key: a job moves to the dead letters, or is pruned one day.
    job_id = models.BigIntegerField(_("job"), unique=True)
    task = models.CharField(_("task"), max_length=200)

    class Meta:
        verbose_name = _("job of an order")
        verbose_name_plural = _("jobs of an order")

    def __str__(self) -> str:
        return f"{self.task} #{self.job_id}"


class Document(models.Model):
    """The delivery note of an order: a row here and a file in the media folder."""

    order = models.OneToOneField(Order, on_delete=models.CASCADE, related_name="document")
    file = models.FileField(_("file"), max_length=200)
    sha256 = models.CharField(_("SHA-256"), max_length=64)
    written_at = models.DateTimeField(_("written at"), auto_now_add=True)

    class Meta:
        verbose_name = _("document")
        verbose_name_plural = _("documents")

    def __str__(self) -> str:
        return self.file.name
