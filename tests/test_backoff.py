"""Backoff: from the number of a failed attempt to a delay, for any number whatever."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobqueue.backoff import CEILING, Exponential, Steps, as_backoff, delay_after

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
NONE = timedelta(0)
ATTEMPTS = [1, 16, 47, 64, 1024, 10_000, 100_000]


class TestExponential:
    def test_grows_by_its_factor_up_to_its_cap(self) -> None:
        backoff = Exponential(base=SECOND, factor=2, cap=timedelta(seconds=9), jitter=False)
        assert [backoff(n) / SECOND for n in range(1, 7)] == [1, 2, 4, 8, 9, 9]

    @pytest.mark.parametrize("attempt", ATTEMPTS)
    @pytest.mark.parametrize("factor", [2, 2.0, 5, 100, 100.0])
    @pytest.mark.parametrize("cap", [HOUR, timedelta.max])
    def test_never_overflows(self, attempt: int, factor: float, cap: timedelta) -> None:
        """C-84."""
        for jitter in (True, False):
            delay = Exponential(base=SECOND, factor=factor, cap=cap, jitter=jitter)(attempt)
            assert NONE <= delay <= min(cap, CEILING)

    def test_reaches_the_ceiling_where_there_is_no_cap(self) -> None:
        assert Exponential(cap=timedelta.max, jitter=False)(1000) == CEILING

    @pytest.mark.parametrize("attempt", [0, -1])
    def test_takes_a_number_below_one_for_one(self, attempt: int) -> None:
        backoff = Exponential(jitter=False)
        assert backoff(attempt) == backoff(1)

    def test_spreads_what_failed_together(self) -> None:
        backoff = Exponential(base=HOUR)
        delays = {backoff(1) for _ in range(50)}
        assert len(delays) == 50
        assert max(delays) < HOUR

    def test_can_shrink(self) -> None:
        assert Exponential(base=HOUR, factor=0.5, jitter=False)(10_000) == NONE


class TestSteps:
    def test_takes_one_after_the_other_and_repeats_the_last(self) -> None:
        backoff = as_backoff([SECOND, HOUR])
        assert [backoff(n) for n in (0, 1, 2, 3, 10_000)] == [SECOND, SECOND, HOUR, HOUR, HOUR]


class TestAsBackoff:
    def test_takes_one_span_for_all(self) -> None:
        assert as_backoff(HOUR) == Steps((HOUR,))

    def test_takes_a_function(self) -> None:
        assert as_backoff(lambda attempt: attempt * SECOND)(3) == 3 * SECOND

    @pytest.mark.parametrize("value", [5, "5", [], (), [5], [HOUR, 5], None])
    def test_refuses_what_is_none_of_them(self, value: Any) -> None:
        with pytest.raises(TypeError, match="backoff must be a timedelta, a sequence"):
            as_backoff(value)


class TestDelayAfter:
    @pytest.mark.parametrize(
        ("says", "is_"), [(-HOUR, NONE), (NONE, NONE), (HOUR, HOUR), (timedelta.max, CEILING)]
    )
    def test_is_never_negative_and_never_above_the_ceiling(
        self, says: timedelta, is_: timedelta
    ) -> None:
        assert delay_after(1, lambda _: says) == is_

    @given(st.integers(-5, 10**6), st.floats(0.01, 1e6), st.timedeltas(NONE, timedelta(days=400)))
    def test_holds_for_any_exponential(self, attempt: int, factor: float, base: timedelta) -> None:
        delay = delay_after(attempt, Exponential(base=base, factor=factor, cap=timedelta.max))
        assert NONE <= delay <= CEILING
