"""Turn an exception into text that every database can store, whatever the exception does."""

from __future__ import annotations

import hashlib
import linecache
import re
import traceback
from collections.abc import Iterator
from types import TracebackType

from jobqueue.claims import Failure
from jobqueue.payload import clean_text

MAX_MESSAGE = 4 * 1024
MAX_TRACEBACK = 64 * 1024
MAX_FRAMES = 50
MAX_CLASS = 200

# What differs between two occurrences of one fault: numbers, hexadecimal ids, quoted values.
_VARIABLE = re.compile(
    r"0x[0-9a-f]+|[0-9a-f]{8,}|\d+|'[^']{0,200}'|\"[^\"]{0,200}\"", re.IGNORECASE
)


def describe(error: BaseException) -> Failure:
    """Describe an exception: class, message, bounded traceback and fingerprint.

    Occurrences with one fingerprint have the class, the place it was raised at and, numbers and
    quoted values aside, the message in common.
    """
    kind = type(error)
    name = clean_text(f"{kind.__module__}.{kind.__qualname__}", limit=MAX_CLASS)
    name = name.removeprefix("builtins.")
    message = _message(error)
    return Failure(name, message, _traceback(error), _fingerprint(name, message, error))


def _message(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as second:  # noqa: BLE001 - __str__ is somebody's code, too
        text = f"(its message cannot be shown: __str__ raised {type(second).__name__})"
    return clean_text(text, limit=MAX_MESSAGE)


def _traceback(error: BaseException) -> str:
    tb = _from_handler(error.__traceback__)
    try:
        text = "".join(_formatted(error, tb))
    except BaseException:  # noqa: BLE001 - a cause or a note may be as broken as the error
        text = "".join(traceback.format_tb(tb, limit=-MAX_FRAMES))
    return clean_text(text[-MAX_TRACEBACK:], limit=MAX_TRACEBACK)


def _formatted(error: BaseException, tb: TracebackType | None) -> Iterator[str]:
    """Format without the carets under each line: to find their place, Python parses the line."""
    if not _stands_alone(error):
        told = traceback.TracebackException(type(error), error, tb, limit=-MAX_FRAMES)
        for frame in told.stack:
            frame.colno = None
        yield from told.format()
        return
    # The same for a third of the time: a queue's worst hour is when everything fails.
    yield "Traceback (most recent call last):\n"
    yield from _stack(tb).format()
    yield from traceback.TracebackException(type(error), error, None).format_exception_only()


def _stands_alone(error: BaseException) -> bool:
    context = None if error.__suppress_context__ else error.__context__
    return (error.__cause__ or context) is None and not isinstance(error, BaseExceptionGroup)


def _stack(tb: TracebackType | None) -> traceback.StackSummary:
    frames = []
    for frame, line in list(traceback.walk_tb(tb))[-MAX_FRAMES:]:
        code = frame.f_code
        linecache.lazycache(code.co_filename, frame.f_globals)
        frames.append(
            traceback.FrameSummary(code.co_filename, line, code.co_name, lookup_line=False)
        )
    return traceback.StackSummary.from_list(frames)


def _from_handler(tb: TracebackType | None) -> TracebackType | None:
    """Leave out the frames of this package that lead to the handler, if there is a handler."""
    start = tb
    while start is not None and start.tb_frame.f_globals.get("__package__") == __package__:
        start = start.tb_next
    return start or tb


def _fingerprint(name: str, message: str, error: BaseException) -> str:
    place = _place(error.__traceback__)
    parts = (name, place, _VARIABLE.sub("?", message[:1000]))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _place(tb: TracebackType | None) -> str:
    """Return the file and function that raised; lines move with every edit, so none is named."""
    if tb is None:
        return ""
    while tb.tb_next is not None:
        tb = tb.tb_next
    code = tb.tb_frame.f_code
    return (
        f"{code.co_filename}:{code.co_qualname if hasattr(code, 'co_qualname') else code.co_name}"
    )
