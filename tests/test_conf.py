"""Settings, and the settings of Django that change what they mean: zones, aliases, user models."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext, override_settings
from prometheus_client import CollectorRegistry
from pytest_django import DjangoDbBlocker

from jobqueue import conf, enqueue_many, lifecycle
from jobqueue.backoff import Exponential, Steps
from jobqueue.contrib.prometheus.collector import JobQueueCollector
from jobqueue.models import Attempt, DeadLetter, Job, Queue
from jobqueue.testing import run_jobs
from tests import verbs
from tests.factories import JobFactory
from tests.models import Mark
from tests.projects import Project
from tests.tasks import fail, leave_row, leave_row_atomically, noop

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


class TestGet:
    def test_has_a_default_for_everything(self, settings: Any) -> None:
        del settings.JOBQUEUE
        given = conf.get()
        assert (5, timedelta(seconds=60)) == (given.MAX_ATTEMPTS, given.LEASE)
        assert Exponential() == given.BACKOFF
        assert given.KEEP_DEAD_LETTERS is None

    def test_takes_what_the_project_says(self, settings: Any) -> None:
        settings.JOBQUEUE = {"MAX_ATTEMPTS": 3, "BACKOFF": MINUTE}
        assert conf.get().MAX_ATTEMPTS == 3
        assert Steps((MINUTE,)) == conf.get().BACKOFF
        assert timedelta(seconds=60) == conf.get().LEASE

    def test_reads_again_when_a_setting_changes(self, settings: Any) -> None:
        before = conf.get()
        settings.JOBQUEUE = {"CONCURRENCY": 99}
        assert conf.get().CONCURRENCY == 99
        settings.JOBQUEUE = {}
        assert conf.get() == before

    def test_names_a_key_that_does_not_exist(self, settings: Any) -> None:
        settings.JOBQUEUE = {"MAX_ATTEMPT": 3}
        with pytest.raises(ImproperlyConfigured, match=r"no setting 'MAX_ATTEMPT'; .*MAX_ATTEMPTS"):
            conf.get()

    def test_does_not_show_the_token(self, settings: Any) -> None:
        settings.JOBQUEUE = {"METRICS_TOKEN": "hush"}
        assert "hush" not in repr(conf.get())

    def test_cannot_be_changed(self) -> None:
        with pytest.raises(AttributeError):
            conf.get().MAX_ATTEMPTS = 9  # type: ignore[misc]


@pytest.mark.django_db(transaction=True)
class TestWithoutTimeZones:
    """C-82: USE_TZ=False, in a zone far from UTC."""

    @pytest.fixture(autouse=True)
    def local_time(self, settings: Any) -> Iterator[None]:
        settings.USE_TZ, settings.TIME_ZONE = False, "Asia/Shanghai"
        connection.close()  # what a connection does with zones is decided when it is opened
        yield
        connection.close()

    def test_a_job_can_live_its_whole_life(self) -> None:
        job = fail.using(max_attempts=2).enqueue()
        assert job.status == "pending"
        assert verbs.run_next().status == "scheduled"
        verbs.fall_due(job.pk)
        lifecycle.promote()
        assert verbs.run_next().status is None
        assert verbs.where(job.pk) == "dead"
        assert lifecycle.replay([job.pk]) == [job.pk]
        claimed = verbs.claim_one()
        lifecycle.extend([lease := verbs.lease_on(claimed)])
        assert not lease.lost
        assert Job.objects.in_flight().exists()
        verbs.expire(job.pk)
        assert lifecycle.rescue() == 1
        lifecycle.settle([verbs.succeeded(verbs.claim_one())])
        assert verbs.outcomes(job.pk) == ["failed", "failed", "lost", "succeeded"]
        assert not any(lifecycle.prune().values())
        spans = [attempt.duration for attempt in Attempt.objects.of(job.pk)]
        assert all(timedelta(0) <= span < HOUR for span in spans)

    @pytest.mark.parametrize("run_after", [HOUR, "aware"])
    def test_a_delay_is_neither_longer_nor_shorter(self, run_after: Any) -> None:
        if run_after == "aware":
            run_after = dt.datetime.now(dt.UTC) + HOUR
        one = noop.using(run_after=run_after).enqueue()
        [two] = enqueue_many([noop.using(run_after=run_after).bind()])
        assert [verbs.where(pk) for pk in (one.pk, two)] == ["scheduled", "scheduled"]
        for pk in (one.pk, two):
            job = Job.objects.get(pk=pk)
            assert abs(job.run_after - job.enqueued_at - HOUR) < MINUTE
        assert one.run_after == Job.objects.get(pk=one.pk).run_after

    @pytest.mark.parametrize("until", [HOUR, "aware"])
    def test_a_pause_is_neither_longer_nor_shorter(self, until: Any) -> None:
        lifecycle.pause("mail", until=dt.datetime.now(dt.UTC) + HOUR if until == "aware" else until)
        queue = Queue.objects.paused().get()
        assert abs(queue.paused_until - queue.paused_at - HOUR) < MINUTE

    def test_an_aware_time_that_has_passed_means_now(self) -> None:
        past = dt.datetime.now(dt.timezone(9 * HOUR)) - MINUTE
        assert noop.using(run_after=past).enqueue().status == "pending"

    def test_a_naive_time_is_refused_here_too(self) -> None:
        """C-86: a time without a zone means different things in different places."""
        with pytest.raises(ValueError, match="is naive"):
            noop.using(run_after=dt.datetime(2100, 1, 1))  # noqa: DTZ001

    def test_retention_goes_by_the_right_age(self) -> None:
        JobFactory(succeeded=True, finished_ago=timedelta(hours=25))
        JobFactory(succeeded=True, finished_ago=timedelta(hours=23))
        assert lifecycle.prune()["jobs"] == 1


class ToJobs:
    """A router that keeps the queue, and only the queue, in a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "jobs" if model._meta.app_label == "jobqueue" else None

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return (app_label == "jobqueue") == (db == "jobs")


@pytest.fixture(scope="class")
def jobs_elsewhere(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    file = tmp_path_factory.mktemp("jobs") / "jobs.sqlite3"
    connections.settings["jobs"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": file}
    connections.configure_settings(connections.settings)
    with override_settings(DATABASE_ROUTERS=[ToJobs()]), django_db_blocker.unblock():
        call_command("migrate", database="jobs", verbosity=0)
        yield
        connections["jobs"].close()
    del connections["jobs"]
    del connections.settings["jobs"]


@pytest.mark.django_db(transaction=True, databases=["default", "jobs"])
@pytest.mark.usefixtures("jobs_elsewhere")
class TestAnotherAlias:
    """C-108: every transaction is on the alias that holds the jobs."""

    @pytest.fixture(autouse=True)
    def nothing_goes_to_the_default(self) -> Iterator[None]:
        with CaptureQueriesContext(connection) as queries:
            yield
            assert not [query for query in queries if "jobqueue_" in query["sql"]]

    def test_a_job_can_live_its_whole_life_there(self) -> None:
        job = fail.using(max_attempts=2).enqueue()
        assert job._state.db == "jobs"
        assert [settlement.outcome for settlement in run_jobs()] == ["failed", "failed"]
        assert DeadLetter.objects.get().pk == job.pk
        lifecycle.replay([job.pk])
        [claimed] = verbs.claim()
        verbs.expire(job.pk)
        assert lifecycle.rescue() == 1
        assert lifecycle.settle([verbs.succeeded(claimed)]) == set()
        lifecycle.cancel(enqueue_many([noop.bind(), noop.using(run_after=HOUR).bind()]))
        assert Job.objects.finished().count() == 2
        assert lifecycle.discard([job.pk]) == 0
        assert not any(lifecycle.prune().values())

    def test_enqueue_goes_with_transactions_on_that_alias(self) -> None:
        with transaction.atomic(using="jobs"):
            noop.enqueue()
            transaction.set_rollback(True, using="jobs")
        assert not Job.objects.exists()

    def test_enqueue_does_not_go_with_transactions_on_another(self) -> None:
        """As the docs and the check W002 say."""
        with transaction.atomic():
            Mark.objects.create(key="order")
            noop.enqueue()
            transaction.set_rollback(True)
        assert (Job.objects.count(), Mark.objects.count()) == (1, 0)

    def test_the_metrics_are_read_there(self) -> None:
        JobFactory()
        registry = CollectorRegistry()
        registry.register(JobQueueCollector())
        assert registry.get_sample_value("jobqueue_up") == 1
        assert registry.get_sample_value("jobqueue_depth", {"queue": "default"}) == 1

    def test_the_alias_can_be_named(self) -> None:
        assert not any(lifecycle.prune(using="jobs").values())
        noop.enqueue()
        assert list(lifecycle.look(using="jobs").queue_names) == ["default"]

    def test_handlers_write_where_their_models_are(self) -> None:
        leave_row.enqueue("k")
        assert [settlement.outcome for settlement in run_jobs()] == ["succeeded"]
        assert Mark.objects.using("default").get().key == "k"

    def test_an_atomic_task_is_atomic_with_its_job(self) -> None:
        job = leave_row_atomically.enqueue("k")
        run_jobs()
        assert verbs.where(job.pk) == "succeeded"


USERS = """
import uuid
from django.contrib.auth.models import AbstractUser
from django.db import models

class User(AbstractUser):
    {key}
    def __str__(self):
        return self.username
"""
SCRIPT = """
from django.contrib.auth import get_user_model
from jobqueue import registry, testing
from jobqueue.models import Job
user = get_user_model().objects.create(username="ann", email="ann@shop.example", is_superuser=True)
guarded = registry.get("shop.tasks.guarded")
first = guarded.using(actor=user).enqueue()
print(testing.run_jobs()[0].outcome)
second = guarded.using(actor=user).enqueue()
user.delete()
print(testing.run_jobs()[0].reason, Job.objects.filter(pk=first.pk).exists())
guarded.using(actor="no key of anybody").enqueue()
print(testing.run_jobs()[0].reason)
"""


class TestCustomUserModel:
    """C-110: any user model will do, and deleting a user deletes no job."""

    @pytest.mark.parametrize(
        "key",
        [
            "id = models.UUIDField(primary_key=True, default=uuid.uuid4)",
            "email = models.EmailField(primary_key=True)",
        ],
    )
    def test_may_have_any_key(self, key: str, tmp_path: Path) -> None:
        project = Project(tmp_path)
        apps = ("django.contrib.contenttypes", "django.contrib.auth", "jobqueue", "shop")
        project.settings(apps=apps, more="AUTH_USER_MODEL = 'shop.User'\n")
        project.write("shop/models.py", USERS.format(key=key))
        project.write(
            "shop/tasks.py",
            "from jobqueue import task\n@task(permission='shop.add_user')\ndef guarded(): ...\n",
        )
        project.write("shop/migrations/__init__.py", "")
        for command in (["makemigrations", "shop", "-v0"], ["migrate", "-v0"]):
            done = project.manage(*command)
            assert done.returncode == 0, done.stderr
        done = project.manage("shell", "-v0", "-c", SCRIPT)
        assert done.stdout.split() == [
            *("succeeded", "not_authorised", "True"),
            "not_authorised",
        ], done.stderr
