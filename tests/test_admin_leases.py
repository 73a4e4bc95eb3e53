"""What the admin shows of leases, and of what operators did."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Model
from django.test import Client

from jobqueue import registry, task
from jobqueue.measures import EVER, bucket
from jobqueue.models import DeadLetter, Job, Lease, OperationLog, Queue, Worker
from tests.admin_site import make
from tests.factories import (
    DeadLetterFactory,
    JobFactory,
    OperationLogFactory,
    RollupFactory,
    WorkerFactory,
)
from tests.test_admin_operations import lease_row, staff
from tests.test_admin_pages import get, list_url, listed, log_in, page_url, text_of

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class TestLeases:
    def test_are_all_claimed_jobs_those_that_ran_out_first(self, admin_client: Client) -> None:
        for state in ("pending", "scheduled", "succeeded", "cancelled"):
            JobFactory(**{state: True})
        spans = {minutes: lease_row(lease_left=minutes * MINUTE).pk for minutes in (5, -3, 1, -9)}
        cl = admin_client.get(list_url(Lease)).context["cl"]
        assert [row.pk for row in cl.result_list] == [spans[each] for each in (-9, -3, 1, 5)]

    def test_tell_the_holder_where_it_runs_and_whether_it_lives(self, admin_client: Client) -> None:
        lease = lease_row(claimed_by="worker-a")
        for url in (list_url(Lease), page_url(lease)):
            assert "worker-a ⚠ no such worker any more" in text_of(get(admin_client, url))
        worker = WorkerFactory(name="worker-a", host="web-7", pid=4711)
        for url in (list_url(Lease), page_url(lease)):
            html = get(admin_client, url)
            assert "worker-a web-7, process 4711 ♥ heartbeat" in text_of(html)
            assert page_url(worker) in html
        Worker.objects.all().delete()
        WorkerFactory(name="worker-a", silent_for=HOUR)
        assert "⚠ stale: heartbeat 1 h" in text_of(get(admin_client, list_url(Lease)))

    def test_tell_since_when_and_what_is_left(self, admin_client: Client) -> None:
        lease_row(claimed_ago=10 * MINUTE, lease_left=2 * HOUR + MINUTE / 2)
        lease_row(claimed_ago=20 * MINUTE, lease_left=-5 * MINUTE - MINUTE / 2)
        text = text_of(get(admin_client, list_url(Lease)))
        assert "10 min ago" in text
        assert "2 h left" in text
        assert "⚠ expired 5 min" in text

    @pytest.mark.parametrize(
        ("left", "lease", "said"),
        [
            (6 * MINUTE, None, "4 min ago"),  # by the setting
            (6 * MINUTE, 15 * MINUTE, "9 min ago"),  # by what its worker says
            (-5 * MINUTE, None, "15 min ago"),
            (HOUR, None, "not yet"),
            (2 * HOUR, 10 * MINUTE, "by an operator"),
            (2 * HOUR, None, "unknown"),
        ],
    )
    def test_tell_when_they_were_last_extended(
        self,
        admin_client: Client,
        settings: Any,
        left: timedelta,
        lease: timedelta | None,
        said: str,
    ) -> None:
        settings.JOBQUEUE = {"LEASE": HOUR if said == "not yet" else 10 * MINUTE}
        WorkerFactory(name="worker-a", lease=lease)
        claimed_ago = timedelta(0) if said == "not yet" else 30 * MINUTE
        row = lease_row(claimed_ago=claimed_ago, lease_left=left)
        text = text_of(get(admin_client, page_url(row)))
        assert text.partition("Last extended:")[2].lstrip().startswith(said)

    def test_of_a_task_with_a_lease_of_its_own_reckon_with_that(self, admin_client: Client) -> None:
        WorkerFactory(name="worker-a", lease=2 * MINUTE)
        row = lease_row(task="tests.leased", claimed_ago=HOUR, lease_left=MINUTE)
        task(name="tests.leased", lease=5 * MINUTE)(log_in)
        try:
            text = text_of(get(admin_client, page_url(row)))
        finally:
            del registry.tasks["tests.leased"]
        assert text.partition("Last extended:")[2].lstrip().startswith("4 min ago")

    def test_tell_the_share_of_the_usual_run_time(self, admin_client: Client) -> None:
        RollupFactory(span=EVER, runs={str(bucket(60.0)): 100})
        lease_row(claimed_ago=MINUTE / 2)
        lease_row(task="tests.tasks.never_ran")
        text = text_of(get(admin_client, list_url(Lease)))
        assert 30 <= re_percent(text) <= 60
        assert text.count(" % of ") == 1

    def test_point_out_what_runs_much_longer_than_usual(self, admin_client: Client) -> None:
        RollupFactory(span=EVER, runs={str(bucket(60.0)): 100})
        lease_row(claimed_ago=HOUR)
        assert re.search(r"⚠ [4-6]\d times 1 min", text_of(get(admin_client, list_url(Lease))))

    def test_are_found_by_filter_and_by_search(self, admin_client: Client) -> None:
        wanted = lease_row(claimed_by="worker-z", queue_name="mail", lease_left=-MINUTE)
        lease_row()
        for parameters in (
            *({"lease": "expired"}, {"queue": "mail"}, {"worker": "worker-z"}),
            *({"q": "worker-z"}, {"q": str(wanted.pk)}),
        ):
            assert listed(admin_client, list_url(Lease, **parameters)) == {wanted.pk}

    @pytest.mark.parametrize("state", ["pending", "succeeded"])
    def test_that_are_settled_lead_to_the_job(self, admin_client: Client, state: str) -> None:
        job = JobFactory(**{state: True})
        response = admin_client.get(page_url(Lease(pk=job.pk)))
        assert response.url == page_url(job)

    def test_of_what_has_died_lead_to_the_dead_letter(self, admin_client: Client) -> None:
        letter = DeadLetterFactory()
        assert admin_client.get(page_url(Lease(pk=letter.pk))).url == page_url(letter)

    def test_released_from_their_page_lead_to_the_job(self) -> None:
        lease = lease_row()
        client = staff("view_lease", "view_job", "release_lease")
        url = page_url(lease).replace("change", "release")
        question = client.post(url).content.decode()
        for part in (
            "holder is fenced",
            "may happen twice",
            "attempt counts as lost",
            "dead letter",
        ):
            assert part in question
        assert client.post(url, {"confirmed": "yes"}).url == page_url(Job(pk=lease.pk))

    def test_show_what_operators_did_to_the_job(self, admin_client: Client) -> None:
        lease = lease_row()
        OperationLogFactory(action="extend_lease", target_id=str(lease.pk), reason="a big one")
        assert "a big one" in get(admin_client, page_url(lease))
        assert "a big one" in get(admin_client, page_url(Job(pk=lease.pk)))


def re_percent(text: str) -> int:
    """Return the percentage that stands in a text."""
    return int(text.split(" % of ", maxsplit=1)[0].rsplit(maxsplit=1)[-1].replace(",", ""))


class TestLog:
    def test_begins_with_the_newest(self, admin_client: Client) -> None:
        rows = [OperationLogFactory().pk for _ in range(3)]
        cl = admin_client.get(list_url(OperationLog)).context["cl"]
        assert [row.pk for row in cl.result_list] == rows[::-1]

    def test_is_found_by_each_filter(self, admin_client: Client) -> None:
        wanted = OperationLogFactory(
            action="pause", target_type="queue", target_id="mail", actor="bob", done_ago=2 * HOUR
        )
        OperationLogFactory(done_ago=30 * HOUR)
        for parameters in (
            *({"action": "pause"}, {"target_type": "queue"}, {"actor": "bob"}, {"at": "24h"}),
        ):
            assert listed(admin_client, list_url(OperationLog, **parameters)) == {wanted.pk}

    def test_is_found_by_target_and_by_correlation_id(self, admin_client: Client) -> None:
        wanted = OperationLogFactory(target_id="4711", correlation_id="op-feed")
        of_letter = OperationLogFactory(target_type="deadletter", target_id="4711")
        OperationLogFactory()
        found = {
            "4711": {wanted.pk, of_letter.pk},
            "job:4711": {wanted.pk},
            " op-feed ": {wanted.pk},
            "op-fee": set(),
            "alice": set(),
        }
        for term, rows in found.items():
            assert listed(admin_client, list_url(OperationLog, q=term)) == rows

    def test_line_shows_what_was_before_and_after(self, admin_client: Client) -> None:
        line = OperationLogFactory(before={"queue_name": "a"}, after={"queue_name": "b"})
        text = text_of(get(admin_client, page_url(line)))
        for part in ("alice", "sent twice", '"queue_name": "a"', '"queue_name": "b"', "op-0123456"):
            assert part in text
        assert "queue_name: a → b" in text_of(get(admin_client, list_url(OperationLog)))

    def test_line_leads_to_what_it_is_about(self, admin_client: Client) -> None:
        job, letter = JobFactory(), DeadLetterFactory()
        for row in (job, letter):
            line = OperationLogFactory(target_type=row._meta.model_name, target_id=str(row.pk))
            assert page_url(row) in get(admin_client, page_url(line))
            assert page_url(row) not in get(staff("view_operationlog"), page_url(line))

    def test_hides_what_has_a_sensitive_name(self, admin_client: Client) -> None:
        line = OperationLogFactory(
            before={"password": "hunter2"}, after={"a": {"token": "hunter2"}}
        )
        for url in (page_url(line), list_url(OperationLog)):
            assert "hunter2" not in get(admin_client, url)

    def test_of_a_replayed_letter_stands_on_the_page_of_the_job(self, admin_client: Client) -> None:
        job = JobFactory()
        OperationLogFactory(target_type="deadletter", target_id=str(job.pk), reason="tax is back")
        OperationLogFactory(target_type="worker", target_id=str(job.pk), reason="of another")
        html = get(admin_client, page_url(job))
        assert "tax is back" in html
        assert "of another" not in html

    @pytest.mark.parametrize("model", [Job, DeadLetter, Worker, Queue])
    def test_of_one_thing_stands_on_its_page(
        self, admin_client: Client, model: type[Model]
    ) -> None:
        row = make(model)
        for number in range(25):
            OperationLogFactory(
                target_type=model._meta.model_name, target_id=str(row.pk), reason=f"for {number}."
            )
        OperationLogFactory(reason="of another")
        response = admin_client.get(page_url(row))
        deeds = response.context["deeds"]
        assert [line.reason for line in deeds.lines] == [f"for {n}." for n in range(24, 4, -1)]
        assert deeds.has_more
        assert len(listed(admin_client, deeds.url)) == 25
        assert "of another" not in response.content.decode()
