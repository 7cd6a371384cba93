"""Render the report as one HTML page: text, tables and SVG charts, in light and dark colours.

The functions do no I/O, and the page loads no other file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from itertools import groupby

from kestrelmq.spark.pipelines.charts import Series, area_chart, column_chart

HOUR_MS = 3_600_000
"""An hour in milliseconds."""
_SHOWN_QUEUES = 50

STYLE = """
:root { color-scheme: light dark; --paper: #fbfaf7; --card: #fff; --ink: #22252b; --soft: #6a7078;
  --line: #e4e1d8; --one: #2f6f9f; --two: #c8742c; --three: #5b8c5a; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --card: #1e2126; --ink: #e6e4de;
  --soft: #9aa0a8; --line: #33373e; --one: #6fb1e0; --two: #e5a063; --three: #8fc48d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .2rem; }
h2 { font-size: 1.15rem; margin: 0 0 .8rem; overflow-wrap: anywhere; }
p { margin: .2rem 0 1rem; color: var(--soft); max-width: 46rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.1rem 1.25rem; margin-top: 1.1rem; overflow-x: auto; }
.totals { display: flex; flex-wrap: wrap; gap: 2rem; margin: 1.4rem 0 0; }
.totals b { display: block; font-size: 1.6rem; font-weight: 600; line-height: 1.2; }
.totals span { color: var(--soft); font-size: .85rem; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 500; } tr:last-child td { border-bottom: 0; }
th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 7rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 1.5rem; }
figure { margin: 0; } figcaption { font-size: .88rem; margin-bottom: .3rem; }
.key { display: inline-block; width: .7em; height: .7em; border-radius: 2px;
  margin: 0 .3em 0 .8em; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 10px; } .grid { stroke: var(--line); }
.one { fill: var(--one); } .two { fill: var(--two); } .three { fill: var(--three); }
.one-line { fill: none; stroke: var(--one); stroke-width: 1.8; }
.one-area { fill: var(--one); opacity: .18; }
.key.one { background: var(--one); } .key.two { background: var(--two); }
"""


@dataclass(frozen=True, slots=True)
class QueueHour:
    """What happened to a queue in the hour that begins at `hour` (ms)."""

    queue: str
    hour: int
    items_in: int
    bytes_in: int
    items_out: int
    bytes_out: int
    expired: int
    aborted: int
    depth: int
    depth_bytes: int


@dataclass(frozen=True, slots=True)
class QueueReport:
    """Totals of a queue; sojourn times are bounds in ms, None when no item left."""

    spool: str
    queue: str
    items: int
    bytes: int
    removed: int
    confirmed: int
    expired: int
    open: int
    live: int
    delayed: int
    aborts: int
    largest: int
    at_least_p50: int | None
    at_least_p95: int | None
    at_least_p99: int | None
    at_most_p50: int | None
    at_most_p95: int | None
    at_most_p99: int | None


@dataclass(frozen=True, slots=True)
class LargestItem:
    """One of the largest items: where it is, its size in bytes, and its fate."""

    queue: str
    file: str
    position: int
    size: int
    fate: str


def page(
    queues: Sequence[QueueReport], hours: Sequence[QueueHour], largest: Sequence[LargestItem]
) -> str:
    """Return the page; `hours` must be sorted by queue and hour."""
    busiest = sorted(queues, key=lambda queue: -queue.items)[:_SHOWN_QUEUES]
    shown = {queue.queue for queue in busiest}
    timed = [hour for hour in hours if hour.hour > 0 and hour.queue in shown]
    charts = "".join(
        _queue_section(queue, list(rows)) for queue, rows in groupby(timed, lambda row: row.queue)
    )
    rest = len(queues) - len(busiest)
    note = (
        f"<p>Charts show the {_SHOWN_QUEUES} busiest of {len(queues)} queues.</p>" if rest else ""
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Queue report</title><style>{STYLE}</style></head><body><main>"
        f"<h1>Queue report</h1>{_period(hours)}{_totals(queues)}"
        f"{_queue_table(queues)}{note}{charts}{_largest_table(largest)}</main></body></html>\n"
    )


def _period(hours: Sequence[QueueHour]) -> str:
    times = [hour.hour for hour in hours if hour.hour > 0]
    if not times:
        return "<p>The journals hold no items with an add time.</p>"
    return (
        f"<p>{_time(min(times))} to {_time(max(times) + HOUR_MS)} UTC, from the journals. The "
        "journal does not say when an item was removed; sojourn times are therefore given as "
        "bounds, from the adds before and after the remove.</p>"
    )


def _totals(queues: Sequence[QueueReport]) -> str:
    gone = sum(queue.removed + queue.confirmed + queue.expired for queue in queues)
    figures = [
        (f"{len(queues):,}", "queues"),
        (f"{sum(queue.items for queue in queues):,}", "items added"),
        (format_bytes(sum(queue.bytes for queue in queues)), "of data added"),
        (f"{gone:,}", "items gone"),
        (f"{sum(queue.live + queue.open for queue in queues):,}", "items waiting or open"),
        (f"{sum(queue.delayed for queue in queues):,}", "items delayed"),
        (f"{sum(queue.aborts for queue in queues):,}", "reads given back"),
    ]
    cells = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for value, name in figures)
    return f'<div class="totals">{cells}</div>'


def _queue_table(queues: Sequence[QueueReport]) -> str:
    head = (
        "queue",
        "added",
        "bytes",
        "removed",
        "confirmed",
        "expired",
        "waiting",
        "open",
        "delayed",
        "given back",
        "median stay",
        "99 % stay",
    )
    rows = [
        (
            escape(queue.queue),
            f"{queue.items:,}",
            format_bytes(queue.bytes),
            f"{queue.removed:,}",
            f"{queue.confirmed:,}",
            f"{queue.expired:,}",
            f"{queue.live:,}",
            f"{queue.open:,}",
            f"{queue.delayed:,}",
            f"{queue.aborts:,}",
            _bounds(queue.at_least_p50, queue.at_most_p50),
            _bounds(queue.at_least_p99, queue.at_most_p99),
        )
        for queue in queues
    ]
    return _table("Queues", head, rows)


def _largest_table(largest: Sequence[LargestItem]) -> str:
    head = ("queue", "size", "file", "at byte", "fate")
    rows = [
        (
            escape(item.queue),
            format_bytes(item.size),
            escape(item.file),
            f"{item.position:,}",
            item.fate,
        )
        for item in largest
    ]
    return _table("Largest items", head, rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    header = "".join(f'<th scope="col">{name}</th>' for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f"<section><h2>{title}</h2><table><thead><tr>{header}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )


def _queue_section(queue: str, hours: list[QueueHour]) -> str:
    filled = fill_hours(hours)
    times = [hour.hour for hour in filled]
    depth = area_chart(
        f"Depth of {queue} by hour", times, Series("depth", "one", [row.depth for row in filled])
    )
    flow = column_chart(
        f"Items in and out of {queue} by hour",
        times,
        [
            Series("in", "one", [row.items_in for row in filled]),
            Series("out", "two", [row.items_out for row in filled]),
        ],
    )
    key = '<span class="key one"></span>in<span class="key two"></span>out'
    return (
        f'<section><h2>{escape(queue)}</h2><div class="charts">'
        f"<figure><figcaption>Items an hour {key}</figcaption>{flow}</figure>"
        f"<figure><figcaption>Depth at the hour's end</figcaption>{depth}</figure>"
        "</div></section>"
    )


def fill_hours(hours: Sequence[QueueHour]) -> list[QueueHour]:
    """Add rows for the hours without events in between, unless they are too many to draw."""
    found = {hour.hour: hour for hour in hours}
    first, last = min(found), max(found)
    if (last - first) // HOUR_MS > 24 * 62:
        return list(hours)
    filled: list[QueueHour] = []
    for time in range(first, last + 1, HOUR_MS):
        before = filled[-1] if filled else hours[0]
        quiet = QueueHour(before.queue, time, 0, 0, 0, 0, 0, 0, before.depth, before.depth_bytes)
        filled.append(found.get(time, quiet))
    return filled


def format_bytes(size: int) -> str:
    """Return a size in bytes as a short text with a unit."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit returns")


def _bounds(low: int | None, high: int | None) -> str:
    if low is None and high is None:
        return "—"
    if low is None or high is None:
        return f"≥ {_stay(low)}" if high is None else f"≤ {_stay(high)}"
    return _stay(low) if _stay(low) == _stay(high) else f"{_stay(low)} to {_stay(high)}"


def _stay(milliseconds: int | None) -> str:
    seconds = (milliseconds or 0) / 1000
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def _time(milliseconds: int) -> str:
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms"
