"""What was measured, and the table that shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value, and the value that nothing could beat here."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    limit_name: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value as a part of its limit (rates), or as a multiple of it (times)."""
        return self.value / self.limit if self.limit else None

    def as_dict(self) -> dict[str, Any]:
        """Return everything about the figure for JSON."""
        return {**asdict(self), "ratio": self.ratio}

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """Return the lines of a table with each figure beside its limit, then the notes."""
    rows = [("", "measured", "limit", "ratio", "the limit is"), *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, value, limit, ratio, limit_name in rows:
        yield (
            f"{name:<{widths[0]}}  {value:>{widths[1]}}  {limit:>{widths[2]}}  "
            f"{ratio:>{widths[3]}}  {limit_name}"
        ).rstrip()
    yield ""
    yield from (f"{figure.name}: {figure.note}" for figure in figures if figure.note)


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    ratio = ""
    if figure.ratio is not None:
        ratio = f"{figure.ratio:.0%}" if figure.is_rate else f"{figure.ratio:,.1f} x"
    limit = "" if figure.limit is None else _with_unit(figure.limit, figure.unit)
    return figure.name, _with_unit(figure.value, figure.unit), limit, ratio, figure.limit_name


def _with_unit(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f} {unit}"
