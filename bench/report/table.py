"""Tables of plain text. Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """A heading and what stands under it; numbers stand to the right, names to the left."""

    heading: str
    cell: Callable[[Row], str]
    left: bool = False


def render(
    title: str, columns: Sequence[Column[Row]], rows: Sequence[Row], remarks: Sequence[str] = ()
) -> str:
    """The table under its title, with remarks below."""
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
    """A ratio, or nothing where there is none."""
    return "" if value is None else f"{value:.2f}"


def whole(value: float | None) -> str:
    """A large number, or nothing where there is none."""
    return "" if value is None else f"{value:,.0f}"


def mebibytes(kibibytes: float) -> str:
    """Memory, given in KiB."""
    return f"{kibibytes / 1024:,.0f}"
