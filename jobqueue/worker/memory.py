"""How much memory this process uses."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

MEGABYTE = 1_000_000
#: The unit of ``ru_maxrss``: kilobytes but for macOS, see getrusage(2).
_UNIT = 1 if sys.platform == "darwin" else 1024


def resident() -> int | None:
    """Return the bytes of this process in memory; None where the system does not say.

    Where only the most that there ever was can be read (not on Linux), it is that.
    """
    with suppress(OSError):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return peak()


def peak() -> int | None:
    """Return the most bytes of this process that ever were in memory; None if unknown."""
    if resource is None:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT
