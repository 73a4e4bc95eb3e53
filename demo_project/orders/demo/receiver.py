"""A web server that takes webhooks the way real ones do: badly."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from demo_project.orders.demo.evidence import Journal

#: The answer of a server that takes a request and never says a word.
HANG = 0
#: What it says to the first, second, ... request about an order; the last one repeats. Each script
#: stands for one order in twenty.
SCRIPTS: tuple[tuple[int, ...], ...] = (
    (410,),
    (500,),
    (500, 200),
    (500, 503, 200),
    (503, 200),
    (HANG, 200),
    *[(200,)] * 14,
)
RETRY_AFTER = 1  # seconds
SLOWEST = 0.1  # seconds
LONGEST_HANG = 30.0  # seconds
LONGEST_HOLD = 10.0  # seconds


class Receiver(ThreadingHTTPServer):
    """The server; its journal knows every request that reached it."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, journal: Journal, *, seed: int, slowest: float = SLOWEST) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.journal = journal
        self.slowest = slowest
        self.closing = threading.Event()
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._deck: list[tuple[int, ...]] = []
        self._scripts: dict[str, tuple[int, ...]] = {}
        self._requests: dict[str, int] = {}
        self._gate = threading.Event()
        self._gate.set()
        self._at_gate: set[str] = set()

    @property
    def url(self) -> str:
        """Where to post to."""
        return f"http://127.0.0.1:{self.server_port}/webhook/"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.closing.set()
        self._gate.set()
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that die are part of the plan."""

    def decide(self, reference: str, key: str) -> tuple[int, float]:
        """Note a request and return its answer, and how many seconds to take for it."""
        with self._lock:
            number = self._requests[reference] = self._requests.get(reference, 0) + 1
            script = self._scripts.get(reference) or self._next_script(reference)
            answer = script[min(number, len(script)) - 1]
            pause = self._random.uniform(0, self.slowest)
        self.journal.append(key=key, order=reference, number=number, answer=answer)
        return answer, pause

    def _next_script(self, reference: str) -> tuple[int, ...]:
        if not self._deck:
            self._deck = list(SCRIPTS)
            self._random.shuffle(self._deck)
        script = self._scripts[reference] = self._deck.pop()
        return script

    # A worker that is killed between two jobs proves nothing. Holding back the good answers keeps
    # handlers running until the demo has done to their worker what it wants to do.

    @contextmanager
    def holding_answers(self) -> Iterator[None]:
        """Let no request succeed until the block ends."""
        self._gate.clear()
        try:
            yield
        finally:
            self._gate.set()

    def waiting(self) -> set[str]:
        """Return the idempotency keys of the requests that are held back."""
        with self._lock:
            return set(self._at_gate)

    def wait_at_gate(self, key: str) -> None:
        """Keep a request until answers are let go."""
        with self._lock:
            self._at_gate.add(key)
        self._gate.wait(LONGEST_HOLD)
        with self._lock:
            self._at_gate.discard(key)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        key = self.headers["Idempotency-Key"]
        answer, pause = self.server.decide(content["order"], key)
        if answer == HANG:
            self.server.closing.wait(LONGEST_HANG)
            return
        self.server.closing.wait(pause)
        if answer == 200:
            self.server.wait_at_gate(key)
        self._answer(answer)

    def _answer(self, status: int) -> None:
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", str(RETRY_AFTER))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        """Say nothing: the journal has it."""
