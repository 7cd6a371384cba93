"""Queue flooding, side by side: many connections set and get small items as fast as they can.

A round fills the queue with N sets and drains it with N gets, so that every get hits; at a depth
above 1, where an operation is cheaper, this is repeated to measure for about as long. Each server
is started afresh for each round, and the servers take turns (A B C A B C): what the machine does
beside the benchmark hits all of them alike. The table holds medians over the rounds.

Redis does LPUSH and RPOP on one list. memcached is a key-value store, and no queue: its sets and
gets go to the same small set of keys (one a connection, at most 64), so every get hits, nothing is
removed, and it stands for the least that such a request can cost, not for the same work.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench import loadgen, peers, report
from bench.loadgen import Phase
from bench.peers import Peer, PeerError

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Shape:
    """One load: so many connections, each with `depth` requests under way."""

    connections: int
    depth: int


@dataclass(slots=True)
class Results:
    """The phases of every round by server and operation, and why a server has none."""

    phases: dict[tuple[str, str], list[Phase]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[str, str] = field(default_factory=dict)


def measure(peer: Peer, shape: Shape, options: argparse.Namespace) -> list[Phase]:
    """One round of one server: start, load, stop. Raises `PeerError` when it can't be measured."""
    server_cpu, load_cpus = _cpus()
    operations = max(options.operations, 2 * shape.connections * shape.depth)
    cycles = 1 if options.quick or shape.depth == 1 else 3
    with peers.running(peer, server_cpu, options.dir) as server:
        command = [sys.executable, "-m", "bench.loadgen", "--json", "--op", "set", "--op", "get"]
        arguments: dict[str, object] = {
            "port": server.port,
            "server-pid": server.pid,
            "protocol": peer.protocol.value,
            "connections": shape.connections,
            "depth": shape.depth,
            "keys": peer.keys(shape.connections),
            "operations": operations,
            "warmup": operations // 20,
            "repeat": cycles,
            "size": options.size,
            "processes": options.processes,
            "time-limit": options.time_limit,
        }
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        if load_cpus:
            command += ["--cpus", ",".join(map(str, load_cpus))]
        limit = options.time_limit * 2 * (cycles + 2)
        try:
            answer = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            raise PeerError(f"the load generator took over {limit:.0f} s") from None
    if answer.returncode:
        raise PeerError(answer.stderr.strip()[-500:])
    return [Phase(**phase) for phase in json.loads(answer.stdout)]


def _cpus() -> tuple[int | None, list[int]]:
    """One CPU for the server and the others for the load; nothing is pinned when there is one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1:]) if len(allowed) > 1 else (None, [])


def run_shape(chosen: Sequence[Peer], shape: Shape, options: argparse.Namespace) -> Results:
    """All rounds of one shape, the servers in turn; one that fails drops out with its reason."""
    results = Results()
    for number in range(1, options.rounds + 1):
        for peer in chosen:
            if peer.name in results.failures:
                continue
            _progress(f"{shape.connections} x {shape.depth}, round {number}: {peer.name}")
            try:
                for phase in measure(peer, shape, options):
                    results.phases[peer.name, phase.operation].append(phase)
            except PeerError as error:
                results.failures[peer.name] = str(error)
    _progress("")
    return results


def rows_of(chosen: Sequence[Peer], shape: Shape, results: Results) -> list[report.Row]:
    """The medians in the order of the table, sets first, with the ratio to Redis."""
    rows: list[report.Row] = []
    for operation in ("set", "get"):
        found = [
            report.medians(peer.name, shape.connections, shape.depth, phases)
            for peer in chosen
            if (phases := results.phases.get((peer.name, operation)))
        ]
        base = next((row.cpu for row in found if row.server == report.BASELINE), 0.0)
        rows += [replace(row, ratio=row.cpu / base if base else None) for row in found]
    return rows


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _choose(options: argparse.Namespace) -> list[Peer]:
    """Known peers and those of `--server`, narrowed by `--only`; an unknown name is an error."""
    every = peers.known_peers()
    for number, command in enumerate(options.server, 1):
        every.append(peers.custom_peer("custom" if number == 1 else f"custom{number}", command))
    if not options.only:
        return every
    names = [peer.name for peer in every]
    if unknown := [name for name in options.only if name not in names]:
        print(f"flood: no server named {', '.join(unknown)}; there are {names}", file=sys.stderr)
        raise SystemExit(2)
    return [peer for peer in every if peer.name in options.only]


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bench.flood", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--connections", type=_numbers, default=[50], help="such as 1,50,1000,10000; default 50")
    add("--depth", type=_numbers, default=[1, 16], help="requests sent at once; default 1,16")
    add("--operations", type=int, default=100_000, help="sets, and gets, of a cycle")
    add("--rounds", type=int, default=3)
    add("--size", type=int, default=1024, help="bytes of an item")
    add("--processes", type=int, default=1, help="of the load generator")
    add("--only", type=lambda text: text.split(","), help="these servers, such as redis,custom")
    add("--server", action="append", default=[], metavar="'CMD {port} {dir}'",
        help="one more server that speaks memcache (set, get, version), named custom")  # fmt: skip
    add("--quick", action="store_true", help="one short round: to see that it runs")
    add("--dir", type=Path, help="where the servers keep their data meanwhile")
    add("--time-limit", type=float, default=60.0, help="seconds for each phase")
    add("--json", type=Path, metavar="FILE", help="write every round and the medians")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rounds, options.operations = 1, min(options.operations, 20_000)
    return options


def main(arguments: list[str] | None = None) -> int:
    """The command line. Exit status 1 when a server that is installed could not be measured."""
    options = _options(arguments)
    chosen = _choose(options)
    loadgen.raise_open_files(max(options.connections) + 2000)
    remarks = [f"{peer.name}: missing ({why})" for peer in chosen if (why := peer.missing())]
    present = [peer for peer in chosen if not peer.missing()]
    machine = {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "servers": {peer.name: peer.version_text() for peer in present},
    }
    runs, failed = [], False
    for shape in (Shape(c, d) for c in options.connections for d in options.depth):
        results = run_shape(present, shape, options)
        rows = rows_of(present, shape, results)
        failures = [f"{name}: failed: {why}" for name, why in results.failures.items()]
        print(report.table(shape.connections, shape.depth, rows, remarks + failures), flush=True)
        print()
        failed |= bool(failures)
        raw = [
            {"server": name, **asdict(phase)}
            for (name, _), phases in results.phases.items()
            for phase in phases
        ]
        runs.append({**asdict(shape), "medians": [asdict(row) for row in rows], "rounds": raw})
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "runs": runs}, indent=2) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
