"""A load test's connection in the text protocol.

In this protocol every read is an open read. To remove an item, a `get` and its `confirm` are sent
together.
"""

import ssl
from collections.abc import Sequence
from typing import Final

from kestrelmq.client.address import Address
from kestrelmq.loadtests.connections import Credentials, LoadTestError, connected_socket, send

_NOT_OPEN: Final = b"-Not that many transactions open."


class TextConnection:
    """A `LoadConnection` that speaks the text protocol."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._tls = tls
        self._connect()

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items with one `put`."""
        self._send(b"put %b:\n%b\n\n" % (queue.encode(), b"\n".join(items)))
        answer = self._line()
        if answer != b"+%d" % len(items):
            raise LoadTestError(f"queue {queue} refused items: {_shown(answer)}")

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items, pipelined; the first `get` waits."""
        name = queue.encode()
        rest = b"get %b\nconfirm %b 1\n" % (name, name) * (most - 1)
        self._send(b"get %b %d\nconfirm %b 1\n%b" % (name, wait * 1000, name, rest), wait)
        items = []
        for _ in range(most):
            item = self._item()
            confirmed = self._confirmed()
            if item is not None:
                if not confirmed:
                    raise LoadTestError(f"queue {queue} took an item back at once")
                items.append(item)
        return items

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read."""
        self._send(b"get %b %d\n" % (queue.encode(), wait * 1000), wait)
        return self._item()

    def confirm(self, queue: str) -> bool:
        """Confirm the open read."""
        self._send(b"confirm %b 1\n" % queue.encode())
        return self._confirmed()

    def abort(self, queue: str) -> None:
        """Close the connection, the only way to abort in this protocol, and make a new one."""
        self.abandon(queue)

    def abandon(self, queue: str) -> None:  # noqa: ARG002 # all queues of the connection
        """Close the connection and make a new one."""
        self.close()
        self._connect()

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""
        self._order(b"flush %b\n" % queue.encode())

    def delete(self, queue: str) -> None:
        """Delete the queue."""
        self._order(b"delete %b\n" % queue.encode())

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def _connect(self) -> None:
        self._socket = connected_socket(self._address, self._tls)
        self._file = self._socket.makefile("rb", 256 * 1024)
        if self._credentials is not None:
            self._send(" ".join(("auth", *self._credentials)).encode() + b"\n")
            answer = self._line()
            if answer != b"+0":
                raise LoadTestError(f"{self._address}: {_shown(answer)}")

    def _order(self, request: bytes) -> None:
        self._send(request)
        answer = self._line()
        if answer != b"+0":
            raise LoadTestError(f"{request.decode().strip()}: {_shown(answer)}")

    def _send(self, request: bytes, wait: float = 0.0) -> None:
        send(self._socket, self._address, request, wait)

    def _item(self) -> bytes | None:
        answer = self._line()
        if answer.startswith(b":"):
            return answer[1:]
        if answer == b"*":
            return None
        raise LoadTestError(f"{self._address} answered {_shown(answer)}")

    def _confirmed(self) -> bool:
        answer = self._line()
        if answer in {b"+1", _NOT_OPEN}:
            return answer == b"+1"
        raise LoadTestError(f"{self._address} answered {_shown(answer)}")

    def _line(self) -> bytes:
        try:
            line = self._file.readline()
        except OSError as error:
            raise LoadTestError(f"{self._address}: {error}") from error
        if not line.endswith(b"\n"):
            raise LoadTestError(f"{self._address} closed the connection")
        return line[:-1]


def _shown(answer: bytes) -> str:
    return answer[:200].decode(errors="replace")
