"""What came of a run, as a table for people and as JSON for everybody else."""

from __future__ import annotations

import subprocess
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from statistics import linear_regression, median
from typing import Any

import psycopg

from demo_project.database import CHECKOUT
from tests.chaos import duplicates, oracle
from tests.chaos.evidence import Evidence
from tests.chaos.plan import Plan
from tests.chaos.sampler import Sample

#: What a young process learns does not count as growth, in seconds, nor what less than this shows.
WARM_UP = 600.0
MIB = 1024 * 1024


def figures(plan: Plan, evidence: Evidence, samples: list[Sample]) -> dict[str, Any]:
    """Return everything that was counted and measured."""
    results = Counter(submit.result for submit in evidence.submits.values())
    reasons = Counter(found.reason for found in duplicates.explain(evidence))
    retried = reasons.pop("failed", 0)
    unexplained = reasons.pop("", 0)
    return {
        "seed": plan.seed,
        "jobs wanted": len(evidence.submits),
        "jobs ok": results["ok"],
        "jobs refused": results["fail"],
        "jobs unknown": results["info"],
        "jobs there": len(evidence.jobs),
        "executions": sum(map(len, evidence.runs.values())),
        "faults": len(evidence.happenings),
        "faults by kind": dict(Counter(each.kind for each in evidence.happenings).most_common()),
        "stalls": dict(Counter(f"{each.kind} {each.target}" for each in evidence.stalls)),
        "processes that ended": len(evidence.deaths),
        "outcomes": dict(Counter(_outcomes(evidence)).most_common()),
        "dead letters": dict(Counter(job.reason for job in oracle.dead_letters(evidence))),
        "recovered": oracle.recovered(evidence),
        "retried after a failure": retried,
        "duplicates explained": reasons.total(),
        "duplicates by cause": dict(reasons.most_common()),
        "duplicates unexplained": unexplained,
        **_recoveries(evidence),
        **_resources(samples),
    }


def commit() -> str:
    """Return which state of the code ran."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=CHECKOUT,
        check=False,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or "unknown"


def server(connection: psycopg.Connection[Any]) -> dict[str, str]:
    """Return the server's version, and the settings on which the promises rest."""
    names = ["server_version", "fsync", "synchronous_commit", "full_page_writes", "autovacuum"]
    rows = connection.execute(
        "SELECT name, setting FROM pg_settings WHERE name = ANY (%s)", [names]
    ).fetchall()
    return {name: str(value) for name, value in sorted(rows)}


def _outcomes(evidence: Evidence) -> Iterator[str]:
    return (each.outcome for attempts in evidence.attempts.values() for each in attempts)


def _recoveries(evidence: Evidence) -> dict[str, Any]:
    """Return how soon lost jobs were begun again, and anything at all after each fault."""
    gaps = [
        after.started - before.finished
        for attempts in evidence.attempts.values()
        for before, after in pairwise(attempts)
        if before.outcome == "lost"
    ]
    starts = sorted(run.at for run in evidence.all_runs())
    worst: dict[str, float] = {}
    for happening in evidence.happenings:
        over = happening.until or happening.at
        place = bisect_left(starts, over)
        if place < len(starts):
            worst[happening.kind] = max(worst.get(happening.kind, 0.0), starts[place] - over)
    return {
        "lost to restarted, median s": round(median(gaps), 2) if gaps else None,
        "lost to restarted, most s": round(max(gaps), 2) if gaps else None,
        "fault's end to the next start, most s": {
            kind: round(seconds, 2) for kind, seconds in sorted(worst.items())
        },
    }


def _resources(samples: list[Sample]) -> dict[str, Any]:
    known = [each for each in samples if each.connections is not None]
    warm = [each for each in known if each.at >= known[0].at + WARM_UP] or known
    return {
        **_growth(samples),
        "connections, most": _most(known, "connections"),
        # Only warm: a small table with a few dead rows has a large share of them.
        "dead tuples, most": _most(warm, "dead_tuples"),
        "dead tuples, median": _median(warm, "dead_tuples"),
        "jobs and their indexes, most MiB": _most(known, "jobs_size", MIB),
        "index of pending jobs, most MiB": _most(known, "pending_index_size", MIB),
        "pending, most": _most(known, "pending"),
        "pending, median": _median(known, "pending"),
        "samples": len(samples),
    }


def _values(samples: list[Sample], name: str) -> list[float]:
    return [value for sample in samples if (value := getattr(sample, name)) is not None]


def _most(samples: list[Sample], name: str, unit: int = 1) -> float | None:
    values = _values(samples, name)
    return round(max(values) / unit, 3) if values else None


def _median(samples: list[Sample], name: str) -> float | None:
    values = _values(samples, name)
    return round(median(values), 3) if values else None


def _growth(samples: list[Sample]) -> dict[str, Any]:
    """Return what the process that lived longest took up, and by how much that grew."""
    lives = Counter(name for sample in samples for name in sample.resident)
    if not lives:
        return {}
    name = lives.most_common(1)[0][0]
    own = [sample for sample in samples if name in sample.resident]
    files = [sample.files[name] for sample in own if name in sample.files]
    sizes = [sample.resident[name] / MIB for sample in own]
    return {
        "longest life": f"{name}, {own[-1].at - own[0].at:.0f} s",
        "its memory, MiB": f"{sizes[0]:.1f} at first, {sizes[-1]:.1f} at last",
        "its memory's slope, MiB/h": _slope(own, name),
        "its open files": f"{max(files)} at most, {files[-1]} at last" if files else None,
    }


def _slope(own: list[Sample], name: str) -> float | None:
    warm = [sample for sample in own if sample.at >= own[0].at + WARM_UP]
    if len(warm) < 2:
        return None
    hours = [sample.at / 3600 for sample in warm]
    return round(linear_regression(hours, [each.resident[name] / MIB for each in warm]).slope, 2)


def lines(counted: dict[str, Any], found: dict[str, list[str]]) -> Iterator[str]:
    """Give the table, and what was found to be wrong."""
    for name, value in counted.items():
        parts = value.items() if isinstance(value, dict) else ()
        text = ", ".join(f"{key} {n}" for key, n in parts) or "none"
        yield f"{name:<40} {text if isinstance(value, dict) else value}"
    yield ""
    for check, sentences in found.items():
        yield f"{check.replace('_', ' '):<40} {len(sentences)}"
    for check, sentences in found.items():
        yield from (f"  {check}: {sentence}" for sentence in sentences[:MOST])


#: How many sentences of each check are printed.
MOST = 10
