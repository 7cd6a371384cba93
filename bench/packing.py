"""Throughput and backlog: the cost of a set and a get when many items wait in the queue.

The queue is filled to each backlog in turn. Then cycles of some thousand sets and as many gets are
repeated. kestrelmq keeps at most `max_memory_size` (128 MiB) of a queue in memory and reads the
rest back from its journal, which it must also rewrite from time to time. `bench.flood` describes
the peers. The ratios compare a server with itself at an empty queue, in the same round.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from statistics import median

from bench import servers
from bench.load import process
from bench.load.generator import Phase
from bench.load.process import Load
from bench.load.workload import Operation
from bench.report import medians
from bench.report.session import Session, numbers, parser
from bench.report.table import Column, mebibytes, ratio
from bench.servers import Peer, Running


@dataclass(frozen=True, slots=True)
class Point:
    """The results of one server at one backlog.

    CPU times are in microseconds per operation, memory in KiB. `pair_ratio` is the CPU time of a
    set and a get over that with an empty queue; `speed_ratio` is the same ratio of pairs per
    second.
    """

    server: str
    backlog: int
    set_cpu: float
    get_cpu: float
    pairs_per_second: float
    load_cpu: float
    resident: float
    peak: float
    pair_ratio: float = 1.0
    speed_ratio: float = 1.0

    @property
    def is_load_bound(self) -> bool:
        """Whether the load generator, not the server, limited the pairs per second."""
        rate = self.pairs_per_second / 1e6
        return medians.is_load_bound(self.pair_cpu * rate, 2 * self.load_cpu * rate)

    @property
    def pair_cpu(self) -> float:
        """The CPU time of a set and a get together."""
        return self.set_cpu + self.get_cpu


def measure(peer: Peer, options: argparse.Namespace) -> list[Point]:
    """Measure one round of one server: every backlog, the shortest first. Raises `PeerError`."""
    points = []
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        there = 0
        cycle(peer, server, options, 1)
        for backlog in sorted(options.backlogs):
            process.fill(peer, server, backlog - there, options.size, options.time_limit)
            there = backlog
            phases = cycle(peer, server, options, options.cycles)
            points.append(point(peer.name, backlog, phases))
    return beside_empty(points)


def cycle(peer: Peer, server: Running, options: argparse.Namespace, repeat: int) -> list[Phase]:
    """Run `repeat` cycles of sets and as many gets."""
    wanted = Load(
        (Operation.SET, Operation.GET),
        options.operations,
        connections=options.connections,
        depth=options.depth,
        size=options.size,
        repeat=repeat,
        time_limit=options.time_limit,
    )
    return process.run(wanted, peer, server)


def point(server: str, backlog: int, phases: list[Phase]) -> Point:
    """Combine the phases at one backlog; sum the CPU time, as only some of them have a rewrite."""

    def cpu(operation: str) -> float:
        chosen = [phase for phase in phases if phase.operation == operation]
        used = sum((phase.server_cpu or 0.0) * phase.operations for phase in chosen)
        return used / sum(phase.operations for phase in chosen)

    return Point(
        server=server,
        backlog=backlog,
        set_cpu=cpu("set"),
        get_cpu=cpu("get"),
        pairs_per_second=sum(p.operations for p in phases) / 2 / sum(p.seconds for p in phases),
        load_cpu=median(phase.load_cpu for phase in phases),
        resident=phases[-1].server_resident or 0,
        peak=phases[-1].server_peak or 0,
    )


def beside_empty(points: list[Point]) -> list[Point]:
    """Return the points of one round with their ratios to the first."""
    empty = points[0]
    return [
        replace(
            one,
            pair_ratio=one.pair_cpu / empty.pair_cpu,
            speed_ratio=one.pairs_per_second / empty.pairs_per_second,
        )
        for one in points
    ]


COLUMNS: list[Column[Point]] = [
    Column("server", lambda row: row.server, left=True),
    Column("backlog", lambda row: f"{row.backlog:,}"),
    Column("set us/op", lambda row: f"{row.set_cpu:.2f}"),
    Column("get us/op", lambda row: f"{row.get_cpu:.2f}"),
    Column("cpu x empty", lambda row: ratio(row.pair_ratio)),
    Column("pairs/s", lambda row: f"{row.pairs_per_second:,.0f}" + "*" * row.is_load_bound),
    Column("pairs/s x empty", lambda row: ratio(row.speed_ratio)),
    Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
    Column("rss MiB", lambda row: mebibytes(row.resident)),
    Column("peak MiB", lambda row: mebibytes(row.peak)),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("packing", __doc__)
    add = made.add_argument
    add("--backlogs", type=numbers, default=[0, 100_000, 1_000_000], help="such as 0,16000000")
    add("--size", type=int, default=64, help="bytes of an item")
    add("--connections", type=int, default=50)
    add("--depth", type=int, default=1, help="requests sent at once")
    add("--operations", type=int, default=25_000, help="sets, and gets, of a cycle")
    add("--cycles", type=int, default=4)
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.cycles, options.operations = 1, 2, 5_000
        options.backlogs = [0, min(100_000, max(options.backlogs))]
    session = Session("packing", options, servers.queues())
    title = f"sets and gets of {options.size} bytes over a backlog, depth {options.depth}"
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    rows = [
        medians.middle(same) for rounds in results.values() for same in zip(*rounds, strict=True)
    ]
    marked = ["* bounded by the load generator"] if any(one.is_load_bound for one in rows) else []
    session.show(title, COLUMNS, rows, marked + failures, results)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
