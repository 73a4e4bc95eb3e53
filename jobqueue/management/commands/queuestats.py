"""Print the figures of the overview, for a terminal or for a program."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from jobqueue.stats import report, text


class Command(BaseCommand):
    """Prints how the queues are, what their jobs do, and who works."""

    help = "Show depth, oldest age, dead letters and more of all queues, tasks and workers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--json", action="store_true", help="print JSON for other programs")
        parser.add_argument("--database", help="alias of the database that holds the jobs")

    def handle(self, **options: Any) -> None:
        """Read the figures, and print them."""
        found = report.report(using=options["database"])
        if options["json"]:
            self.stdout.write(json.dumps(report.as_json(found), indent=2))
            return
        if alarm := text.alarm(found):
            self.stdout.write(self.style.ERROR(alarm))
        for line in text.lines(found):
            self.stdout.write(line)
