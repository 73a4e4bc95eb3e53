"""A worker believes that it hears of new jobs only while it does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from threading import Event, Thread

import pytest
from django.db import connection

from jobqueue.models import Worker as WorkerRow
from jobqueue.worker import listener as listening
from jobqueue.worker.listener import Listener
from jobqueue.worker.loop import NOTHING
from tests import tasks
from tests.factories import WorkerFactory
from tests.in_process import running_worker
from tests.processes import PATIENCE, wait_until
from tests.test_worker_database import execute
from tests.test_worker_lease import succeeded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def _ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "TICK", 0.1)


class Unheard(Listener):
    """As behind a pooler that keeps the notifications: its own never arrives."""

    def _call_itself(self) -> None:
        pass


@contextmanager
def at_work(listener: Listener) -> Iterator[None]:
    thread = Thread(target=listener.work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.close()
        thread.join(PATIENCE)
    assert not thread.is_alive()
    assert not listener.is_listening


def sessions(statement: str) -> list[int]:
    """Return the sessions here whose last statement begins so."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query LIKE %s",
            [f"{statement}%"],
        )
        return [pid for (pid,) in cursor.fetchall()]


def test_a_listener_that_hears_its_own_call_passes_on_the_queues_with_new_jobs() -> None:
    news: SimpleQueue[str | None] = SimpleQueue()
    listener = Listener(using="default", on_news=news.put)
    WorkerFactory(listens=True)
    with at_work(listener):
        assert news.get(timeout=PATIENCE) is None
        assert listener.is_listening
        tasks.send_mail.enqueue()
        assert news.get(timeout=PATIENCE) == "mail"
    assert news.empty()


def test_one_that_is_cut_off_listens_on_a_new_connection() -> None:
    news: SimpleQueue[str | None] = SimpleQueue()
    listener = Listener(using="default", on_news=news.put)
    WorkerFactory(listens=True)
    with at_work(listener):
        assert news.get(timeout=PATIENCE) is None
        [first] = sessions("LISTEN")
        execute(f"SELECT pg_terminate_backend({first})")
        assert news.get(timeout=PATIENCE) is None
        assert sessions("LISTEN") != [first]
        tasks.send_mail.enqueue()
        assert news.get(timeout=PATIENCE) == "mail"


def test_one_whose_own_call_does_not_arrive_is_deaf_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "HEARD_WITHIN", 0.1)
    monkeypatch.setattr(listening, "DEAF_FOR", 0.1)
    heard: list[str | None] = []
    listener = Unheard(using="default", on_news=heard.append)
    with caplog.at_level(logging.INFO, logger="jobqueue"), at_work(listener):
        wait_until(lambda: caplog.text.count("worker.listener_deaf") >= 2)  # it tries again
        assert not listener.is_listening
    assert heard == []


def test_a_worker_that_began_to_rest_before_it_listened_is_woken_to_ask_for_notifications(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would ask with its next poll only."""
    resting, listen = Event(), Listener.work

    def late(listener: Listener) -> None:
        assert resting.wait(PATIENCE)
        listen(listener)

    monkeypatch.setattr(Listener, "work", late)
    with running_worker(poll_interval=timedelta(hours=1)) as worker:
        wait_until(lambda: worker._wake_at == NOTHING, doing="the worker to rest")
        resting.set()
        wait_until(WorkerRow.objects.filter(listens=True).exists)
        wait_until(succeeded(tasks.leave_row.enqueue("woken")))


def test_one_that_waits_tries_its_connection_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would tell it that the connection is dead."""
    monkeypatch.setattr(listening, "TRIED_EVERY", 0.1)
    with at_work(Listener(using="default", on_news=print)):
        wait_until(lambda: sessions("LISTEN"))
        [session] = sessions("LISTEN")
        wait_until(lambda: session in sessions("SELECT 1"))
