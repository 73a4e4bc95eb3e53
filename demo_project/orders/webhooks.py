"""Posting to another system's web address, with a bound on how long it may take."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Answer(NamedTuple):
    """What the other side said."""

    status: int
    retry_after: float | None  # seconds

    @property
    def is_success(self) -> bool:
        """Whether the other side has taken it."""
        return 200 <= self.status < 300


def post(url: str, content: dict[str, Any], *, key: str, timeout: float) -> Answer:
    """Post ``content`` as JSON; raise OSError or HTTPException when no answer comes.

    ``key`` lets the receiver drop what it already has: whoever got no answer has to ask again.
    Proxies and redirects are not followed.
    """
    parts = urlsplit(url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    try:
        connection.request("POST", parts.path or "/", json.dumps(content).encode(), headers)
        response = connection.getresponse()
        response.read()
        return Answer(response.status, retry_after(response.getheader("Retry-After")))
    finally:
        connection.close()


def retry_after(header: str | None) -> float | None:
    """Read a Retry-After header, a number of seconds or a date, as seconds from now."""
    if not header:
        return None
    if header.strip().isdigit():
        return float(header)
    try:
        then = parsedate_to_datetime(header)
    except ValueError:
        return None
    if then.tzinfo is None:
        return None
    return max((then - datetime.now(UTC)).total_seconds(), 0.0)


#: What :func:`post` raises when no answer comes.
NoAnswer = (OSError, HTTPException)
