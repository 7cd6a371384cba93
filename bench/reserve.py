"""What reserving and finishing items costs the server, compared with pipelined gets.

    PYTHONPATH=build/compiled python -m bench.reserve

Some connections read a queue of items: `get` pipelined, so many at a time, or `reserve` of so many
and then `finish` of them, which is sent alone or together with the next `reserve`. Printed is the
server's CPU time for each item, the least of some rounds. With one connection, the server waits for
the client between two requests, and polling for the next one is part of that time.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Final

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

    def _receive(self, size: int) -> None:
        """Read a reply of `size` bytes."""
        while size > 0:
            size -= len(self._socket.recv(1 << 20))

    def add(self, items: int) -> None:
        """Add items, a hundred at a time."""
        for _ in range(items // 100):
            self._socket.sendall(self._set * 100)
            self._receive(800)

    # Each of these sends a request; what it yields to has others send theirs. Then it reads the
    # reply. So the server has something to do while a client works on what it got.

    def get(self, items: int) -> Iterator[None]:
        """Read items by as many pipelined gets."""
        self._socket.sendall(b"get work\r\n" * items)
        yield
        self._receive(len(self._value) * items)

    def reserve(self, items: int) -> Iterator[None]:
        """Reserve items. Raises PeerError."""
        self._socket.sendall(b"reserve work %d lease=60000\r\n" % items)
        yield
        self._reads = self._reserved(items, 0)

    def finish(self, items: int) -> Iterator[None]:
        """Finish the items reserved before."""
        self._socket.sendall(b"finish work %b\r\n" % self._reads)
        yield
        self._receive(len(b"FINISHED %d\r\n" % items))
        self._reads = b""

    def reserve_on(self, items: int) -> Iterator[None]:
        """Finish the items reserved before, and reserve the next ones, pipelined."""
        finished = items if self._reads else 0
        finish = b"finish work %b\r\n" % self._reads if finished else b""
        self._socket.sendall(b"%breserve work %d lease=60000\r\n" % (finish, items))
        yield
        self._reads = self._reserved(items, finished)

    @property
    def has_reads(self) -> bool:
        """Whether it has items that are not finished."""
        return bool(self._reads)

    def _reserved(self, items: int, finished: int) -> bytes:
        """Read the reply of a `reserve`, after that of a `finish`, if any; return the reads."""
        reply = b""
        while not reply.endswith(b"\r\nEND\r\n"):
            reply += self._socket.recv(1 << 20)
        # A client that takes long to parse lets the server sleep, and waking up takes CPU, too.
        reads = [part[: part.index(b" ")] for part in reply.split(b"ITEM work ")[1:]]
        if len(reads) != items or reply.startswith(b"FINISHED %d\r\n" % items) != bool(finished):
            raise PeerError(f"{len(reads)} of {items} items were reserved")
        return b" ".join(reads)


def together(steps: list[Iterator[None]]) -> None:
    """Let all connections send their requests, and then read their replies."""
    for step in steps:
        next(step)
    for step in steps:
        next(step, None)


WAYS: Final[dict[str, tuple[Callable[[Reader, int], Iterator[None]], ...]]] = {
    "get": (Reader.get,),
    "reserve": (Reader.reserve, Reader.finish),
    "chained": (Reader.reserve_on,),
}
"""What each connection sends, one after the other."""


def measured(port: int, pid: int, way: str, options: argparse.Namespace) -> float:
    """Return the server's CPU microseconds for each item."""
    readers = [Reader(port, options.size) for _ in range(options.connections)]
    rounds = options.items // (options.batch * len(readers))
    items: int = rounds * options.batch * len(readers)
    best: float = inf
    for _ in range(options.rounds):
        readers[0].add(options.items)
        before = accounting.cpu_seconds(pid)
        for _ in range(rounds):
            for step in WAYS[way]:
                together([step(reader, options.batch) for reader in readers])
        together([reader.finish(options.batch) for reader in readers if reader.has_reads])
        best = min(best, accounting.cpu_seconds(pid) - before)
        together([reader.get(options.items - items) for reader in readers[:1]])
    return best / items * 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.reserve", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000, help="items of each round")
    parser.add_argument("--batch", type=int, default=100, help="items of each reserve, at most 300")
    parser.add_argument("--connections", type=int, default=4, help="connections that read")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            costs = {way: measured(server.port, server.pid, way, options) for way in WAYS}
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
