"""System checks: what is wrong with a project's use of the queue, before it costs a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import get_commands
from django.db import DEFAULT_DB_ALIAS, router
from django.db.utils import load_backend

from jobqueue import conf, failpoints
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
_NUMBERS = ("MAX_ATTEMPTS", "MAX_PAYLOAD_BYTES", "CONCURRENCY", "ADMIN_SCAN_LIMIT")
#: A token for the metrics has at least so many characters.
_TOKEN_LENGTH = 32


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
    if not _is_sendable(given.METRICS_TOKEN):
        found.append(_no_token())
    return found


def _wrong(name: str, expected: str, value: object) -> checks.Error:
    return checks.Error(f"JOBQUEUE[{name!r}] must be {expected}, not {value!r}", id="jobqueue.E002")


def _is_sendable(token: object) -> bool:
    """Whether a header can carry it: no spaces, nothing but ASCII; none at all is fine."""
    return isinstance(token, str) and (not token or all("!" <= sign <= "~" for sign in token))


def _no_token() -> checks.Error:
    message = "JOBQUEUE['METRICS_TOKEN'] must be a text of ASCII characters without spaces"
    return checks.Error(message, id="jobqueue.E002")  # not shown: it is a secret


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


#: The options without which libpq waits for ever, or for as long as the system does: what each is
#: for, and values with which a worker notices within the default lease.
_TIMEOUTS: dict[str, tuple[str, dict[str, int]]] = {
    "connect_timeout": ("connect", {"connect_timeout": 5}),
    "tcp_user_timeout": ("send", {"tcp_user_timeout": 15_000}),
    "keepalives_idle": (
        "wait for an answer",
        {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3},
    ),
}


@checks.register("jobqueue", deploy=True)
def check_network_timeouts(**_: Any) -> list[checks.CheckMessage]:
    """Find database options under which a worker that is cut off would wait for ever."""
    database = settings.DATABASES.get(router.db_for_write(Job), {})
    options = database.get("OPTIONS", {})
    if not _is_postgresql_by_tcp(database) or "service" in options:
        return []  # a service's file may well set them
    missing = [name for name in _TIMEOUTS if not _is_set(options, name)]
    if not missing:
        return []
    names, doing = ", ".join(missing), " or ".join(_TIMEOUTS[name][0] for name in missing)
    advice = {key: value for name in missing for key, value in _TIMEOUTS[name][1].items()}
    return [
        checks.Warning(
            f"the database options leave out {names}: a worker that is cut off from the database "
            f"without a reset would {doing} for minutes, or for ever",
            hint=f"Add {advice}. See 'Network' in the deployment documentation of jobqueue.",
            id="jobqueue.W003",
        )
    ]


def _is_postgresql_by_tcp(database: dict[str, Any]) -> bool:
    options = database.get("OPTIONS", {})
    given = database.get("HOST") or options.get("host") or options.get("hostaddr") or ""
    hosts = [host.strip() for host in str(given).split(",")]
    if not any(host and host[0] not in "/@" for host in hosts):
        return False  # Unix sockets
    backend: Any = load_backend(database["ENGINE"])
    return bool(backend.DatabaseWrapper.vendor == "postgresql")


def _is_set(options: dict[str, Any], name: str) -> bool:
    if name == "keepalives_idle" and str(options.get("keepalives", 1)) == "0":
        return False
    try:
        return int(options.get(name, 0)) > 0  # libpq takes less for "no limit"
    except (TypeError, ValueError):
        return False


@checks.register("jobqueue", deploy=True)
def check_metrics_token(**_: Any) -> list[checks.CheckMessage]:
    """Find a token for the metrics that could be guessed."""
    try:
        token = conf.get().METRICS_TOKEN
    except (ImproperlyConfigured, TypeError):
        return []  # E001 says so
    if not token or len(token) >= _TOKEN_LENGTH:
        return []
    return [
        checks.Warning(
            f"JOBQUEUE['METRICS_TOKEN'] is shorter than {_TOKEN_LENGTH} characters",
            hint="Take a random one: python -c 'import secrets; print(secrets.token_urlsafe())'.",
            id="jobqueue.W004",
        )
    ]


@checks.register("jobqueue", deploy=True)
def check_failpoints(**_: Any) -> list[checks.CheckMessage]:
    """Find an environment that makes the queue fail on purpose."""
    if not failpoints.are_on():
        return []
    message = f"{failpoints.VARIABLE} is set: jobs fail on purpose"
    return [checks.Error(message, hint="Unset it; it is for tests.", id="jobqueue.E003")]
