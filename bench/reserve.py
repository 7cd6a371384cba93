"""What reserving and finishing items costs the server, compared with pipelined gets.

    PYTHONPATH=build/compiled python -m bench.reserve

Some connections read a queue of items: `get` pipelined, so many at a time, or `reserve` of so many
and then `finish` of them, which is sent alone or together with the next `reserve`. While the client
works on the answer to one connection, the server has the requests of the others: it does not poll
for the next one, which would count, unless there is one connection only. Short rounds of each way
take turns. Printed are the medians of the server's CPU time for each item, and the median of how
many times that of a round of gets the round after it took: what slows the machine down for a while
slows both down.
"""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Iterator
from operator import truediv
from pathlib import Path
from statistics import median
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
        """Add at least so many items, a hundred at a time."""
        for _ in range(-(-items // 100)):
            self._socket.sendall(self._set * 100)
            self._receive(800)

    # Each of these sends a request, yields, and then reads the reply; see `in_turn`.

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


Step = Callable[[Reader, int], Iterator[None]]
"""Sends a request for so many items, yields, and reads the reply."""


def in_turn(readers: list[Reader], steps: list[Step], items: int) -> None:
    """Let each connection take all steps; while one reads its reply, others have sent requests."""
    begun: list[Iterator[None]] = []
    for step in steps:
        ended, begun = begun, []
        for place, reader in enumerate(readers):
            if ended:
                next(ended[place], None)
            begun.append(step(reader, items))
            next(begun[place])
    for one in begun:
        next(one, None)


WAYS: Final[dict[str, list[Step]]] = {
    "get": [Reader.get],
    "reserve": [Reader.reserve, Reader.finish],
    "chained": [Reader.reserve_on],
}
"""What each connection sends, one after the other."""


def round_cost(readers: list[Reader], pid: int, way: str, options: argparse.Namespace) -> float:
    """Return the server's CPU microseconds for each item of a round."""
    repeated = max(1, options.items // (options.batch * len(readers)))
    items: int = repeated * options.batch * len(readers)
    readers[0].add(items)
    before = accounting.cpu_seconds(pid)
    in_turn(readers, WAYS[way] * repeated, options.batch)
    if any(reader.has_reads for reader in readers):
        in_turn(readers, [Reader.finish], options.batch)
    return (accounting.cpu_seconds(pid) - before) / items * 1e6


def measured(port: int, pid: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the costs of the rounds of each way."""
    readers = [Reader(port, options.size) for _ in range(options.connections)]
    costs: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(options.rounds + 1):
        for way in WAYS:
            cost = round_cost(readers, pid, way, options)
            if number:  # the first ones warm up
                costs[way].append(cost)
    return costs


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.reserve", description=__doc__)
    parser.add_argument("--items", type=int, default=4000, help="items of each round")
    parser.add_argument("--batch", type=int, default=100, help="items of each reserve, at most 300")
    parser.add_argument("--connections", type=int, default=4, help="connections that read")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of each way")
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            costs = measured(server.port, server.pid, options)
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"get      {median(costs['get']):.2f} us of server CPU for each item")
    for how, what in (
        ("reserve", "with its finish"),
        ("chained", "each finish sent together with the next reserve"),
    ):
        ratio = median(map(truediv, costs[how], costs["get"]))
        print(f"reserve  {median(costs[how]):.2f} us, {what}: {ratio:.2f} times that")
    return 0


if __name__ == "__main__":
    sys.exit(main())
