"""How long the pages of the admin take when there are very many rows. On PostgreSQL only."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from time import perf_counter

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from demo_project.orders.bench import heaps
from demo_project.orders.bench.database import empty, execute
from demo_project.orders.bench.figures import Figure
from demo_project.orders.bench.pages import Page, every_page
from demo_project.orders.bench.scale import Scale

#: In milliseconds: what a page may take, and the one that is opened first.
LIMIT = 500.0
LIMIT_OF_OVERVIEW = 300.0


def measure(scale: Scale) -> Iterator[Figure]:
    """Open every page that a superuser can reach, some times each, the slowest first."""
    empty()
    heaps.fill(rows=scale.rows, letters=scale.dead)
    execute("VACUUM")
    try:
        client = Client(SERVER_NAME="localhost")
        user, _is_new = User.objects.get_or_create(
            username="bench", is_staff=True, is_superuser=True
        )
        client.force_login(user)
        figures = [_time(client, page, scale.rounds) for page in every_page(client)]
    finally:
        heaps.clear()
    yield from sorted(figures, key=lambda figure: -figure.value)


def _time(client: Client, page: Page, rounds: int) -> Figure:
    with CaptureQueriesContext(connection) as captured:
        _open(client, page)
    queries = len(captured)  # they are forgotten at the next request
    return Figure(
        name=f"admin: {page.name}",
        value=1000 * median(_open(client, page) for _ in range(rounds)),
        unit="ms",
        limit=LIMIT_OF_OVERVIEW if page.name == "overview_changelist" else LIMIT,
        limit_name=f"the limit; {queries} queries",
    )


def _open(client: Client, page: Page) -> float:
    started = perf_counter()
    response = client.get(page.url)
    if response.streaming:  # a download begins at once, however long it lasts
        next(iter(response), None)
    return perf_counter() - started
