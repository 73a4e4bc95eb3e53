"""A process that enqueues one job after another, for as long as its parent says.

It reads lines of a way and a number of seconds, and answers each with how many jobs it enqueued.
"""

from __future__ import annotations

import sys
import time

import django

#: What the INSERT returns last is the notification.
NOTIFICATION = ", CASE WHEN status = 'pending'"


def main() -> None:
    """Enqueue as told, until there is nothing more to read."""
    from demo_project.orders import tasks
    from jobqueue.stores import statements

    usual = statements.INSERT
    silent, found, _ = usual.rpartition(NOTIFICATION)
    assert found, "the INSERT does not notify as it used to"
    inserts = {"usual": usual, "silent": f"{silent}, NULL"}
    tasks.noop.enqueue()  # connects
    _say("ready")
    for line in sys.stdin:
        way, seconds = line.split()
        statements.INSERT = inserts[way]
        count, ends = 0, time.monotonic() + float(seconds)
        while time.monotonic() < ends:
            tasks.noop.enqueue()
            count += 1
        _say(count)


def _say(answer: object) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    django.setup()
    main()
