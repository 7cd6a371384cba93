"""What a load test needs of a connection, whatever protocol it speaks.

A link is for one thread. It has at most one open read of a queue. Whatever goes wrong, other than
an answer that a method names, raises `LoadTestError`.
"""

import socket
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from kestrelmq.client.address import Address
from kestrelmq.errors import KestrelError

REPLY_SECONDS: Final = 30.0
"""How long a reply may take, beyond the wait that was asked for."""


class LoadTestError(KestrelError):
    """A load test that could not be carried out."""


class WireProtocol(StrEnum):
    """The protocols a server speaks; each has its port."""

    MEMCACHE = "memcache"
    TEXT = "text"
    THRIFT = "thrift"

    @property
    def default_port(self) -> int:
        """The port it has unless the configuration says otherwise."""
        return _PORTS[self]


_PORTS: Final = {
    WireProtocol.MEMCACHE: 22133,
    WireProtocol.TEXT: 2222,
    WireProtocol.THRIFT: 2229,
}


class Link(Protocol):
    """One connection to a server."""

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items in one round trip. Raises LoadTestError: not all of them were accepted."""

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove up to `most` items in one round trip, waiting up to `wait` seconds for one."""

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read; None when no item came in time."""

    def confirm(self, queue: str) -> bool:
        """Confirm the open read; False when the server has taken the item back already."""

    def abort(self, queue: str) -> None:
        """Give the item of the open read back, in the way the protocol has for it."""

    def abandon(self, queue: str) -> None:
        """Leave the open read as a reader that died would; the link goes on as a new one."""

    def flush(self, queue: str) -> None:
        """Discard what waits in the queue."""

    def delete(self, queue: str) -> None:
        """Drop the queue."""

    def close(self) -> None:
        """End the connection."""


Connect = Callable[[], Link]


def connected_socket(address: Address) -> socket.socket:
    """Return a socket that is connected. Raises LoadTestError."""
    try:
        connection = socket.create_connection((address.host, address.port), REPLY_SECONDS)
    except OSError as error:
        raise LoadTestError(f"{address}: {error.strerror or error}") from error
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
