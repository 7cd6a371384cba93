"""Reduce the results of several rounds to the medians in the tables. Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Any, TypeVar

from bench.load.generator import Phase
from bench.report.table import Column, mebibytes, ratio

Result = TypeVar("Result")

BUSY = 0.9
"""The share of a CPU from which on a process counts as the limit of the throughput."""


@dataclass(frozen=True, slots=True)
class Row:
    """The medians for one server, operation, number of connections and depth.

    `cpu` and `load_cpu` are in microseconds per operation; `busy` and `load_busy` are the CPU time
    of the server and the load generator as a share of the wall time. Latencies are in microseconds,
    memory is in KiB. `ratio` is `cpu` over that of the baseline in the same run.
    """

    server: str
    operation: str
    connections: int
    depth: int
    phases: int
    operations_per_second: float
    cpu: float
    busy: float
    load_cpu: float
    load_busy: float
    p50: float
    p99: float
    max: float
    resident: float
    peak: float
    misses: int
    ratio: float | None = None


def middle(rounds: Sequence[Result]) -> Result:
    """Return a dataclass with the medians of all fields that are floats, and the first's others."""
    first: Any = rounds[0]
    measured = [field.name for field in fields(first) if field.type == "float"]
    found: Result = replace(
        first, **{name: median(getattr(one, name) for one in rounds) for name in measured}
    )
    return found


def medians(server: str, connections: int, depth: int, phases: Sequence[Phase]) -> Row:
    """Return the row of phases that differ only in their round."""

    def of(name: str) -> float:
        return float(median(getattr(phase, name) or 0 for phase in phases))

    return Row(
        server=server,
        operation=phases[0].operation,
        connections=connections,
        depth=depth,
        phases=len(phases),
        operations_per_second=of("operations_per_second"),
        cpu=of("server_cpu"),
        busy=median((p.server_cpu or 0.0) * p.operations / p.seconds / 1e6 for p in phases),
        load_cpu=of("load_cpu"),
        load_busy=median(p.load_cpu * p.operations / p.seconds / 1e6 for p in phases),
        p50=of("p50"),
        p99=of("p99"),
        max=of("max"),
        resident=of("server_resident"),
        peak=of("server_peak"),
        misses=sum(phase.misses for phase in phases),
    )


def compared(rows: Sequence[Row], baseline: str) -> list[Row]:
    """Return the rows of one operation, each with its ratio to `baseline`, if that was measured."""
    base = next((row.cpu for row in rows if row.server == baseline), 0.0)
    return [replace(row, ratio=row.cpu / base if base else None) for row in rows]


def columns(baseline: str) -> list[Column[Row]]:
    """Return the columns of a table of such rows."""
    return [
        Column("server", lambda row: row.server, left=True),
        Column("op", lambda row: row.operation, left=True),
        Column("ops/s", lambda row: f"{row.operations_per_second:,.0f}"),
        Column("cpu us/op", lambda row: f"{row.cpu:.2f}"),
        Column(f"x {baseline}", lambda row: ratio(row.ratio)),
        Column("server busy", lambda row: f"{row.busy:.0%}"),
        Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
        Column("p50 us", lambda row: f"{row.p50:.0f}"),
        Column("p99 us", lambda row: f"{row.p99:.0f}"),
        Column("max us", lambda row: f"{row.max:.0f}"),
        Column("rss MiB", lambda row: mebibytes(row.resident)),
        Column("peak MiB", lambda row: mebibytes(row.peak)),
        Column("phases", lambda row: str(row.phases)),
    ]


def is_load_bound(busy: float, load_busy: float, load_processes: int = 1) -> bool:
    """Whether the load generator had used up its CPU and the server had not."""
    return busy < BUSY and load_busy >= BUSY * load_processes


def remarks(rows: Sequence[Row], load_processes: int) -> list[str]:
    """Return remarks on rows: misses, and throughput that was not limited by the server."""
    said = [f"{row.server} {row.operation}: {row.misses} misses" for row in rows if row.misses]
    idle = [row for row in rows if row.busy < BUSY]
    by_load = [row for row in idle if is_load_bound(row.busy, row.load_busy, load_processes)]
    other = [row for row in idle if row not in by_load]
    for cause, found in (("the load generator", by_load), ("the round trip or the machine", other)):
        if found:
            names = ", ".join(f"{row.server} {row.operation}" for row in found)
            said.append(f"ops/s bounded by {cause}: {names}")
    return said
