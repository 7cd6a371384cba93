"""A raw connection to a server, for tests that count bytes."""

import contextlib
import socket
import ssl
from pathlib import Path
from typing import Self

from kestrelmq.client.address import open_socket, parse_address
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess


class Wire:
    """One connection: requests as bytes, replies checked byte by byte."""

    def __init__(self, server: ServerProcess, listener: str = "memcache") -> None:
        self.socket = socket.create_connection(("127.0.0.1", server.ports[listener]), PATIENCE)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send `data`."""
        self.socket.sendall(data)

    def expect(self, reply: bytes) -> None:
        """Read as many bytes as `reply` has; they must be those."""
        received = self.read(len(reply), stop_at=reply)
        assert received == reply

    def ask(self, request: bytes, reply: bytes) -> None:
        """Send a request and check its reply."""
        self.send(request)
        self.expect(reply)

    def ask_until(self, request: bytes, end: bytes) -> bytes:
        """Send a request and return what comes, up to and with `end`."""
        self.send(request)
        return self.until(end)

    def until(self, end: bytes) -> bytes:
        """Return what comes, up to and with `end`."""
        while end not in self._rest:
            self._receive()
        at = self._rest.index(end) + len(end)
        found, self._rest = self._rest[:at], self._rest[at:]
        return found

    def read(self, size: int, stop_at: bytes = b"") -> bytes:
        """Return the next `size` bytes; fewer, when they cannot become `stop_at` any more."""
        parts = [self._rest]
        have = len(self._rest)
        while have < size and stop_at.startswith(parts[0][: len(stop_at)]):
            self._rest = b""
            self._receive()
            parts.append(self._rest)
            have += len(self._rest)
        received = b"".join(parts)
        self._rest = received[size:]
        return received[:size]

    def expect_close(self, last: bytes = b"") -> None:
        """Check that `last` comes, and then the end of the connection."""
        if last:
            self.expect(last)
        assert self._rest == b""
        with contextlib.suppress(ConnectionResetError):
            assert self.socket.recv(4096) == b""

    def expect_silence(self) -> None:
        """Check that nothing more comes before the answer to another request."""
        self.ask(b"version\r\n", b"VERSION ")
        self.until(b"\r\n")

    def _receive(self) -> None:
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError(f"closed after {self._rest!r}")
        self._rest += data


class UnixWire(Wire):
    """A raw connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.socket = open_socket(parse_address(f"unix:{path}"), PATIENCE)
        self._rest = b""


class TlsWire(Wire):
    """A raw connection over TLS."""

    def __init__(
        self, server: ServerProcess, context: ssl.SSLContext, listener: str = "memcache"
    ) -> None:
        super().__init__(server, listener)
        self.socket = context.wrap_socket(self.socket, server_hostname="localhost")


def put(wire: Wire, queue: str, *items: str, expiry: int = 0, reply: bytes = b"STORED\r\n") -> None:
    """Add items."""
    for item in items:
        wire.ask(f"set {queue} 0 {expiry} {len(item)}\r\n{item}\r\n".encode(), reply)


def value(queue: str, *items: str) -> bytes:
    """Return the VALUE blocks of items, without END."""
    blocks = (f"VALUE {queue} 0 {len(item)}\r\n{item}\r\n" for item in items)
    return "".join(blocks).encode()


def arrived(queue: str, *items: str) -> bytes:
    """Return what `monitor` sends for items: a whole reply for each."""
    return b"".join(value(queue, item) + b"END\r\n" for item in items)


def stats(wire: Wire, queue: str = "") -> dict[str, str]:
    """Return the statistics of the server, or of a queue."""
    reply = wire.ask_until(f"stats {queue}\r\n".encode(), b"END\r\n").decode()
    lines = [line.split(" ", 2) for line in reply.split("\r\n")[:-2]]
    assert all(word == "STAT" for word, _, _ in lines)
    return {name: value for _, name, value in lines}


def wait_for(wire: Wire, queue: str, statistic: str, value: int) -> None:
    """Return once a queue's statistic has `value`."""
    until(lambda: stats(wire, queue).get(statistic) == str(value), pause=0.002)
