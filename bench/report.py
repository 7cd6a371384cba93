"""Rounds to medians to a table of plain text. Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from bench.loadgen import Phase

BASELINE = "redis"
BUSY = 0.9
"""A server that used less of its CPU than this was not what bounded the throughput."""

HEADINGS = (
    "server", "op", "ops/s", "cpu us/op", "x redis", "server busy", "load us/op",
    "p50 us", "p99 us", "max us", "rss MiB", "peak MiB", "phases",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """The medians of one server, operation, number of connections and depth.

    `cpu` and `load_cpu` in microseconds per operation, `busy` the share of the wall time that the
    server used its CPU, latencies in microseconds, memory in KiB, `ratio` is `cpu` over Redis's
    in the same run.
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
    p50: float
    p99: float
    max: float
    resident: float
    peak: float
    misses: int
    ratio: float | None = None


def medians(server: str, connections: int, depth: int, phases: Sequence[Phase]) -> Row:
    """The row of phases that differ only in their round."""

    def middle(name: str) -> float:
        return float(median(getattr(phase, name) or 0 for phase in phases))

    return Row(
        server=server,
        operation=phases[0].operation,
        connections=connections,
        depth=depth,
        phases=len(phases),
        operations_per_second=middle("operations_per_second"),
        cpu=middle("server_cpu"),
        busy=median((p.server_cpu or 0.0) * p.operations / p.seconds / 1e6 for p in phases),
        load_cpu=middle("load_cpu"),
        p50=middle("p50"),
        p99=middle("p99"),
        max=middle("max"),
        resident=middle("server_resident"),
        peak=middle("server_peak"),
        misses=sum(phase.misses for phase in phases),
    )


def table(connections: int, depth: int, rows: Sequence[Row], remarks: Sequence[str]) -> str:
    """One table for one number of connections and depth; `remarks` name what could not be run."""
    cells = [HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(HEADINGS))]
    lines = [f"{connections} connections, depth {depth}"]
    for line in cells:
        padded = [
            text.ljust(width) if column < 2 else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        lines.append("  " + "  ".join(padded).rstrip())
    lines += [f"  {row.server} {row.operation}: {row.misses} misses" for row in rows if row.misses]
    if idle := [f"{row.server} {row.operation}" for row in rows if row.busy < BUSY]:
        lines.append(f"  bounded by the round trip, the load or the machine: {', '.join(idle)}")
    lines += [f"  {remark}" for remark in remarks]
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.server,
        row.operation,
        f"{row.operations_per_second:,.0f}",
        f"{row.cpu:.2f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        f"{row.busy:.0%}",
        f"{row.load_cpu:.2f}",
        f"{row.p50:.0f}",
        f"{row.p99:.0f}",
        f"{row.max:.0f}",
        f"{row.resident / 1024:.0f}",
        f"{row.peak / 1024:.0f}",
        str(row.phases),
    )
