"""A way to PostgreSQL that a test can cut, for what happens when the server is out of reach."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from django.db import connection


class Proxy:
    """A port on loopback that passes everything on to the server of the test's database."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._trap: bytes | None = None
        self._accept()

    @property
    def url(self) -> str:
        """The test's database by way of this port."""
        config = connection.settings_dict
        user, password = (quote(config[key], safe="") for key in ("USER", "PASSWORD"))
        return f"postgres://{user}:{password}@127.0.0.1:{self.port}/{config['NAME']}{PLAIN}"

    def redirect(self) -> None:
        """Have this thread's connection go by way of this port from now on."""
        connection.close()
        options = {**connection.settings_dict["OPTIONS"], "sslmode": "disable"}
        way = {"HOST": "127.0.0.1", "PORT": str(self.port), "OPTIONS": options}
        connection.settings_dict = connection.settings_dict | way

    def cut(self) -> None:
        """End all connections and refuse new ones, as a server does that is down."""
        _end(self._listening)
        self._listening.close()
        for end in list(self._open):
            _end(end)

    def restore(self) -> None:
        """Let connections through again."""
        self._listening = socket.create_server(("127.0.0.1", self.port))
        self._accept()

    def lose_the_answer_to(self, statement: bytes) -> None:
        """Cut the connection that next sends ``statement``, when the server has answered it."""
        self._trap = statement

    def _accept(self) -> None:
        threading.Thread(target=self._serve, args=(self._listening,), daemon=True).start()

    def _serve(self, listening: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = listening.accept()
                ends = (client, connect_to_server())
                threading.Thread(target=self._link, args=ends, daemon=True).start()

    def _link(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what either says; close both when neither thread uses them any more."""
        is_trapped = threading.Event()
        answers = threading.Thread(target=self._answer, args=(server, client, is_trapped))
        with client, server:
            self._open |= {client, server}
            answers.start()
            self._ask(client, server, is_trapped)
            answers.join()
            self._open -= {client, server}

    def _ask(self, client: socket.socket, server: socket.socket, trap: threading.Event) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                if self._trap and self._trap in data:
                    self._trap = None
                    trap.set()
                server.sendall(data)
        _end(client, server)

    def _answer(self, server: socket.socket, client: socket.socket, trap: threading.Event) -> None:
        with suppress(OSError):
            while (data := server.recv(65536)) and not trap.is_set():
                client.sendall(data)
        _end(client, server)


#: What is said must be seen in passing.
PLAIN = "?sslmode=disable&gssencmode=disable"


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def connect_to_server() -> socket.socket:
    """Return a socket that is connected to the server of the test's database."""
    config = connection.settings_dict
    host, port = config["HOST"] or "localhost", int(config["PORT"] or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(str(Path(host) / f".s.PGSQL.{port}"))
    return server
