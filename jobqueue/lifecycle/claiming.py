"""Claim: take jobs under a lease, and keep the lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

from jobqueue import failpoints, registry
from jobqueue.claims import Claim, Lease, Turn
from jobqueue.lifecycle.alias import store


@failpoints.around
def claim(
    turns: Sequence[Turn], *, worker: str, lease: timedelta, using: str | None = None
) -> list[Claim]:
    """Take pending jobs for ``worker`` from each queue in turn, a lease and an attempt each.

    ``lease`` is for tasks that set none of their own. The jobs come in the order of the turns, and
    within a turn the best first.
    """
    claims = store(using).claim(
        turns, worker=worker, lease=lease.total_seconds(), leases=registry.leases()
    )
    if len(turns) > 1:
        places = {turn.queue_name: place for place, turn in enumerate(turns)}
        claims.sort(key=lambda claim: places[claim.queue_name])
    return claims


@failpoints.around
def extend(leases: Sequence[Lease], *, using: str | None = None) -> None:
    """Let each lease run its span from now; mark those lost, and those asked to be cancelled.

    A lease counts from before the statement is sent, so that the worker never believes in it for
    longer than the database does.
    """
    sent = monotonic()
    extended = store(using).extend(leases)
    skipped = [lease for lease in leases if lease.claim.key not in extended]
    held = store(using).held(skipped) if skipped else {}
    for lease in leases:
        key = lease.claim.key
        if key in extended:
            lease.ends = sent + lease.span
        lease.lost = key not in extended and key not in held
        lease.cancel_requested = extended.get(key) or held.get(key, False)
