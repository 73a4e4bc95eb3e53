"""The search of jobs and dead letters: numbers, names, and what a payload holds at one place."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from django.db.models import BooleanField, Func, Min, Model, Q, QuerySet
from django.utils.translation import gettext as _

from jobqueue import conf, registry
from jobqueue.admin import payloads

#: A longer search, or one of more words, is an accident or an attack.
MOST_CHARACTERS = 1000
MOST_WORDS = 20
#: A path has no more keys than this.
MOST_KEYS = 10
#: A position beyond this is in no list that a payload may hold.
MOST_DIGITS = 6
_WORDS = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*"|")+')
_IS_PATH = re.compile(r"(?:args|kwargs)\.")
_PATH = re.compile(r'(args|kwargs)\.([^:"]+):(.*)', re.DOTALL)
_KEY = re.compile(r"[\w-]+")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)


class SearchError(ValueError):
    """A search is not understood, or not allowed; the message says why."""


class Term(NamedTuple):
    """A place in the payload, and the text of what is to be there."""

    column: str
    keys: list[str]
    value: str


def is_of_payloads(text: str) -> bool:
    """Tell whether any word of a search names a place in the payload; what is too long may."""
    return len(text) > MOST_CHARACTERS or any(map(_IS_PATH.match, _WORDS.findall(text)))


def read(text: str) -> Iterator[Term | str]:
    """Yield the terms of a search, all of which must be met; raise SearchError for nonsense."""
    words = _WORDS.findall(text[:MOST_CHARACTERS])
    if len(text) > MOST_CHARACTERS or len(words) > MOST_WORDS:
        limits = {"characters": MOST_CHARACTERS, "words": MOST_WORDS}
        raise SearchError(
            _("A search has at most %(characters)s characters and %(words)s words.") % limits
        )
    for word in words:
        yield _term(word) if _IS_PATH.match(word) else _unquoted(word)


def _term(word: str) -> Term:
    found = _PATH.fullmatch(word)
    keys = found[2].split(".") if found else []
    if not found or not found[3] or len(keys) > MOST_KEYS or not all(map(_KEY.fullmatch, keys)):
        raise SearchError(
            _("“%(word)s” is not understood: write args.NAME:VALUE or kwargs.KEY.KEY:VALUE.")
            % {"word": f"{word:.60}"}
        )
    if any(map(payloads.is_sensitive, keys)):
        raise SearchError(
            _("What “%(key)s” stands for is masked, and is not searched.") % {"key": found[2]}
        )
    return Term(found[1], keys, _unquoted(found[3]))


def _unquoted(text: str) -> str:
    if '"' not in text:
        return text
    if found := _QUOTED.fullmatch(text):
        return re.sub(r"\\(.)", r"\1", found[1], flags=re.DOTALL)
    raise SearchError(_("A quotation mark is missing: %(text)s") % {"text": f"{text:.60}"})


def newest(rows: QuerySet[Any]) -> QuerySet[Any]:
    """Return those of the rows that are among the newest ADMIN_SCAN_LIMIT of their table."""
    model: type[Model] = rows.model
    table = model._default_manager.using(rows.db)
    numbers = table.order_by("-pk").values("pk")[: conf.get().ADMIN_SCAN_LIMIT]
    floor = numbers.aggregate(floor=Min("pk"))["floor"]
    return rows if floor is None else rows.filter(pk__gte=floor)


def holds(term: Term) -> Q:
    """Return the condition that a row's payload has the value in the place that a term names."""
    if term.column == "kwargs":
        return _at("kwargs", term.keys, term.value)
    name, *rest = term.keys
    if name.isdecimal():
        return _by_position(name, rest, term.value)
    condition = _at("kwargs", term.keys, term.value)
    for position, tasks in _positions(name).items():
        here = _at("args", [str(position), *rest], term.value)
        condition |= Q(task__in=tasks) & here
    return condition


def _by_position(position: str, rest: Sequence[str], value: str) -> Q:
    if len(position) > MOST_DIGITS:
        raise SearchError(_("No payload has so many arguments."))
    condition = _at("args", [position, *rest], value)
    masked = [
        task
        for task in registry.tasks
        if any(map(payloads.is_sensitive, _names(task, int(position))))
    ]
    return condition & ~Q(task__in=masked)


def _names(task: str, position: int) -> list[str]:
    """Return the name of a positional argument, in a list; an empty one if there is none."""
    return list(islice(payloads.argument_names(task), position, position + 1))


def _positions(name: str) -> dict[int, list[str]]:
    """Return where tasks take the argument of that name: the tasks by position."""
    found: dict[int, list[str]] = defaultdict(list)
    for task in registry.tasks:
        names = list(islice(payloads.argument_names(task), 100))
        if name in names:
            found[names.index(name)].append(task)
    return found


def _at(column: str, keys: Sequence[str], value: str) -> Q:
    return Q(HasText(column, keys, value))


class HasText(Func):
    """Whether a JSON column holds, in one place, a scalar that is written as this text.

    A number is found as a number and as text. What is no valid JSON holds nothing, and does not
    make the search fail for all.
    """

    def __init__(self, column: str, keys: Sequence[str], value: str) -> None:
        super().__init__(column, output_field=BooleanField())
        self.keys, self.value = list(keys), value

    def as_sql(self, compiler: Any, connection: Any, *_: Any, **__: Any) -> tuple[str, Any]:
        """Write it with the functions that MySQL has."""
        column, parameters = compiler.compile(self.source_expressions[0])
        place = f"JSON_EXTRACT({column}, %s)"
        scalar = f"JSON_TYPE({place}) NOT IN ('OBJECT', 'ARRAY')"
        mine = [*parameters, _path(self.keys)]
        return f"({scalar} AND JSON_UNQUOTE({place}) = %s)", [*mine, *mine, self.value]

    def as_postgresql(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, Any]:
        """Write it with PostgreSQL's operators."""
        column, parameters = compiler.compile(self.source_expressions[0])
        mine = [*parameters, self.keys]
        kind = f"jsonb_typeof({column} #> %s::text[])"
        sql = (
            f"(CASE {kind} WHEN 'null' THEN 'null' WHEN 'object' THEN NULL WHEN 'array' THEN NULL"
            f" ELSE {column} #>> %s::text[] END = %s)"
        )
        return sql, [*mine, *mine, self.value]

    def as_sqlite(self, compiler: Any, connection: Any, **_: Any) -> tuple[str, Any]:
        """Write it with SQLite's functions, which fail on what is no JSON."""
        column, parameters = compiler.compile(self.source_expressions[0])
        mine = [*parameters, _path(self.keys)]
        kind = f"JSON_TYPE({column}, %s)"
        text = f"CAST(JSON_EXTRACT({column}, %s) AS TEXT)"
        sql = (
            f"(CASE WHEN NOT JSON_VALID({column}) THEN 0 ELSE CASE {kind}"
            f" WHEN 'true' THEN 'true' WHEN 'false' THEN 'false' WHEN 'null' THEN 'null'"
            f" WHEN 'object' THEN NULL WHEN 'array' THEN NULL ELSE {text} END = %s END)"
        )
        return sql, [*parameters, *mine, *mine, self.value]


def _path(keys: Sequence[str]) -> str:
    """Write a path as SQLite and MySQL read it; a number is a place in a list."""
    return "$" + "".join(f"[{key}]" if key.isdecimal() else f".{json.dumps(key)}" for key in keys)
