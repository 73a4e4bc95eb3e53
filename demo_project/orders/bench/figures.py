"""What was measured, and the tables that show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

HEADER = ("", "measured", "beside", "ratio", "which is")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One measured value beside its limit here, or beside its baseline, from the same run."""

    name: str
    value: float
    unit: str
    limit: float | None = None
    limit_name: str = ""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """The value as a multiple of what stands beside it."""
        return self.value / self.limit if self.limit else None

    def as_dict(self) -> dict[str, Any]:
        """Return everything about the figure for JSON."""
        return {**asdict(self), "ratio": self.ratio}


def table(figures: Sequence[Figure]) -> Iterator[str]:
    """Return the lines of a table with each figure beside its limit, then the notes."""
    rows = [HEADER, *map(_row, figures)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, value, limit, ratio, limit_name in rows:
        yield (
            f"{name:<{widths[0]}}  {value:>{widths[1]}}  {limit:>{widths[2]}}  "
            f"{ratio:>{widths[3]}}  {limit_name}"
        ).rstrip()
    yield ""
    yield from (f"{figure.name}: {figure.note}" for figure in figures if figure.note)


def markdown(figures: Sequence[Figure]) -> Iterator[str]:
    """Return the same table for a document."""
    yield _line(["figure", *HEADER[1:]])
    yield "|---|---:|---:|---:|---|"
    yield from (_line(_row(figure)) for figure in figures)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    ratio = "" if figure.ratio is None else f"{figure.ratio:.2f}"
    limit = "" if figure.limit is None else _with_unit(figure.limit, figure.unit)
    return figure.name, _with_unit(figure.value, figure.unit), limit, ratio, figure.limit_name


def _with_unit(value: float, unit: str) -> str:
    digits = 0 if value >= 100 else 2
    return f"{value:,.{digits}f} {unit}"
