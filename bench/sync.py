"""Group commit: how many adds one fsync covers with `sync_journal = "0ms"`.

    python -m bench.sync --connections 100

Each connection waits for the reply to an add before it sends the next, so an fsync can cover at
most as many adds as there are connections. For comparison, "never" and a period are measured, and
the peers that can fsync before each reply: Redis (`appendfsync always`) and beanstalkd (`-f 0`).
These do not report their number of fsyncs; their adds per second give an idea of it.
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
from bench.report.session import Session, parser
from bench.report.table import Column, whole
from bench.servers import Peer
from kestrelmq.client import Client


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one server; `syncs` is None if the server does not report it."""

    phase: Phase
    syncs: int | None

    @property
    def adds_per_sync(self) -> float | None:
        """The mean number of adds that one fsync covered."""
        return self.phase.operations / self.syncs if self.syncs else None


@dataclass(frozen=True, slots=True)
class Row:
    """Medians: CPU time in microseconds per operation, latencies in microseconds."""

    server: str
    adds_per_second: float
    adds_per_sync: float | None
    p50: float
    p99: float
    cpu: float
    load_cpu: float


def measure(peer: Peer, options: argparse.Namespace) -> Round:
    """Measure one round of one server. Raises `PeerError`."""
    adds = Load(
        (Operation.SET,),
        options.operations,
        connections=options.connections,
        size=options.size,
        time_limit=options.time_limit,
    )
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        (phase,) = process.run(adds, peer, server)
        return Round(phase, _syncs(server.port) if peer.protocol is Protocol.MEMCACHE else None)


def _syncs(port: int) -> int:
    with Client(f"127.0.0.1:{port}") as client:
        (stats,) = client.stats().values()
    return sum(int(stats[name]) for name in stats if name.endswith("_journal_syncs"))


def row(server: str, rounds: list[Round]) -> Row:
    """Return the medians of one server."""
    covered = [each for one in rounds if (each := one.adds_per_sync) is not None]
    return Row(
        server,
        median(one.phase.operations_per_second for one in rounds),
        median(covered) if covered else None,
        median(one.phase.p50 for one in rounds),
        median(one.phase.p99 for one in rounds),
        median(one.phase.server_cpu or 0.0 for one in rounds),
        median(one.phase.load_cpu for one in rounds),
    )


COLUMNS: list[Column[Row]] = [
    Column("server", lambda row: row.server, left=True),
    Column("adds/s", lambda row: f"{row.adds_per_second:,.0f}"),
    Column("adds/fsync", lambda row: whole(row.adds_per_sync)),
    Column("p50 us", lambda row: f"{row.p50:,.0f}"),
    Column("p99 us", lambda row: f"{row.p99:,.0f}"),
    Column("cpu us/op", lambda row: f"{row.cpu:.2f}"),
    Column("load us/op", lambda row: f"{row.load_cpu:.2f}"),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("sync", __doc__)
    add = made.add_argument
    add("--connections", type=int, default=100)
    add("--operations", type=int, default=20_000)
    add("--size", type=int, default=1024)
    add("--settings", nargs="+", default=["never", "100ms", "0ms"], help="of sync_journal")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.operations = 1, min(options.operations, 2_000)
    session = Session("sync", options, servers.synced(options.settings))
    title = f"{options.connections} connections, {options.size} bytes an item"
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    rows = [row(name, rounds) for name, rounds in results.items()]
    session.show(title, COLUMNS, rows, failures, results)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
