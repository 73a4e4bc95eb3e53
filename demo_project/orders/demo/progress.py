"""One line that lives while the demo works; plain lines where nobody watches a terminal."""

from __future__ import annotations

import shutil
import time

from django.core.management.base import OutputWrapper

CLEAR = "\r\x1b[K"
PLAIN_INTERVAL = 3.0  # seconds


class Progress:
    """Shows how far it is, and says what happens."""

    def __init__(self, stream: OutputWrapper) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._shown_at = float("-inf")

    def show(self, text: str) -> None:
        """Replace the line; without a terminal, print one every few seconds."""
        now = time.monotonic()
        if text == self._shown or (not self._is_terminal and now < self._shown_at + PLAIN_INTERVAL):
            return
        self._shown, self._shown_at = text, now
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._write(f"{CLEAR}{text[:width]}", end="")
        else:
            self._write(text)

    def say(self, text: str = "") -> None:
        """Print a line that stays."""
        self.clear()
        self._write(text)

    def clear(self) -> None:
        """Take the living line away."""
        if self._is_terminal and self._shown:
            self._write(CLEAR, end="")
            self._shown = ""

    def _write(self, text: str, end: str = "\n") -> None:
        self._stream.write(text, ending=end)
        self._stream.flush()
