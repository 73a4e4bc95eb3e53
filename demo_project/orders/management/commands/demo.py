"""Show the queue at work, do it harm, and prove that nothing was lost."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection

from demo_project.orders.demo import evidence, report
from demo_project.orders.demo.fleet import Fleet
from demo_project.orders.demo.interruption import Interrupted, Interruption
from demo_project.orders.demo.progress import Progress
from demo_project.orders.demo.receiver import Receiver
from demo_project.orders.demo.scenario import Scenario, Stuck
from demo_project.orders.demo.shop import Shop

FEWEST_ORDERS = 20
ADMIN = "demo-admin"
NEXT = """
Next:     python manage.py runserver
then      http://127.0.0.1:8000/admin/jobqueue/overview/
login     {username} / {password}
and       python manage.py runworker, in another terminal: what you replay there needs one
"""


class Command(BaseCommand):
    """Parse, set the stage, play, report."""

    help = (
        "Places orders whose jobs run in real worker processes, kills and stops those on purpose, "
        "and proves from the evidence that nothing was lost and nothing was settled twice."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--orders", type=int, default=300, help="how many (default: 300)")
        parser.add_argument(
            "--seed", type=int, default=1, help="of orders and answers (default: 1)"
        )
        parser.add_argument(
            "--keep",
            action="store_true",
            help="keep the rows and files that earlier runs of the demo left",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo; exit non-zero when it got stuck or a proof is violated."""
        if options["orders"] < FEWEST_ORDERS:
            raise CommandError(f"--orders must be at least {FEWEST_ORDERS}")
        if not hasattr(signal, "SIGSTOP"):
            raise CommandError("The demo stops and kills processes, which takes a POSIX system.")
        progress = Progress(self.stdout)
        try:
            with Interruption() as interruption:
                password = self.set_the_stage(keep=options["keep"])
                run = evidence.begin(settings.DEMO_DIR)
                with self.stage(run, progress, interruption, seed=options["seed"]) as scenario:
                    scenario.play(options["orders"])
        except Stuck as error:
            progress.clear()
            raise CommandError(f"The demo is stuck: {error}") from error
        except (Interrupted, KeyboardInterrupt):
            progress.clear()
            raise CommandError("Interrupted; no worker was left.", returncode=130) from None
        self.conclude(run, password)

    def set_the_stage(self, *, keep: bool) -> str:
        """Migrate, tidy up, and make an admin user; return the user's password."""
        self.stdout.write(f"database {connection.vendor}, {connection.settings_dict['NAME']}")
        call_command("migrate", verbosity=0, interactive=False)
        if not keep:
            evidence.forget_earlier_runs(settings.DEMO_DIR)
        for name in evidence.strangers():
            self.stdout.write(f"note     {name} works here, too: what it does leaves no evidence")
        password = secrets.token_urlsafe(9)
        make_admin(password)
        self.stdout.write(f"admin    {ADMIN} / {password}")
        return password

    @contextmanager
    def stage(
        self, run: evidence.Evidence, progress: Progress, interruption: Interruption, *, seed: int
    ) -> Iterator[Scenario]:
        """Give the scenario everyone it needs; no process outlives the block."""
        with (
            Receiver(run.requests, seed=seed) as receiver,
            Fleet(run, webhook_url=receiver.url) as fleet,
        ):
            yield Scenario(run, receiver, fleet, Shop(run, seed=seed), progress, interruption)

    def conclude(self, run: evidence.Evidence, password: str) -> None:
        """Print the report and where to go next; raise CommandError when a proof is violated."""
        violated = report.conclude(run, self.stdout)
        if not violated:
            self.stdout.write(
                "\nEvery proof holds: nothing was lost, and nothing was settled twice."
            )
        self.stdout.write(NEXT.format(username=ADMIN, password=password))
        if violated:
            raise CommandError(f"{violated} of the proofs are VIOLATED.")


def make_admin(password: str) -> None:
    """Make the demo's superuser, or give it a new password."""
    user, _ = get_user_model().objects.get_or_create(
        username=ADMIN, defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
