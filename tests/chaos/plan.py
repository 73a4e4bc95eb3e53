"""What one run does: how long, how fast, with what and how much of it goes wrong."""

from __future__ import annotations

import json
import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

#: How jobs behave. Plain and slow ones work. Flaky ones fail at their first attempt, hopeless ones
#: at every one, killers kill their process. Atomic ones write a row with their acknowledgement.
KINDS = ("plain", "slow", "flaky", "hopeless", "killer", "atomic")
#: What never succeeds, and so has to end as a dead letter.
POISON = ("hopeless", "killer")
#: How often each is tried. So many losses in a row are no bad luck any more.
MAX_ATTEMPTS = {"hopeless": 3, "killer": 3}
USUAL_ATTEMPTS = 12
#: Killers have a queue of their own, so that a worker can be spared them.
KILLERS = "killers"


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run; spans are in seconds, shares are parts of all jobs."""

    folder: Path
    seed: int
    seconds: float
    rate: float
    workers: int = 3
    producers: int = 2
    concurrency: int = 4
    lease: float = 3.0
    #: The least and the most between two faults.
    pauses: tuple[float, float] = (2.0, 5.0)
    #: How often the nemesis does nothing.
    idle: float = 0.25
    #: The kinds of faults; none: all.
    only: tuple[str, ...] = ()
    #: A worker more that only the database's faults reach, to watch its memory.
    has_witness: bool = False
    slow: float = 0.02
    flaky: float = 0.02
    hopeless: float = 0.005
    atomic: float = 0.1
    killers_per_minute: float = 3.0
    #: How long everything may take to drain, and what is drained in a second on top of that.
    patience: float = 60.0
    drain_rate: float = 30.0

    @classmethod
    def of(cls, *, rate: float, **more: Any) -> Self:
        """Return the plan of a run, with as many producers and slow jobs as suit the rate."""
        # A producer waits for the disk three times a job, and threads for slow jobs are few.
        producers = max(2, math.ceil(rate / 40))
        return cls(rate=rate, producers=producers, slow=min(0.02, 1 / rate), **more)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what :meth:`save` wrote."""
        given = json.loads(path.read_text())
        read = {"folder": Path, "pauses": tuple, "only": tuple}
        return cls(**{key: read.get(key, _as_it_is)(value) for key, value in given.items()})

    def save(self, path: Path) -> None:
        """Write the plan for other processes."""
        path.write_text(json.dumps({**asdict(self), "folder": str(self.folder)}))

    def kind(self, chance: random.Random) -> str:
        """Return how the next job shall behave."""
        shares = {
            "slow": self.slow,
            "flaky": self.flaky,
            "hopeless": self.hopeless,
            "atomic": self.atomic,
            "killer": self.killers_per_minute / 60 / self.rate,
        }
        rest = max(1 - sum(shares.values()), 0)
        return chance.choices([*shares, "plain"], [*shares.values(), rest])[0]
