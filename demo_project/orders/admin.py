"""Orders in the admin, each with its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext_lazy as _

from demo_project.orders.models import Customer, Document, Order, OrderLine
from jobqueue.models import DeadLetter, Job

if TYPE_CHECKING:
    from django.db.models import QuerySet
    from django.http import HttpRequest
    from django.utils.safestring import SafeString


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    """Customers; a changed credit limit counts from the next order."""

    list_display = ("name", "email", "credit_limit")
    search_fields = ("name", "email")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: the orders would go, and leave their jobs."""
        return False


class OrderLineInline(admin.TabularInline):
    """The articles of an order."""

    model = OrderLine
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: an order is placed whole."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: an order is placed whole."""
        return False


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders as they were placed, with links to what became of their jobs."""

    list_display = ("reference", "customer", "total", "placed_at", "document")
    list_select_related: ClassVar = ["customer", "document"]
    search_fields = ("reference", "customer__name")
    fields = ("reference", "customer", "total", "placed_at", "document", "consequences")
    readonly_fields = fields
    inlines: ClassVar = [OrderLineInline]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Forbid it: an order without its jobs must not exist."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: jobs without their order must not exist."""
        return False

    @admin.display(description=_("jobs"))
    def consequences(self, order: Order) -> SafeString | str:
        """Return a line for each job of the order, with a link to it."""
        return format_html_join(format_html("<br>"), "{}", _links(order)) or "-"


def _links(order: Order) -> list[tuple[SafeString]]:
    noted = dict(order.jobs.order_by("job_id").values_list("job_id", "task"))
    states = dict(Job.objects.filter(pk__in=noted).values_list("pk", "status"))
    dead = dict(DeadLetter.objects.filter(pk__in=noted).values_list("pk", "reason"))
    return [(_link(pk, task, states, dead),) for pk, task in noted.items()]


def _link(pk: int, task: str, states: dict[int, str], dead: dict[int, str]) -> SafeString:
    if pk in dead:
        url, state = reverse("admin:jobqueue_deadletter_change", args=[pk]), _("dead letter")
    elif pk in states:
        url, state = reverse("admin:jobqueue_job_change", args=[pk]), states[pk]
    else:
        return format_html("{} #{}: {}", task, pk, _("no longer kept"))
    return format_html('<a href="{}">{} #{}</a>: {}', url, task, pk, state)


@admin.register(Document)
class DocumentAdmin(admin.ModelAdmin):
    """Delivery notes; written by their job alone."""

    list_display = ("file", "order", "written_at")
    list_select_related: ClassVar = ["order"]
    readonly_fields = ("order", "file", "sha256", "written_at")

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Forbid it: a row without its file must not exist."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Forbid it: the file would stay behind."""
        return False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Document]:
        """Show the latest first."""
        return super().get_queryset(request).order_by("-pk")
