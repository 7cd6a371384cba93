"""What reserving and finishing items costs the server, compared with pipelined gets.

    PYTHONPATH=build/compiled python -m bench.reserve

One connection reads a queue of items: `get` pipelined, so many at a time, or `reserve` of so many
and then `finish` of them, which is sent alone or together with the next `reserve`. Printed is the
server's CPU time for each item, the least of some rounds.
"""

from __future__ import annotations

import argparse
import socket
import sys
from math import inf
from pathlib import Path

from bench import servers
from bench.load import accounting
from bench.servers import PeerError


class Reader:
    """A connection that adds items and reads them."""

    def __init__(self, port: int, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._set = b"set work 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
        self._value = b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (size, b"x" * size)
        self._reads = b""

    def _ask(self, request: bytes, size: int) -> None:
        """Send a request, and read a reply of `size` bytes."""
        self._socket.sendall(request)
        while size > 0:
            size -= len(self._socket.recv(1 << 20))

    def add(self, items: int) -> None:
        """Add items, a hundred at a time."""
        for _ in range(items // 100):
            self._ask(self._set * 100, 800)

    def get(self, items: int) -> None:
        """Read items by as many pipelined gets."""
        self._ask(b"get work\r\n" * items, len(self._value) * items)

    def reserve(self, items: int) -> None:
        """Reserve items, and finish them. Raises PeerError."""
        self._finish(self._reserved(items, b""))

    def reserve_on(self, items: int) -> None:
        """Finish the items reserved before, and reserve the next ones, pipelined."""
        self._reads = self._reserved(items, self._reads)

    def end(self) -> None:
        """Finish the items reserved last."""
        self._finish(self._reads)
        self._reads = b""

    def _reserved(self, items: int, finished: bytes) -> bytes:
        """Reserve items, after a `finish` of `finished`, if any; return their reads."""
        request = b"finish work %b\r\n" % finished if finished else b""
        self._socket.sendall(b"%breserve work %d lease=60000\r\n" % (request, items))
        reply = b""
        while not reply.endswith(b"\r\nEND\r\n"):
            reply += self._socket.recv(1 << 20)
        # A client that takes long to parse lets the server sleep, and waking up takes CPU, too.
        reads = [part[: part.index(b" ")] for part in reply.split(b"ITEM work ")[1:]]
        if len(reads) != items or reply.startswith(b"FINISHED %d\r\n" % items) != bool(finished):
            raise PeerError(f"{len(reads)} of {items} items were reserved")
        return b" ".join(reads)

    def _finish(self, reads: bytes) -> None:
        if reads:
            size = len(b"FINISHED %d\r\n" % (reads.count(b" ") + 1))
            self._ask(b"finish work %b\r\n" % reads, size)


def measured(port: int, pid: int, how: str, options: argparse.Namespace) -> float:
    """Return the server's CPU microseconds for each item."""
    reader = Reader(port, options.size)
    step = {"get": reader.get, "reserve": reader.reserve, "chained": reader.reserve_on}[how]
    best: float = inf
    for _ in range(options.rounds):
        reader.add(options.items)
        before = accounting.cpu_seconds(pid)
        for _ in range(options.items // options.batch):
            step(options.batch)
        reader.end()
        best = min(best, accounting.cpu_seconds(pid) - before)
    items: int = options.items
    return best / items * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.reserve", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="items of each round")
    parser.add_argument("--batch", type=int, default=100, help="items of each reserve, at most 300")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            costs = {
                how: measured(server.port, server.pid, how, options)
                for how in ("get", "reserve", "chained")
            }
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"get      {costs['get']:.2f} us of server CPU for each item")
    for how, what in (
        ("reserve", "with its finish"),
        ("chained", "each finish sent together with the next reserve"),
    ):
        ratio = costs[how] / costs["get"]
        print(f"reserve  {costs[how]:.2f} us, {what}: {ratio:.2f} times that")
    return 0


if __name__ == "__main__":
    sys.exit(main())
