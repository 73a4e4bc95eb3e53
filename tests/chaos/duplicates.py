"""Why a job ran again: every execution that was not the last one needs a cause."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from tests.chaos.evidence import Attempt, Evidence, Run
from tests.chaos.faults import DATABASE_KINDS
from tests.chaos.nemesis import Happening

#: What a fault did to sessions and leases may show so much later, in seconds.
LINGERS = 2.0
#: For so long a thread trusts a connection without trying it, see jobqueue.worker.connections.
TRUSTED = 5.0 + LINGERS
#: What ends a handler's own transaction; any other failure of an atomic one is unexplained.
OF_THE_DATABASE = (
    "DatabaseError",
    "InterfaceError",
    "InternalError",
    "LeaseLost",
    "OperationalError",
)


class Again(NamedTuple):
    """An execution after which there was another; without a reason if none was found."""

    run: Run
    again: Run
    outcome: str
    reason: str


def explain(evidence: Evidence) -> Iterator[Again]:
    """Find all executions that were followed by others, with the reason for each."""
    causes = _Causes(evidence)
    for job_id, runs in evidence.runs.items():
        if len(runs) < 2:
            continue
        attempts = {attempt.fence: attempt for attempt in evidence.attempts.get(job_id, [])}
        for run, again in pairwise(runs):
            attempt = attempts.get(run.fence)
            outcome = attempt.outcome if attempt else "unrecorded"
            reason = causes.reason(run, again, attempt) if attempt else ""
            yield Again(run, again, outcome, reason)


class _Causes:
    def __init__(self, evidence: Evidence) -> None:
        self.submits = evidence.submits
        self.deaths = {death.name: death for death in evidence.deaths}
        happenings = evidence.happenings
        self.stops = [each for each in happenings if each.kind == "stop_worker"]
        self.terms = [each for each in happenings if each.kind == "terminate_worker"]
        self.cuts = [each for each in happenings if each.kind in ("cut_worker", "eat_connections")]
        self.stalls = evidence.stalls
        self.outages = [each for each in happenings if each.kind in DATABASE_KINDS]

    def reason(self, run: Run, again: Run, attempt: Attempt) -> str:
        if attempt.outcome == "failed":
            return self._of_failure(run, attempt, again)
        if attempt.outcome == "interrupted":
            return "hurried" if _find(self.terms, run, again, target=run.worker) else ""
        return self._of_loss(run, again) if attempt.outcome == "lost" else ""

    def _of_failure(self, run: Run, attempt: Attempt, again: Run) -> str:
        kind = self.submits[run.key].kind
        if kind == "hopeless" or (kind == "flaky" and run.attempt == 1):
            return "failed"
        if kind == "atomic" and attempt.error.rpartition(".")[2] in OF_THE_DATABASE:
            return "its transaction" if self._of_loss(run, again, lingers=TRUSTED) else ""
        return ""

    def _of_loss(self, run: Run, again: Run, *, lingers: float = LINGERS) -> str:
        death = self.deaths.get(run.worker)
        if death and run.at <= death.at and death.seen <= again.at:
            return "crash"
        if _find(self.stops, run, again, target=run.worker):
            return "stop"
        if _find(self.cuts, run, again, target=run.worker, lingers=lingers):
            return "cut off"
        if _find(self.outages, run, again, lingers=lingers):
            return "database"
        return "stall" if _find(self.stalls, run, again) else ""


def _find(
    happenings: list[Happening],
    run: Run,
    again: Run,
    *,
    target: str = "",
    lingers: float = LINGERS,
) -> bool:
    """Whether one of these fell between the two executions."""
    return any(
        each.at <= again.at and (each.until is None or run.at <= each.until + lingers)
        for each in happenings
        if not target or each.target == target
    )
