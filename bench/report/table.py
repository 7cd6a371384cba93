"""Plain-text tables. Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A column: its heading and the text of its cells; aligned right unless `left` is set."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def render(
    title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], remarks: Sequence[str] = ()
) -> str:
    """Render a table with its title above and remarks below."""
    cells = [[column.heading for column in columns]]
    cells += [[column.cell(row) for column in columns] for row in rows]
    widths = [max(len(line[at]) for line in cells) for at in range(len(columns))]
    lines = [title]
    for line in cells:
        padded = [
            text.ljust(width) if column.left else text.rjust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    return "\n".join(lines + [f"  {remark}" for remark in remarks])


def ratio(value: float | None) -> str:
    """Format a ratio; None as an empty text."""
    return "" if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """Format a large number without decimals; None as an empty text."""
    return "" if value is None else f"{value:,.0f}"


def mebibytes(kibibytes: float) -> str:
    """Format an amount of memory, given in KiB, as MiB."""
    return f"{kibibytes / 1024:,.0f}"
