"""Payloads on their way through a form: masks go out, and what they hid comes back unseen."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain, repeat
from typing import Any

from django.utils.translation import gettext as _

from jobqueue.admin import payloads
from jobqueue.admin.payloads import MASK

_MISSING = object()


class MaskLeft(ValueError):
    """A mask stands where nothing can be put in its place; the message says where."""


def read(text: str) -> Any:
    """Return what JSON text from a form holds; raise ValueError with a message for people."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError(_("It is nested too deeply.")) from None
    except json.JSONDecodeError as error:
        where = {"line": error.lineno, "column": error.colno, "what": error.msg}
        raise ValueError(
            _("This is not JSON: %(what)s, line %(line)s, column %(column)s.") % where
        ) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(_("JSON has no %(name)s.") % {"name": name})


def unmask(edited: Any, original: Any, *, names: Iterable[str] = (), where: str) -> Any:
    """Return the edited value with what the masks in it stand for.

    A mask stands for what the original has in the same place: under the same keys, or as the same
    argument. An item of any other list may have been moved, so a mask in it is understood only
    where the whole item is as it was shown. Raise MaskLeft for every other mask.
    """
    if isinstance(edited, dict):
        known = original if isinstance(original, dict) else {}
        return {
            key: _member(key, value, known.get(key, _MISSING), f"{where}[{key!r}]")
            for key, value in edited.items()
        }
    if isinstance(edited, list):
        known_items = original if isinstance(original, list) else []
        named = zip(chain(names, repeat("")), edited, strict=False)
        return [
            _argument(name, value, _at(known_items, place), f"{where}[{place}]")
            for place, (name, value) in enumerate(named)
        ]
    return _no_mask(edited, where)


def _member(key: str, value: Any, original: Any, where: str) -> Any:
    if value == MASK and original is not _MISSING and payloads.is_sensitive(key):
        return original
    return unmask(value, original, where=where)


def _argument(name: str, value: Any, original: Any, where: str) -> Any:
    if name:
        return _member(name, value, original, where)
    if original is not _MISSING and value == payloads.masked(original):
        return original
    return unmask(value, _MISSING, where=where)


def _at(items: list[Any], place: int) -> Any:
    return items[place] if place < len(items) else _MISSING


def _no_mask(value: Any, where: str) -> Any:
    if value == MASK:
        text = _("%(where)s is a mask: type the value that it shall have.")
        raise MaskLeft(text % {"where": where})
    return value
