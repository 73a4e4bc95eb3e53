"""The demo keeps what it promises, and its proofs can fail."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.utils import timezone

from demo_project.database import CHECKOUT
from demo_project.orders import webhooks
from demo_project.orders.bench import bare
from demo_project.orders.demo import proofs
from demo_project.orders.demo.interruption import Interrupted, Interruption

ORDERS = 25
#: Far more than the demo takes, whatever else the machine does.
PATIENCE = 240.0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of demo processes that share a database and a folder with nobody."""
    folder = tmp_path_factory.mktemp("demo")
    name = f"test_demo_{os.getpid()}"
    inherited = {key: value for key, value in os.environ.items() if key != "DEBUG"}
    own = {"DEMO_DIR": str(folder), "DJANGO_SETTINGS_MODULE": "demo_project.settings"}
    if connection.vendor == "sqlite":
        yield inherited | own | {"DATABASE_NAME": str(folder / "own.sqlite3")}
        return
    if connection.vendor != "postgresql":
        pytest.skip("the demo's own database is made on PostgreSQL and SQLite only")
    with bare.connect() as psycopg:
        psycopg.execute(f'CREATE DATABASE "{name}"')
        yield inherited | own | {"DATABASE_NAME": name}
        psycopg.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def start(environment: dict[str, str], *arguments: str, **extra: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHECKOUT / "manage.py"), "demo", *arguments],
        cwd=CHECKOUT,
        env=environment | extra,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Return everything the process printed; let it clean up if it takes too long."""
    try:
        return process.communicate(timeout=PATIENCE)[0]
    except subprocess.TimeoutExpired:
        process.terminate()
        raise AssertionError(process.communicate(timeout=PATIENCE)[0]) from None


class TestTheDemo:
    def test_does_harm_and_proves_that_nothing_was_lost(self, environment: dict[str, str]) -> None:
        process = start(environment, "--orders", str(ORDERS), "--seed", "7")
        output = finish(process)

        assert process.returncode == 0, output
        for step in ("SIGKILL", "SIGSTOP", "SIGTERM", "poison"):
            assert re.search(rf"^{step} ", output, re.MULTILINE), output
        verdicts = [line.partition(" ")[0] for line in output.splitlines()]
        assert verdicts.count("ok") == len(proofs.PROOFS), output
        assert "VIOLATED" not in output
        found = re.search(r"^orders +(\d+) placed, (\d+) rolled back$", output, re.MULTILINE)
        assert found, output
        placed, refused = map(int, found.groups())
        assert refused >= 2
        assert placed + refused >= ORDERS
        for line in ("rescued leases", "refused late outcomes"):
            assert re.search(rf"^{line} +[1-9]", output, re.MULTILINE), output
        assert "discarded by the task" in output
        assert "attempts exhausted" in output
        assert "its worker was lost" in output
        assert "python manage.py runserver" in output

    def test_ctrl_c_leaves_no_worker(self, environment: dict[str, str]) -> None:
        import psutil  # comes with the embedded server

        process = start(environment, "--orders", "5000", PYTHONUNBUFFERED="1")
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("started ") for line in lines)
        workers = psutil.Process(process.pid).children()
        workers = [each for each in workers if "runworker" in each.cmdline()]
        assert len(workers) == 2

        is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN  # pytest in the background
        process.send_signal(signal.SIGTERM if is_ignored else signal.SIGINT)
        output = finish(process)

        assert process.returncode == 130, output
        assert not any(worker.is_running() for worker in workers)

    @pytest.mark.django_db(transaction=True)
    def test_ends_at_the_next_step_wherever_a_signal_hits_it(self) -> None:
        """A KeyboardInterrupt inside a commit would surface as some error of the database."""
        before = signal.getsignal(signal.SIGTERM)
        with Interruption() as interruption:
            interruption.check()
            with transaction.atomic():
                signal.raise_signal(signal.SIGTERM)
                connection.ensure_connection()
            with pytest.raises(Interrupted):
                interruption.check()
            with pytest.raises(KeyboardInterrupt):  # a second one does not wait
                signal.raise_signal(signal.SIGTERM)

        assert signal.getsignal(signal.SIGTERM) is before

    def test_says_so_when_workers_cannot_start(
        self, environment: dict[str, str], tmp_path: Path
    ) -> None:
        code = "import sys\nif 'runworker' in sys.orig_argv: sys.exit('no workers today')\n"
        (tmp_path / "sitecustomize.py").write_text(code)

        process = start(environment, PYTHONPATH=str(tmp_path))
        output = finish(process)

        assert process.returncode == 1, output
        assert "The demo is stuck" in output
        assert "no workers today" in output

    def test_refuses_a_number_of_orders_that_shows_nothing(self) -> None:
        with pytest.raises(CommandError, match="at least"):
            call_command("demo", orders=3)


class TestRetryAfter:
    @pytest.mark.parametrize(
        ("header", "seconds"), [(None, None), ("", None), ("3", 3.0), ("soon", None), ("-1", None)]
    )
    def test_is_a_number_of_seconds(self, header: str | None, seconds: float | None) -> None:
        assert webhooks.retry_after(header) == seconds

    def test_may_be_a_date(self) -> None:
        then = timezone.now() + timedelta(hours=1)
        seconds = webhooks.retry_after(format_datetime(then, usegmt=True))
        assert seconds is not None
        assert 0 < seconds <= 3600

    def test_of_the_past_is_at_once(self) -> None:
        assert webhooks.retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
