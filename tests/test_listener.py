"""A worker believes that it hears of new jobs only while it does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread

import pytest
from django.db import connection

from jobqueue.worker import listener as listening
from jobqueue.worker.listener import Listener
from tests import tasks
from tests.factories import WorkerFactory
from tests.processes import PATIENCE, wait_until
from tests.test_worker_database import execute

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgresql]


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
    news: SimpleQueue[str] = SimpleQueue()
    listener = Listener(using="default", on_news=news.put)
    WorkerFactory(listens=True)
    with at_work(listener):
        wait_until(lambda: listener.is_listening)
        tasks.send_mail.enqueue()
        assert news.get(timeout=PATIENCE) == "mail"  # and not its own call
    assert news.empty()


def test_one_that_is_cut_off_listens_on_a_new_connection() -> None:
    news: SimpleQueue[str] = SimpleQueue()
    listener = Listener(using="default", on_news=news.put)
    WorkerFactory(listens=True)
    with at_work(listener):
        wait_until(lambda: listener.is_listening)
        [first] = sessions("LISTEN")
        execute(f"SELECT pg_terminate_backend({first})")
        wait_until(lambda: listener.is_listening and sessions("LISTEN") not in ([], [first]))
        tasks.send_mail.enqueue()
        assert news.get(timeout=PATIENCE) == "mail"


def test_one_whose_own_call_does_not_arrive_is_deaf_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "HEARD_WITHIN", 0.1)
    monkeypatch.setattr(listening, "DEAF_FOR", 0.1)
    heard: list[str] = []
    listener = Unheard(using="default", on_news=heard.append)
    with caplog.at_level(logging.INFO, logger="jobqueue"), at_work(listener):
        wait_until(lambda: caplog.text.count("worker.listener_deaf") >= 2)  # it tries again
        assert not listener.is_listening


def test_one_that_waits_tries_its_connection_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else would tell it that the connection is dead."""
    monkeypatch.setattr(listening, "TRIED_EVERY", 0.1)
    with at_work(Listener(using="default", on_news=print)):
        wait_until(lambda: sessions("LISTEN"))
        [session] = sessions("LISTEN")
        wait_until(lambda: session in sessions("SELECT 1"))
