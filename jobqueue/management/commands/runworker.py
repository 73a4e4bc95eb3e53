"""Run a worker: claim jobs, run them, record what became of them."""

from __future__ import annotations

import logging
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from jobqueue import conf, lifecycle, logs
from jobqueue.worker import Worker, WorkerOptions, banner, preflight
from jobqueue.worker.connections import keep_from_children
from jobqueue.worker.health import WorkerVitals, shown
from jobqueue.worker.options import parse_queues
from jobqueue.worker.probes import Vitals
from jobqueue.worker.reports import REPORTS_TO, Reporter
from jobqueue.worker.stopping import stop_with_parent
from jobqueue.worker.supervisor import RECYCLED, SUPERVISED, Supervisor
from jobqueue.worker.threads import end_soon


class Command(BaseCommand):
    """Claims jobs and runs them until it is told to stop."""

    help = (
        "Run a worker. SIGTERM or Ctrl-C drains: running jobs finish, others are handed back. "
        "Exit codes: 0 after a clean drain, also by --until-empty, --max-jobs or --max-memory; "
        "1 when running jobs had to be given up, when the worker had a fault, or when it could not "
        "start; 2 for a command line that makes no sense."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options; spans are in seconds."""
        add, defaults = parser.add_argument, conf.get()
        add(
            "--queues",
            help="serve these, e.g. mail,reports:2 (2 of them at once); default: all",
        )
        add("--exclude-queues", help="serve all queues but these, e.g. reports,video")
        add(
            "--concurrency",
            type=int,
            default=defaults.CONCURRENCY,
            help="jobs at once in a process",
        )
        add("--processes", type=int, default=1, help="worker processes to keep alive")
        add("--until-empty", action="store_true", help="exit when no job is due any more")
        add("--max-jobs", type=int, help="exit after this many jobs")
        add("--max-memory", type=int, help="exit between jobs when larger than this, in MB")
        add("--health", metavar="HOST:PORT", help="serve /livez and /readyz, e.g. 127.0.0.1:8001")
        add("--heartbeat-file", metavar="PATH", help="touch this every second while alive")
        add("--check", action="store_true", help="say whether a worker could start, and exit")
        add(
            "--lease",
            type=_seconds,
            default=defaults.LEASE,
            help="seconds a claim lasts unextended",
        )
        add(
            "--drain-timeout",
            type=_seconds,
            default=defaults.DRAIN_TIMEOUT,
            help="seconds to finish",
        )
        add(
            "--poll-interval",
            type=_seconds,
            default=defaults.POLL_INTERVAL,
            help="seconds, if idle",
        )
        add(
            "--name", default="", help="how it signs its claims; default: host, process id and more"
        )
        add(
            "--database",
            choices=tuple(connections),
            help="alias of the database that holds the jobs",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program, which no thread that a handler left behind may keep from ending."""
        code = 1
        try:
            super().run_from_argv(argv)
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            raise
        finally:
            end_soon(code)

    def handle(self, **options: Any) -> None:
        """Run until stopped, and exit with the worker's code."""
        worker_options = _worker_options(options)
        logs.show_in_foreground(options["verbosity"])
        if options["check"]:
            self._check(worker_options)
        elif options["processes"] > 1:
            supervisor = Supervisor.from_command(options)
            failed = supervisor.request_stop
            sys.exit(_run(supervisor.run, supervisor, options, failed=failed))
        else:
            self._work(worker_options, options)

    def _work(self, worker_options: WorkerOptions, options: dict[str, Any]) -> None:
        if options["verbosity"]:
            self.stdout.write(banner.text(worker_options, options["verbosity"]))
        worker = Worker(worker_options)
        is_supervised = os.environ.pop(SUPERVISED, "")  # what handlers start is not
        if is_supervised:
            stop_with_parent(worker.request_stop)
        keep_from_children()
        code = _run(worker.run, WorkerVitals(worker), options, failed=worker.fail)
        if is_supervised and worker.claimer.has_served:
            code = code or RECYCLED
        if worker.left_handlers_running:
            logging.shutdown()
            self.stdout.flush()
            os._exit(code)  # the handlers' threads would go on until the interpreter has ended
        if code:
            sys.exit(code)

    def _check(self, worker_options: WorkerOptions) -> None:
        """Print what a worker would find; fail with what is wrong."""
        self.stdout.write(banner.text(worker_options))
        found = preflight.findings(worker_options.using)
        for finding in found:
            self.stdout.write(f"{finding.subject}: {finding.text}")
        if wrong := [finding.subject for finding in found if not finding.is_good]:
            raise CommandError(f"a worker could not work here: {', '.join(wrong)}")


def _run(
    run: Callable[[], int], vitals: Vitals, options: dict[str, Any], *, failed: Callable[[], None]
) -> int:
    """Run a worker, or the parent of workers, and show meanwhile how it is."""
    reports_to = os.environ.pop(REPORTS_TO, "")
    display = shown(
        vitals,
        address=options["health"],
        file=options["heartbeat_file"],
        signs=[Reporter(int(reports_to))] if reports_to else [],
        failed=failed,
    )
    with ExitStack() as stack:
        try:
            stack.enter_context(display)
        except ValueError as error:
            raise CommandError(str(error)) from error
        return run()


def _seconds(text: str) -> timedelta:
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is no number of seconds") from None


def _parsed(queues: str | None) -> dict[str, int | None]:
    return {} if queues is None else parse_queues(queues)


def _worker_options(options: dict[str, Any]) -> WorkerOptions:
    """Turn the parsed command line into the worker's options; raise CommandError if they clash."""
    if options["processes"] < 1:
        raise CommandError(f"processes must be at least 1, not {options['processes']}")
    try:
        return WorkerOptions(
            using=lifecycle.alias(options["database"]),
            name=options["name"],
            queues=_parsed(options["queues"]),
            exclude=frozenset(_parsed(options["exclude_queues"])),
            concurrency=options["concurrency"],
            lease=options["lease"],
            drain_timeout=options["drain_timeout"],
            poll_interval=options["poll_interval"],
            until_empty=options["until_empty"],
            max_jobs=options["max_jobs"],
            max_memory=options["max_memory"],
        )
    except ValueError as error:
        raise CommandError(str(error)) from error
