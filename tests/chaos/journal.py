"""Lines of JSON that outlive the process that wrote them: evidence that no database has touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: How much of a journal's end is looked at for its last lines, in bytes.
TAIL = 64 * 1024


class Journal:
    """A file of one process; each line is on the disk before the process goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: str, **fields: object) -> None:
        """Append a line with the time on the machine's monotonic clock, the same for all."""
        line = json.dumps({"event": event, "at": time.monotonic(), **fields})
        os.write(self._file, line.encode() + b"\n")
        os.fsync(self._file)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read(folder: Path, pattern: str) -> Iterator[dict[str, Any]]:
    """Give the lines of all journals of that name, but for a last one that was cut off."""
    for path in sorted(folder.glob(pattern)):
        with path.open() as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))


def last(path: Path, event: str) -> dict[str, Any] | None:
    """Return the last line of an event, if it is among the last lines of the journal."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - TAIL, 0))
        lines = file.read().split(b"\n")[1 if file.tell() > TAIL else 0 : -1]
    found = [line for line in map(json.loads, lines) if line["event"] == event]
    return found[-1] if found else None
