"""The safeguards that :mod:`tests.mutants` takes away, one at a time, and who must notice."""

from __future__ import annotations

from typing import NamedTuple


class Edit(NamedTuple):
    """A text that stands exactly once in a file, and what is put in its place."""

    path: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One safeguard less; ``tests`` are those of which one must fail."""

    name: str
    what: str
    edits: tuple[Edit, ...]
    tests: tuple[str, ...]
    database: str = "postgresql"


STATEMENTS = "jobqueue/stores/statements.py"
CLAIMING = "jobqueue/stores/claiming.py"
GENERIC = "jobqueue/stores/generic.py"
SQLITE = "jobqueue/stores/sqlite.py"
QUERYSETS = "jobqueue/querysets.py"
ADVANCING = "jobqueue/lifecycle/advancing.py"
JOBS = "jobqueue/lifecycle/jobs.py"
LEASES = "jobqueue/lifecycle/leases.py"
LETTERS = "jobqueue/lifecycle/letters.py"
MAINTENANCE = "jobqueue/lifecycle/maintenance.py"
SETTLING = "jobqueue/lifecycle/settling.py"
ENQUEUEING = "jobqueue/lifecycle/enqueueing.py"
RUNNER = "jobqueue/runner.py"
LOOP = "jobqueue/worker/loop.py"

FENCE = ("tests/test_settle.py::TestFence",)
AT_ONCE = "tests/test_interleavings.py"
RESCUE = ("tests/test_rescue.py",)
CLAIM = ("tests/test_claim.py",)
PAUSE = ("tests/test_pause.py",)
BULK = "tests/test_bulk.py"
CONSTRAINTS = ("tests/test_constraints.py",)


def mutant(
    name: str, what: str, path: str, old: str, new: str, *tests: str, on: str = "postgresql"
) -> Mutant:
    """Return a mutant with one edit."""
    return Mutant(name, what, (Edit(path, old, new),), tests, on)


# PostgreSQL: the fence. What is left asks for the state alone, as so many queues do.

_OPEN = "job.claimed_until IS NOT NULL"
_ANY_FENCE = f"job.id = ANY (%(ids)s::int8[]) AND job.id = given.id AND {_OPEN}"
_FENCES = (
    mutant(
        "fence-acknowledge",
        "ACKNOWLEDGE without the fence",
        STATEMENTS,
        "AS given (id, fence, started_ago, finished_ago)\n    WHERE {_FENCED}",
        f"AS given (id, fence, started_ago, finished_ago)\n    WHERE {_ANY_FENCE}",
        *FENCE,
    ),
    mutant(
        "fence-settle",
        "SETTLE without the fence",
        STATEMENTS,
        "WHERE {_FENCED}\n    RETURNING job.id, job.status",
        f"WHERE {_ANY_FENCE}\n    RETURNING job.id, job.status",
        *FENCE,
    ),
    mutant(
        "fence-bury",
        "BURY without the fence",
        STATEMENTS,
        'WHERE {_FENCED}\n    RETURNING {", ".join',
        f'WHERE {_ANY_FENCE}\n    RETURNING {{", ".join',
        *FENCE,
    ),
    mutant(
        "fence-delete",
        "DELETE without the fence",
        STATEMENTS,
        "USING given\n    WHERE {_FENCED}\n    RETURNING job.id, job.task",
        f"USING given\n    WHERE {_ANY_FENCE}\n    RETURNING job.id, job.task",
        *FENCE,
    ),
    mutant(
        "fence-extend",
        "EXTEND without the fence",
        STATEMENTS,
        "AND CASE WHEN job.claimed_until IS NULL THEN false ELSE job.fence = given.fence END\n"
        "RETURNING job.id, job.fence",
        f"AND {_OPEN}\nRETURNING job.id, given.fence",
        *CLAIM,
    ),
    mutant(
        "fence-held",
        "HELD without the fence",
        STATEMENTS,
        "SELECT job.id, job.fence, job.cancel_requested\n"
        "FROM unnest(%(ids)s::int8[], %(fences)s::int8[]) AS given (id, fence)\n"
        "JOIN jobqueue_job AS job USING (id, fence)",
        "SELECT job.id, given.fence, job.cancel_requested\n"
        "FROM unnest(%(ids)s::int8[], %(fences)s::int8[]) AS given (id, fence)\n"
        "JOIN jobqueue_job AS job USING (id)",
        *CLAIM,
    ),
    mutant(
        "settled-again",
        "a claim that is settled may be settled again",
        STATEMENTS,
        'AND CASE WHEN job.claimed_until IS NULL THEN false ELSE job.fence = given.fence END"""',
        'AND job.fence = given.fence"""',
        *FENCE,
    ),
    mutant(
        "fence-stands-still",
        "the fence does not grow with a claim",
        CLAIMING,
        "attempts = attempts + 1, fence = fence + 1,",
        "attempts = attempts + 1,",
        *CLAIM,
    ),
    mutant(
        "attempt-uncounted",
        "the attempt is not counted at the claim",
        CLAIMING,
        "attempts = attempts + 1, fence = fence + 1,",
        "fence = fence + 1,",
        *CLAIM,
    ),
    mutant(
        "release-counted",
        "a release keeps the attempt",
        STATEMENTS,
        "attempts = job.attempts - (given.outcome = 'released')::int,",
        "attempts = job.attempts,",
        "tests/test_settle.py::TestRelease",
    ),
)

# PostgreSQL: locks.

_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
_WAITING = "FOR NO KEY UPDATE"
_BEST = "ORDER BY job.priority DESC, job.run_after, job.id\n" + 20 * " " + "LIMIT %(most)s\n"
_ABOVE = "ORDER BY job.run_after, job.id\n" + 24 * " " + "LIMIT %(most)s\n"
_LOCKS = (
    mutant(
        "skip-locked-claim",
        "CLAIM without SKIP LOCKED",
        CLAIMING,
        _BEST + 20 * " " + _LOCK,
        _BEST + 20 * " " + _WAITING,
        f"{AT_ONCE}::TestClaims",
    ),
    mutant(
        "lock-claim",
        "CLAIM locks nothing",
        CLAIMING,
        _BEST + 20 * " " + _LOCK,
        _BEST,
        f"{AT_ONCE}::TestClaims",
    ),
    mutant(
        "skip-locked-claim-above",
        "CLAIM_ABOVE without SKIP LOCKED",
        CLAIMING,
        _ABOVE + 24 * " " + _LOCK,
        _ABOVE + 24 * " " + _WAITING,
        "tests/test_cases.py::TestClaimsAboveAFloor",
    ),
    mutant(
        "pause-claim",
        "CLAIM without looking for a pause",
        CLAIMING,
        "                WHERE {_IS_OPEN}\n",
        "",
        *PAUSE,
    ),
    mutant(
        "pause-claim-above",
        "CLAIM_ABOVE without looking for a pause",
        CLAIMING,
        " AND {_IS_OPEN}",
        "",
        *PAUSE,
    ),
    mutant(
        "pause-until",
        "a pause that never ends by itself",
        CLAIMING,
        "paused_at IS NOT NULL AND COALESCE(paused_until > statement_timestamp(), true)",
        "paused_at IS NOT NULL",
        *PAUSE,
    ),
    mutant(
        "pause-hand-back",
        "what waits for a thread is kept when its queue is paused",
        "jobqueue/worker/claimer.py",
        "        if look.paused:\n            self.release_waiting(look.paused)\n",
        "",
        *PAUSE,
    ),
    mutant(
        "orm-pause-claim",
        "a claim without looking for a pause",
        GENERIC,
        ".filter(~is_paused, queue_name=turn.queue_name)",
        ".filter(queue_name=turn.queue_name)",
        *PAUSE,
        on="sqlite",
    ),
    mutant(
        "skip-locked-extend",
        "EXTEND without SKIP LOCKED",
        STATEMENTS,
        f"ANY (%(ids)s::int8[]) {_LOCK}",
        f"ANY (%(ids)s::int8[]) {_WAITING}",
        f"{AT_ONCE}::TestExtend",
    ),
    mutant(
        "skip-locked-promote",
        "PROMOTE without SKIP LOCKED",
        STATEMENTS,
        f"ORDER BY run_after\n    LIMIT %(limit)s\n    {_LOCK}",
        f"ORDER BY run_after\n    LIMIT %(limit)s\n    {_WAITING}",
        f"{AT_ONCE}::TestPromote",
    ),
    mutant(
        "skip-locked-rescue",
        "LOCK_EXPIRED without SKIP LOCKED",
        STATEMENTS,
        f"ORDER BY claimed_at\nLIMIT %(limit)s\n{_LOCK}",
        f"ORDER BY claimed_at\nLIMIT %(limit)s\n{_WAITING}",
        f"{AT_ONCE}::TestRescue",
    ),
    mutant(
        "skip-locked-prune",
        "prune without SKIP LOCKED",
        MAINTENANCE,
        "lock(rest.order_by(order), skip_locked=True)",
        "lock(rest.order_by(order))",
        f"{AT_ONCE}::TestPrune",
    ),
    mutant(
        "replay-unlocked",
        "replay takes letters without locking them",
        LETTERS,
        "found = dict(store(using).lock(letters).values_list",
        "found = dict(letters.values_list",
        f"{AT_ONCE}::TestReplay",
    ),
    mutant(
        "replay-keeps-letter",
        "replay leaves the letter where it is",
        LETTERS,
        "        DeadLetter.objects.using(using).filter(pk__in=ids).delete()\n",
        "",
        "tests/test_replay.py",
    ),
    mutant(
        "bulk-unlocked",
        "two workers may carry out one batch",
        ADVANCING,
        "rows = store(using).lock(_running(using).filter(pk=pk), skip_locked=True)",
        "rows = _running(using).filter(pk=pk)",
        f"{BULK}::TestAtOnce",
    ),
    mutant(
        "bulk-rights",
        "a bulk operation goes on without its actor's permission",
        ADVANCING,
        "if why := _forbidden(operation):",
        'if why := "":',
        f"{BULK}::TestPermission",
    ),
    mutant(
        "bulk-until",
        "a bulk operation takes letters that died after it was asked for",
        ADVANCING,
        ".open().filter(died_at__lte=operation.until)",
        ".open()",
        f"{BULK}::TestAdvance",
    ),
    mutant(
        "bulk-fault",
        "a fault in one bulk operation stops all workers",
        ADVANCING,
        "    except Exception as error:  # noqa: BLE001 - to look at rights",
        "    except ZeroDivisionError as error:  # noqa: BLE001 - to look at rights",
        f"{BULK}::TestFault",
    ),
    mutant(
        "cancel-unlocked",
        "cancel does not lock in the order of ids",
        JOBS,
        'found = dict(store(using).lock(rows.order_by("pk")).values_list("pk", "status"))',
        'found = dict(rows.order_by("pk").values_list("pk", "status"))',
        f"{AT_ONCE}::TestCancel",
        f"{AT_ONCE}::TestOperations",
    ),
    mutant(
        "extend-shortens",
        "a heartbeat cuts short what an operator has extended",
        STATEMENTS,
        "SET claimed_until = greatest(job.claimed_until,\n"
        "    statement_timestamp() + given.span * interval '1 second')",
        "SET claimed_until = statement_timestamp() + given.span * interval '1 second'",
        "tests/test_leases.py",
    ),
    mutant(
        "extend-lease-shortens",
        "an operator's extension cuts a longer lease short",
        LEASES,
        'Greatest("claimed_until", from_now(by_span))',
        "from_now(by_span)",
        "tests/test_leases.py",
    ),
    mutant(
        "release-of-the-living",
        "the leases of a worker that lives are released all at once",
        LEASES,
        "        _refuse_if_alive(name, using)\n",
        "",
        "tests/test_leases.py",
    ),
    mutant(
        "move-claimed",
        "a job that runs is moved to another queue",
        JOBS,
        ".filter(status__in=WAITING).exclude(queue_name=queue_name)",
        ".exclude(queue_name=queue_name)",
        "tests/test_move.py",
    ),
    mutant(
        "move-in-silence",
        "nobody is told of a job that was moved",
        JOBS,
        "            store(using).wake([queue_name])\n",
        "            pass\n",
        "tests/test_move.py",
    ),
)

# PostgreSQL: what is due and what is lost.

_TIMES = (
    mutant(
        "lease-rescue",
        "rescue without looking at the end of the lease",
        STATEMENTS,
        "WHERE status = 'claimed' AND claimed_until < statement_timestamp()\nORDER BY",
        "WHERE status = 'claimed'\nORDER BY",
        *RESCUE,
    ),
    mutant(
        "due-promote",
        "PROMOTE without looking at the time",
        STATEMENTS,
        "    WHERE status = 'scheduled' AND run_after <= statement_timestamp()\n    ORDER BY",
        "    WHERE status = 'scheduled'\n    ORDER BY",
        "tests/test_promote.py",
    ),
    mutant(
        "limit-rescue",
        "a job whose worker was lost is always tried again",
        SETTLING,
        "goes_on = claim.has_attempts_left",
        "goes_on = True",
        *RESCUE,
    ),
    mutant(
        "cancel-settle",
        "a retry does not ask whether the job was cancelled",
        STATEMENTS,
        "_CANCELLED = \"(job.cancel_requested AND given.status IN ('pending', 'scheduled'))\"",
        '_CANCELLED = "false"',
        "tests/test_cancel.py",
    ),
)

# The store in the ORM's words, as SQLite runs it.

_CLAIMED_BY_ID = "_jobs().claimed().filter(pk="
_ORM = (
    mutant(
        "orm-fence",
        "no write of the ORM store has the fence",
        GENERIC,
        "pk=claim.id, fence=claim.fence, claimed_until__isnull=False, status=Status.CLAIMED",
        "pk=claim.id, claimed_until__isnull=False, status=Status.CLAIMED",
        *FENCE,
        on="sqlite",
    ),
    mutant(
        "orm-settled-again",
        "a claim that is settled may be settled again",
        GENERIC,
        "pk=claim.id, fence=claim.fence, claimed_until__isnull=False, status=Status.CLAIMED",
        "pk=claim.id, fence=claim.fence",
        *FENCE,
        on="sqlite",
    ),
    mutant(
        "orm-fence-settle",
        "settle without the fence",
        GENERIC,
        "if not self._fenced(settlement.claim).update(",
        f"if not self.{_CLAIMED_BY_ID}settlement.claim.id).update(",
        *FENCE,
        on="sqlite",
    ),
    mutant(
        "orm-fence-bury",
        "bury without the fence",
        GENERIC,
        "ours = self._fenced(settlement.claim)",
        f"ours = self.{_CLAIMED_BY_ID}settlement.claim.id)",
        *FENCE,
        on="sqlite",
    ),
    mutant(
        "orm-fence-delete",
        "delete without the fence",
        GENERIC,
        "if self._fenced(each.claim).delete()[0]",
        f"if self.{_CLAIMED_BY_ID}each.claim.id).delete()[0]",
        *FENCE,
        on="sqlite",
    ),
    mutant(
        "orm-fence-extend",
        "extend without the fence",
        GENERIC,
        "ours = self._fenced(lease.claim)",
        f"ours = self.{_CLAIMED_BY_ID}lease.claim.id)",
        *CLAIM,
        on="sqlite",
    ),
    mutant(
        "orm-fence-stands-still",
        "the fence does not grow with a claim",
        GENERIC,
        '                    fence=F("fence") + 1,\n',
        "",
        *CLAIM,
        on="sqlite",
    ),
    mutant(
        "orm-attempt-uncounted",
        "the attempt is not counted at the claim",
        GENERIC,
        '                    attempts=F("attempts") + 1,\n',
        "",
        *CLAIM,
        on="sqlite",
    ),
    mutant(
        "orm-release-counted",
        "a release keeps the attempt",
        GENERIC,
        'changes["attempts"] = F("attempts") - 1',
        "pass",
        "tests/test_settle.py::TestRelease",
        on="sqlite",
    ),
    mutant(
        "orm-lease-rescue",
        "rescue without looking at the end of the lease",
        QUERYSETS,
        "return self.claimed().filter(claimed_until__lte=Now())",
        "return self.claimed()",
        *RESCUE,
        on="sqlite",
    ),
    mutant(
        "orm-due-promote",
        "promote without looking at the time",
        QUERYSETS,
        "return self.scheduled().filter(run_after__lte=from_now(timedelta(0)))",
        "return self.scheduled()",
        "tests/test_promote.py",
        on="sqlite",
    ),
    mutant(
        "orm-deferred",
        "SQLite's transactions begin without the write lock",
        SQLITE,
        'connection.transaction_mode = "IMMEDIATE"',
        'connection.transaction_mode = "DEFERRED"',
        "tests/test_cases.py::TestSQLite",
        on="sqlite",
    ),
    mutant(
        "orm-skip-locked",
        "a claim of the ORM store waits for locked rows",
        GENERIC,
        "self.lock(best, skip_locked=True)",
        "self.lock(best)",
        "tests/test_cases.py::TestTheGenericStore",
    ),
)

# The lifecycle, the runner and the worker.

_CODE = (
    mutant(
        "conflict",
        "a statement that had to give way to another is not sent again",
        "jobqueue/stores/postgresql.py",
        'CONFLICTS = ("40001", "40P01")',
        "CONFLICTS = ()",
        "tests/test_cases.py::TestRepeatableRead",
    ),
    mutant(
        "unknown-fate",
        "an outcome sent again is not looked up first",
        SETTLING,
        "tries = ([each] if again else []) +",
        "tries: list[Settlement] = [] +",
        "tests/test_settle.py::TestGroup",
    ),
    mutant(
        "atomic-unfenced",
        "an atomic task commits though its lease was lost",
        RUNNER,
        "if not lifecycle.settle([settlement], using=self.using):",
        "if lifecycle.settle([settlement], using=self.using) is None:",
        "tests/test_runner.py::TestAtomic",
    ),
    mutant(
        "authorisation",
        "the actor's permission is not asked for when the job runs",
        RUNNER,
        "        if task.permission:\n",
        "        if False:\n",
        "tests/test_runner.py::TestAuthorisation",
    ),
    mutant(
        "payload-args",
        "args that are no list reach the handler",
        "jobqueue/payload.py",
        "if type(read_args) is not list:",
        "if False:",
        "tests/test_payload.py::TestReading",
    ),
    mutant(
        "payload-kwargs",
        "kwargs that are no object reach the handler",
        "jobqueue/payload.py",
        "if type(read_kwargs) is not dict:",
        "if False:",
        "tests/test_payload.py::TestReading",
    ),
    mutant(
        "payload-version",
        "a payload of any version reaches the handler",
        RUNNER,
        "        if version == task.version:\n",
        "        if True:\n",
        "tests/test_runner.py::TestPayload",
    ),
    mutant(
        "payload-signature",
        "arguments that do not fit count as a failure of the handler",
        RUNNER,
        "if not _fits(task, args, kwargs):",
        "if False:",
        "tests/test_runner.py::TestPayload",
    ),
    mutant(
        "payload-unchecked",
        "what no database stores is not looked for at the call",
        "jobqueue/payload.py",
        "    check(value, name=name)\n    return _encode(value)",
        "    return _encode(value)",
        "tests/test_payload.py::TestRefused",
    ),
    mutant(
        "size-enqueue",
        "a payload of any size is enqueued",
        ENQUEUEING,
        '    payload.check_size(args_text, kwargs_text, name="args and kwargs")\n',
        "",
        "tests/test_enqueue.py::TestRefusal",
    ),
    mutant(
        "size-result",
        "a result of any size is kept",
        RUNNER,
        '        payload.check_size(text, name="the result")\n',
        "",
        "tests/test_runner.py::TestSuccess",
    ),
    mutant(
        "leaks",
        "a transaction that a handler left open stays open",
        RUNNER,
        "            leaked = drop_leaked(before)\n",
        "            pass\n",
        "tests/test_runner.py::TestLeftovers",
    ),
    mutant(
        "lease-start",
        "a handler is started though its lease has run out",
        "jobqueue/worker/executor.py",
        "if lease.lost or monotonic() >= lease.ends:",
        "if False:",
        "tests/test_cases.py::TestAStartThatComesTooLate",
    ),
    mutant(
        "heartbeat",
        "the heartbeat does not extend leases",
        "jobqueue/worker/heartbeat.py",
        "            self._extend.do()\n",
        "",
        "tests/test_worker_lease.py::TestALivingWorker",
    ),
    mutant(
        "drain-release",
        "a drain keeps what no thread has started",
        LOOP,
        "            self.claimer.release_waiting()\n",
        "            pass\n",
        "tests/test_worker_drain.py::TestTheFirstSignal",
    ),
    mutant(
        "drain-give-up",
        "a worker that must go keeps its leases",
        LOOP,
        "            if claims:\n",
        "            if False:\n",
        "tests/test_worker_drain.py::TestGivingUp",
    ),
    mutant(
        "caution",
        "a job that may be a killer runs among others",
        "jobqueue/worker/caution.py",
        "if min(claim.losses, ALONE) <= self.level]",
        "]",
        "tests/test_worker_caution.py::TestAdmitting",
    ),
    mutant(
        "refused-outcome",
        "an outcome that the database refuses is given up whole",
        "jobqueue/worker/settler.py",
        "            lifecycle.settle([bare], using=self.using, again=True)\n",
        "            pass\n",
        "tests/test_worker_units.py::TestSettler",
    ),
)

# The constraints of the database: out of the models and out of the migration.

MODELS = "jobqueue/models/jobs.py"
MIGRATION = "jobqueue/migrations/0002_storage.py"  # the one after that which makes them
_CHECKS = {
    "jobqueue_claimed_iff_leased": (
        "            models.CheckConstraint(\n"
        "                condition=(_CLAIMED & _LEASED) | (~_CLAIMED & _NOT_LEASED),\n"
        '                name="jobqueue_claimed_iff_leased",\n'
        "            ),\n"
    ),
    "jobqueue_finished_iff_finished_at": (
        "            models.CheckConstraint(\n"
        "                condition=Q(status__in=FINISHED, finished_at__isnull=False)\n"
        "                | (~Q(status__in=FINISHED) & Q(finished_at__isnull=True)),\n"
        '                name="jobqueue_finished_iff_finished_at",\n'
        "            ),\n"
    ),
    "jobqueue_status_is_known": (
        "            models.CheckConstraint(\n"
        '                condition=Q(status__in=Status.values), name="jobqueue_status_is_known"\n'
        "            ),\n"
    ),
    "jobqueue_nothing_retries_for_ever": (
        "            models.CheckConstraint(\n"
        '                condition=Q(attempts__lt=F("max_attempts"))\n'
        "                | (\n"
        "                    ~Q(status__in=(Status.PENDING, Status.SCHEDULED))\n"
        '                    & Q(attempts__lte=F("max_attempts"))\n'
        "                ),\n"
        '                name="jobqueue_nothing_retries_for_ever",\n'
        "            ),\n"
    ),
    "jobqueue_priority_in_range": (
        "            models.CheckConstraint(\n"
        "                condition=Q(priority__gte=MIN_PRIORITY, priority__lte=MAX_PRIORITY),\n"
        '                name="jobqueue_priority_in_range",\n'
        "            ),\n"
    ),
    "jobqueue_attempt_recorded_once": (
        "            models.UniqueConstraint(\n"
        '                fields=["job", "number"], name="jobqueue_attempt_recorded_once"\n'
        "            ),\n"
    ),
}
_NEXT = "operations = [migrations.RunPython(set_storage, reset_storage)]"


def _without(name: str, old: str, database: str) -> Mutant:
    model = "Attempt" if name == "jobqueue_attempt_recorded_once" else "Job"
    removal = f"operations = [migrations.RemoveConstraint({model!r}, {name!r})]"
    return Mutant(
        f"{name.removeprefix('jobqueue_')}-{database}",
        f"the database does without `{name}`",
        (Edit(MODELS, old, ""), Edit(MIGRATION, _NEXT, removal)),
        CONSTRAINTS,
        database,
    )


_CONSTRAINTS = tuple(
    _without(name, old, database)
    for database in ("postgresql", "sqlite")
    for name, old in _CHECKS.items()
)

MUTANTS = (*_FENCES, *_LOCKS, *_TIMES, *_ORM, *_CODE, *_CONSTRAINTS)
