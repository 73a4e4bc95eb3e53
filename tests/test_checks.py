"""System checks: a wrong use of the queue is told before it costs a job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core import checks
from django.core.management import call_command

from jobqueue import checks as ours

SECOND = timedelta(seconds=1)


def found(*, deploy: bool = False) -> dict[str, str]:
    """Return what the checks find, by id."""
    messages = checks.run_checks(tags=["jobqueue"], include_deployment_checks=deploy)
    return {str(message.id): message.msg for message in messages}


class TestSettings:
    def test_of_this_project_are_fine(self) -> None:
        assert found() == {}
        call_command("check", fail_level="WARNING", tags=["jobqueue"])

    def test_may_all_be_given(self, settings: Any) -> None:
        settings.JOBQUEUE = {
            "LEASE": SECOND, "POLL_INTERVAL": SECOND / 10, "KEEP_SUCCEEDED": timedelta(0),
            "KEEP_DEAD_LETTERS": timedelta(days=1), "BACKOFF": [SECOND, 2 * SECOND],
            "MAX_ATTEMPTS": 1, "CONCURRENCY": 1,
        }  # fmt: skip
        assert found() == {}

    def test_with_an_unknown_key_are_an_error_that_names_it(self, settings: Any) -> None:
        settings.JOBQUEUE = {"LEESE": SECOND}
        assert "'LEESE'" in found()["jobqueue.E001"]
        assert "LEASE" in found()["jobqueue.E001"]

    @pytest.mark.parametrize("value", [5, None, "exponential", []])
    def test_with_no_backoff_are_an_error(self, value: Any, settings: Any) -> None:
        settings.JOBQUEUE = {"BACKOFF": value}
        assert "backoff must be a timedelta" in found()["jobqueue.E001"]

    @pytest.mark.parametrize("value", ["with space", "t\xf6ken", "line\nbreak", 5, None, b"bytes"])
    def test_with_a_token_that_no_header_carries_are_an_error_that_keeps_it(
        self, value: Any, settings: Any
    ) -> None:
        settings.JOBQUEUE = {"METRICS_TOKEN": value}
        message = found()["jobqueue.E002"]
        assert message.startswith("JOBQUEUE['METRICS_TOKEN'] must be a text")
        assert str(value) not in message

    @pytest.mark.parametrize("length", [0, 1, 31, 32])
    def test_with_a_token_that_could_be_guessed_are_warned_of(
        self, length: int, settings: Any
    ) -> None:
        settings.JOBQUEUE = {"METRICS_TOKEN": "x" * length}
        assert ("jobqueue.W004" in found(deploy=True)) == (length in {1, 31})
        assert "jobqueue.W004" not in found()

    @pytest.mark.parametrize("value", [SECOND / 2, timedelta(0), -SECOND, 60, None])
    def test_with_a_lease_too_short_to_be_extended_are_an_error(
        self, value: Any, settings: Any
    ) -> None:
        """C-06."""
        settings.JOBQUEUE = {"LEASE": value}
        assert "JOBQUEUE['LEASE'] must be a timedelta from 0:00:01" in found()["jobqueue.E002"]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("POLL_INTERVAL", timedelta(0)),
            ("POLL_INTERVAL", 1.5),
            ("DRAIN_TIMEOUT", -SECOND),
            ("KEEP_SUCCEEDED", None),
            ("KEEP_ATTEMPTS", 30),
            ("KEEP_ATTEMPTS", timedelta.max),
            ("KEEP_DEAD_LETTERS", 30),
            ("UNKNOWN_TASK_DELAY", 60),
            ("MAX_ATTEMPTS", 0),
            ("MAX_ATTEMPTS", True),
            ("MAX_ATTEMPTS", "5"),
            ("MAX_PAYLOAD_BYTES", 0),
            ("CONCURRENCY", 1.5),
        ],
    )
    def test_with_a_senseless_value_are_an_error(
        self, name: str, value: Any, settings: Any
    ) -> None:
        """C-85."""
        settings.JOBQUEUE = {name: value}
        assert f"JOBQUEUE[{name!r}] must be " in found()["jobqueue.E002"]


class TestCommandName:
    """C-91."""

    def test_that_is_ours_is_fine(self) -> None:
        assert ours.check_command_name() == []

    def test_that_another_app_took_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ours, "get_commands", lambda: {"runworker": "channels"})
        [message] = ours.check_command_name()
        assert message.id == "jobqueue.W001"
        assert "channels" in message.msg
        assert "jobqueue_worker" in str(message.hint)


class Elsewhere:
    """A router that keeps jobs in a database of their own."""

    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "jobs" if model._meta.app_label == "jobqueue" else None


class TestDatabaseAlias:
    """C-108."""

    def test_other_than_that_of_the_callers_is_told(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [Elsewhere()]
        assert "'jobs'" in found()["jobqueue.W002"]


ALL_TIMEOUTS = {"connect_timeout": 5, "tcp_user_timeout": "15000", "keepalives_idle": 10}


class TestNetworkTimeouts:
    def check(self, monkeypatch: pytest.MonkeyPatch, **config: Any) -> list[checks.CheckMessage]:
        database = {
            "ENGINE": "django.db.backends.postgresql", "HOST": "db.example", "OPTIONS": {}, **config
        }  # fmt: skip
        monkeypatch.setitem(django_settings.DATABASES, "default", database)
        return ours.check_network_timeouts()

    def test_that_are_missing_are_told_at_deploy_alone(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.check(monkeypatch)
        assert (
            "connect_timeout, tcp_user_timeout, keepalives_idle"
            in (found(deploy=True)["jobqueue.W003"])
        )
        assert "jobqueue.W003" not in found()

    @pytest.mark.parametrize("name", ALL_TIMEOUTS)
    @pytest.mark.parametrize("value", [None, 0, "0", -1, "soon", []])
    def test_that_are_set_but_for_one_are_told_with_what_to_add(
        self, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options = ALL_TIMEOUTS | {name: value}
        [message] = self.check(monkeypatch, OPTIONS=options)
        assert f"leave out {name}:" in message.msg
        assert f"'{name}': " in str(message.hint)
        assert not [each for each in ALL_TIMEOUTS if each != name and each in str(message.hint)]

    def test_that_are_switched_off_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        [message] = self.check(monkeypatch, OPTIONS=ALL_TIMEOUTS | {"keepalives": 0})
        assert "leave out keepalives_idle:" in message.msg

    @pytest.mark.parametrize(
        "config",
        [
            {"HOST": "127.0.0.1"},
            {"HOST": "/run/postgresql,db.example"},
            {"HOST": "", "OPTIONS": {"host": "db.example"}},
            {"HOST": "", "OPTIONS": {"hostaddr": "192.0.2.7"}},
            {"OPTIONS": {"pool": {"max_size": 9}}},
        ],
    )
    def test_are_wanted_wherever_there_is_a_network(
        self, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.check(monkeypatch, **config)

    @pytest.mark.parametrize(
        "config",
        [
            {"HOST": ""},
            {"HOST": "/run/postgresql"},
            {"HOST": "@abstract"},
            {"HOST": "", "OPTIONS": {"service": "jobs"}},
            {"OPTIONS": {"service": "jobs"}},
            {"OPTIONS": ALL_TIMEOUTS},
            {"OPTIONS": ALL_TIMEOUTS | {"pool": True}},
            {"ENGINE": "django.db.backends.sqlite3"},
        ],
    )
    def test_that_are_set_or_not_needed_are_fine(
        self, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self.check(monkeypatch, **config) == []


class TestDeploy:
    def test_finds_nothing_of_ours_that_is_wrong(self) -> None:
        assert found(deploy=True) == {}
