"""Resident memory when a queue has grown long, and when it has been emptied again.

All items are put in, then all are read. kestrelmq may hold `max_memory_size` of items in memory
(128 MiB, the default), and its bound is one and a half times that plus 64 MiB. The page cache,
which holds journals and logs, is not counted for any server. Peers that are not queues are left
out.

Then kestrelmq has bursts of connections, items and queues (`bench.bursts`), and should be back
within 1.3 times of the memory it had before, without being asked to.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

from bench import bursts, servers
from bench.bursts import Kind
from bench.load import accounting, process
from bench.load.process import Load
from bench.load.workload import Operation
from bench.report.medians import middle
from bench.report.session import Session, parser
from bench.report.table import Column, mebibytes
from bench.servers import Peer, PeerError

BOUND = (128 * 3 // 2 + 64) * 1024
"""Most KiB that kestrelmq may use at its peak with a `max_memory_size` of 128 MiB."""

RETURNED = 1.3
"""Most memory after a burst, as a multiple of that before."""


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


@dataclass(frozen=True, slots=True)
class BurstRow:
    """Resident memory in KiB before a burst of `count` things, at its height, and after it."""

    burst: str
    count: int
    before: float
    height: float
    after: float

    @property
    def each(self) -> float:
        """What each thing takes, in KiB, at the height of the burst."""
        return (self.height - self.before) / self.count


def measure_burst(
    peer: Peer, kind: Kind, count: int, settle: float, options: argparse.Namespace
) -> BurstRow:
    """Measure one burst of one server. Raises `PeerError`."""
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        bursts.warm_up(server)
        before = accounting.memory(server.pid).resident
        height = kind.run(server, count)
        time.sleep(settle)
        after = accounting.memory(server.pid).resident
    return BurstRow(f"{count:,} {kind.name}", count, before, height, after)


BURST_COLUMNS: list[Column[BurstRow]] = [
    Column("burst", lambda row: row.burst, left=True),
    Column("before MiB", lambda row: mebibytes(row.before)),
    Column("height MiB", lambda row: mebibytes(row.height)),
    Column("KiB each", lambda row: f"{row.each:.1f}"),
    Column("after MiB", lambda row: mebibytes(row.after)),
    Column("after / before", lambda row: f"{row.after / row.before:.2f}"),
]

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
    made.add_argument("--settle-burst", type=float, default=10.0, help="the same, after a burst")
    made.add_argument("--bursts", action="store_true", help="bursts only")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.items = 1, min(options.items, 50_000)
    session = Session("memory", options, servers.queues())
    if not options.bursts:
        show_growth(session, options)
    show_bursts(session, options)
    return session.finish()


def show_growth(session: Session, options: argparse.Namespace) -> None:
    """Measure and show how much memory each server takes for a long queue."""
    title = f"{options.items:,} items of {options.size} bytes in, then out"
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    rows = [middle(rounds) for rounds in results.values()]
    over = [
        f"kestrelmq: the peak is over its bound of {mebibytes(BOUND)} MiB"
        for row in rows
        if row.server == "kestrelmq" and row.peak > BOUND
    ]
    session.show(title, COLUMNS, rows, over + failures, results)


def show_bursts(session: Session, options: argparse.Namespace) -> None:
    """Measure and show how much memory stays with kestrelmq after bursts."""
    rows: list[BurstRow] = []
    remarks: list[str] = []
    every: list[list[BurstRow]] = []
    for peer in session.present:
        if peer.name != "kestrelmq":
            continue
        for kind in bursts.KINDS:
            count = kind.count // 10 if options.quick else kind.count
            try:
                found = [
                    measure_burst(peer, kind, count, options.settle_burst, options)
                    for _ in range(options.rounds)
                ]
            except PeerError as error:
                remarks.append(f"{kind.name}: failed: {error}")
                continue
            every.append(found)
            rows.append(middle(found))
    remarks += [
        f"{row.burst}: more than {RETURNED} times as much as before"
        for row in rows
        if row.after > RETURNED * row.before
    ]
    session.show(
        "bursts: memory before, at the height, and after", BURST_COLUMNS, rows, remarks, every
    )


if __name__ == "__main__":
    sys.exit(main())
