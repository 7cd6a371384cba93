"""A load test's connection in the thrift protocol: thriftpy2's client of `kestrel.thrift`.

Open reads survive the end of their thrift connection. The server aborts an abandoned one after
`AUTO_ABORT_SECONDS`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from thriftpy2 import protocol as thriftpy2_protocol
from thriftpy2 import transport as thriftpy2_transport
from thriftpy2.thrift import TApplicationException, TClient, TException

from kestrelmq.client.address import Address
from kestrelmq.loadtests.connections import REPLY_SECONDS, LoadTestError, connected_socket
from kestrelmq.protocol.thrift import SERVICE

# The library has type hints for only a part of this.
_PROTOCOLS: Any = thriftpy2_protocol
_TRANSPORTS: Any = thriftpy2_transport

AUTO_ABORT_SECONDS: Final = 1.0
"""Seconds after which the server aborts an open read."""


class ThriftConnection:
    """A `LoadConnection` that speaks the thrift protocol."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._opened = 0
        self._socket = connected_socket(address)
        transport = _TRANSPORTS.TCyFramedTransport(_TRANSPORTS.TSocket(sock=self._socket))
        self._client: Any = TClient(SERVICE, _PROTOCOLS.TCyBinaryProtocol(transport))

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items with one `put`."""
        accepted = self._call(self._client.put, queue, list(items))
        if accepted != len(items):
            raise LoadTestError(f"queue {queue} accepted {accepted} of {len(items)} items")

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items with one `get`, or with two if it waits: one item first, then the rest.

        A single `get` would wait until there are `most` items.
        """
        items = self._get(queue, 1, wait) if wait else []
        if most > len(items) and (items or not wait):
            items += self._get(queue, most - len(items))
        return [item.data for item in items]

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read."""
        items = self._get(queue, 1, wait, AUTO_ABORT_SECONDS)
        if not items:
            return None
        self._opened = items[0].id
        data: bytes = items[0].data
        return data

    def confirm(self, queue: str) -> bool:
        """Confirm the open read."""
        return bool(self._call(self._client.confirm, queue, {self._opened}) == 1)

    def abort(self, queue: str) -> None:
        """Give the item of the open read back."""
        self._call(self._client.abort, queue, {self._opened})

    def abandon(self, queue: str) -> None:
        """Do nothing: the server aborts the open read after a while."""

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""
        self._call(self._client.flush_queue, queue)

    def delete(self, queue: str) -> None:
        """Delete the queue."""
        self._call(self._client.delete_queue, queue)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _get(self, queue: str, most: int, wait: float = 0.0, auto_abort: float = 0.0) -> list[Any]:
        self._socket.settimeout(REPLY_SECONDS + wait)
        times = round(wait * 1000), round(auto_abort * 1000)
        items: list[Any] = self._call(self._client.get, queue, most, *times)
        return items

    def _call(self, method: Callable[..., Any], *arguments: object) -> Any:
        try:
            return method(*arguments)
        except TApplicationException as error:
            raise LoadTestError(f"{self._address} answered {error.message}") from error
        except (TException, OSError, EOFError) as error:
            raise LoadTestError(f"{self._address}: {error}") from error
