"""What reserving and finishing items costs the server, compared with pipelined gets.

    PYTHONPATH=build/compiled python -m bench.reserve

One connection reads a queue of items: `get` pipelined, so many at a time, or `reserve` of so many
and then `finish` of them. Printed is the server's CPU time for each item, the least of some rounds.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
from math import inf
from pathlib import Path
from typing import Final

from bench import servers
from bench.load import accounting
from bench.servers import PeerError

_LINE: Final = re.compile(rb"ITEM \S+ (\S+) \d+ \d+ \d+ (\d+)\r\n")


class Reader:
    """A connection that adds items and reads them."""

    def __init__(self, port: int, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._set = b"set work 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
        self._value = b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (size, b"x" * size)
        self._rest = b""

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
        self._socket.sendall(b"reserve work %d lease=60000\r\n" % items)
        reply = b""
        while not reply.endswith(b"\r\nEND\r\n"):
            reply += self._socket.recv(1 << 20)
        reads = [match[1] for match in _LINE.finditer(reply)]
        for at in range(0, len(reads), 100):
            some = reads[at : at + 100]
            self._ask(b"finish work %b\r\n" % b" ".join(some), len(b"FINISHED %d\r\n" % len(some)))
        if len(reads) != items:
            raise PeerError(f"{len(reads)} of {items} items were reserved")


def measured(port: int, pid: int, how: str, options: argparse.Namespace) -> float:
    """Return the server's CPU microseconds for each item."""
    reader = Reader(port, options.size)
    best: float = inf
    for _ in range(options.rounds):
        reader.add(options.items)
        before = accounting.cpu_seconds(pid)
        for _ in range(options.items // options.batch):
            (reader.get if how == "get" else reader.reserve)(options.batch)
        best = min(best, accounting.cpu_seconds(pid) - before)
    items: int = options.items
    return best / items * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.reserve", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="items of each round")
    parser.add_argument("--batch", type=int, default=100, help="items of each reserve")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            costs = {
                how: measured(server.port, server.pid, how, options) for how in ("get", "reserve")
            }
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    ratio = costs["reserve"] / costs["get"]
    print(f"get      {costs['get']:.2f} us of server CPU for each item")
    print(f"reserve  {costs['reserve']:.2f} us, with its finish: {ratio:.2f} times that")
    return 0


if __name__ == "__main__":
    sys.exit(main())
