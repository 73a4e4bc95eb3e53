"""Delete old rows, as the workers do all along."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobqueue import lifecycle


class Command(BaseCommand):
    """Deletes jobs, attempts, dead letters, replays and figures that are old enough."""

    help = (
        "Delete jobs, attempts, dead letters and replays that are older than the KEEP_... settings,"
        " and figures that are no longer drawn."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--dry-run", action="store_true", help="only say what would be deleted")
        parser.add_argument("--database", help="alias of the database that holds the jobs")

    def handle(self, **options: Any) -> None:
        """Prune, and say how much."""
        counts = lifecycle.prune(dry_run=options["dry_run"], using=options["database"])
        verb = "would delete" if options["dry_run"] else "deleted"
        listed = ", ".join(f"{count:,} {kind}" for kind, count in counts.items())
        self.stdout.write(f"{verb} {listed}")
