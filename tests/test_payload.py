"""What may be enqueued, comes back as it was; everything else is refused by name."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import enum
import io
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobqueue import InvalidJob, lifecycle, payload
from jobqueue.exceptions import InvalidPayload, InvalidPayloadType
from jobqueue.models import Job
from tests import verbs
from tests.factories import JobFactory
from tests.models import Mark
from tests.tasks import noop

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(payload.MIN_INTEGER, payload.MAX_INTEGER) | st.floats(
    allow_nan=False, allow_infinity=False, min_value=-1e15, max_value=1e15
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=8,
)


def types(value: Any) -> Any:
    """Return the types in a value, so that 1, 1.0 and True are told apart."""
    if isinstance(value, list):
        return [types(item) for item in value]
    if isinstance(value, dict):
        return {key: types(item) for key, item in value.items()}
    return type(value)


@pytest.mark.django_db
class TestAccepted:
    @settings(
        max_examples=60,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture],
    )
    @given(args=st.lists(VALUES, max_size=3), kwargs=st.dictionaries(TEXT, VALUES, max_size=3))
    def test_a_payload_comes_back_as_it_was(
        self, args: list[Any], kwargs: dict[str, Any], db: None
    ) -> None:
        noop.enqueue(*args, **kwargs)
        claimed = verbs.claim_one()
        read = payload.loads(claimed.args, claimed.kwargs)
        assert read == (args, kwargs)
        assert [types(part) for part in read] == [types(args), types(kwargs)]

    def test_a_handler_gets_a_copy(self) -> None:
        """C-26."""
        given_list: list[Any] = [1, {"a": [2]}]
        before = copy.deepcopy(given_list)
        noop.enqueue(given_list)
        claimed = verbs.claim_one()
        args, _ = payload.loads(claimed.args, claimed.kwargs)
        args[0][1]["a"].append(3)
        assert given_list == before

    def test_numbers_at_the_edge_come_back(self) -> None:
        edge = [2**63 - 1, -(2**63), 2**53 + 1, 0.1, 1e15, -1e15, 1e-300, 5e-324, 1.0]
        noop.enqueue(edge)
        assert types(Job.objects.get().args) == types([edge])
        assert Job.objects.get().args == [edge]


@dataclasses.dataclass
class Point:
    x: int


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Text(str):
    __slots__ = ()


WRONG_TYPES: dict[str, Any] = {
    "uuid": uuid.UUID(int=1),
    "decimal": Decimal("1.5"),
    "not a decimal": Decimal("NaN"),
    "datetime": dt.datetime(2000, 1, 1, tzinfo=dt.UTC),
    "naive datetime": dt.datetime(2000, 1, 1),  # noqa: DTZ001
    "date": dt.date(2000, 1, 1),
    "timedelta": dt.timedelta(1),
    "set": {1},
    "frozenset": frozenset({1}),
    "bytes": b"abc",
    "tuple": (1, 2),
    "dataclass": Point(1),
    "enum": Colour.RED,
    "int enum": Level.HIGH,
    "subclass of str": Text("a"),
    "safe string": mark_safe("<b>"),
    "lazy text": gettext_lazy("yes"),
    "request": HttpRequest(),
    "model": Mark(key="unsaved"),
    "lazy model": SimpleLazyObject(lambda: Mark(key="unsaved")),
    "queryset": Mark.objects.none(),
    "file": io.StringIO(),
    "object": object(),
    "class": Mark,
    "generator": (number for number in ()),
}
CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class TestRefused:
    """C-23 to C-28: with the path of what is wrong, and before any SQL (see test_enqueue)."""

    @pytest.mark.parametrize("what", WRONG_TYPES)
    def test_what_json_has_no_type_for(self, what: str) -> None:
        value = WRONG_TYPES[what]
        with pytest.raises(InvalidPayloadType, match=r"args\[1\]\['a'\]\[0\] is a ") as caught:
            payload.dumps([1, {"a": [value]}], name="args")
        assert isinstance(caught.value, TypeError)
        assert isinstance(caught.value, ValueError)

    def test_a_model_with_the_advice_to_pass_its_key(self) -> None:
        """C-28."""
        with pytest.raises(
            TypeError, match=r"args\[0\] is a tests\.models\.Mark; pass its primary"
        ):
            noop.enqueue(Mark(key="unsaved"))

    @pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
    def test_numbers_that_are_not_json(self, value: float) -> None:
        """C-25."""
        with pytest.raises(InvalidPayload, match=r"kwargs\['a'\]\[1\] is -?(nan|inf)"):
            payload.dumps({"a": [0, value]}, name="kwargs")

    @pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**100])
    def test_integers_beyond_64_bits(self, value: int) -> None:
        with pytest.raises(InvalidPayload, match=r"args\[0\] is an integer beyond 64 bits"):
            payload.dumps([value], name="args")

    @pytest.mark.parametrize("value", [1e16, -1e16, 1e23, 1.7976931348623157e308])
    def test_floats_that_postgresql_gives_back_as_integers(self, value: float) -> None:
        with pytest.raises(InvalidPayload, match=r"args\[0\] is a float of 1e16 or more"):
            payload.dumps([value], name="args")

    @pytest.mark.parametrize("text", ["a\0b", "\0", "\ud800", "a\udfff"])
    @pytest.mark.parametrize("where", ["value", "key", "nested key"])
    def test_text_that_no_postgresql_stores(self, text: str, where: str) -> None:
        """C-24."""
        value = {"value": [text], "key": {text: 1}, "nested key": [{"a": {text: 1}}]}[where]
        with pytest.raises(InvalidPayload, match=r"a NUL character|a lone surrogate"):
            payload.dumps(value, name="args")

    @pytest.mark.parametrize("key", [1, None, True, 1.5, ("a",), Text("a"), b"a"])
    def test_keys_that_are_not_strings(self, key: Any) -> None:
        with pytest.raises(InvalidPayloadType, match=r"args\[0\] has the key"):
            payload.dumps([{key: 1}], name="args")

    def test_what_is_nested_too_deep(self) -> None:
        payload.dumps(deep(64), name="args")
        for value in (deep(65), deep(100_000), CYCLE):
            with pytest.raises(InvalidPayload, match="args is nested more than 64 levels"):
                payload.dumps(value, name="args")

    def test_what_is_too_large(self, settings: Any) -> None:
        settings.JOBQUEUE = {"MAX_PAYLOAD_BYTES": 100}
        payload.check_size("x" * 50, "x" * 50, name="args and kwargs")
        payload.check_size("ä" * 50, name="args and kwargs")
        for texts in (["x" * 50, "x" * 51], ["ä" * 51], ["😀" * 26]):
            with pytest.raises(InvalidPayload, match="args and kwargs take 10"):
                payload.check_size(*texts, name="args and kwargs")

    def test_the_size_is_that_of_both_together(self) -> None:
        with pytest.raises(InvalidJob, match=r"args and kwargs take 80,0.. bytes"):
            noop.enqueue("x" * 40_000, key="x" * 40_000)


class TestReading:
    """A row may have been put in by SQL, so it is read as untrusted input."""

    @pytest.mark.parametrize(
        ("args", "kwargs"),
        [
            ("{}", "{}"),
            ("null", "{}"),
            ('"text"', "{}"),
            ("[", "{}"),
            ("[" * 100_000, "{}"),
            ("[1" + "0" * 5000 + "]", "{}"),
            ("[]", "[]"),
            ("[]", "null"),
            ("[]", ""),
        ],
    )
    def test_what_is_malformed_is_refused(self, args: str, kwargs: str) -> None:
        with pytest.raises(InvalidPayload):
            payload.loads(args, kwargs)

    def test_what_is_well_formed_is_read(self) -> None:
        assert payload.loads('[1, "a"]', '{"k": null}') == ([1, "a"], {"k": None})
        assert payload.loads([1], {"k": 2}) == ([1], {"k": 2})

    @pytest.mark.django_db
    def test_an_unreadable_payload_condemns_only_its_own_job(self) -> None:
        bad, good = JobFactory(), JobFactory()
        verbs.set_raw(bad.pk, args="[1" + "0" * 5000 + "]")
        settlements = [verbs.run(claimed) for claimed in verbs.claim(9)]
        assert [verbs.where(pk) for pk in (bad.pk, good.pk)] == ["dead", "succeeded"]
        assert settlements[0].reason == "invalid_payload"
        assert lifecycle.replay([bad.pk]) == [bad.pk]


class TestCleanText:
    def test_makes_visible_what_no_database_stores(self) -> None:
        """C-17."""
        assert payload.clean_text("a\0b \ud800 ä", limit=99) == "a\\u0000b \\ud800 ä"

    def test_keeps_within_the_limit(self) -> None:
        assert payload.clean_text("x" * 10, limit=10) == "x" * 10
        assert payload.clean_text("x" * 11, limit=10) == "x" * 9 + "…"
        assert len(payload.clean_text("\0" * 11, limit=10)) == 10

    @given(st.text(st.characters(), max_size=30))
    def test_gives_what_can_be_encoded(self, text: str) -> None:
        cleaned = payload.clean_text(text, limit=1000)
        assert "\0" not in cleaned
        assert json.loads(json.dumps(cleaned, ensure_ascii=False)) == cleaned
        cleaned.encode()
