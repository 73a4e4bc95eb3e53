"""What a worker says of itself when it starts."""

from __future__ import annotations

import django
from django.db import connections

import jobqueue
from jobqueue import registry
from jobqueue.worker.options import WorkerOptions


def text(options: WorkerOptions, verbosity: int = 1) -> str:
    """Return the banner: what is served, how, and from which database (without its password).

    From a verbosity of 2 it names the tasks.
    """
    settings = connections[options.using].settings_dict
    names = sorted({task.name for task in registry.tasks.values()})
    lines = {
        "worker": options.name,
        "version": f"jobqueue {jobqueue.__version__}, Django {django.get_version()}",
        "database": f"{options.using} ({connections[options.using].vendor} {settings['NAME']})",
        "queues": _queues(options),
        "concurrency": options.concurrency,
        "lease": f"{options.lease.total_seconds():g} s",
        "drain timeout": f"{options.drain_timeout.total_seconds():g} s",
        "tasks": f"{len(names)}: {', '.join(names)}" if verbosity > 1 else str(len(names)),
    }
    width = max(map(len, lines))
    return "\n".join(f"{key + ':':<{width + 2}}{value}" for key, value in lines.items())


def _queues(options: WorkerOptions) -> str:
    listed = ", ".join(
        f"{name} (at most {share} at once)" if share else name
        for name, share in options.queues.items()
    )
    if options.exclude:
        return f"{listed or 'all'}, but not {', '.join(sorted(options.exclude))}"
    return (listed or "all") + _unknown(options)


def _unknown(options: WorkerOptions) -> str:
    """Point out queues that may be slips of the pen; ``using(queue_name=...)`` may name any."""
    known = {task.queue_name for task in registry.tasks.values()}
    unknown = [name for name in options.queues if name not in known]
    return f"; no task goes to {', '.join(unknown)} by itself" if unknown else ""
