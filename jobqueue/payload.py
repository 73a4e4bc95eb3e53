"""What may be enqueued: strict JSON within limits, the same on every database.

Accepted is what JSON gives back unchanged: str, int, float, bool, None, list and dict with string
keys. Everything else is refused by name, because a database would store it as something else or
refuse it inside the caller's transaction.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from jobqueue import conf
from jobqueue.exceptions import InvalidPayload, InvalidPayloadType

MAX_DEPTH = 64
MAX_INTEGER = 2**63 - 1
MIN_INTEGER = -(2**63)
MAX_FLOAT = 1e16  # from here on PostgreSQL's jsonb gives floats back as integers

#: Code points that PostgreSQL stores in neither text nor jsonb: NUL and lone surrogates.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_SCALARS = frozenset({str, int, float, bool, type(None)})
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode

#: Where a value stands: the name of the whole, or the place of its container and its key there.
_Place = str | tuple[Any, str | int]


def dumps(value: Any, *, name: str) -> str:
    """Return ``value`` as JSON text, or raise InvalidPayload with the path of what is wrong.

    ``name`` stands for the value in messages: ``args``, ``kwargs`` or ``result``.
    """
    if _is_list_of_keys(value):
        return str(value)
    check(value, name=name)
    return _encode(value)


def _is_list_of_keys(value: Any) -> bool:
    """Whether ``value`` is what most payloads are: whole numbers, which Python writes as JSON."""
    if type(value) is not list:
        return False
    for item in value:
        if type(item) is not int or not MIN_INTEGER <= item <= MAX_INTEGER:
            return False
    return True


def check(value: Any, *, name: str) -> None:
    """Raise InvalidPayload unless JSON and every database give ``value`` back unchanged."""
    todo: list[tuple[Any, _Place, int]] = [(value, name, 0)]
    while todo:
        item, place, depth = todo.pop()
        kind = type(item)
        if kind is list or kind is dict:
            if depth >= MAX_DEPTH:
                raise InvalidPayload(f"{name} is nested more than {MAX_DEPTH} levels deep")
            todo.extend(_children(item, place, depth + 1))
        elif kind in _SCALARS:
            _check_scalar(item, place)
        else:
            raise InvalidPayloadType(f"{_path(place)} is a {_type_name(item)}; {_advice(item)}")


def _children(item: Any, place: _Place, depth: int) -> list[tuple[Any, _Place, int]]:
    if type(item) is list:
        return [(value, (place, index), depth) for index, value in enumerate(item)]
    for key in item:
        if type(key) is not str:
            raise InvalidPayloadType(f"{_path(place)} has the key {key!r}; keys must be strings")
        if _is_unstorable(key):
            _refuse_text(key, f"a key of {_path(place)}")
    return [(value, (place, key), depth) for key, value in item.items()]


def _path(place: _Place) -> str:
    """Write out a place as one would in Python; only for messages, since it takes its time."""
    keys = []
    while isinstance(place, tuple):
        place, key = place
        keys.append(f"[{key!r}]")
    return place + "".join(reversed(keys))


def _check_scalar(value: Any, place: _Place) -> None:
    kind = type(value)
    if kind is str:
        if _is_unstorable(value):
            _refuse_text(value, _path(place))
    elif kind is int and not MIN_INTEGER <= value <= MAX_INTEGER:
        raise InvalidPayload(f"{_path(place)} is an integer beyond 64 bits; pass it as a string")
    elif kind is float and not abs(value) < MAX_FLOAT:
        if not math.isfinite(value):
            raise InvalidPayload(f"{_path(place)} is {value}; JSON has no such number")
        raise InvalidPayload(f"{_path(place)} is a float of 1e16 or more; pass it as a string")


def _is_unstorable(text: str) -> bool:
    return (not text.isascii() or "\0" in text) and _UNSTORABLE.search(text) is not None


def _refuse_text(text: str, path: str) -> None:
    what = "a NUL character" if "\0" in text else "a lone surrogate"
    raise InvalidPayload(f"{path} holds {what}, which PostgreSQL cannot store")


def check_size(*texts: str, name: str) -> None:
    """Raise InvalidPayload when the JSON texts together exceed MAX_PAYLOAD_BYTES."""
    limit = conf.get().MAX_PAYLOAD_BYTES
    if 4 * sum(map(len, texts)) <= limit:
        return
    size = sum(len(text.encode()) for text in texts)
    if size > limit:
        raise InvalidPayload(
            f"{name} take {size:,} bytes as JSON, more than the {limit:,} of MAX_PAYLOAD_BYTES; "
            "store the data and pass its key"
        )


def loads(args: str | list[Any], kwargs: str | dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Read a stored payload as untrusted input; raise InvalidPayload for anything malformed.

    A row may have been put in by SQL, so it may hold what :func:`dumps` would have refused.
    """
    try:
        read_args = _decode(args) if isinstance(args, str) else args
        read_kwargs = _decode(kwargs) if isinstance(kwargs, str) else kwargs
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(f"the payload cannot be read: {error}") from error
    if type(read_args) is not list:
        raise InvalidPayload(f"args is a {_type_name(read_args)}, not a list")
    if type(read_kwargs) is not dict:
        raise InvalidPayload(f"kwargs is a {_type_name(read_kwargs)}, not an object")
    return read_args, read_kwargs


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _advice(value: Any) -> str:
    if hasattr(value, "_meta") and hasattr(value, "pk"):
        return "pass its primary key and load it in the task"
    if isinstance(value, tuple | set | frozenset):
        return "pass a list"
    if isinstance(value, str | int | float):
        return "pass a plain str, int or float"
    return "pass a str, int, float, bool, None, list or dict (a date or UUID as its str)"


def clean_text(text: str, *, limit: int) -> str:
    """Return ``text`` with what no database stores made visible, cut to ``limit`` characters."""
    if not text.isascii() or "\0" in text:
        text = _UNSTORABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return text if len(text) <= limit else text[: limit - 1] + "\N{HORIZONTAL ELLIPSIS}"
