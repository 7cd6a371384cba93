"""Fairness: the latency of small sets while another connection sends large items.

Some connections set small items, first alone, then while one more connection sets large items, one
after the other, to another queue. A process with low priority sends the large items, a quarter of
a MiB at a time, so that on the load generator's CPU the small items do not wait for them and the
server is measured. nats-server, beanstalkd and memcached are configured to accept large items.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from statistics import median

from bench import servers
from bench.load import process
from bench.load.generator import Phase
from bench.load.process import Load
from bench.load.workload import Operation
from bench.report.session import Session, parser
from bench.report.table import Column, ratio
from bench.servers import Peer, Running

HEAD_START = 0.7
"""Seconds for which large items are sent before the small sets are measured."""
ENDLESS = 10**9
GOAL = 10.0


@dataclass(frozen=True, slots=True)
class Round:
    """One round: the small sets alone, the small sets beside large ones, and the large sets."""

    alone: Phase
    beside: Phase
    large: Phase


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds: latencies of small sets (microseconds), alone and beside large ones.

    The ratios are medians of each round's ratio. `small_rate` is the rate of small sets beside
    large ones over their rate alone; `large_rate` is in bytes per second.
    """

    server: str
    alone_p50: float
    alone_p99: float
    beside_p50: float
    beside_p99: float
    beside_max: float
    p50_ratio: float
    p99_ratio: float
    small_rate: float
    large_rate: float
    load_cpu: float


def measure(peer: Peer, options: argparse.Namespace) -> Round:
    """Measure one round of one server. Raises `PeerError`."""
    small = Load(
        (Operation.SET,),
        ENDLESS,
        connections=options.connections,
        size=options.size,
        seconds=options.seconds,
        prefix="small",
        time_limit=options.time_limit,
    )
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        process.run(Load((Operation.SET,), 5000, size=options.size, prefix="small"), peer, server)
        (alone,) = process.run(small, peer, server)
        return Round(alone, *beside_large(small, peer, server, options))


def beside_large(
    small: Load, peer: Peer, server: Running, options: argparse.Namespace
) -> tuple[Phase, Phase]:
    """Measure small sets while large ones are sent; return the small ones and the large ones."""
    large = Load(
        (Operation.SET,),
        ENDLESS,
        connections=1,
        size=options.large_size,
        seconds=options.seconds + 2 * HEAD_START,
        prefix="large",
        time_limit=options.time_limit,
    )
    beside = process.start(large, peer, server, low_priority=True)
    try:
        time.sleep(HEAD_START)
        (phase,) = process.run(small, peer, server)
        return phase, process.phases(beside, options.time_limit)[0]
    finally:
        beside.kill()


def row(server: str, rounds: list[Round], large_size: int) -> Row:
    """Return the medians of one server."""
    return Row(
        server=server,
        alone_p50=median(one.alone.p50 for one in rounds),
        alone_p99=median(one.alone.p99 for one in rounds),
        beside_p50=median(one.beside.p50 for one in rounds),
        beside_p99=median(one.beside.p99 for one in rounds),
        beside_max=median(one.beside.max for one in rounds),
        p50_ratio=median(one.beside.p50 / one.alone.p50 for one in rounds),
        p99_ratio=median(one.beside.p99 / one.alone.p99 for one in rounds),
        small_rate=median(
            one.beside.operations_per_second / one.alone.operations_per_second for one in rounds
        ),
        large_rate=median(one.large.operations_per_second for one in rounds) * large_size,
        load_cpu=median(one.beside.load_cpu for one in rounds),
    )


COLUMNS: list[Column[Row]] = [
    Column("server", lambda row: row.server, left=True),
    Column("alone p50 us", lambda row: f"{row.alone_p50:,.0f}"),
    Column("p99 us", lambda row: f"{row.alone_p99:,.0f}"),
    Column("beside p50 us", lambda row: f"{row.beside_p50:,.0f}"),
    Column("p99 us", lambda row: f"{row.beside_p99:,.0f}"),
    Column("max us", lambda row: f"{row.beside_max:,.0f}"),
    Column("p50 x", lambda row: ratio(row.p50_ratio)),
    Column("p99 x", lambda row: ratio(row.p99_ratio)),
    Column("small sets/s x", lambda row: ratio(row.small_rate)),
    Column("large MiB/s", lambda row: f"{row.large_rate / 2**20:,.0f}"),
    Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("fairness", __doc__)
    add = made.add_argument
    add("--connections", type=int, default=10, help="that set small items")
    add("--size", type=int, default=1024, help="bytes of a small item")
    add("--large-size", type=int, default=8 << 20, help="bytes of a large item; at most 16 MiB")
    add("--seconds", type=float, default=3.0, help="of small sets, alone and beside large ones")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    session = Session("fairness", options)
    title = (
        f"{options.connections} connections set {options.size} bytes beside {options.large_size}"
    )
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    rows = [row(name, rounds, options.large_size) for name, rounds in results.items()]
    over = [
        f"kestrelmq: p99 is over {GOAL:.0f} times what it is alone"
        for one in rows
        if one.server == "kestrelmq" and one.p99_ratio > GOAL
    ]
    session.show(title, COLUMNS, rows, over + failures, results)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
