"""Draw the CPU time per operation that `bench.flood` measured as an SVG picture.

    python -m bench.report.picture flood.json docs/images/flood.svg

The input is a file of `bench.flood --json` or `bench.suite --json`, and nothing else. The picture
has a panel for each operation of each table; the panels of a table have the same scale. It follows
the reader's light or dark scheme, and contains no script, no font and no link.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

OURS = "kestrelmq"
WIDTH, MARGIN, GAP = 760, 20, 28
"""Pixels: the width of the picture, its margin, and the gap between panels."""
HEAD, TITLE, BAR, PITCH, FOOT = 66, 24, 16, 24, 14
NAME, VALUE = 92, 44
"""Pixels left of the bars, for names, and right of them, for numbers."""
PANEL = (WIDTH - 2 * MARGIN - GAP) // 2

STYLE = """
svg { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; font-size: 13px }
.ground { fill: #ffffff } .text { fill: #1f2328 } .faint { fill: #59636e }
.head { font-size: 16px; font-weight: 600 } .panel { font-weight: 600 }
.ours { fill: #0b6bcb } .peer { fill: #9aa7b4 } .us { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .ground { fill: #0d1117 } .text { fill: #e6edf3 } .faint { fill: #9198a1 }
  .ours { fill: #58a6ff } .peer { fill: #57606a }
}
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """The bar of one server; `cpu` is in microseconds per operation."""

    server: str
    cpu: float


@dataclass(frozen=True, slots=True)
class Panel:
    """The bars of one operation; `scale` is the value of a bar of full length."""

    title: str
    bars: tuple[Bar, ...]
    scale: float


def panels(results: dict[str, Any]) -> list[Panel]:
    """Return the panels of a flood: for each table, first sets, then gets.

    Raises `ValueError` if the results are not of a flood.
    """
    if results.get("benchmark") != "flood":
        raise ValueError("not the results of bench.flood")
    made = []
    for table in results["tables"]:
        rows = table["rows"]
        scale = max(row["cpu"] for row in rows)
        for operation, same in groupby(rows, key=lambda row: str(row["operation"])):
            bars = tuple(Bar(row["server"], row["cpu"]) for row in same)
            made.append(Panel(f"{operation}, {table['title']}", bars, scale))
    return made


def versions(results: dict[str, Any]) -> str:
    """Return the servers with their versions, as far as they are known."""
    said = results["machine"]["servers"]
    found = ((name, re.search(r"\d+(\.\d+)+", text)) for name, text in said.items())
    return ", ".join(f"{name} {match[0]}" if match else name for name, match in found)


def svg(drawn: Sequence[Panel], subtitle: str) -> str:
    """Return the picture, with two panels side by side."""
    body, top = [], float(HEAD)
    for at in range(0, len(drawn), 2):
        pair = drawn[at : at + 2]
        for side, panel in enumerate(pair):
            body += _panel(panel, MARGIN + side * (PANEL + GAP), top)
        top += TITLE + PITCH * max(len(panel.bars) for panel in pair) + FOOT
    height = round(top + 6)
    name = "Server CPU per operation in microseconds: less is better"
    spoken = "; ".join(
        f"{panel.title}: " + ", ".join(f"{bar.server} {bar.cpu:.2f}" for bar in panel.bars)
        for panel in drawn
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"',
        f'  viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(name)}</title>',
        f'<desc id="desc">{escape(spoken)}</desc>',
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        _text(MARGIN, 28, name, "text head"),
        _text(MARGIN, 48, subtitle, "faint"),
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _panel(panel: Panel, left: float, top: float) -> list[str]:
    lines = [_text(left, top + 14, panel.title, "text panel")]
    full = PANEL - NAME - VALUE
    for number, bar in enumerate(panel.bars):
        y = top + TITLE + PITCH * number
        length = full * bar.cpu / panel.scale
        kind, weight = ("ours", "text us") if bar.server == OURS else ("peer", "text")
        lines += [
            _text(left, y + 13, bar.server, weight),
            _bar(left + NAME, y, length, kind),
            _text(left + NAME + length + 6, y + 13, f"{bar.cpu:.2f}", weight),
        ]
    return lines


def _bar(x: float, y: float, length: float, kind: str) -> str:
    size = f'width="{length:.1f}" height="{BAR}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" {size} rx="2"/>'


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def main(arguments: list[str] | None = None) -> int:
    """Draw the picture. Return exit status 1 if the file has no flood."""
    parser = argparse.ArgumentParser(
        prog="bench.report.picture", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("results", type=Path, help="what bench.flood or bench.suite wrote")
    parser.add_argument("picture", type=Path, help="the SVG to write")
    options = parser.parse_args(arguments)
    results = json.loads(options.results.read_text())
    flood = results.get("flood", results)
    try:
        drawn = panels(flood)
    except ValueError as error:
        print(f"{options.results}: {error}", file=sys.stderr)
        return 1
    options.picture.parent.mkdir(parents=True, exist_ok=True)
    size = flood["settings"]["size"]
    subtitle = f"Items of {size:,} bytes. {versions(flood)}"
    options.picture.write_text(svg(drawn, subtitle))
    return 0


if __name__ == "__main__":
    sys.exit(main())
