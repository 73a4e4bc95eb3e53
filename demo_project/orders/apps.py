"""The app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class OrdersConfig(AppConfig):
    """Orders, and what is done about them later."""

    name = "demo_project.orders"
    verbose_name = _("Orders")
    default_auto_field = "django.db.models.BigAutoField"
