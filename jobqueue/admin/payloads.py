"""Payloads as text: read so that a bad row spoils nothing, with what is sensitive masked."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from inspect import Parameter, signature
from itertools import chain, repeat
from typing import Any

from django.db.models import Model, TextField
from django.db.models.functions import Cast, Left
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue import conf, registry
from jobqueue.models import Job
from jobqueue.payload import MAX_DEPTH, clean_text

#: Longer texts are not shown; a queue that accepts them is not read by eye.
MOST_CHARACTERS = 1_000_000
#: A longer integer is shown as it was written: Python refuses to read very long ones.
MOST_DIGITS = 40
MASK = "********"


#: What stands in the place of what the user may not see.
WITHHELD = gettext_lazy("(hidden: seeing it needs the permission jobqueue.view_payload)")


def may_see(request: HttpRequest) -> bool:
    """Tell whether the user may see payloads, results and tracebacks."""
    user: Any = request.user
    return bool(user.has_perm(f"{Job._meta.app_label}.view_payload"))


class UnshowableError(ValueError):
    """A payload cannot be shown; the message says why, and holds nothing of the payload."""


def shown(row: Model, column: str, names: Iterable[str] = ()) -> str:
    """Return a JSON column of the row as indented text; if it cannot be read, say why.

    ``names`` are those of positional arguments, so that they are masked like any key.
    """
    if not getattr(row, "sees_payload", False):  # rows that no page has annotated tell nothing
        return str(WITHHELD)
    return as_text(_read(row, column), names)


def as_text(stored: str | None, names: Iterable[str] = ()) -> str:
    """Return stored JSON as indented text with what is sensitive masked."""
    if stored is None:
        return ""
    try:
        value = _mask(_loads(stored), names)
    except UnshowableError as error:
        return str(error)
    return clean_text(json.dumps(value, indent=2, ensure_ascii=False), limit=sys.maxsize)


def masked(value: Any) -> Any:
    """Return a copy of a JSON value with what is sensitive masked."""
    try:
        return _mask(value)
    except UnshowableError as error:
        return str(error)


def argument_names(task_name: str) -> Iterable[str]:
    """Return the names of a registered task's positional arguments; nothing is imported for it."""
    task = registry.tasks.get(task_name)
    if not task:
        return
    parameters = list(signature(task.function).parameters.values())
    for parameter in parameters[task.takes_context :]:
        if parameter.kind is Parameter.VAR_POSITIONAL:
            yield from repeat(parameter.name)
        yield parameter.name


def _read(row: Model, column: str) -> str | None:
    """Read the column as text: a JSONField would parse it, and a bad one would raise."""
    rows = type(row)._base_manager.using(row._state.db).filter(pk=row.pk)
    start = Left(Cast(column, TextField()), MOST_CHARACTERS + 1)
    return rows.values_list(start, flat=True).first()


def _loads(text: str) -> Any:
    if len(text) > MOST_CHARACTERS:
        raise UnshowableError(_("(not shown: more than a million characters)"))
    try:
        return json.loads(text, parse_int=_read_integer)
    except RecursionError:
        raise UnshowableError(_("(not shown: nested too deeply)")) from None
    except ValueError:
        raise UnshowableError(_("(not shown: not valid JSON)")) from None


def _read_integer(digits: str) -> int | str:
    return int(digits) if len(digits) <= MOST_DIGITS else digits


def _mask(value: Any, names: Iterable[str] = (), depth: int = 0) -> Any:
    """Return a copy in which whatever a sensitive key or argument name stands for is masked."""
    if depth > MAX_DEPTH:
        raise UnshowableError(_("(not shown: nested too deeply)"))
    if isinstance(value, dict):
        return {key: _masked(key, each, depth) for key, each in value.items()}
    if isinstance(value, list):
        named = zip(chain(names, repeat("")), value, strict=False)
        return [_masked(name, each, depth) for name, each in named]
    return value


def _masked(key: str, value: Any, depth: int) -> Any:
    return MASK if key and is_sensitive(key) else _mask(value, depth=depth + 1)


def is_sensitive(key: str) -> bool:
    """Tell whether a key contains one of SENSITIVE_KEYS, in any case and with any hyphens."""
    plain = _plain(key)
    return any(word in plain for word in _words(tuple(conf.get().SENSITIVE_KEYS)))


@lru_cache(maxsize=1)
def _words(keys: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_plain, keys))


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key.casefold()))
