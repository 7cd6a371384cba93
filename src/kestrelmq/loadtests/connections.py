"""The interface of a load test's connections, the same for all protocols.

A connection belongs to one thread. It has at most one open read of a queue. All failures raise
`LoadTestError`, except the answers that a method returns.
"""

import socket
import ssl
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol, TypeAlias

from kestrelmq.client.address import Address, open_socket
from kestrelmq.errors import KestrelError

REPLY_SECONDS: Final = 30.0
"""How long a reply may take, in addition to the requested wait."""


class LoadTestError(KestrelError):
    """The load test could not be carried out."""


class WireProtocol(StrEnum):
    """The protocols of a server; each has its port."""

    MEMCACHE = "memcache"
    TEXT = "text"
    THRIFT = "thrift"

    @property
    def default_port(self) -> int:
        """The port that a server uses for it by default."""
        return _PORTS[self]


_PORTS: Final = {
    WireProtocol.MEMCACHE: 22133,
    WireProtocol.TEXT: 2222,
    WireProtocol.THRIFT: 2229,
}


Credentials: TypeAlias = tuple[str, str]
"""A user and a password."""


class LoadConnection(Protocol):
    """One connection to a server."""

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items in one round trip. Raises LoadTestError if any of them was refused."""

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove up to `most` items in one round trip; wait up to `wait` seconds for the first."""

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read, waiting up to `wait` seconds for an item; None if none came."""

    def confirm(self, queue: str) -> bool:
        """Confirm the open read; False if the server has already taken the item back."""

    def abort(self, queue: str) -> None:
        """Give the item of the open read back in the protocol's way."""

    def abandon(self, queue: str) -> None:
        """Leave the read open, as a reader that died would; the object can still be used after."""

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""

    def delete(self, queue: str) -> None:
        """Delete the queue."""

    def close(self) -> None:
        """Close the connection."""


Connect = Callable[[], LoadConnection]


def send(to: socket.socket, address: Address, request: bytes, wait: float = 0.0) -> None:
    """Send a request whose reply comes in up to `wait` seconds more. Raises LoadTestError."""
    try:
        to.settimeout(REPLY_SECONDS + wait)
        to.sendall(request)
    except OSError as error:
        raise LoadTestError(f"{address}: {error.strerror or error}") from error


def connected_socket(address: Address, tls: ssl.SSLContext | None = None) -> socket.socket:
    """Return a connected socket, with `tls` if that is given. Raises LoadTestError."""
    try:
        return open_socket(address, REPLY_SECONDS, tls)
    except OSError as error:
        raise LoadTestError(f"{address}: {error.strerror or error}") from error
