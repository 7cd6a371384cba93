"""Bursts of connections, items and queues, after which a server's memory should be as before.

Each burst leaves nothing behind for clients: the connections are closed, the items are read, the
queues are deleted. `bench.memory` shows how much memory the server has before, during and after.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, Self

from bench.load import accounting
from bench.servers import PeerError, Running
from kestrelmq.client.address import Address, open_socket

ITEM: Final = bytes(1024)
SET: Final = b"set work 0 0 %d\r\n%b\r\n" % (len(ITEM), ITEM)
STORED: Final = b"STORED\r\n"
GET: Final = b"get work\r\n"
VALUE: Final = b"VALUE work 0 %d\r\n%b\r\nEND\r\n" % (len(ITEM), ITEM)
AT_ONCE: Final = 100
"""Connections that are open, or requests that are in flight, at the same time."""

Burst = Callable[[Running, int], float]
"""Makes a burst of a number of things; returns the server's memory at its height, in KiB."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of burst.

    Attributes:
        name: what there are many of.
        count: how many.
        run: makes the burst.
    """

    name: str
    count: int
    run: Burst


class Client:
    """A connection that waits for each reply."""

    def __init__(self, server: Running) -> None:
        address = Address("127.0.0.1", server.port)
        self._socket = open_socket(address, timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self._socket.close()

    def ask(self, request: bytes, reply: bytes) -> None:
        """Send `request`. Raises `PeerError` if the answer is not `reply`."""
        self.send(request)
        self.expect(reply)

    def send(self, request: bytes) -> None:
        """Send `request`; `expect` reads the answer."""
        self._socket.sendall(request)

    def expect(self, reply: bytes) -> None:
        """Read an answer. Raises `PeerError` if it is not `reply`."""
        answer = b""
        while len(answer) < len(reply):
            part = self._socket.recv(1 << 16)
            if not part:
                raise PeerError("the server closed a connection")
            answer += part
        if answer != reply:
            raise PeerError(f"{answer[:99]!r} came instead of {reply[:99]!r}")

    def answer(self, request: bytes) -> bytes:
        """Send `request`; return what comes first of a short answer."""
        self.send(request)
        return self._socket.recv(1 << 16)

    def add(self, *queues: str) -> None:
        """Add an item to each queue."""
        requests = [SET.replace(b"work", queue.encode()) for queue in queues]
        self.ask(b"".join(requests), STORED * len(queues))

    def take(self, count: int = 1) -> None:
        """Take items of the queue `work`."""
        self.ask(GET * count, VALUE * count)

    def delete(self, *queues: str) -> None:
        """Delete queues."""
        requests = b"".join(b"delete %s\r\n" % queue.encode() for queue in queues)
        self.ask(requests, b"DELETED\r\n" * len(queues))


def warm_up(server: Running) -> None:
    """Let the server do once what the bursts do."""
    with Client(server) as client:
        client.add("work")
        client.take()
        client.delete("work")


def churn(server: Running, count: int) -> float:
    """Open and close connections, of which few are open at a time."""
    for _ in _batches(count):
        with ExitStack() as opened:
            clients = [opened.enter_context(Client(server)) for _ in range(AT_ONCE)]
            for client in clients:
                client.add("work")
                client.take()
    return accounting.memory(server.pid).peak


def connections(server: Running, count: int) -> float:
    """Have many connections open that send and receive an item all at the same time."""
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        with ExitStack() as opened:
            clients = [opened.enter_context(Client(server)) for _ in range(count)]
            for request, reply in ((SET, STORED), (GET, VALUE)):
                for client in clients:
                    client.send(request)
                for client in clients:
                    client.expect(reply)
            return accounting.memory(server.pid).resident
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))


def items(server: Running, count: int) -> float:
    """Add many items to a queue, and take them."""
    with Client(server) as client:
        for _ in _batches(count):
            client.add(*["work"] * AT_ONCE)
        height = accounting.memory(server.pid).resident
        for _ in _batches(count):
            client.take(AT_ONCE)
    return height


def queues(server: Running, count: int) -> float:
    """Create many queues with an item each, and delete them."""
    with Client(server) as client:
        for number in _batches(count):
            client.add(*(f"burst{at}" for at in range(number, number + AT_ONCE)))
        height = accounting.memory(server.pid).resident
        for number in _batches(count):
            client.delete(*(f"burst{at}" for at in range(number, number + AT_ONCE)))
    return height


def _batches(count: int) -> Iterator[int]:
    return iter(range(0, count, AT_ONCE))


KINDS: Final = (
    Kind("connections, one after the other", 48_000, churn),
    Kind("connections at once", 10_000, connections),
    Kind("items of 1 KiB", 200_000, items),
    Kind("queues", 10_000, queues),
)
