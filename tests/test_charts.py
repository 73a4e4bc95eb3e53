"""The pictures: round axes, sums that stack, gaps that stay gaps, and all of it as text."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from django.template.loader import render_to_string

from jobqueue.admin import pictures
from jobqueue.admin.axes import BASE, TOP, linear, logarithmic, round_spans
from jobqueue.admin.charts import (
    LEFT,
    RIGHT,
    Bar,
    Chart,
    Series,
    columns,
    over_time,
    stacked,
)

MARKUP = '"><script>alert(1)</script>'
START = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)


def minutes(number: int, *, step: int = 1) -> list[datetime]:
    return [START + timedelta(minutes=step * place) for place in range(number)]


def lines(*values: float | None) -> Chart:
    series = [Series("first", "depth", values)]
    axis = linear(values, pictures.short)
    return over_time("depth", "Depth", minutes(len(values)), series, axis)


def drawn(chart: Chart) -> str:
    return render_to_string("admin/jobqueue/chart.html", {"chart": chart})


class TestLinear:
    @pytest.mark.parametrize(
        ("most", "ticks"),
        [
            (0, [0, 1]),
            (1, [0, 1]),
            (3, [0, 1, 2, 3]),
            (5, [0, 2, 4, 6]),
            (17, [0, 5, 10, 15, 20]),
            (101, [0, 50, 100, 150]),
            (100_001, [0, 50_000, 100_000, 150_000]),
        ],
    )
    def test_has_few_round_ticks_from_zero_to_no_less_than_the_most(
        self, most: int, ticks: list[int]
    ) -> None:
        assert linear([0, None, most], str).values == ticks

    def test_counts_spans_as_people_do(self) -> None:
        axis = linear([400], pictures.span, steps=round_spans())
        assert [tick.label for tick in axis.ticks] == ["0", "2 min", "4 min", "6 min", "8 min"]
        days = linear([9 * 86_400], pictures.span, steps=round_spans())
        assert [tick.label for tick in days.ticks] == ["0", "5 d", "10 d"]

    def test_goes_from_the_base_to_the_top(self) -> None:
        axis = linear([10], str)
        assert (axis.at(0), axis.at(axis.high)) == (BASE, TOP)
        assert axis.at(axis.high / 2) == (BASE + TOP) / 2
        assert axis.at(axis.high + 1) == TOP


class TestLogarithmic:
    @pytest.mark.parametrize(
        ("values", "ends"),
        [
            ([0.02, 7], (0.01, 10)),
            ([1, 1], (1, 10)),
            ([36_000], (3600, 36_000)),
            ([0.0001, 100_000], (0.001, 36_000)),
            ([None, None], (0.001, 0.01)),
        ],
    )
    def test_holds_all_values_between_round_ends(
        self, values: list[float | None], ends: tuple[float, float]
    ) -> None:
        axis = logarithmic(values, pictures.span)
        assert (axis.low, axis.high) == ends
        assert (axis.values[0], axis.values[-1]) == ends

    def test_gives_each_power_the_same_height(self) -> None:
        axis = logarithmic([0.01, 1], pictures.span)
        assert axis.at(0.01) - axis.at(0.1) == pytest.approx(axis.at(0.1) - axis.at(1), abs=0.2)

    def test_bears_what_is_beyond_its_ends(self) -> None:
        axis = logarithmic([0.1, 1], pictures.span)
        assert (axis.at(0), axis.at(99)) == (BASE, TOP)


class TestOverTime:
    def test_has_a_gap_where_nothing_was_measured(self) -> None:
        chart = lines(1, 2, None, None, 3, 4, 5)
        assert [len(line.points.split()) for line in chart.lines] == [2, 3]

    def test_shows_a_point_that_stands_alone(self) -> None:
        [line] = lines(None, 5, None).lines
        (first, last) = (point.split(",") for point in line.points.split())
        assert float(first[0]) < float(last[0])
        assert first[1] == last[1]

    def test_of_nothing_is_empty_and_of_zero_is_not(self) -> None:
        assert lines(None, None).is_empty
        assert not lines(0, None).is_empty

    def test_says_every_number_as_text(self) -> None:
        chart = lines(1500, None, 3)
        assert chart.heads == ["Time", "depth"]
        assert [row[1] for row in chart.rows] == ["1.5k", "-", "3"]
        assert [bucket.title.partition(": ")[2] for bucket in chart.buckets] == [
            "depth 1.5k",
            "depth -",
            "depth 3",
        ]
        assert chart.summary == "depth: last 3, at most 1.5k"

    def test_has_strips_side_by_side_over_its_whole_width(self) -> None:
        buckets = lines(*range(60)).buckets
        assert buckets[0].x == LEFT
        assert buckets[-1].x + buckets[-1].width == pytest.approx(RIGHT, abs=0.2)

    def test_names_quarters_of_an_hour_and_of_a_day(self) -> None:
        hour = lines(*range(60))
        assert [tick.label[-2:] for tick in hour.x_ticks] == ["00", "15", "30", "45"]
        day = over_time(
            "d", "d", minutes(96, step=15), [Series("first", "d", [1] * 96)], linear([1], str)
        )
        assert len(day.x_ticks) == 4


class TestStacked:
    def chart(self) -> Chart:
        values = {"ok": [10, 0], "failed": [4, 0], "dead": [1, 2]}
        series = [Series(kind, kind, numbers) for kind, numbers in values.items()]
        return stacked("outcomes", "Outcomes", minutes(2), series, pictures.short)

    def test_puts_each_kind_on_top_of_the_one_before(self) -> None:
        first = [bar for bar in self.chart().bars if bar.x < (LEFT + RIGHT) / 2]
        assert [bar.kind for bar in first] == ["ok", "failed", "dead"]
        assert first[0].y + first[0].height == pytest.approx(BASE)
        for below, above in pairwise(first):
            assert above.y + above.height == pytest.approx(below.y, abs=0.11)

    def test_gives_the_axis_to_the_sum(self) -> None:
        chart = self.chart()
        assert [tick.label for tick in chart.y_ticks] == ["0", "5", "10", "15"]
        assert min(bar.y for bar in chart.bars) == TOP

    def test_draws_no_bar_for_nothing(self) -> None:
        bars: list[Bar] = [bar for bar in self.chart().bars if bar.x > (LEFT + RIGHT) / 2]
        assert [bar.kind for bar in bars] == ["dead"]
        assert bars[0].y + bars[0].height == pytest.approx(BASE)

    def test_says_its_totals(self) -> None:
        assert self.chart().summary == "ok: 10; failed: 4; dead: 3"


class TestColumns:
    def test_have_a_bar_for_each_label(self) -> None:
        chart = columns("tries", "Tries", "Attempt", [("1", 90), ("2", 9), ("10+", 1)], str)
        assert len(chart.bars) == 3
        assert [tick.label for tick in chart.x_ticks] == ["1", "2", "10+"]
        assert chart.rows == [["1", "90"], ["2", "9"], ["10+", "1"]]

    def test_of_nothing_are_empty(self) -> None:
        assert columns("tries", "Tries", "Attempt", [], str).is_empty


class TestSVG:
    def test_is_named_and_described_and_has_a_tooltip_for_each_strip(self) -> None:
        html = drawn(lines(1, 2, 3))
        assert 'role="img" aria-labelledby="jobqueue-depth-title jobqueue-depth-desc"' in html
        assert '<title id="jobqueue-depth-title">Depth</title>' in html
        assert "depth: last 3, at most 3" in html
        assert html.count("<rect class=") == html.count("<title>") == 3
        assert "<table>" in html

    def test_tells_kinds_apart_by_a_pattern_too(self) -> None:
        html = drawn(TestStacked().chart())
        for kind in ("failed", "dead"):
            assert f'<pattern id="jobqueue-outcomes-{kind}"' in html
            assert f'fill="url(#jobqueue-outcomes-{kind})"' in html

    def test_has_no_style_of_its_own_and_shows_text_as_text(self) -> None:
        series = [Series("first", MARKUP, [1]), Series("second", "b", [2])]
        html = drawn(over_time("x", MARKUP, minutes(1), series, linear([2], str)))
        assert "<script" not in html
        assert "style=" not in html
        assert "&lt;script&gt;" in html

    def test_says_when_nothing_was_measured(self) -> None:
        html = drawn(lines(None))
        assert "Nothing was measured in this time" in html
        assert "<svg" not in html


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (7, "7"), (0.25, "0.25"), (999, "999"), (1500, "1.5k"), (12_345_678, "12.3M")],
)
def test_numbers_are_written_in_few_characters(number: float, text: str) -> None:
    assert pictures.short(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0"), (0.0014, "1 ms"), (1.448, "1.4 s"), (9, "9 s"), (75, "1 min 15 s")],
)
def test_spans_are_written_in_few_characters(seconds: float, text: str) -> None:
    assert pictures.span(seconds) == text
