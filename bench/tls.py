"""The flood of `bench.flood` with TLS and without, beside Redis and memcached.

The certificates have P-256 keys. The goals: at most the CPU of Redis with TLS at depth 1, and half
of it for sets at depth 16 from clients that make a record of each request, as memtier does; this
load makes one of each burst. After the tables, 200 clients say hello at once to kestrelmq, and the
longest wait of one that goes on working is shown.
"""

from __future__ import annotations

import socket
import ssl
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from bench import servers
from bench.flood import flood_options, run_shapes
from bench.load import process
from bench.load.tls import trusting_context
from bench.report.session import Session

HELLOS = 200


def longest_wait(cpu: int | None, data: Path | None) -> float:
    """Return the longest wait of a working client while many say hello, in seconds."""
    context = trusting_context()
    with ExitStack() as stack:
        server = stack.enter_context(servers.running(servers.ours().with_tls(), cpu, data))
        address = ("127.0.0.1", server.port)
        working = stack.enter_context(context.wrap_socket(socket.create_connection(address, 30)))
        clients = [stack.enter_context(socket.create_connection(address)) for _ in range(HELLOS)]
        hellos = []
        for _ in clients:
            sent = ssl.MemoryBIO()
            with suppress(ssl.SSLWantReadError):
                context.wrap_bio(ssl.MemoryBIO(), sent).do_handshake()
            hellos.append(sent.read())
        for client, hello in zip(clients, hellos, strict=True):
            client.sendall(hello)
        longest, ends = 0.0, time.perf_counter() + 1.0
        while (begun := time.perf_counter()) < ends:
            working.sendall(b"get work\r\n")
            working.recv(64)
            longest = max(longest, time.perf_counter() - begun)
        return longest


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark. Return exit status 1 if an installed server could not be measured."""
    options = flood_options("tls", __doc__, arguments)
    plain = [peer for peer in servers.known_peers() if peer.tls]
    peers = [one for peer in plain for one in (peer, peer.with_tls())]
    status = run_shapes(Session("tls", options, peers), "redis TLS")
    waits = [longest_wait(process.cpus()[0], options.dir) for _ in range(options.rounds)]
    text = ", ".join(f"{1000 * wait:.1f}" for wait in waits)
    print(f"longest wait of a client while {HELLOS} say hello, by round: {text} ms")
    return status


if __name__ == "__main__":
    sys.exit(main())
