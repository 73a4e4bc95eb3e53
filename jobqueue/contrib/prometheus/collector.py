"""Reads the figures part by part: one that cannot be read does not hide the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic

from django.db import Error, connections, router
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from jobqueue import logs
from jobqueue.contrib.prometheus import families
from jobqueue.contrib.prometheus.bounds import Deadline, within
from jobqueue.models import Job

#: After so many seconds no further statement begins.
PATIENCE = 5.0

#: What costs little comes first: it is still told when no time is left for the rest.
PARTS: dict[str, Callable[[str], Iterator[Metric]]] = {
    "workers": families.of_workers,
    "totals": families.of_tasks,
    "queues": families.of_queues,
}


class JobQueueCollector(Collector):
    """Collects everything anew at each scrape; raises nothing when the database is away."""

    def __init__(self) -> None:
        #: The parts that could not be read the last time.
        self.failed: set[str] = set()

    @property
    def is_blind(self) -> bool:
        """Whether nothing could be read the last time."""
        return len(self.failed) == len(PARTS)

    def collect(self) -> Iterator[Metric]:
        """Yield what can be read, and how the reading went."""
        started_at = monotonic()
        alias, deadline = router.db_for_read(Job), Deadline(PATIENCE)
        self.failed = set()
        for part in PARTS if self._is_there(alias) else ():
            yield from self._read(part, alias, deadline)
        yield from self._told(monotonic() - started_at)

    def _is_there(self, alias: str) -> bool:
        """Try the database once, rather than wait for it in each part."""
        try:
            connections[alias].ensure_connection()
        except Error as error:
            logs.problem("metrics.database_away", error)
            self.failed = set(PARTS)
            return False
        return True

    def _read(self, part: str, alias: str, deadline: Deadline) -> list[Metric]:
        try:
            with within(deadline, alias):
                return list(PARTS[part](alias))
        except Error as error:
            logs.problem("metrics.unreadable", error, part=part)
            self.failed.add(part)
            return []

    def _told(self, seconds: float) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "jobqueue_up", "1 when all figures could be read.", value=not self.failed
        )
        yield GaugeMetricFamily(
            "jobqueue_scrape_duration_seconds", "How long reading the figures took.", value=seconds
        )
        errors = GaugeMetricFamily(
            "jobqueue_scrape_error",
            "1 when this part of the figures could not be read, and is left out.",
            labels=["part"],
        )
        for part in PARTS:
            errors.add_metric([part], part in self.failed)
        yield errors
