"""The app: finds the tasks, registers the checks and the log lines."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from jobqueue import registry


class JobQueueConfig(AppConfig):
    """Imports every installed app's ``tasks`` module once the models are there."""

    name = "jobqueue"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect checks and logs, then find the tasks; an error in one of them stops start-up."""
        from jobqueue import checks, logs  # noqa: F401 - importing them registers them

        registry.autodiscover()
