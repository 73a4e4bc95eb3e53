"""queuestats prints what the overview shows: loud where it must be, and stable as JSON."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command

from jobqueue.measures import bucket
from jobqueue.stats import report, text
from tests.factories import (
    DeadLetterFactory,
    JobFactory,
    QueueFactory,
    RollupFactory,
    WorkerFactory,
)
from tests.processes import manage
from tests.tasks import noop

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def shown(*arguments: str) -> str:
    output = StringIO()
    call_command("queuestats", *arguments, stdout=output, no_color=True)
    return output.getvalue()


def as_json() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown("--json"))
    return found


@pytest.fixture
def night() -> None:
    """A queue that does badly, one that is paused, and one worker of two."""
    JobFactory(queue_name="mail", age=HOUR * 3 + timedelta(minutes=20))
    JobFactory(claimed=True, queue_name="mail")
    DeadLetterFactory(queue_name="mail")
    QueueFactory(name="reports", paused=True)
    near = {str(bucket(50.0)): 4}
    for minutes in (2, 3):
        RollupFactory(
            minutes=minutes, queue_name="mail", claimed=6, succeeded=2, retried=3, died=1,
            runs=near, tries={"1": 1, "10": 1},
        )  # fmt: skip
    WorkerFactory(name="worker-a", concurrency=4)
    WorkerFactory(name="worker-b", silent_for=HOUR)


class TestText:
    def test_begins_with_what_wakes_people(self, night: None) -> None:
        lines = shown().splitlines()
        assert lines[0].split("  ", 1)[0] == "oldest waits"
        assert lines[0].endswith("3 h 20 min")
        assert lines[1].split() == ["dead", "letters", "1"]

    def test_shows_queues_tasks_tries_and_workers(self, night: None) -> None:
        output = shown()
        rows = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
        assert rows["mail"] == ["mail", *["3", "h", "20", "min"], *"1110", "12", "4", "6", "2"]
        assert "PAUSED by alice: the mail server is down" in output
        assert rows[noop.name][1:5] == ["8", "4", "6", "2"]
        assert "NEAR ITS LEASE" in output
        assert rows["10"] == ["10", "or", "more", "2"]
        assert rows["worker-a"][1:4] == ["host.example", rows["worker-a"][2], "running"]
        assert "STALE" in rows["worker-b"]

    def test_of_nothing_says_so(self) -> None:
        output = shown()
        assert "oldest waits    -" in output
        assert "queues: none" in output
        assert "workers: none" in output

    def test_aligns_its_columns(self, night: None) -> None:
        output = shown().splitlines()
        head, mail, reports = output[output.index("queues") + 1 :][:3]
        end = head.index("pending") + len("pending")
        assert [mail[end - 1], reports[end - 1]] == ["1", "0"]
        assert mail[end] == reports[end] == " "

    def test_says_loudly_that_jobs_wait_and_nobody_works(self) -> None:
        JobFactory()
        WorkerFactory(silent_for=HOUR)
        assert shown().startswith("JOBS ARE WAITING AND NO WORKER IS ALIVE")
        WorkerFactory()
        assert "NO WORKER" not in shown()

    def test_does_not_let_a_row_steer_the_terminal(self) -> None:
        JobFactory(queue_name="a\x1b[2Jb\nc")
        output = shown()
        assert "\x1b" not in output
        assert r"a\x1b[2Jb\nc" in output

    def test_marks_counts_that_go_on_and_what_is_only_estimated(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        JobFactory.create_batch(2)
        found = report.report(limit=2)
        monkeypatch.setattr(text, "LIMIT", 2)
        output = "\n".join(text.lines(found._replace(estimates={"default": 12_345})))
        assert "pending         2+" in output
        assert "2+ (about 12,345)" in output

    @pytest.mark.parametrize(
        ("seconds", "told"),
        [
            (None, "-"), (-1.0, "0 ms"), (0.25, "250 ms"), (1.0, "1 s"), (59.6, "59.6 s"),
            (61.0, "1 min 1 s"), (3600.0, "1 h"), (90_061.0, "1 d 1 h"),
        ],
    )  # fmt: skip
    def test_tells_spans_in_their_two_largest_units(self, seconds: float | None, told: str) -> None:
        assert text._seconds(seconds) == told


class TestJSON:
    def test_has_the_same_in_types_of_its_own(self, night: None) -> None:
        found = as_json()
        assert datetime.fromisoformat(found["at"]).tzinfo is not None
        assert found["whole"].items() >= {"depth": 1, "dead_letters": 1, "live_workers": 1}.items()
        assert found["whole"]["oldest_age"] == pytest.approx(12_000, abs=60)
        mail, reports = found["queues"]
        assert mail.items() >= {"name": "mail", "claimed": 12, "paused": None, "minutes": 5}.items()
        assert reports["paused"]["by"] == "alice"
        assert reports["paused"]["until"] is None
        [task] = found["tasks"]
        assert (task["lease"], task["is_near_lease"]) == (60.0, True)
        assert found["tries"] == {"1": 2, "10": 2}
        assert [worker["is_stale"] for worker in found["workers"]] == [False, True]

    def test_has_the_same_keys_when_there_is_nothing(self, night: None) -> None:
        keys = list(as_json())
        for table in ("queues", "tasks", "workers"):
            assert as_json()[table]
        assert keys == [
            "at", "counted_to", "whole", "queues", "span", "tasks", "tries", "workers",
        ]  # fmt: skip


@pytest.mark.django_db(transaction=True)
class TestTheCommand:
    def test_exits_with_0_even_when_things_are_bad(self) -> None:
        JobFactory()
        done = manage("queuestats", "--database", "default")
        assert done.returncode == 0
        assert "NO WORKER IS ALIVE" in done.stdout
        assert done.stderr == ""
