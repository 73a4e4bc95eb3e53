"""Named places at which a test makes this process fail: around the commit of every verb.

Nothing of it is there unless the environment asks for it when the process starts::

    JOBQUEUE_FAILPOINTS="settle.inside=kill@2;claim.committed=delay:0.5"

A place is a verb and a moment: ``before`` it, ``inside`` its transaction when all is written, or
when that is ``committed`` and nobody has been told. ``@2`` means at the second hit alone. The idea
is FreeBSD's fail(9).
"""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Callable
from functools import wraps
from itertools import count
from time import sleep
from typing import Any, ParamSpec, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, router, transaction

from jobqueue import stores
from jobqueue.models import Job

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "JOBQUEUE_FAILPOINTS"
VERBS = (
    *("enqueue", "enqueue_many", "claim", "extend", "settle", "release", "interrupt"),
    *("promote", "rescue", "prune", "cancel", "run_now", "move", "prioritise"),
    *("extend_leases", "release_leases", "release_worker", "beat", "leave", "count", "sample"),
    *("replay", "replay_edited", "discard", "restore", "delete_letters", "advance"),
    *("pause", "resume"),
)
MOMENTS = ("before", "inside", "committed")
ACTIONS = ("kill", "stop", "delay", "error", "drop")
_SYNTAX = re.compile(r"(\w+)\.(\w+)=(\w+)(?::([0-9.]+))?(?:@([0-9]+))?")


def _cut(connection: Any) -> None:
    """Cut the connection to the server under Django, which learns of it at the next use."""
    connection.ensure_connection()
    with socket.socket(fileno=os.dup(connection.connection.fileno())) as end:
        end.shutdown(socket.SHUT_RDWR)


class Failpoint:
    """One place, and what happens there."""

    def __init__(self, name: str, action: str, seconds: float, at: int | None) -> None:
        self.name = name
        self.action = action
        self.seconds = seconds
        self.at = at
        self._hits = count(1)

    def hit(self, using: str) -> None:
        """Do it, and say so before, past all buffers."""
        if self.at in (None, next(self._hits)):
            os.write(2, f"failpoint {self.name}: {self.action}\n".encode())
            self._act(using)

    def _act(self, using: str) -> None:
        match self.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "delay":
                sleep(self.seconds)
            case "error":
                raise OperationalError("a failpoint")
            case "drop":
                _cut(connections[using])


def parse(text: str) -> dict[str, Failpoint]:
    """Return the failpoints that a text switches on, by name; raise for one that there is not."""
    points = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        point = _point(part)
        points[point.name] = point
    return points


def _point(text: str) -> Failpoint:
    if not (found := _SYNTAX.fullmatch(text)):
        raise ImproperlyConfigured(f"{VARIABLE}: {text!r} is not VERB.MOMENT=ACTION[:SECONDS][@N]")
    verb, moment, action, seconds, at = found.groups()
    for name, known in ((verb, VERBS), (moment, MOMENTS), (action, ACTIONS)):
        if name not in known:
            raise ImproperlyConfigured(
                f"{VARIABLE}: {name!r} in {text!r} is none of {', '.join(known)}"
            )
    if (action == "delay") != (seconds is not None):
        raise ImproperlyConfigured(f"{VARIABLE}: {text!r}: delay takes seconds, and no other does")
    return Failpoint(f"{verb}.{moment}", action, float(seconds or 0), int(at) if at else None)


_points = parse(os.environ.get(VARIABLE, ""))


def are_on() -> bool:
    """Whether this process was started with any."""
    return bool(_points)


def _alias(*_: Any, using: str | None = None, **__: Any) -> str:
    return using or router.db_for_write(Job)


def around(function: Callable[P, T], *, using: Callable[..., str] = _alias) -> Callable[P, T]:
    """Put the failpoints of a verb around its function; return it as it is where none is on.

    A single statement has no inside, so one that is on opens a transaction around the whole verb.
    """
    before, inside, committed = (_points.get(f"{function.__name__}.{moment}") for moment in MOMENTS)
    if not (before or inside or committed):
        return function

    @wraps(function)
    def failing(*args: P.args, **kwargs: P.kwargs) -> T:
        alias = using(*args, **kwargs)
        if before:
            before.hit(alias)
        if not (inside or committed):
            return function(*args, **kwargs)
        with stores.get(alias).transaction():
            if committed:  # first in the line, so that nothing was announced yet
                transaction.on_commit(lambda: committed.hit(alias), using=alias)
            returned = function(*args, **kwargs)
            if inside:
                inside.hit(alias)
        return returned

    return failing
