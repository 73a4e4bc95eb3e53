"""Show how a worker is: over HTTP, by a file that stays young, and to its parent."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

from jobqueue import logs
from jobqueue.worker.loop import Worker
from jobqueue.worker.probes import Server, Vitals, parse_address
from jobqueue.worker.threads import start_thread

#: How often the file is touched and the parent told, in seconds.
TICK = 1.0
#: How much longer than two polls a worker may go without an answer of the database, in seconds.
LATELY = 10.0


class WorkerVitals:
    """Judges a worker by the progress of its threads, and by its last look into the database."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._silence = 2 * worker.options.poll_interval.total_seconds() + LATELY

    def not_alive(self) -> str:
        """Name a thread that makes no progress, and does not wait for the database either."""
        worker = self._worker
        for pulse in (worker.pulse, worker.heartbeat.pulse, worker.settler.pulse):
            if pulse.has_stopped():
                return f"the {pulse.name} thread makes no progress"
        return ""

    def not_ready(self) -> str:
        """Say that it drains, stands still, or has no database."""
        if self._worker.stop_requests:
            return "draining"
        return self.not_alive() or self._worker.contact.trouble(after=self._silence)


class Sign(Protocol):
    """Something that is kept up to date with how the worker is."""

    def show(self, *, is_alive: bool, is_ready: bool) -> None:
        """Show it; called once a second."""


class HeartbeatFile:
    """A file whose time of modification shows life."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False
        path.open("a").close()  # a directory could be touched, too
        path.touch()

    def show(self, *, is_alive: bool, is_ready: bool) -> None:
        """Touch it while alive; make it anew if someone has cleared it away."""
        if not is_alive:
            return
        try:
            self._path.touch()
        except OSError as error:
            if not self._has_failed:  # once is enough
                logs.problem("worker.heartbeat_file_failed", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def remove(self) -> None:
        """Leave nothing that could be taken for life."""
        with suppress(OSError):
            self._path.unlink()


class Watch:
    """A thread that keeps signs up to date."""

    def __init__(self, vitals: Vitals, signs: Sequence[Sign]) -> None:
        self.vitals = vitals
        self.signs = signs
        self._closed: SimpleQueue[None] = SimpleQueue()

    def close(self) -> None:
        """Let the thread end."""
        self._closed.put(None)

    def work(self) -> None:
        """Show how it is, once a second until closed."""
        while True:
            is_alive = not self.vitals.not_alive()
            is_ready = is_alive and not self.vitals.not_ready()
            for sign in self.signs:
                sign.show(is_alive=is_alive, is_ready=is_ready)
            with suppress(Empty):
                return self._closed.get(timeout=TICK)


@contextmanager
def shown(
    vitals: Vitals,
    *,
    address: str | None = None,
    file: str | None = None,
    signs: Sequence[Sign] = (),
    failed: Callable[[], None],
) -> Iterator[None]:
    """Show how it is for as long as the block lasts, at an address, by a file, and by signs.

    Raise ValueError before the block, saying which of them is not possible. Call ``failed`` if it
    cannot go on.
    """
    with ExitStack() as at_end:
        all_signs = [*signs, *([_heartbeat_file(file, at_end)] if file is not None else [])]
        if address is not None:
            _serve(address, vitals, at_end, failed)
        if all_signs:
            watch = Watch(vitals, all_signs)
            at_end.callback(start_thread("health", watch.work, failed=failed).join, TICK)
            at_end.callback(watch.close)
        yield


def _heartbeat_file(path: str, at_end: ExitStack) -> HeartbeatFile:
    try:
        file = HeartbeatFile(Path(path))
    except OSError as error:
        raise ValueError(f"heartbeat-file {path!r}: {error.strerror or error}") from error
    at_end.callback(file.remove)
    return file


def _serve(address: str, vitals: Vitals, at_end: ExitStack, failed: Callable[[], None]) -> None:
    try:
        server = Server(parse_address(address), vitals)
    except OSError as error:
        raise ValueError(f"health {address}: {error.strerror or error}") from error
    if hasattr(os, "register_at_fork"):  # a handler's child may outlive the worker
        os.register_at_fork(after_in_child=server.socket.close)
    at_end.callback(server.server_close)
    start_thread("http", server.work, failed=failed)
    at_end.callback(server.shutdown)
    logs.event(logging.INFO, "worker.health_served", address=server.address)
