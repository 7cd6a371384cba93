"""Queue flooding: many connections set and get small items as fast as they can.

Requests are sent in bursts (all of a depth, and the next when all are answered), or in a sliding
window (a new one for each reply). At depth 1 these are the same.

A round fills the queue with N sets and drains it with N gets, so that every get hits. At a depth
above 1, where an operation is cheaper, this is repeated, so that it is measured for about as long.
The table shows medians over the rounds.

Redis does LPUSH and RPOP on one list; beanstalkd does put, then reserve and delete; nats-server
publishes to a stream, then pulls and acknowledges. memcached is a key-value store, not a queue: its
sets and gets use the same few keys (one per connection, at most 64), so every get hits and nothing
is removed. It shows the least that such a request can cost, not the cost of the same work.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass

from bench import servers
from bench.load import generator, process
from bench.load.generator import Phase
from bench.load.process import Load
from bench.load.workload import Operation
from bench.report import medians
from bench.report.session import Session, numbers, parser
from bench.servers import Peer

BASELINE = "redis"


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a load: the number of connections, each with `depth` requests in flight."""

    connections: int
    depth: int
    window: bool = False

    def __str__(self) -> str:
        text = f"{self.connections} connections, depth {self.depth}"
        return f"{text}, sliding window" if self.window else text


def measure(peer: Peer, shape: Shape, options: argparse.Namespace) -> list[Phase]:
    """Measure one round of one server: start, load, stop. Raises `PeerError`."""
    operations = max(options.operations, 2 * shape.connections * shape.depth)
    wanted = Load(
        (Operation.SET, Operation.GET),
        operations,
        connections=shape.connections,
        depth=shape.depth,
        window=shape.window,
        size=options.size,
        warmup=operations // 20,
        repeat=1 if options.quick or shape.depth == 1 else 3,
        processes=options.processes,
        time_limit=options.time_limit,
    )
    with servers.running(peer, process.cpus()[0], options.dir) as server:
        return process.run(wanted, peer, server)


def run_shape(session: Session, shape: Shape, baseline: str) -> None:
    """Run all rounds of one shape and show its table: sets first, with the ratio to `baseline`."""
    options = session.options
    title = f"{shape}, Unix sockets" if options.unix else str(shape)
    results, failures = session.in_turn(
        title, lambda peer: measure(peer, shape, options), options.rounds
    )
    rows: list[medians.Row] = []
    for operation in ("set", "get"):
        found = []
        for name, rounds in results.items():
            phases = [phase for one in rounds for phase in one if phase.operation == operation]
            found.append(medians.medians(name, shape.connections, shape.depth, phases))
        rows += medians.compared(found, baseline)
    raw = [
        {"server": name, **asdict(phase)}
        for name, rounds in results.items()
        for one in rounds
        for phase in one
    ]
    remarks = medians.remarks(rows, options.processes) + failures
    session.show(title, medians.columns(baseline), rows, remarks, raw)


def run_shapes(session: Session, baseline: str) -> int:
    """Run every shape that the options ask for; return the exit status."""
    options = session.options
    generator.raise_open_files(max(options.connections) + 2000)
    for connections in options.connections:
        for depth in options.depth:
            for habit in options.habit if depth > 1 else ["burst"]:
                run_shape(session, Shape(connections, depth, habit == "window"), baseline)
    return session.finish()


def flood_options(
    name: str, purpose: str | None, arguments: list[str] | None, habits: str = "burst"
) -> argparse.Namespace:
    """Parse the options of a flood benchmark; `habits` is the default of `--habit`."""
    made = parser(name, purpose)
    add = made.add_argument
    add("--connections", type=numbers, default=[50], help="such as 1,50,1000,10000; default 50")
    add("--depth", type=numbers, default=[1, 16], help="requests sent at once; default 1,16")
    add("--habit", type=_habits, default=_habits(habits),
        help=f"how to send at depths above 1: burst, window or both; default {habits}")  # fmt: skip
    add(
        "--unix", action="store_true", help="over Unix sockets; servers that have none are left out"
    )
    add("--operations", type=int, default=100_000, help="sets, and gets, of a cycle")
    add("--size", type=int, default=1024, help="bytes of an item")
    add("--processes", type=int, default=1, help="of the load generator")
    options = made.parse_args(arguments)
    if options.quick:
        options.rounds, options.operations = 1, min(options.operations, 20_000)
    return options


def _habits(text: str) -> list[str]:
    found = text.split(",")
    if unknown := set(found) - {"burst", "window"}:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(sorted(unknown))}")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    options = flood_options("flood", __doc__, arguments, "burst,window")
    peers = servers.known_peers()
    if options.unix:
        peers = [peer.on_unix_socket() for peer in peers if peer.unix]
    return run_shapes(Session("flood", options, peers), BASELINE)


if __name__ == "__main__":
    sys.exit(main())
