"""What an add that a producer may repeat costs the server, compared with a plain one.

    PYTHONPATH=build/compiled python -m bench.repeatable_puts

Some connections add items, one at a time or so many pipelined: all of them send, and then all of
them read the answers. So the server has requests of others to serve while a client reads, and does
not poll for the next one, which would count. Short rounds of plain adds and of a producer's take
turns, and the queue is flushed after each. Printed are the medians of the server's CPU time for
each item, and the median of how many times that of the plain round a producer's round took: what
slows the machine down for a while slows both down.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from bench import servers
from bench.bursts import STORED, Client
from bench.load import accounting
from bench.servers import PeerError, Running


class Producer(Client):
    """A connection that adds items, as a producer or not."""

    def __init__(self, server: Running, name: str, size: int) -> None:
        super().__init__(server)
        self._name = name.encode()
        self._data = b" 0 0 %d\r\n%b\r\n" % (size, b"x" * size)
        self._next = 0

    def adds(self, count: int, *, is_marked: bool) -> bytes:
        """Return the next `count` adds, plain ones or those of a producer."""
        if not is_marked:
            return (b"set work" + self._data) * count
        first, self._next = self._next, self._next + count
        return b"".join(
            b"set work/producer=%b/seq=%d%b" % (self._name, number, self._data)
            for number in range(first, self._next)
        )


def round_cost(
    producers: list[Producer], pid: int, depth: int, items: int, *, is_marked: bool
) -> float:
    """Return the server's CPU microseconds for each item of a round. Raises PeerError."""
    steps = max(1, items // (depth * len(producers)))
    sent = [
        [producer.adds(depth, is_marked=is_marked) for producer in producers] for _ in range(steps)
    ]
    before = accounting.cpu_seconds(pid)
    for step in sent:
        for producer, adds in zip(producers, step, strict=True):
            producer.send(adds)
        for producer in producers:
            producer.expect(STORED * depth)
    cost = accounting.cpu_seconds(pid) - before
    producers[0].answer(b"flush work\r\n")
    return cost / (steps * depth * len(producers)) * 1e6


def measured(
    producers: list[Producer], pid: int, depth: int, options: argparse.Namespace
) -> tuple[float, float, float]:
    """Return the medians of a plain item's cost, of a producer's, and of their ratio."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for number in range(options.rounds + 1):
        for is_marked in (number % 2 == 0, number % 2 == 1):
            cost = round_cost(producers, pid, depth, options.items, is_marked=is_marked)
            if number:  # the first ones warm up
                costs[is_marked].append(cost)
    ratios = [marked / plain for plain, marked in zip(costs[False], costs[True], strict=True)]
    return median(costs[False]), median(costs[True]), median(ratios)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if the server could not be measured."""
    parser = argparse.ArgumentParser(prog="bench.repeatable_puts", description=__doc__)
    parser.add_argument("--items", type=int, default=2000, help="items of each round")
    parser.add_argument("--depth", type=int, default=16, help="adds sent at a time, pipelined")
    parser.add_argument("--connections", type=int, default=4, help="connections that add")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an item")
    parser.add_argument("--rounds", type=int, default=60, help="rounds of each kind")
    parser.add_argument("--dir", type=Path, default=None, help="where the journals are")
    options = parser.parse_args(arguments)
    try:
        with servers.running(servers.ours(), 0, options.dir) as server:
            producers = [
                Producer(server, f"importer-{number}", options.size)
                for number in range(options.connections)
            ]
            for depth in (1, options.depth):
                plain, marked, ratio = measured(producers, server.pid, depth, options)
                print(
                    f"depth {depth}: plain {plain:.2f} us of server CPU for each item, "
                    f"of a producer {marked:.2f}: {ratio:.2f} times that"
                )
    except PeerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
