"""Claim: take jobs under a lease, and keep the lease."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from time import monotonic

from jobqueue import registry
from jobqueue.claims import Claim, Floors, Lease
from jobqueue.lifecycle.alias import store


def claim(
    queue_name: str,
    *,
    worker: str,
    limit: int,
    lease: timedelta,
    floors: Floors | None = None,
    using: str | None = None,
) -> list[Claim]:
    """Take up to ``limit`` pending jobs of a queue for ``worker``, a lease and an attempt each.

    ``lease`` is for tasks that set none of their own. ``floors`` say where the last claim ended, to
    start from there: jobs below, and other priorities, are then left to a claim without floors.
    """
    return store(using).claim(
        queue_name,
        worker=worker,
        limit=limit,
        lease=lease.total_seconds(),
        leases=registry.leases(),
        floors=floors or {},
    )


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
