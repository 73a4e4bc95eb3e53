"""Failures: any exception becomes text that every database can store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import pytest

from jobqueue import failures
from jobqueue.claims import Failure
from tests.tasks import (
    fail,
    fail_at_length,
    fail_in_a_chain,
    fail_unprintably,
    fail_with_nul,
    recurse,
)


def failure_of(function: Callable[..., Any], *args: Any) -> Failure:
    """Call a function that raises, and describe what it raised."""
    try:
        function(*args)
    except BaseException as error:  # noqa: BLE001 - the point of these tests
        return failures.describe(error)
    raise AssertionError("it did not raise")


def say_more() -> NoReturn:
    error = ValueError("two\nlines")
    error.add_note("and a note")
    raise error


def misspell() -> None:
    compile("1 +", "formula", "eval")


class TestDescribe:
    @pytest.mark.parametrize("function", [fail, say_more, misspell, recurse])
    def test_shows_a_lone_error_as_python_does(
        self, function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The short cut leaves nothing out that the traceback module would say."""
        short = failure_of(function).traceback
        monkeypatch.setattr(failures, "_stands_alone", lambda _: False)
        assert short == failure_of(function).traceback

    def test_names_class_message_and_place(self) -> None:
        failure = failure_of(fail, "out of stock")
        assert (failure.error_class, failure.message) == ("RuntimeError", "out of stock")
        assert failure.traceback.startswith("Traceback (most recent call last)")
        assert "tests/tasks.py" in failure.traceback
        assert failure.traceback.endswith("RuntimeError: out of stock\n")

    def test_names_a_class_with_its_module(self) -> None:
        assert failure_of(fail_unprintably, "str").error_class == "tests.tasks.StrRaises"

    def test_tells_of_the_cause(self) -> None:
        assert "KeyError: 'the cause'" in failure_of(fail_in_a_chain).traceback

    @pytest.mark.parametrize("kind", ["str", "repr", "arguments", "lock"])
    def test_survives_an_error_that_resists(self, kind: str) -> None:
        """C-18."""
        failure = failure_of(fail_unprintably, kind)
        assert failure.error_class
        assert failure.message
        assert "fail_unprintably" in failure.traceback

    def test_makes_visible_what_cannot_be_stored(self) -> None:
        """C-17."""
        failure = failure_of(fail_with_nul)
        assert failure.message == "before\\u0000after \\ud800"
        for text in (failure.message, failure.traceback, failure.error_class):
            assert "\0" not in text
            text.encode()

    def test_bounds_every_text(self) -> None:
        failure = failure_of(fail_at_length, 1_000_000)
        assert len(failure.message) <= failures.MAX_MESSAGE
        assert len(failure.traceback) <= failures.MAX_TRACEBACK
        failure = failure_of(recurse)
        assert (failure.error_class, len(failure.fingerprint)) == ("RecursionError", 16)
        assert len(failure.traceback) <= failures.MAX_TRACEBACK

    def test_bounds_the_name_of_a_class(self) -> None:
        error = type("E" * 1000, (Exception,), {})()
        assert len(failures.describe(error).error_class) <= failures.MAX_CLASS

    def test_describes_what_was_never_raised(self) -> None:
        failure = failures.describe(LookupError("nowhere"))
        assert (failure.error_class, failure.message) == ("LookupError", "nowhere")

    def test_survives_a_str_that_ends_the_process(self) -> None:
        class Exits(Exception):
            def __str__(self) -> NoReturn:
                raise SystemExit

        assert "SystemExit" in failures.describe(Exits()).message

    def test_survives_a_str_that_returns_no_text(self) -> None:
        class Numeric(Exception):
            def __str__(self) -> str:
                return 5  # type: ignore[return-value]  # noqa: PLE0307 - on purpose

        assert "TypeError" in failures.describe(Numeric()).message

    def test_survives_a_group_of_errors(self) -> None:
        group = ExceptionGroup("two", [ValueError("a\0"), LookupError("b")])
        failure = failures.describe(group)
        assert failure.error_class == "ExceptionGroup"
        assert "LookupError: b" in failure.traceback


class TestFingerprint:
    def test_is_the_same_for_the_same_fault(self) -> None:
        one = failure_of(fail, "order 17 of 'Ann' at 0x7f00 is gone")
        other = failure_of(fail, "order 9 of 'Bob' at 0x7fff is gone")
        assert one.fingerprint == other.fingerprint

    def test_differs_with_the_message_and_with_the_place(self) -> None:
        assert failure_of(fail, "a").fingerprint != failure_of(fail, "b").fingerprint

        def elsewhere() -> NoReturn:
            raise RuntimeError("a")

        assert failure_of(elsewhere).fingerprint != failure_of(fail, "a").fingerprint

    def test_differs_with_the_class(self) -> None:
        def first() -> NoReturn:
            raise ValueError

        def second() -> NoReturn:
            raise LookupError

        first_, second_ = failure_of(first), failure_of(second)
        assert first_.fingerprint != second_.fingerprint
