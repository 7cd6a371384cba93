"""Starting with very many queues of one item each, and serving them.

    PYTHONPATH=build/compiled python -m bench.many_queues --queues 100000

It tells when the server serves, and when its last queue is loaded, with the CPU time until then;
its memory and its idle CPU time; and the CPU time of a set and a get, pipelined, on one of the
queues and on all of them in turn, which takes a write for each. First it does the same with a
single queue. The goals are at most 10 s of CPU, serving after 2 s, and less than 1 % idle.

`--items expiring` lets all items expire in a day; with `delayed` and `marked` each queue gets a
second item once all are loaded, which is due in a day, or has a producer.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from bench import servers
from bench.bursts import Client
from bench.load.accounting import cpu_seconds, memory
from bench.servers import PeerError, Running
from kestrelmq.format.records import item

ITEM = b"x" * 64
DAY = 24 * 60 * 60 * 1000
SECOND_ITEM = {
    "delayed": b"set %%b/delay=%d 0 0 %d\r\n%b\r\n" % (DAY, len(ITEM), ITEM),
    "marked": b"set %%b/producer=p/seq=1 0 0 %d\r\n%b\r\n" % (len(ITEM), ITEM),
}
"""How to add a second item to a queue, for each choice of `--items` that has one."""
START_LIMIT = 600.0
"""Seconds that loading may take."""
AT_ONCE = 100


def name(number: int) -> bytes:
    """Return the name of a queue; names sort as their numbers do."""
    return b"queue%07d" % number


def fill(directory: Path, queues: int, *, expiring: bool) -> None:
    """Write the journals of the queues."""
    directory.mkdir()
    now = time.time_ns() // 1_000_000
    record = item(now, now + DAY if expiring else 0, ITEM)
    for number in range(queues):
        file = os.open(directory / os.fsdecode(name(number)), os.O_WRONLY | os.O_CREAT, 0o640)
        os.write(file, record)
        os.close(file)


def wait_until_loaded(client: Client, queues: int) -> None:
    """Wait until the last queue is loaded."""
    until = time.monotonic() + START_LIMIT
    request = b"get %b/peek\r\n" % name(queues - 1)
    while not client.answer(request).startswith(b"VALUE "):
        if time.monotonic() > until:
            raise PeerError("the queues are not loaded")
        time.sleep(0.25)


def add_second(client: Client, queues: int, request: bytes) -> None:
    """Add a second item to each queue."""
    for begin in range(0, queues, AT_ONCE):
        names = [name(number) for number in range(begin, min(begin + AT_ONCE, queues))]
        client.ask(b"".join(request % one for one in names), b"STORED\r\n" * len(names))


def cost(server: Running, client: Client, queues: int, operations: int) -> float:
    """Return the CPU microseconds of a set and a get on `queues` queues in turn."""
    before = cpu_seconds(server.pid)
    for begin in range(0, operations, AT_ONCE):
        names = [name(number % queues) for number in range(begin, begin + AT_ONCE)]
        client.ask(
            b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (one, len(ITEM), ITEM) for one in names),
            b"STORED\r\n" * AT_ONCE,
        )
        client.ask(
            b"".join(b"get %b\r\n" % one for one in names),
            b"".join(b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (one, len(ITEM), ITEM) for one in names),
        )
    return (cpu_seconds(server.pid) - before) / operations * 1e6


def measure(queues: int, options: argparse.Namespace) -> None:
    """Start a server with that many queues, and print what it costs."""
    peer = servers.ours()
    with servers.home(peer, options.dir) as directory:
        fill(directory / "data", queues, expiring=options.items == "expiring")
        begun = time.monotonic()
        with (
            servers.started(peer, None, directory, START_LIMIT) as server,
            Client(server) as client,
        ):
            serves_cpu = cpu_seconds(server.pid)
            wait_until_loaded(client, queues)
            took, cpu = time.monotonic() - begun, cpu_seconds(server.pid)
            resident = memory(server.pid).resident
            print(f"{queues:,} queues of one item")
            print(f"  serving after {server.start_seconds:.2f} s, {serves_cpu:.2f} s of CPU")
            print(f"  all loaded after {took:.2f} s, {cpu:.2f} s of CPU")
            print(f"  resident memory: {resident / 1024:.0f} MiB", flush=True)
            if options.items in SECOND_ITEM:
                add_second(client, queues, SECOND_ITEM[options.items])
            time.sleep(3)  # until the upkeep has looked at all
            cpu = cpu_seconds(server.pid)
            time.sleep(options.idle)
            idle = (cpu_seconds(server.pid) - cpu) / options.idle
            print(f"  CPU while idle: {idle:.2%} of one")
            for count in dict.fromkeys((1, queues)):
                took = cost(server, client, count, options.operations)
                print(f"  a set and a get on {count:,} in turn: {took:.2f} us", flush=True)


def main() -> int:
    """Run the benchmark and print what was found."""
    parser = argparse.ArgumentParser(
        prog="bench.many_queues", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--queues", type=int, default=100_000)
    add("--items", choices=("plain", "expiring", *SECOND_ITEM), default="plain")
    add("--operations", type=int, default=20_000)
    add("--idle", type=float, default=10.0, help="seconds to be idle")
    add("--dir", type=Path, help="where the journals go")
    options = parser.parse_args()
    for queues in (1, options.queues):
        measure(queues, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
