"""Keep jobs that may be what kills their workers away from other jobs."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from jobqueue.claims import Claim

#: How many losses in a row call for which care: none waiting behind the job, or nothing beside it.
WITHOUT_WAITING, ALONE = 1, 2
#: For so long a worker waits to have nothing else in hand, and for so long it then leaves the job
#: alone, in seconds: what kills usually kills soon, and other work must go on.
PATIENCE = 5.0


class Caution:
    """How careful a worker claims.

    A worker that dies takes down all that it holds, and each of those jobs loses an attempt. Its
    killer among them comes back in the same company, so without care it would use up the attempts
    of all the others before its own are spent.
    """

    def __init__(self) -> None:
        self.level = 0
        self._alone_until = 0.0

    @property
    def wants_to_be_alone(self) -> bool:
        """Whether to claim nothing while there is anything in hand."""
        return self.level == ALONE and monotonic() < self._alone_until

    def admit(self, claims: Sequence[Claim]) -> list[Claim]:
        """Return the claims that were taken with enough care; the others go back, to be taken so.

        The level follows the worst of what was claimed.
        """
        admitted = [claim for claim in claims if min(claim.losses, ALONE) <= self.level]
        self.level = min(max((claim.losses for claim in claims), default=0), ALONE)
        self._alone_until = monotonic() + PATIENCE
        return admitted
