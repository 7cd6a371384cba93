"""A load test's connection in the thrift protocol.

Open reads survive the end of their thrift connection. The server aborts an abandoned one after
`AUTO_ABORT_SECONDS`.
"""

import ssl
from collections.abc import Sequence
from typing import Any, Final

from kestrelmq.client.address import Address
from kestrelmq.loadtests.connections import Credentials, LoadTestError, connected_socket, send
from kestrelmq.protocol.faults import ClientFault
from kestrelmq.protocol.thrift import ThriftParser, decode_reply, encode_call
from kestrelmq.protocol.thrift_service import Item, RefusedRequest

AUTO_ABORT_SECONDS: Final = 1.0
"""Seconds after which the server aborts an open read."""
_RECEIVED_AT_ONCE: Final = 256 << 10


class ThriftConnection:
    """A `LoadConnection` that speaks the thrift protocol."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._opened = 0
        self._socket = connected_socket(address, tls)
        self._replies = ThriftParser()
        if credentials is not None:
            try:
                self._call("login", *credentials)
            except LoadTestError:
                self.close()
                raise

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items with one `put`."""
        accepted = self._call("put", queue, items, 0)
        if accepted != len(items):
            raise LoadTestError(f"queue {queue} accepted {accepted} of {len(items)} items")

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items with one `get`, or with two if it waits: one item first, then the rest.

        A single `get` would wait until there are `most` items.
        """
        items = self._get(queue, 1, wait) if wait else []
        if most > len(items) and (items or not wait):
            items += self._get(queue, most - len(items))
        return [bytes(item.data) for item in items]

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read."""
        items = self._get(queue, 1, wait, AUTO_ABORT_SECONDS)
        if not items:
            return None
        self._opened = items[0].id
        return bytes(items[0].data)

    def confirm(self, queue: str) -> bool:
        """Confirm the open read."""
        return bool(self._call("confirm", queue, [self._opened]) == 1)

    def abort(self, queue: str) -> None:
        """Give the item of the open read back."""
        self._call("abort", queue, [self._opened])

    def abandon(self, queue: str) -> None:
        """Do nothing: the server aborts the open read after a while."""

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""
        self._call("flush_queue", queue)

    def delete(self, queue: str) -> None:
        """Delete the queue."""
        self._call("delete_queue", queue)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _get(self, queue: str, most: int, wait: float = 0.0, auto_abort: float = 0.0) -> list[Item]:
        times = round(wait * 1000), round(auto_abort * 1000)
        return list(self._call("get", queue, most, *times, wait=wait))

    def _call(self, method: str, *arguments: object, wait: float = 0.0) -> Any:
        """Return what a method returns, in up to `wait` seconds more than others."""
        send(self._socket, self._address, encode_call(method, *arguments), wait)
        try:
            reply = decode_reply(self._frame())
        except (OSError, ValueError, ClientFault) as error:
            raise LoadTestError(f"{self._address}: {error}") from error
        if isinstance(reply, RefusedRequest):
            raise LoadTestError(f"{self._address} answered {reply.message}")
        return reply

    def _frame(self) -> bytes | memoryview:
        while (frame := self._replies.next_frame()) is None:
            received = self._socket.recv(_RECEIVED_AT_ONCE)
            if not received:
                raise LoadTestError(f"{self._address} closed the connection")
            self._replies.receive(received)
        return frame
