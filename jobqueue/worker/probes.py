"""Answer the probes of whoever watches over a worker, over HTTP: ``/livez`` and ``/readyz``."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socket import AI_PASSIVE, SOCK_STREAM, getaddrinfo, socket
from socketserver import ThreadingTCPServer
from typing import Any, Protocol

#: The largest number of a port.
LAST_PORT = 65535


class Vitals(Protocol):
    """What can be said of a worker, or of a parent of workers; an empty text says all is well."""

    def not_alive(self) -> str:
        """Return why it should be killed, whatever the database does."""

    def not_ready(self) -> str:
        """Return why it would take no job now."""


def parse_address(text: str) -> tuple[str, int]:
    """Read ``127.0.0.1:8001``, ``localhost:8001`` or ``[::1]:8001``; raise ValueError."""
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if not host.strip("[]") or (":" in host) != is_bracketed:
        raise ValueError(f"{text!r} is no address such as 127.0.0.1:8001 or [::1]:8001")
    if not (port.isascii() and port.isdecimal() and int(port) <= LAST_PORT):
        raise ValueError(f"{text!r}: after the colon stands a port, from 0 to {LAST_PORT}")
    return host.strip("[]"), int(port)


class Server(ThreadingTCPServer):
    """Listens from the moment it is made, and answers once it works."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], vitals: Vitals) -> None:
        host, port = address
        family, *_, resolved = getaddrinfo(host, port, type=SOCK_STREAM, flags=AI_PASSIVE)[0]
        self.address_family = family
        self.probes = {"/livez": vitals.not_alive, "/readyz": vitals.not_ready}
        super().__init__(resolved, Handler)  # type: ignore[arg-type]  # four parts with IPv6

    @property
    def address(self) -> str:
        """Where it listens, as on the command line, with the port that port 0 became."""
        host, port = self.socket.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def work(self) -> None:
        """Answer until shut down."""
        self.serve_forever(poll_interval=0.2)

    def handle_error(self, request: socket | tuple[bytes, socket], client_address: Any) -> None:
        """Say nothing of clients that went away."""


class Handler(BaseHTTPRequestHandler):
    """Answers in one line of plain text that tells nothing about the host or the project."""

    server: Server
    timeout = 5.0

    def do_GET(self) -> None:
        """Answer a probe."""
        probe = self.server.probes.get(self.path.partition("?")[0])
        if probe is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        elif trouble := probe():
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
        else:
            self._answer(HTTPStatus.OK, "ok")

    do_HEAD = do_GET  # noqa: N815 - as http.server wants it

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in one line; to http.server a method that it does not find is unimplemented."""
        status = HTTPStatus(code)
        if status == HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.close_connection = True
        self._answer(status, status.phrase.lower())

    def _answer(self, status: HTTPStatus, text: str) -> None:
        body = f"{text}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Do not tell which Python this is."""
        return "jobqueue"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log no probes: there are many, all alike."""
