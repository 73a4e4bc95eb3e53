"""Keep jobs that may be what kills their workers away from other jobs."""

from __future__ import annotations

from collections.abc import Sequence

from jobqueue.claims import Claim

#: After one loss a job is run with none waiting behind it, after two with nothing else in hand.
WITHOUT_WAITING, ALONE = 1, 2


class Caution:
    """How careful a worker claims.

    A worker that dies takes down all that it holds, and each of those jobs loses an attempt. Its
    killer among them comes back in the same company, so without care it would use up the attempts
    of all the others before its own are spent.
    """

    def __init__(self) -> None:
        self.level = 0

    def admit(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims that were taken with enough care; the others go back, to be taken so.

        The level follows the worst of what was claimed.
        """
        admitted = [claim for claim in claims if min(claim.losses, ALONE) <= self.level]
        self.level = min(max((claim.losses for claim in claims), default=0), ALONE)
        return admitted
