"""Recovery: the time to start with existing files, compared with an empty start and with `cat`.

The queue is filled, and the server is stopped and started again on the same files, which are then
in the page cache; `cat` reads the same files from there. The time ends when the first item has
been read, because a server may answer before it has loaded anything. Starting may use every CPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench import servers
from bench.load import accounting, process
from bench.load.worker import LoadError, Plan, Worker
from bench.load.workload import Operation
from bench.report.medians import middle
from bench.report.session import Session, parser
from bench.report.table import Column, mebibytes, ratio, whole
from bench.servers import Peer, PeerError, Running

NOISE = 0.05
"""Seconds by which the times of two equal starts differ."""


@dataclass(frozen=True, slots=True)
class Row:
    """Seconds to start empty, to start with `items` items, and for `cat`; bytes of all files.

    `empty_cpu` and `full_cpu` are CPU seconds until the server served; memory is in KiB at that
    time.
    """

    server: str
    items: int
    bytes: int
    cat: float
    empty: float
    full: float
    empty_cpu: float
    full_cpu: float
    resident: float

    @property
    def loading(self) -> float:
        """Seconds to load the items; about 0 for a server that reads them later."""
        return self.full - self.empty

    def per_second(self, amount: float) -> float | None:
        """Return `amount` per second of loading; None if loading takes too short to measure."""
        return amount / self.loading if self.loading > NOISE else None


def measure(peer: Peer, options: argparse.Namespace) -> Row:
    """Measure one round of one server. Raises `PeerError`."""
    with servers.home(peer, options.dir) as directory:
        with servers.started(peer, None, directory):
            pass  # Now the program itself is in the page cache.
        with servers.started(peer, None, directory) as server:
            empty, empty_cpu = server.start_seconds, accounting.cpu_seconds(server.pid)
            process.fill(peer, server, options.items, options.size, options.time_limit)
        files = sorted(path for path in (directory / "data").rglob("*") if path.is_file())
        size = sum(path.stat().st_size for path in files)
        cat = min(reading_takes(files) for _ in range(3))
        with servers.started(peer, None, directory, options.start_limit) as server:
            full = server.start_seconds + first_item_takes(peer, server, options)
            full_cpu = accounting.cpu_seconds(server.pid)
            resident = accounting.memory(server.pid).resident
    return Row(peer.name, options.items, size, cat, empty, full, empty_cpu, full_cpu, resident)


def reading_takes(files: list[Path]) -> float:
    """Return the seconds that `cat` takes for `files`."""
    begun = time.perf_counter()
    subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begun


def first_item_takes(peer: Peer, server: Running, options: argparse.Namespace) -> float:
    """Return the seconds until an item can be read. Raises `PeerError` after `start_limit`."""
    begun = time.monotonic()
    plan = Plan(
        host="127.0.0.1",
        port=server.port,
        protocol=peer.protocol,
        connections=1,
        depth=1,
        size=options.size,
        keys=1,
        time_limit=options.start_limit,
    )
    why = "the items did not come back"
    while time.monotonic() < begun + options.start_limit:
        try:
            with Worker(plan) as worker:
                if not worker.run(Operation.GET, 1).misses:
                    return time.monotonic() - begun
        except LoadError as error:
            why = str(error)
        time.sleep(0.005)
    raise PeerError(why)


COLUMNS: list[Column[Row]] = [
    Column("server", lambda row: row.server, left=True),
    Column("files MiB", lambda row: mebibytes(row.bytes / 1024)),
    Column("cat s", lambda row: f"{row.cat:.2f}"),
    Column("empty start s", lambda row: f"{row.empty:.2f}"),
    Column("start s", lambda row: f"{row.full:.2f}"),
    Column("MiB/s loaded", lambda row: whole(row.per_second(row.bytes / 2**20))),
    Column("items/s loaded", lambda row: whole(row.per_second(row.items))),
    Column("x cat", lambda row: ratio(row.per_second(row.cat))),
    Column("empty cpu s", lambda row: f"{row.empty_cpu:.2f}"),
    Column("cpu s", lambda row: f"{row.full_cpu:.2f}"),
    Column("rss MiB", lambda row: mebibytes(row.resident)),
]


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    made = parser("recovery", __doc__)
    add = made.add_argument
    add("--items", type=int, default=1 << 20, help="with 1 KiB an item: 1 GiB")
    add("--size", type=int, default=1024, help="bytes of an item")
    add("--start-limit", type=float, default=600.0, help="seconds that a start may take")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.items = 1, min(options.items, 50_000)
    session = Session("recovery", options, servers.queues())
    title = f"start with {options.items:,} items of {options.size} bytes"
    results, failures = session.in_turn(title, lambda peer: measure(peer, options), options.rounds)
    session.show(title, COLUMNS, [middle(rows) for rows in results.values()], failures, results)
    return session.finish()


if __name__ == "__main__":
    sys.exit(main())
