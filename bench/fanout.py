"""Fanout: the cost of a set on a queue with fanout children, compared with a plain queue.

Each child gets every item. Redis has no fanout: a client pushes to one more list for each child,
here all in one request. nats-server writes an item once, to a stream that keeps it until each of
its consumers has read it. The other peers have no equivalent.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from statistics import median

from bench import servers
from bench.load import process
from bench.load.generator import Phase
from bench.load.process import Load
from bench.load.workload import Operation, Protocol
from bench.report.session import Session, numbers, parser
from bench.report.table import Column, ratio
from bench.servers import Peer

ABLE = (Protocol.MEMCACHE, Protocol.RESP, Protocol.NATS)
GOAL = 3.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One round: sets on a plain queue, and on a queue with children."""

    plain: Phase
    fanout: Phase

    @property
    def ratio(self) -> float:
        """The CPU time of a set with children over that of a set without."""
        return (self.fanout.server_cpu or 0.0) / (self.plain.server_cpu or 1.0)


@dataclass(frozen=True, slots=True)
class Row:
    """Medians: CPU time of the server and of the load generator, in microseconds per set."""

    server: str
    depth: int
    children: int
    plain: float
    fanout: float
    ratio: float
    load_cpu: float


def measure(peer: Peer, depth: int, options: argparse.Namespace) -> Pair:
    """Measure one round of one server. Raises `PeerError`."""
    phases = []
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        for prefix, copies in (("plain", 0), ("fanout", options.children)):
            wanted = Load(
                (Operation.SET,),
                options.operations,
                depth=depth,
                size=options.size,
                warmup=options.operations // 20,
                prefix=prefix,
                copies=copies,
                time_limit=options.time_limit,
            )
            phases += process.run(wanted, peer, server)
    return Pair(*phases)


def row(server: str, depth: int, children: int, rounds: list[Pair]) -> Row:
    """Return the medians of one server."""
    return Row(
        server,
        depth,
        children,
        median(pair.plain.server_cpu or 0.0 for pair in rounds),
        median(pair.fanout.server_cpu or 0.0 for pair in rounds),
        median(pair.ratio for pair in rounds),
        median(pair.fanout.load_cpu for pair in rounds),
    )


COLUMNS: list[Column[Row]] = [
    Column("server", lambda row: row.server, left=True),
    Column("plain us/op", lambda row: f"{row.plain:.2f}"),
    Column("fanout us/op", lambda row: f"{row.fanout:.2f}"),
    Column("x plain", lambda row: ratio(row.ratio)),
    Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("fanout", __doc__)
    add = made.add_argument
    add("--children", type=int, default=10)
    add("--depth", type=numbers, default=[1, 16], help="requests sent at once; default 1,16")
    add("--operations", type=int, default=50_000)
    add("--size", type=int, default=1024, help="bytes of an item")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.operations = 1, min(options.operations, 10_000)
    able = [peer for peer in servers.queues() if peer.protocol in ABLE]
    session = Session("fanout", options, able)
    for depth in options.depth:
        _table(session, depth)
    return session.finish()


def _table(session: Session, depth: int) -> None:
    options = session.options
    title = f"a set to {options.children} children, 50 connections, depth {depth}"
    results, failures = session.in_turn(
        title, lambda peer: measure(peer, depth, options), options.rounds
    )
    rows = [row(name, depth, options.children, rounds) for name, rounds in results.items()]
    over = [
        f"{one.server}: over {GOAL:.0f} times a plain set"
        for one in rows
        if one.server == "kestrelmq" and one.ratio > GOAL
    ]
    session.show(title, COLUMNS, rows, over + failures, results)


if __name__ == "__main__":
    sys.exit(main())
