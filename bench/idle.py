"""The cost of many idle clients and queues: memory, idle CPU time and latency.

`python -m bench.idle --connections 10000 --queues 1000` connects the clients, creates the queues
(with one item each), waits, and then times sets and gets on a further connection.
"""

from __future__ import annotations

import argparse
import resource
import socket
import sys
import time

from bench.load.accounting import cpu_seconds, memory
from bench.servers import known_peers, running


def main() -> int:
    """Run the benchmark and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--queues", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to watch it idle")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with running(known_peers()[0], None, None) as server:
        before = memory(server.pid).resident
        clients = [_connect(server.port) for _ in range(options.connections)]
        with _connect(server.port) as client:
            for number in range(options.queues):
                _ask(client, b"set idle%d 0 0 5\r\nhello\r\n" % number, b"STORED\r\n")
            time.sleep(1)
            cpu = cpu_seconds(server.pid)
            time.sleep(options.seconds)
            cpu = (cpu_seconds(server.pid) - cpu) / options.seconds
            waits = sorted(_round_trip(client) for _ in range(1000))
        after = memory(server.pid).resident
        for one in clients:
            one.close()
    print(f"{options.connections} idle connections, {options.queues} queues")
    print(f"resident memory: {before / 1024:.0f} MiB before, {after / 1024:.0f} MiB with them")
    print(f"CPU while idle: {cpu:.2%} of one")
    print(f"set and get meanwhile: p50 {waits[500] * 1e6:.0f} us, p99 {waits[990] * 1e6:.0f} us")
    return 0


def _connect(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=10)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return client


def _ask(client: socket.socket, request: bytes, reply: bytes) -> None:
    client.sendall(request)
    answer = b""
    while len(answer) < len(reply):
        answer += client.recv(len(reply) - len(answer))
    if answer != reply:
        raise SystemExit(f"expected {reply!r}, got {answer!r}")


def _round_trip(client: socket.socket) -> float:
    start = time.perf_counter()
    _ask(client, b"set probe 0 0 5\r\nhello\r\n", b"STORED\r\n")
    _ask(client, b"get probe\r\n", b"VALUE probe 0 5\r\nhello\r\nEND\r\n")
    return time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
