"""The cost of many idle clients and queues: memory, idle CPU time and latency.

`python -m bench.idle --connections 10000 --queues 1000` connects the clients, creates the queues
(with one item each), waits, and then times sets and gets on a further connection.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import ExitStack

from bench.bursts import STORED, Client
from bench.load.accounting import cpu_seconds, memory
from bench.load.generator import raise_open_files
from bench.servers import known_peers, running


def main() -> int:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to watch it idle")
    options = parser.parse_args()
    raise_open_files(options.connections + 100)
    with running(known_peers()[0], None, None) as server:
        before = memory(server.pid).resident
        with ExitStack() as opened:
            for _ in range(options.connections):
                opened.enter_context(Client(server))
            client = opened.enter_context(Client(server))
            for number in range(options.queues):
                client.ask(b"set idle%d 0 0 5\r\nhello\r\n" % number, STORED)
            time.sleep(1)
            cpu = cpu_seconds(server.pid)
            time.sleep(options.seconds)
            cpu = (cpu_seconds(server.pid) - cpu) / options.seconds
            waits = sorted(_round_trip(client) for _ in range(1000))
            after = memory(server.pid).resident
    print(f"{options.connections} idle connections, {options.queues} queues")
    print(f"resident memory: {before / 1024:.0f} MiB before, {after / 1024:.0f} MiB with them")
    print(f"CPU while idle: {cpu:.2%} of one")
    print(f"set and get meanwhile: p50 {waits[500] * 1e6:.0f} us, p99 {waits[990] * 1e6:.0f} us")
    return 0


def _round_trip(client: Client) -> float:
    start = time.perf_counter()
    client.ask(b"set probe 0 0 5\r\nhello\r\n", STORED)
    client.ask(b"get probe\r\n", b"VALUE probe 0 5\r\nhello\r\nEND\r\n")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
