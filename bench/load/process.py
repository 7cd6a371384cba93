"""Run the load generator in a separate process, on other CPUs than the server's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.load.generator import Phase
from bench.load.workload import Operation
from bench.servers import Peer, PeerError, Running

CHUNK = 1_000_000
"""Items added at a time by `fill`."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Load:
    """The phases to run: one of `count` operations for each of `operations`, `repeat` times.

    A phase ends early after `seconds`, and fails after `time_limit` seconds. `size` is in bytes.
    Each set must reach `copies` further queues. Servers that are not queues get one key per
    connection. `window` chooses the sliding window instead of bursts.
    """

    operations: tuple[Operation, ...]
    count: int
    connections: int = 50
    depth: int = 1
    size: int = 1024
    warmup: int = 0
    repeat: int = 1
    seconds: float | None = None
    prefix: str = "flood"
    copies: int = 0
    window: bool = False
    processes: int = 1
    time_limit: float = 60.0


def cpus() -> tuple[int | None, list[int]]:
    """Return a CPU for the server and the others for the load; None and [] if there is only one."""
    allowed = sorted(os.sched_getaffinity(0))
    return (allowed[0], allowed[1:]) if len(allowed) > 1 else (None, [])


def command(load: Load, peer: Peer, server: Running) -> list[str]:
    """Return the command line of the load generator."""
    arguments: dict[str, object] = {
        "port": server.port,
        "path": server.path,
        "server-pid": server.pid,
        "protocol": peer.protocol.value,
        "connections": load.connections,
        "depth": load.depth,
        "keys": peer.keys(load.connections),
        "operations": load.count,
        "warmup": load.warmup,
        "repeat": load.repeat,
        "size": load.size,
        "prefix": load.prefix,
        "copies": load.copies,
        "processes": load.processes,
        "time-limit": load.time_limit,
    }
    if load.seconds is not None:
        arguments["seconds"] = load.seconds
    if load_cpus := cpus()[1]:
        arguments["cpus"] = ",".join(map(str, load_cpus))
    words = [sys.executable, "-m", "bench.load.generator", "--json"]
    for operation in load.operations:
        words += ["--op", operation.value]
    for name, value in arguments.items():
        words += [f"--{name}", str(value)]
    flags = {"--window": load.window, "--tls": peer.speaks_tls}
    return [*words, *(flag for flag, is_set in flags.items() if is_set)]


def run(load: Load, peer: Peer, server: Running) -> list[Phase]:
    """Run a load to its end. Raises `PeerError` if it fails."""
    process = start(load, peer, server)
    limit = load.time_limit * len(load.operations) * (load.repeat + 2)
    return phases(process, limit)


def fill(peer: Peer, server: Running, count: int, size: int, time_limit: float) -> None:
    """Set so many items of `size` bytes, a million at a time. Raises `PeerError`.

    Each million may take `time_limit` seconds, or 500 us an item if that is longer.
    """
    for begin in range(0, count, CHUNK):
        some = min(CHUNK, count - begin)
        limit = max(time_limit, some / 2000)
        run(Load((Operation.SET,), some, depth=16, size=size, time_limit=limit), peer, server)


def start(load: Load, peer: Peer, server: Running, *, low_priority: bool = False) -> Process:
    """Start a load; with a low priority, so that it does not delay another load."""
    return subprocess.Popen(
        [*(("nice", "-n", "10") if low_priority else ()), *command(load, peer, server)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def phases(process: Process, limit: float) -> list[Phase]:
    """Wait for a load to end, at most `limit` seconds; return its phases. Raises `PeerError`."""
    try:
        answer, complaint = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise PeerError(f"the load generator took over {limit:.0f} s") from None
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        raise PeerError(complaint.strip()[-500:])
    return [Phase(**phase) for phase in json.loads(answer)]


Process = subprocess.Popen[str]
