"""The migrations: complete, reversible, and independent of the project around them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, models
from django.db.migrations.loader import MigrationLoader

from jobqueue import lifecycle
from jobqueue.models import DeadLetter, Worker
from tests import verbs
from tests.factories import DeadLetterFactory, JobFactory, WorkerFactory
from tests.tasks import noop

TABLES = {"job", "attempt", "deadletter", "worker"}


def tables() -> set[str]:
    """Return the names of our tables that are there."""
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
    return {name.removeprefix("jobqueue_") for name in names if name.startswith("jobqueue_")}


@pytest.mark.django_db(transaction=True)
class TestMigrate:
    @pytest.fixture(autouse=True)
    def put_back(self) -> Iterator[None]:
        yield
        call_command("migrate", "jobqueue", verbosity=0)

    def test_back_to_nothing_and_forth_again(self) -> None:
        assert tables() >= TABLES
        call_command("migrate", "jobqueue", "zero", verbosity=0)
        assert tables() == set()
        call_command("migrate", "jobqueue", verbosity=0)
        job = noop.enqueue()
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])
        assert verbs.where(job.pk) == "succeeded"

    def test_keep_the_rows_there_were_both_ways(self) -> None:
        job, letter, worker = JobFactory(), DeadLetterFactory(), WorkerFactory()
        discarded = DeadLetterFactory()
        lifecycle.discard([discarded.pk])
        call_command("migrate", "jobqueue", "0002", verbosity=0)
        call_command("migrate", "jobqueue", verbosity=0)
        assert Worker.objects.get().name == worker.name
        open_again = set(DeadLetter.objects.open().values_list("pk", flat=True))
        assert open_again == {letter.pk, discarded.pk}
        assert lifecycle.replay([letter.pk]) == [letter.pk]
        assert verbs.where(job.pk) == verbs.where(letter.pk) == "pending"


@pytest.mark.django_db
class TestColumns:
    def test_have_keys_of_64_bits_whatever_the_project_says(self) -> None:
        """C-62."""
        for model in apps.get_app_config("jobqueue").get_models():
            key = model._meta.pk
            assert isinstance(key, models.BigAutoField | models.BigIntegerField | models.CharField)

    def test_refer_to_no_table_but_our_own(self) -> None:
        """C-110: the project's user model may be anything, and may be deleted."""
        for model in apps.get_app_config("jobqueue").get_models():
            for field in model._meta.get_fields():
                if field.is_relation:
                    assert field.related_model._meta.app_label == "jobqueue"

    def test_of_jobs_and_dead_letters_are_the_same_where_they_move(self) -> None:
        job, letter = (apps.get_model("jobqueue", name) for name in ("Job", "DeadLetter"))
        for field in letter._meta.concrete_fields:
            if field.name in {other.name for other in job._meta.concrete_fields} - {"id"}:
                other = job._meta.get_field(field.name)
                assert type(field) is type(other)
                assert field.max_length == other.max_length

    def test_leave_attempts_without_a_foreign_key_in_the_database(self) -> None:
        with connection.cursor() as cursor:
            constraints = connection.introspection.get_constraints(cursor, "jobqueue_attempt")
        assert not [name for name, found in constraints.items() if found["foreign_key"]]

    @pytest.mark.postgresql
    def test_keep_every_instant_with_a_zone_and_to_the_microsecond(self) -> None:
        """C-60."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT DISTINCT data_type, datetime_precision FROM information_schema.columns"
                " WHERE table_name LIKE 'jobqueue%' AND column_name LIKE '%\\_at'"
            )
            assert cursor.fetchall() == [("timestamp with time zone", 6)]


class TestDependencies:
    def test_are_none(self) -> None:
        """C-110: neither auth nor the admin need be installed."""
        loader = MigrationLoader(None)
        for (app, _), migration in loader.disk_migrations.items():
            if app == "jobqueue":
                assert {dependency[0] for dependency in migration.dependencies} <= {"jobqueue"}
