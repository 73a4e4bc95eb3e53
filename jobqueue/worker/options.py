"""What a worker is told on its command line, read and checked."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from jobqueue import conf
from jobqueue.models import MAX_WORKER_NAME
from jobqueue.options import MIN_LEASE, check_queue_name
from jobqueue.worker import memory


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of one worker process; spans are timedeltas."""

    using: str = "default"
    name: str = ""
    #: Queue names in order, each with how many of its jobs may run at once (None: any number).
    #: Empty: every queue.
    queues: Mapping[str, int | None] = field(default_factory=dict)
    exclude: frozenset[str] = frozenset()
    concurrency: int = field(default_factory=lambda: conf.get().CONCURRENCY)
    lease: timedelta = field(default_factory=lambda: conf.get().LEASE)
    drain_timeout: timedelta = field(default_factory=lambda: conf.get().DRAIN_TIMEOUT)
    poll_interval: timedelta = field(default_factory=lambda: conf.get().POLL_INTERVAL)
    until_empty: bool = False
    max_jobs: int | None = None
    #: In megabytes of 1,000,000 bytes.
    max_memory: int | None = None

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {self.concurrency}")
        if self.max_jobs is not None and self.max_jobs < 1:
            raise ValueError(f"max-jobs must be at least 1, not {self.max_jobs}")
        _check_max_memory(self.max_memory)
        if self.lease < MIN_LEASE:
            raise ValueError(
                f"lease must be at least {MIN_LEASE.total_seconds():g} second, so that it can be "
                f"extended in time, not {self.lease.total_seconds():g}"
            )
        if self.poll_interval <= timedelta(0):
            raise ValueError("poll-interval must be more than 0 seconds")
        if self.drain_timeout < timedelta(0):
            raise ValueError("drain-timeout must not be negative")
        if len(self.name) > MAX_WORKER_NAME:
            raise ValueError(f"name must be at most {MAX_WORKER_NAME} characters long")
        if overlap := self.exclude & set(self.queues):
            raise ValueError(f"queue {min(overlap)} is both served and excluded")
        if not self.name:
            object.__setattr__(self, "name", default_name())

    @property
    def queues_text(self) -> str:
        """The queues as on the command line; empty for all."""
        shares = self.queues.items()
        return ",".join(name if share is None else f"{name}:{share}" for name, share in shares)

    def serves(self, queue_name: str) -> bool:
        """Whether this worker takes jobs of the queue."""
        if queue_name in self.exclude:
            return False
        return not self.queues or queue_name in self.queues

    def share(self, queue_name: str) -> int | None:
        """Return how many jobs of the queue may run at once here; None: any number."""
        return self.queues.get(queue_name)


def _check_max_memory(megabytes: int | None) -> None:
    if megabytes is None:
        return
    if megabytes < 1:
        raise ValueError(f"max-memory must be at least 1, not {megabytes}")
    if memory.resident() is None:
        raise ValueError("max-memory: this system does not say how much a process uses")


def default_name() -> str:
    """Return a name that no other worker has, and that says where to look for this one."""
    return f"{socket.gethostname()[:80]}.{os.getpid()}.{secrets.token_hex(3)}"


def parse_queues(text: str) -> dict[str, int | None]:
    """Read ``a,b:2``: the queues in order, and how many jobs of each may run at once.

    Raise ValueError, naming what is wrong.
    """
    queues: dict[str, int | None] = {}
    for item in text.split(","):
        name, colon, number = item.strip().partition(":")
        check_queue_name(name)
        if name in queues:
            raise ValueError(f"queue {name} is named twice in {text!r}")
        if colon and not (number.isdecimal() and int(number) > 0):
            raise ValueError(f"{item.strip()!r}: after the colon stands a number of at least 1")
        queues[name] = int(number) if colon else None
    return queues
