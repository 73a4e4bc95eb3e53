"""A small picture of how often something happened of late."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

#: Of one bar with the gap beside it, and of the whole picture, in pixels.
STEP, HEIGHT = 5, 24


def sparkline(counts: Sequence[int], title: str) -> SafeString:
    """Return bars for counts, the oldest first, over a line; the title says what they are."""
    most = max(counts, default=0) or 1
    bars = (
        (place * STEP, HEIGHT - 1 - height, STEP - 1, height)
        for place, count in enumerate(counts)
        if (height := -(-count * (HEIGHT - 2) // most))  # what is there at all can be seen
    )
    width = max(len(counts), 1) * STEP
    return format_html(
        '<svg class="jobqueue-sparkline" role="img" width="{0}" height="{1}" viewBox="0 0 {0} {1}">'
        '<title>{2}</title>{3}<rect class="jobqueue-baseline" x="0" y="{4}" width="{0}" height="1">'
        "</rect></svg>",
        width,
        HEIGHT,
        title,
        format_html_join("", '<rect x="{}" y="{}" width="{}" height="{}"></rect>', bars),
        HEIGHT - 1,
    )
