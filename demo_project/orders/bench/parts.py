"""What the bench can measure, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from demo_project.orders.bench import (
    admin_pages,
    ballast,
    draining,
    enqueueing,
    horizon,
    idle,
    latency,
    producing,
    variety,
    wal,
)
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.scale import Scale


class Part(NamedTuple):
    """One measurement, and whether it works on PostgreSQL only."""

    measure: Callable[[Scale], Iterator[Figure]]
    needs_postgresql: bool = False


PARTS = {
    "drain": Part(draining.measure),
    "processes": Part(draining.measure_processes),
    "enqueue": Part(enqueueing.measure_single),
    "bulk": Part(enqueueing.measure_bulk),
    "latency": Part(latency.measure),
    "idle": Part(idle.measure_statements, needs_postgresql=True),
    "producers": Part(producing.measure, needs_postgresql=True),
    "ballast": Part(ballast.measure, needs_postgresql=True),
    "horizon": Part(horizon.measure, needs_postgresql=True),
    "buffers": Part(ballast.measure_buffers, needs_postgresql=True),
    "queues": Part(variety.measure_queues),
    "failures": Part(variety.measure_failures),
    "wal": Part(wal.measure, needs_postgresql=True),
    "admin": Part(admin_pages.measure, needs_postgresql=True),
    "memory": Part(idle.measure_memory),
}
