"""The statements for PostgreSQL walk the index that was made for them, whatever the statistics say.

Nothing is timed: the plan says what a statement reads. The table is filled so that each wrong way
would be a long one, and the planner is told the truth about it, something old, or nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import connection, transaction
from pytest_django import DjangoDbBlocker

from jobqueue import lifecycle, stores
from jobqueue.claims import Claim, Turn
from jobqueue.models import Job
from tests import verbs
from tests.factories import JobFactory, QueueFactory

pytestmark = pytest.mark.postgresql

CLAIMED = 100
FILL = """
INSERT INTO jobqueue_job (task, args, kwargs, queue_name, priority, status, run_after, finished_at)
SELECT 'tests.tasks.noop', '[]', '{}', 'queue-' || n %% 4, n %% 3 - 1, status,
    statement_timestamp()
        + CASE status WHEN 'scheduled' THEN 1 ELSE -1 END * n * interval '1 second',
    CASE status WHEN 'succeeded' THEN statement_timestamp() END
FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS status
"""
Plan = dict[str, Any]


class Scan(NamedTuple):
    """What one node of a plan reads of a table."""

    how: str
    table: str
    index: str | None


def nodes(plan: Plan) -> Iterator[Plan]:
    """Return every node of a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def scans(plan: Plan) -> set[Scan]:
    """Return how the plan reads our tables and their indexes."""
    found = set()
    for node in nodes(plan):
        index = node.get("Index Name")
        if "Scan" in node["Node Type"] and (index or node.get("Relation Name")):
            found.add(Scan(node["Node Type"], node.get("Relation Name", ""), index))
    return found


def indexes(plan: Plan) -> set[str]:
    """Return the names of the indexes of jobs that the plan reads."""
    prefix = "jobqueue_job_"
    names = {scan.index for scan in scans(plan) if scan.index}
    return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}


def sorted_nodes(plan: Plan) -> list[str]:
    """Return what the plan sorts: the kinds of nodes under its sorts."""
    return [
        child["Node Type"]
        for node in nodes(plan)
        if "Sort" in node["Node Type"]
        for child in node["Plans"]
        if child["Parent Relationship"] == "Outer"
    ]


def explain(act: Callable[[], Any]) -> Plan:
    """Return the plan of the one statement of a lifecycle function that reads jobs."""
    seen: list[tuple[str, Any]] = []

    def note(execute: Any, sql: str, params: Any, many: Any, context: Any) -> Any:
        seen.append((sql, params))
        return execute(sql, params, many, context)

    with transaction.atomic():
        with connection.execute_wrapper(note):
            act()
        transaction.set_rollback(True)
    [(sql, params)] = [each for each in seen if "jobqueue_job" in each[0]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON, COSTS OFF) {sql}", params)
        [(found,)] = cursor.fetchall()
    found = json.loads(found) if isinstance(found, str) else found
    plan: Plan = found[0]["Plan"]
    return plan


def fill(count: int, *statuses: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, [count, list(statuses)])


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobqueue_job")


def prepare(statistics: str) -> list[Claim]:
    """Fill the table; return claims of some of its jobs."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobqueue_job, jobqueue_attempt")
    if statistics == "stale":
        fill(500, "succeeded")
        analyze()
        Job.objects.all().delete()
    fill(4000, "pending", "scheduled", "succeeded")
    verbs.fall_due(*Job.objects.scheduled().values_list("pk", flat=True)[:20])
    claims = verbs.claim(CLAIMED, queue_name="queue-1")
    if statistics == "fresh":
        analyze()
    return claims


def statements(claims: list[Claim]) -> dict[str, Callable[[], Any]]:
    """Return what is looked into, by name."""
    store = stores.get("default")
    leases = [verbs.lease_on(claimed) for claimed in claims]
    floors = {1: (claims[-1].run_after, claims[-1].id), 0: (claims[0].run_after, 0)}
    hour = timedelta(hours=1)
    results = [verbs.succeeded(claimed, result="1") for claimed in claims]
    return {
        "claim": lambda: verbs.claim(10, queue_name="queue-2"),
        "claim from many": lambda: lifecycle.claim(
            [Turn(f"queue-{number}", number) for number in range(1, 8)], worker="w", lease=hour
        ),
        "claim above": lambda: lifecycle.claim(
            [Turn("queue-1", 10, floors), Turn("queue-2", 5, floors)], worker="w", lease=hour
        ),
        "look": lifecycle.look,
        "promote": lifecycle.promote,
        "rescue": lambda: store.lock_expired(limit=100),
        "extend": lambda: store.extend(leases),
        "held": lambda: store.held(leases),
        "acknowledge": lambda: store.acknowledge([verbs.succeeded(each) for each in claims]),
        "settle": lambda: store.settle(results),
        "bury": lambda: store.bury([verbs.buried(each) for each in claims]),
        "delete": lambda: store.delete(results),
    }


@pytest.fixture(scope="module", params=["fresh", "stale", "missing"])
def plans(
    request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> dict[str, Plan]:
    """Return the plan of every statement, under each kind of statistics."""
    with django_db_blocker.unblock(), transaction.atomic():
        acts = statements(prepare(request.param))
        found = {name: explain(act) for name, act in acts.items()}
        transaction.set_rollback(True)
    return found


def assert_reads_no_table_from_end_to_end(plan: Plan) -> None:
    whole = [scan for scan in scans(plan) if scan.how == "Seq Scan"]
    assert not [scan for scan in whole if scan.table.startswith("jobqueue_job")]


class TestClaim:
    @pytest.fixture(params=["claim", "claim from many"])
    def plan(self, request: pytest.FixtureRequest, plans: dict[str, Plan]) -> Plan:
        return plans[request.param]

    def test_walks_its_index(self, plan: Plan) -> None:
        """C-63 to C-65: pending jobs only, in the order in which they are wanted."""
        assert indexes(plan) == {"pending", "pkey"}
        assert_reads_no_table_from_end_to_end(plan)

    def test_sorts_nothing_but_the_rows_that_it_returns(self, plan: Plan) -> None:
        assert sorted_nodes(plan) == ["CTE Scan"]

    def test_finds_the_rows_to_claim_one_by_one(self, plan: Plan) -> None:
        """A bitmap would read every pending job of the queue to sort them."""
        [scan] = [each for each in scans(plan) if each.index == "jobqueue_job_pending"]
        assert scan.how in ("Index Scan", "Index Only Scan")

    def test_above_a_floor_walks_its_index_too(self, plans: dict[str, Plan]) -> None:
        """C-66."""
        assert indexes(plans["claim above"]) == {"pending", "pkey"}
        assert sorted_nodes(plans["claim above"]) == ["CTE Scan"]
        assert_reads_no_table_from_end_to_end(plans["claim above"])
        starts = [
            node.get("Index Cond", "")
            for node in nodes(plans["claim above"])
            if node.get("Index Name") == "jobqueue_job_pending"
        ]
        assert starts
        assert all("ROW(run_after, id) > ROW(lane.run_after, lane.id)" in each for each in starts)

    @pytest.mark.parametrize("name", ["claim", "claim from many", "claim above"])
    def test_asks_once_for_each_queue_whether_it_is_paused(
        self, name: str, plans: dict[str, Plan]
    ) -> None:
        """Before any job is read: where it is paused, what stands below is not even begun."""
        gates = [node for node in nodes(plans[name]) if "One-Time Filter" in node]
        assert [gate["Node Type"] for gate in gates] == ["Result"]
        below = [node.get("Index Name") for node in nodes(gates[0])]
        assert "jobqueue_job_pending" in below
        queues = [node for node in nodes(plans[name]) if "paused_at" in node.get("Filter", "")]
        assert [node["Parent Relationship"] for node in queues] == ["InitPlan"]

    @pytest.mark.django_db
    def test_of_a_paused_queue_reads_no_job(self) -> None:
        fill(100, "pending")
        QueueFactory(name="queue-1", paused=True)
        before = self.walks()
        assert not verbs.claim(10, queue_name="queue-1")
        assert self.walks() == before
        assert verbs.claim(10, queue_name="queue-2")
        assert self.walks() == before + 1

    def walks(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_get_xact_numscans('jobqueue_job_pending'::regclass)")
            return int(cursor.fetchone()[0])


class TestMaintenance:
    def test_look_probes_four_small_indexes(self, plans: dict[str, Plan]) -> None:
        """C-69: and may sort what is claimed, which is never much, but no backlog."""
        assert indexes(plans["look"]) == {"pending", "scheduled", "claimed"}
        of_operations = [scan for scan in scans(plans["look"]) if "bulkoperation" in scan.table]
        assert [scan.index for scan in of_operations] == ["jobqueue_bulkoperation_running"]
        assert sorted_nodes(plans["look"]) in ([], ["Bitmap Heap Scan"])
        for name in ("pending", "scheduled"):
            [*walked] = [each for each in scans(plans["look"]) if (each.index or "").endswith(name)]
            assert walked
            assert all(each.how in ("Index Scan", "Index Only Scan") for each in walked)
        assert_reads_no_table_from_end_to_end(plans["look"])

    def test_promote_reads_what_is_due_and_no_more(self, plans: dict[str, Plan]) -> None:
        """C-64: what is due later is not even looked at."""
        assert indexes(plans["promote"]) == {"scheduled", "pkey"}
        assert_reads_no_table_from_end_to_end(plans["promote"])
        [start] = [
            node["Index Cond"]
            for node in nodes(plans["promote"])
            if node.get("Index Name") == "jobqueue_job_scheduled"
        ]
        assert start == "(run_after <= statement_timestamp())"

    def test_rescue_reads_claimed_jobs_only(self, plans: dict[str, Plan]) -> None:
        assert indexes(plans["rescue"]) == {"claimed"}
        assert_reads_no_table_from_end_to_end(plans["rescue"])


class TestByKey:
    @pytest.mark.parametrize("name", ["extend", "held", "acknowledge", "settle", "bury", "delete"])
    def test_what_is_held_is_found_by_its_key(self, name: str, plans: dict[str, Plan]) -> None:
        """Not by a partial index full of dead rows, and not by reading every job."""
        assert indexes(plans[name]) == {"pkey"}
        assert_reads_no_table_from_end_to_end(plans[name])


@pytest.mark.django_db
class TestHeartbeat:
    def test_touches_no_index(self) -> None:
        """C-66: so that it leaves nothing behind for vacuum in them (a HOT update)."""
        JobFactory.create_batch(5)
        leases = [verbs.lease_on(claimed) for claimed in verbs.claim(5)]
        before = self.hot_updates()
        lifecycle.extend(leases)
        assert self.hot_updates() - before == 5

    def hot_updates(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_get_xact_tuples_hot_updated('jobqueue_job'::regclass)")
            return int(cursor.fetchone()[0])
