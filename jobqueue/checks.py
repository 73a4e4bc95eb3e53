"""System checks: what is wrong with a project's use of the queue, before it costs a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import DEFAULT_DB_ALIAS, router

from jobqueue import conf
from jobqueue.models import Job
from jobqueue.options import MAX_SPAN, MIN_LEASE

_INSTANT = timedelta(microseconds=1)
#: The spans, each with the least that makes sense.
_SPANS = {
    "LEASE": MIN_LEASE,
    "UNKNOWN_TASK_DELAY": timedelta(0),
    "POLL_INTERVAL": _INSTANT,
    "DRAIN_TIMEOUT": timedelta(0),
    "KEEP_SUCCEEDED": timedelta(0),
    "KEEP_ATTEMPTS": timedelta(0),
    "KEEP_DEAD_LETTERS": timedelta(0),
}
_NUMBERS = ("MAX_ATTEMPTS", "MAX_PAYLOAD_BYTES", "CONCURRENCY")


@checks.register("jobqueue")
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Find unknown keys and senseless values in the JOBQUEUE setting."""
    try:
        given = conf.get()
    except (ImproperlyConfigured, TypeError) as error:
        return [checks.Error(str(error), id="jobqueue.E001")]
    found: list[checks.CheckMessage] = []
    for name, least in _SPANS.items():
        value = getattr(given, name)
        if value is None and name == "KEEP_DEAD_LETTERS":
            continue
        if not isinstance(value, timedelta) or not least <= value <= MAX_SPAN:
            found.append(_wrong(name, f"a timedelta from {least} to {MAX_SPAN}", value))
    for name in _NUMBERS:
        value = getattr(given, name)
        if type(value) is not int or value < 1:
            found.append(_wrong(name, "a whole number of at least 1", value))
    if isinstance(given.SENSITIVE_KEYS, str):
        found.append(_wrong("SENSITIVE_KEYS", "a tuple of strings", given.SENSITIVE_KEYS))
    return found


def _wrong(name: str, expected: str, value: object) -> checks.Error:
    return checks.Error(f"JOBQUEUE[{name!r}] must be {expected}, not {value!r}", id="jobqueue.E002")


@checks.register("jobqueue")
def check_command_name(**_: Any) -> list[checks.CheckMessage]:
    """Find another app's command behind ``manage.py runworker`` (Django Channels has one)."""
    owner = get_commands().get("runworker")
    if owner is None or getattr(owner, "name", owner) == "jobqueue":
        return []
    return [
        checks.Warning(
            f"'manage.py runworker' runs the command of {owner}, which comes before jobqueue in "
            "INSTALLED_APPS",
            hint="Start workers with 'manage.py jobqueue_worker'.",
            id="jobqueue.W001",
        )
    ]


@checks.register("jobqueue")
def check_database_alias(**_: Any) -> list[checks.CheckMessage]:
    """Find routers that keep jobs apart from the transactions of most callers."""
    alias = router.db_for_write(Job)
    if alias == DEFAULT_DB_ALIAS:
        return []
    return [
        checks.Warning(
            f"a database router keeps jobs in {alias!r}: enqueue commits and rolls back only with "
            f"transactions on that database",
            hint="Keep jobs in the database of the rows that they refer to.",
            id="jobqueue.W002",
        )
    ]


@checks.register("jobqueue", deploy=True)
def check_network_timeouts(**_: Any) -> list[checks.CheckMessage]:
    """Find database options under which a worker that is cut off would wait for ever."""
    database = settings.DATABASES.get(router.db_for_write(Job), {})
    options, host = database.get("OPTIONS", {}), str(database.get("HOST", ""))
    if not str(database.get("ENGINE", "")).endswith("postgresql") or not host or host[0] in "/@":
        return []
    if "tcp_user_timeout" in options or "keepalives_idle" in options:
        return []
    return [
        checks.Warning(
            "the database options set neither 'tcp_user_timeout' nor 'keepalives_idle': a worker "
            "that is cut off from the database without a reset waits for ever",
            hint="See 'Network' in the operations documentation of jobqueue.",
            id="jobqueue.W003",
        )
    ]
