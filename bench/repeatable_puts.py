"""What an add that a producer may repeat costs the server, compared with a plain one.

    PYTHONPATH=build/compiled python -m bench.repeatable_puts

One connection adds items, one at a time or so many pipelined; after each round it flushes the
queue. Printed is the server's CPU time for each item, the least of some rounds that take turns.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable
from itertools import count
from math import inf
from pathlib import Path
from typing import Final

from bench import servers
from bench.load import accounting
from bench.servers import PeerError

_STORED: Final = b"STORED\r\n"


class Producer:
    """A connection that adds items, as a producer or not."""

    def __init__(self, port: int, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._data = b" 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
        self._numbers = count()

    def plain(self) -> bytes:
        """Return a plain add."""
        return b"set work" + self._data

    def marked(self) -> bytes:
        """Return the add of the producer's next item."""
        return b"set work/producer=importer-1/seq=%d" % next(self._numbers) + self._data

    def add(self, requests: list[bytes], depth: int) -> None:
        """Send `requests`, at most `depth` at a time. Raises PeerError."""
        for at in range(0, len(requests), depth):
            some = requests[at : at + depth]
            self._socket.sendall(b"".join(some))
            reply = b""
            while len(reply) < len(_STORED) * len(some):
                reply += self._socket.recv(1 << 20)
            if reply != _STORED * len(some):
                raise PeerError(f"{reply[:100]!r}")

    def flush(self) -> None:
        """Drop everything."""
        self._socket.sendall(b"flush work\r\n")
        self._socket.recv(100)


def measured(
    producer: Producer, pid: int, depth: int, options: argparse.Namespace
) -> dict[str, float]:
    """Return the server's CPU microseconds for each item, plain and as a producer."""
    ways: dict[str, Callable[[], bytes]] = {"plain": producer.plain, "marked": producer.marked}
    best = dict.fromkeys(ways, inf)
    for _ in range(options.rounds):
        for name, way in ways.items():
            requests = [way() for _ in range(options.items)]
            before = accounting.cpu_seconds(pid)
            producer.add(requests, depth)
            best[name] = min(best[name], accounting.cpu_seconds(pid) - before)
            producer.flush()
    return {name: seconds / options.items * 1e6 for name, seconds in best.items()}


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.repeatable_puts", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="items of each round")
    parser.add_argument("--depth", type=int, default=16, help="adds sent at a time, pipelined")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            # One for all: the server would not store the items of another that counts from 0 again.
            producer = Producer(server.port, options.size)
            for depth in (1, options.depth):
                costs = measured(producer, server.pid, depth, options)
                ratio = costs["marked"] / costs["plain"]
                print(
                    f"depth {depth}: plain {costs['plain']:.2f} us of server CPU for each item, "
                    f"of a producer {costs['marked']:.2f}: {ratio:.2f} times that"
                )
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
