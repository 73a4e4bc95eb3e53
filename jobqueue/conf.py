"""The JOBQUEUE setting: every key with its default and its meaning, read when first asked for."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from jobqueue.backoff import Backoff, Exponential, as_backoff


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``JOBQUEUE = {...}`` may hold; spans are timedeltas."""

    #: How many attempts a job has when neither its task nor its call says otherwise.
    MAX_ATTEMPTS: int = 5
    #: How long a claim lasts unless the worker extends it; extended every third of it.
    LEASE: timedelta = timedelta(seconds=60)
    #: The delay before the next attempt of a task that sets no backoff of its own.
    #: A timedelta, a sequence of them, or a function from the failed attempt's number to one.
    BACKOFF: Backoff = Exponential()
    #: How long to wait before trying a job again whose task or payload version is not known
    #: here: long enough for a rolling deploy to replace this worker.
    UNKNOWN_TASK_DELAY: timedelta = timedelta(seconds=60)
    #: How long succeeded and cancelled jobs are kept; zero deletes a job as it is acknowledged.
    KEEP_SUCCEEDED: timedelta = timedelta(days=1)
    #: How long attempts are kept once their job is gone.
    KEEP_ATTEMPTS: timedelta = timedelta(days=30)
    #: How long dead letters are kept; None keeps them until someone deals with them.
    KEEP_DEAD_LETTERS: timedelta | None = None
    #: Whether those who may can delete discarded dead letters for ever.
    DELETE_DEAD_LETTERS: bool = False
    #: The largest encoded payload (args and kwargs together) and the largest result, in bytes.
    MAX_PAYLOAD_BYTES: int = 64 * 1024
    #: How many jobs one worker process runs side by side.
    CONCURRENCY: int = 8
    #: The longest an idle worker waits before it looks again.
    POLL_INTERVAL: timedelta = timedelta(seconds=1)
    #: How long a draining worker lets running jobs finish (below Kubernetes' default of 30 s).
    DRAIN_TIMEOUT: timedelta = timedelta(seconds=25)
    #: Among how many of the newest rows the admin searches payloads, and how many it exports.
    ADMIN_SCAN_LIMIT: int = 100_000
    #: What the admin masks: any key of a payload that contains one of these, in any case.
    SENSITIVE_KEYS: tuple[str, ...] = (
        "password",
        "passwd",
        "secret",
        "token",
        "api_key",
        "apikey",
        "authorization",
        "cookie",
        "credential",
        "card",
        "ssn",
    )
    #: What a scraper of the metrics must show as a bearer token; without one, only this machine
    #: itself may read them.
    METRICS_TOKEN: str = dataclasses.field(default="", repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "BACKOFF", as_backoff(self.BACKOFF))


@lru_cache(maxsize=1)
def get() -> Settings:
    """Return the project's settings; raise ImproperlyConfigured for a key that does not exist."""
    given: dict[str, Any] = getattr(django_settings, "JOBQUEUE", {})
    known = {field.name for field in dataclasses.fields(Settings)}
    if unknown := sorted(set(given) - known):
        raise ImproperlyConfigured(
            f"JOBQUEUE has no setting {unknown[0]!r}; it knows {', '.join(sorted(known))}."
        )
    return Settings(**given)


def _forget(*, setting: str, **_: object) -> None:
    if setting == "JOBQUEUE":
        get.cache_clear()


setting_changed.connect(_forget, dispatch_uid="jobqueue.conf")
