"""A report as plain text, for a terminal at three in the morning."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from jobqueue.measures import MOST_TRIES
from jobqueue.stats.queues import QueueFigures
from jobqueue.stats.report import LIMIT, Report

#: The units of spans from a minute on, in seconds.
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_NONE = "-"


def lines(found: Report) -> Iterator[str]:
    """Yield a report line by line, what wakes people first."""
    yield from _whole(found)
    yield from _part("queues", _queues(found))
    yield from _part("tasks, in the last hour", _tasks(found))
    yield from _part("attempts to success, in the last hour", _tries(found))
    yield from _part("workers", _workers(found))


def alarm(found: Report) -> str:
    """Return what is to be said loudest: that nobody works; nothing while somebody does."""
    if not found.whole.is_stuck:
        return ""
    return "JOBS ARE WAITING AND NO WORKER IS ALIVE. Start one: python manage.py runworker"


def _whole(found: Report) -> Iterator[str]:
    whole = found.whole
    named = (
        ("oldest waits", _span(whole.oldest_age)),
        ("dead letters", _capped(whole.dead_letters)),
        ("pending", _capped(whole.depth)),
        ("in flight", _capped(whole.in_flight)),
        ("expired leases", _capped(whole.expired)),
        ("live workers", f"{whole.live_workers:,}"),
    )
    for name, value in named:
        yield f"{name:<16}{value}"


def _part(title: str, rows: list[Sequence[str]]) -> Iterator[str]:
    """Yield a table; the first row is its head, the first column its names."""
    yield ""
    if len(rows) < 2:  # noqa: PLR2004 - nothing beneath the head
        yield f"{title}: none"
        return
    yield title
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for first, *rest in cells:
        aligned = [f"{cell:>{width}}" for cell, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([f"  {first:<{widths[0]}}", *aligned]).rstrip()


def _queues(found: Report) -> list[Sequence[str]]:
    minutes = found.queues[0].minutes if found.queues else 0
    counted = (f"claimed/{minutes} min", "succeeded", "retried", "died")
    head = ("queue", "oldest", "dead", "pending", "in flight", "expired", *counted, "")
    return [head, *(_queue(queue, found) for queue in found.queues)]


def _queue(queue: QueueFigures, found: Report) -> Sequence[str]:
    depth = _capped(queue.depth)
    if estimate := found.estimates.get(queue.name):
        depth += f" (about {estimate:,})"
    return (
        queue.name,
        _span(queue.oldest_age),
        _capped(queue.dead_letters),
        depth,
        _capped(queue.in_flight),
        _capped(queue.expired),
        *(f"{count:,}" for count in (queue.claimed, queue.succeeded, queue.retried, queue.died)),
        _pause(queue),
    )


def _pause(queue: QueueFigures) -> str:
    if queue.paused is None:
        return ""
    by = f" by {queue.paused.paused_by}" if queue.paused.paused_by else ""
    why = f": {queue.paused.pause_reason}" if queue.paused.pause_reason else ""
    return f"PAUSED{by}{why}"


def _tasks(found: Report) -> list[Sequence[str]]:
    head = ("task", "runs", "succeeded", "retried", "died", "p50", "p95", "p99", "lease", "share")
    return [
        (*head, ""),
        *(
            (
                task.task,
                *(f"{n:,}" for n in (task.runs, task.succeeded, task.retried, task.died)),
                *(_seconds(each) for each in (task.p50, task.p95, task.p99)),
                _span(task.lease),
                _NONE if task.share is None else f"{task.share:.0%}",
                "NEAR ITS LEASE" if task.is_near_lease else "",
            )
            for task in found.tasks
        ),
    ]


def _tries(found: Report) -> list[Sequence[str]]:
    named = [(f"{n} or more" if n == MOST_TRIES else str(n), count) for n, count in found.tries]
    return [("attempt", "succeeded"), *((name, f"{count:,}") for name, count in named)]


def _workers(found: Report) -> list[Sequence[str]]:
    head = ("worker", "host", "pid", "state", "heartbeat", "held", "of", "load")
    return [
        head,
        *(
            (
                each.worker.name,
                each.worker.host,
                str(each.worker.pid),
                "STALE" if each.is_stale else str(each.worker.state),
                _span(each.heartbeat_age),
                f"{each.held:,}",
                f"{each.worker.concurrency:,}",
                f"{each.load:.0%}",
            )
            for each in found.workers
        ),
    ]


def _capped(count: int) -> str:
    return f"{count:,}+" if count >= LIMIT else f"{count:,}"


def _span(span: timedelta | None) -> str:
    return _seconds(None if span is None else span.total_seconds())


def _seconds(seconds: float | None) -> str:
    """Return a span in its two largest units, such as "3 h 20 min" or "1.4 s"."""
    if seconds is None:
        return _NONE
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.3g} s"
    parts, rest = [], round(seconds)
    for length, name in _UNITS:
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count} {name}")
    return " ".join(parts[:2])


def _printable(text: str) -> str:
    """Escape what a row may hold that would steer a terminal."""
    return text if text.isprintable() else text.encode("unicode_escape").decode()
