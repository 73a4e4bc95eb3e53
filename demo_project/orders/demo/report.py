"""The end of a run: a table of what happened, the proofs, and a verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from demo_project.orders.demo import proofs
from demo_project.orders.demo.evidence import End, Evidence
from jobqueue.models import Attempt
from jobqueue.states import Outcome, Reason, Status

MOST_SHOWN = 5  # contradictions of one proof
LABEL = 25  # characters


def conclude(evidence: Evidence, stream: TextIO) -> int:
    """Print the table and the proofs; return how many proofs are violated."""
    stream.write("\n")
    stream.writelines(f"{label:<{LABEL}}{text}\n" for label, text in table(evidence))
    stream.write("\n")
    return sum([not _print_proof(proof, evidence, stream) for proof in proofs.PROOFS])


def _print_proof(proof: proofs.Proof, evidence: Evidence, stream: TextIO) -> bool:
    contradictions = list(proof(evidence))
    verdict = "VIOLATED" if contradictions else "ok"
    stream.write(f"{verdict:<10}{(proof.__doc__ or '').strip()}\n")
    stream.writelines(f"{'':<10}- {each}\n" for each in contradictions[:MOST_SHOWN])
    if len(contradictions) > MOST_SHOWN:
        stream.write(f"{'':<10}- and {len(contradictions) - MOST_SHOWN} more\n")
    return not contradictions


def table(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Return the lines of the table: what is counted, and the counts."""
    attempts = [attempt for each in evidence.attempts.values() for attempt in each]
    yield "orders", f"{len(evidence.placed)} placed, {len(evidence.refused)} rolled back"
    states = [*_labels(Status, (job.status for job in evidence.jobs.values()))]
    yield "jobs", _counted([*states, *["dead letters"] * len(evidence.dead)])
    yield "attempts by outcome", _counted(_labels(Outcome, (each.outcome for each in attempts)))
    reasons = (letter.reason for letter in evidence.dead.values())
    yield "dead letters by reason", _counted(_labels(Reason, reasons))
    yield "rescued leases", str(sum(each.outcome == Outcome.LOST for each in attempts))
    yield "refused late outcomes", str(len(evidence.late_outcomes))
    yield "webhook requests", _counted(_answers(evidence))
    yield "done twice, and why", _counted(_causes(evidence))
    yield "worker processes", _counted(map(_end, evidence.ends))


def _counted(items: Iterable[str]) -> str:
    counts = Counter(items)
    return ", ".join(f"{count} {item}" for item, count in counts.most_common()) or "none"


def _labels(choices: Any, values: Iterable[str]) -> Iterator[str]:
    return (str(choices(value).label) for value in values)


def _answers(evidence: Evidence) -> Iterator[str]:
    for request in evidence.requests:
        yield f"answered {request['answer']}" if request["answer"] else "never answered"


def _end(end: End) -> str:
    return f"exit code {end.code}" if end.code >= 0 else f"killed by signal {-end.code}"


def _causes(evidence: Evidence) -> Iterator[str]:
    for pk, extra in proofs.duplicates(evidence).items():
        for attempt in proofs.explanations(evidence.attempts[pk])[-extra:]:
            yield f"{attempt.task} ({_cause(attempt)})"


def _cause(attempt: Attempt) -> str:
    if attempt.outcome == Outcome.LOST:
        return "its worker was lost before it could say so"
    return "the answer did not arrive in time"
