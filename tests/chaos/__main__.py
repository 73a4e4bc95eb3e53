"""The soak, and any other run: ``python -m tests.chaos --minutes 60 --rate 150 --seed 7``."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from tests.chaos import cluster
from tests.chaos.faults import ON_DATABASE, ON_PROCESSES
from tests.chaos.plan import Plan
from tests.chaos.run import perform


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    add = parser.add_argument
    add("--minutes", type=float, default=3.0, help="how long things go wrong")
    add("--rate", type=float, default=50.0, help="jobs enqueued in a second")
    add("--seed", type=int, help="deals the same faults in the same order again")
    add("--every", type=float, default=3.5, help="seconds from one fault to the next, on average")
    kinds = sorted(fault.__name__ for fault in (*ON_PROCESSES, *ON_DATABASE))
    add("--only", action="append", default=[], choices=kinds, help="this kind of fault")
    add("--witness", action="store_true", help="a worker more that nobody kills, to be measured")
    add("--killers", type=float, default=3.0, help="jobs in a minute that kill their process")
    add("--json", type=Path, help="where to write the figures")
    add("--keep", action="store_true", help="keep the evidence even if all is well")
    return parser.parse_args()


def _plan(options: argparse.Namespace) -> Plan:
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    return Plan.of(
        folder=Path(tempfile.mkdtemp(prefix="chaos-")).resolve(),
        seed=seed,
        seconds=options.minutes * 60,
        rate=options.rate,
        pauses=(options.every * 0.5, options.every * 1.5),
        only=tuple(options.only),
        has_witness=options.witness,
        killers_per_minute=options.killers,
    )


def main() -> int:
    """Run, print, and return 0 if no check found anything."""
    if reason := cluster.unavailable():
        sys.exit(f"cannot run here: {reason}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # processes are cleaned up on the way
    options = _options()
    plan = _plan(options)
    result = perform(plan, lambda line: print(line, flush=True))
    print(result)
    if options.json:
        told = {"passed": result.has_passed, "figures": result.figures, "found": result.found}
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    if result.has_passed and not options.keep:
        shutil.rmtree(plan.folder)
    else:
        print(f"the evidence is in {plan.folder}")
    return 0 if result.has_passed else 1


if __name__ == "__main__":
    sys.exit(main())
