"""``runworker --check`` says whether a worker could work here, and runs nothing."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from jobqueue import registry
from jobqueue.models import Worker as WorkerRow
from jobqueue.states import Status
from tests import tasks
from tests.processes import manage


def check() -> str:
    output = StringIO()
    call_command("runworker", "--check", stdout=output)
    return output.getvalue()


@pytest.mark.django_db
class TestCheck:
    def test_says_what_it_found_and_runs_nothing(self) -> None:
        job = tasks.noop.enqueue()
        text = check()
        assert "system checks: no errors" in text
        assert "database: default answers" in text
        assert "migrations: all applied" in text
        assert f"tasks: {len({task.name for task in registry.tasks.values()})} found" in text
        job.refresh_from_db()
        assert job.status == Status.PENDING
        assert not WorkerRow.objects.exists()

    def test_fails_with_the_migrations_that_are_not_applied(self) -> None:
        MigrationRecorder(connection).record_unapplied("jobqueue", "0003_operations")
        with pytest.raises(CommandError, match="could not work here: migrations"):
            check()

    def test_fails_without_tasks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "tasks", {})
        with pytest.raises(CommandError, match="could not work here: tasks"):
            check()

    def test_fails_with_settings_that_make_no_sense(self, settings: Any) -> None:
        settings.JOBQUEUE = {"MAX_ATTEMPTS": 0}
        with pytest.raises(CommandError, match="could not work here: system checks"):
            check()

    def test_refuses_options_that_make_no_sense_as_ever(self) -> None:
        with pytest.raises(CommandError, match="lease must be at least 1 second"):
            call_command("runworker", "--check", "--lease", "0.1")


class TestWithoutADatabase:
    def test_fails_with_what_the_driver_says(self) -> None:
        nowhere = "postgres://nobody@127.0.0.1:1/nothing"
        ended = manage("runworker", "--check", DATABASE_URL=nowhere)
        assert ended.returncode == 1
        assert "database: default:" in ended.stdout
        assert "refused" in ended.stdout
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert "could not work here: database" in ended.stderr
