"""How much is measured, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, kw_only=True)
class Scale:
    """The numbers that the command line sets."""

    #: Jobs in one drain or one bulk enqueue.
    jobs: int = 20_000
    #: Jobs that only lie in the table: pending behind, kept, or scheduled.
    rows: int = 100_000
    #: Dead letters that lie beside them, for the admin.
    dead: int = 1_000
    #: Jobs that pass under an open snapshot.
    passing: int = 40_000
    #: Jobs handed over one at a time, to see how long each waits.
    samples: int = 60
    #: How long an idle worker is watched, and how long each turn of the producers takes, is a
    #: multiple of this.
    seconds: float = 2.0
    producers: int = 8
    rounds: int = 3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"--{name} must be more than 0, not {value}")


BIG = Scale(
    jobs=50_000, rows=1_000_000, dead=10_000, passing=200_000, samples=200, seconds=3.0, rounds=5
)


def take_turns(ways: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the median of what each way measures.

    The ways take turns, so that a slow moment of the machine falls on all of them.
    """
    measured: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            measured[name].append(measure())
    return {name: median(values) for name, values in measured.items()}
