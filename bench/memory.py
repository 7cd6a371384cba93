"""Resident memory when a queue has grown long, and when it has been emptied again.

All items are put in, then all are read. kestrelmq may hold `max_memory_size` of items in memory
(128 MiB, the default), and its bound is one and a half times that plus 64 MiB. The page cache,
which holds journals and logs, is not counted for any server. Peers that are not queues are left
out.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from bench import servers
from bench.load import accounting, process
from bench.load.process import Load
from bench.load.workload import Operation
from bench.report.session import Session, parser
from bench.report.table import Column, mebibytes
from bench.servers import Peer, PeerError

BOUND = (128 * 3 // 2 + 64) * 1024
"""Most KiB that kestrelmq may use at its peak with a `max_memory_size` of 128 MiB."""


@dataclass(frozen=True, slots=True)
class Row:
    """Resident memory in KiB of the server: empty, filled, at its peak, and drained again.

    CPU times, of the server and the load generator, are in microseconds per operation.
    """

    server: str
    empty: float
    filled: float
    peak: float
    drained: float
    set_cpu: float
    get_cpu: float
    load_cpu: float


def measure(peer: Peer, options: argparse.Namespace) -> Row:
    """Measure one round of one server. Raises `PeerError`."""
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        empty = accounting.memory(server.pid).resident
        phases = []
        for operation in Operation:
            wanted = Load(
                (operation,), options.items, depth=16, size=options.size,
                time_limit=max(options.time_limit, options.items / 2000),
            )  # fmt: skip
            phases += process.run(wanted, peer, server)
        time.sleep(options.settle)
        after = accounting.memory(server.pid)
    filling, draining = phases
    if draining.misses:
        raise PeerError(f"{draining.misses} items did not come back")
    return Row(
        server=peer.name,
        empty=empty,
        filled=filling.server_resident or 0,
        peak=after.peak,
        drained=after.resident,
        set_cpu=filling.server_cpu or 0.0,
        get_cpu=draining.server_cpu or 0.0,
        load_cpu=(filling.load_cpu + draining.load_cpu) / 2,
    )


def middle(rows: list[Row]) -> Row:
    """Return the medians over the rounds of one server."""

    def of(value: Callable[[Row], float]) -> float:
        return median(map(value, rows))

    return Row(
        rows[0].server,
        of(lambda row: row.empty),
        of(lambda row: row.filled),
        of(lambda row: row.peak),
        of(lambda row: row.drained),
        of(lambda row: row.set_cpu),
        of(lambda row: row.get_cpu),
        of(lambda row: row.load_cpu),
    )


COLUMNS: list[Column[Row]] = [
    Column("server", lambda row: row.server, left=True),
    Column("empty MiB", lambda row: mebibytes(row.empty)),
    Column("filled MiB", lambda row: mebibytes(row.filled)),
    Column("peak MiB", lambda row: mebibytes(row.peak)),
    Column("drained MiB", lambda row: mebibytes(row.drained)),
    Column("set us/op", lambda row: f"{row.set_cpu:.2f}"),
    Column("get us/op", lambda row: f"{row.get_cpu:.2f}"),
    Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("memory", __doc__)
    made.add_argument("--items", type=int, default=500_000)
    made.add_argument("--size", type=int, default=1024, help="bytes of an item")
    made.add_argument("--settle", type=float, default=1.0, help="seconds to give memory back")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.items = 1, min(options.items, 50_000)
    session = Session("memory", options, servers.queues())
    title = f"{options.items:,} items of {options.size} bytes in, then out"
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    rows = [middle(rounds) for rounds in results.values()]
    over = [
        f"kestrelmq: the peak is over its bound of {mebibytes(BOUND)} MiB"
        for row in rows
        if row.server == "kestrelmq" and row.peak > BOUND
    ]
    session.show(title, COLUMNS, rows, over + failures, results)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
