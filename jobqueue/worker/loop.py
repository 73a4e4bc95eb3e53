"""The worker's main thread: look, claim up to the free slots, rest; and in the end drain."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic

from django.db import Error, close_old_connections, reset_queries

from jobqueue import lifecycle, logs, signals
from jobqueue.claims import Settlement
from jobqueue.models import Worker as WorkerRow
from jobqueue.worker import memory
from jobqueue.worker.claimer import Claimer
from jobqueue.worker.executor import Executor
from jobqueue.worker.hand import Hand
from jobqueue.worker.heartbeat import Heartbeat
from jobqueue.worker.janitor import Janitor
from jobqueue.worker.listener import Listener
from jobqueue.worker.operator import Operator
from jobqueue.worker.options import WorkerOptions
from jobqueue.worker.presence import Presence
from jobqueue.worker.pulse import Contact, Pulse
from jobqueue.worker.settler import Settler
from jobqueue.worker.stopping import signals_caught
from jobqueue.worker.tally import Tally
from jobqueue.worker.threads import Pause, start_thread

#: Numbers of jobs in hand that are never reached: wake for a signal alone, or not even looked at.
NOTHING, NEVER = -1, -2

#: The pause between two looks while jobs come in all the time, in seconds.
NAP = 0.01
#: How long the threads may take to end when all is done, in seconds: their last statement.
LEAVING = 2.0


class Worker:
    """One worker process: claims jobs, has them run, and lets go of them in good order."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.using = options.using
        self.pulse = Pulse("main")
        self.contact = Contact()
        self.hand = Hand()
        self.settler = Settler(using=self.using, on_settled=self._settled)
        self.tally = Tally(using=self.using)
        self.claimer = Claimer(options, self.hand, self.settler, self.tally)
        self.presence = Presence(options)
        self.heartbeat = Heartbeat(
            self.hand, self.settler, self.presence, using=self.using, on_stuck=self._stuck
        )
        self.executor = Executor(
            self.hand,
            self.settler,
            using=self.using,
            on_deadline=self.heartbeat.poke,
            on_finish=self._finished,
        )
        #: How often the worker was asked to stop: once drains, twice gives up the leases.
        self.stop_requests = 0
        self.exit_code = 0
        #: Handlers still ran when their leases were given up: the process must end at once.
        self.left_handlers_running = False
        self.janitor = Janitor(self.tally, using=self.using, only_counts=options.until_empty)
        self.operator = Operator(using=self.using)
        self.listener = Listener(using=self.using, on_news=self._heard)
        self._has_settled = False
        self._wakes: SimpleQueue[str | None] = SimpleQueue()  # with the name of a queue to ask
        self._wake_at = NEVER  # wake the main thread when no more jobs than this are in hand
        self._turned = 0.0  # when the latest turn began, on the monotonic clock
        self._pause = Pause()
        self._threads: list[Thread] = []

    def run(self) -> int:
        """Work until asked to stop; return the exit code: 0 clean, 1 when leases were given up."""
        with signals_caught(self.request_stop):
            self.pulse.beat()
            self._start()
            while not self.stop_requests:
                self.turn()
            self.drain()
        return self.exit_code

    def request_stop(self) -> None:
        """Drain; asked a second time, give up. Safe in a signal handler."""
        self.stop_requests += 1
        self._wakes.put(None)

    def _start(self) -> None:
        self.tally.open()
        with self._database_may_be_away():
            self.presence.beat()  # the row that asks for notifications; later beats try again
        works = {"heartbeat": self.heartbeat.work, "settle": self.settler.work}
        works["operate"] = self.operator.work
        self._threads = [start_thread(name, work, failed=self.fail) for name, work in works.items()]
        self.executor.start(self.options.concurrency, failed=self.fail)
        if not self.options.until_empty:
            start_thread("listen", self.listener.work, failed=self.fail)
        start_thread("janitor", self.janitor.work, failed=self.fail)
        signals.worker_started.send_robust(WorkerRow, worker=self)

    def turn(self) -> None:
        """Do one round: see what there is, take what there is room for, and rest."""
        self.pulse.beat()
        reset_queries()  # grow for ever under DEBUG
        self._turned = monotonic()
        with self._database_may_be_away():
            was_idle = self._is_idle()
            if self._look_is_due():
                self.claimer.release_stale()
                self.claimer.look()
                self.contact.answered()
                if self.claimer.has_operations:
                    self.operator.poke()
                self._listen_no_more_if_busy()
            self._retire_if_too_large()
            claimed = self.claimer.claim()
            if claimed > self.options.concurrency:  # more than it can run: there is a backlog
                self._listen_no_more_if_busy()
            if was_idle and not claimed and self._is_done():
                self.request_stop()
            else:
                self._rest(claimed)

    def _retire_if_too_large(self) -> None:
        """End like one that has run its number of jobs; even a limit too low lets a job through."""
        most = self.options.max_memory
        if most is None or not self._has_settled or self.claimer.has_served:
            return
        used = (memory.resident() or 0) // memory.MEGABYTE
        if used > most:
            logs.event(logging.INFO, "worker.memory_exceeded", used_mb=used, max_mb=most)
            self.claimer.retire()

    def _look_is_due(self) -> bool:
        """Whether to look now; a worker that listens need not between its polls."""
        hears_news = self.presence.listens and self.listener.is_listening
        if self.claimer.ready or hears_news:
            return monotonic() >= self.claimer.look_due
        return True

    def _listen_no_more_if_busy(self) -> None:
        """Spare those who enqueue the notifications while this worker finds its jobs anyway."""
        if self.presence.listens and self.claimer.ready and len(self.hand):
            self.presence.listen(False)

    def _is_idle(self) -> bool:
        return not len(self.hand) and not len(self.settler)

    def _is_done(self) -> bool:
        if self.claimer.has_served:
            return True
        is_empty = not (self.claimer.ready or self.claimer.has_operations)
        return self.options.until_empty and is_empty

    def _rest(self, claimed: int) -> None:
        """Sleep while there is nothing to claim, or too little room to be worth a statement."""
        if self.claimer.ready and not self.claimer.has_served:
            refill_at = self.claimer.refill_at
            if not claimed:  # a queue's share is used up, or outcomes pile up unsettled
                refill_at = min(refill_at, len(self.hand) - 1)
            self._sleep(self.claimer.look_due - monotonic(), wake_at=refill_at)
        elif not self._is_idle() and (self.options.until_empty or self.claimer.has_served):
            self._wait_for_the_rest(self.options.poll_interval.total_seconds())
        elif self.options.until_empty and not self.claimer.has_operations:
            pass  # look again: everything is settled now
        elif self.claimer.has_operations and self.options.until_empty:
            self._sleep(self.claimer.look_due - monotonic())
        elif self.claimer.is_busy and self.listener.is_listening:
            self._nap()
        elif self._begins_to_listen():
            self.claimer.look_due = 0.0  # a job may have come just before
        else:
            self._sleep(self.claimer.look_due - monotonic())

    def _nap(self) -> None:
        """Look again soon rather than have everyone who enqueues send a notification."""
        if self.presence.listens:
            self.presence.listen(False)
        self._sleep(max(NAP, monotonic() - self._turned))  # no more than half of the time in SQL

    def _begins_to_listen(self) -> bool:
        """Ask for notifications, if they would arrive and are not asked for; whether it worked."""
        if self.listener.is_listening and not self.presence.listens:
            self.presence.listen(True)
            return self.presence.listens
        return False

    def _sleep(self, seconds: float, *, wake_at: int = NOTHING) -> None:
        """Wait until woken, or until no more than ``wake_at`` jobs are in hand."""
        self._wake_at = wake_at
        self.pulse.beat(rests=seconds)
        with suppress(Empty):
            if len(self.hand) > wake_at:
                self.claimer.note(self._wakes.get(timeout=max(seconds, 0.001)))
            while True:  # what woke us more than once is one reason to look
                self.claimer.note(self._wakes.get_nowait())
        self._wake_at = NEVER

    def _wait_for_the_rest(self, seconds: float) -> None:
        """Wait until all jobs have ended, or else, when they have, until they are settled."""
        self._sleep(seconds, wake_at=0 if len(self.hand) else NOTHING)

    @contextmanager
    def _database_may_be_away(self) -> Iterator[None]:
        """Go on after a database error, with growing pauses; the truth is in the database."""
        try:
            yield
        except Error as error:
            self.contact.failed()
            close_old_connections()  # Django goes on failing until this is called
            pause = self._pause.next()
            logs.problem("worker.database_away", error, retry_in_s=round(pause, 1))
            self._sleep(pause)
        else:
            self._pause.reset()

    def drain(self) -> None:
        """Claim nothing more, hand back what has not started, let the rest finish, and go."""
        self.operator.close()
        self.presence.draining()
        self.heartbeat.poke()
        signals.worker_draining.send_robust(WorkerRow, worker=self)
        ends = monotonic() + self.options.drain_timeout.total_seconds()
        with self._database_may_be_away():
            self.claimer.release_waiting()
        while not self._is_idle() and monotonic() < ends and self.stop_requests < 2:  # noqa: PLR2004
            self._wait_for_the_rest(0.1)
        if not self._is_idle():
            self._give_up()
        self._close()

    def _give_up(self) -> None:
        """Hand over what still runs: others may take it at once, and this process ends."""
        self.exit_code = 1
        self.left_handlers_running = True
        claims = {attempt.claim: attempt.started for attempt in self.hand.running()}
        with self._database_may_be_away():
            if claims:
                lifecycle.interrupt(claims, using=self.using)

    def _close(self) -> None:
        self.hand.close(self.options.concurrency)
        self.settler.close()
        self.heartbeat.close()
        self.listener.close()
        self.janitor.close()
        self._wait_for_threads()
        self.tally.close()
        with self._database_may_be_away():
            self.janitor.finish()
            self.presence.leave()
        signals.worker_stopped.send_robust(WorkerRow, worker=self)

    def _wait_for_threads(self) -> None:
        """Let them close their connections, and write nothing after the worker has left."""
        threads = (
            self._threads if self.left_handlers_running else self._threads + self.executor.threads
        )
        ends = monotonic() + LEAVING
        for thread in threads:
            thread.join(max(ends - monotonic(), 0))

    # Called from the other threads

    def _heard(self, queue_name: str | None) -> None:
        if queue_name is None:
            self.claimer.look_due = 0.0  # what came before went unheard
        self._wakes.put(queue_name)

    def _finished(self) -> None:
        if len(self.hand) <= self._wake_at:
            self._wake_at = NEVER
            self._wakes.put(None)

    def _settled(self, settlements: list[Settlement]) -> None:
        self._has_settled = True
        self.claimer.pace.observe(settlements)
        if self._wake_at != NEVER and not len(self.hand):
            self._wakes.put(None)

    def _stuck(self) -> None:
        self.left_handlers_running = True
        self.fail()

    def fail(self) -> None:
        """End the worker, since one of its threads is of no more use."""
        self.exit_code = 1
        self.request_stop()
