"""A load test's connection in the memcache protocol; it pipelines requests."""

import ssl
from collections import deque
from collections.abc import Sequence
from typing import Final

from kestrelmq.client.address import Address
from kestrelmq.errors import ProtocolError
from kestrelmq.loadtests.connections import Credentials, LoadTestError, connected_socket, send
from kestrelmq.protocol import memcache_client as wire

_CHUNK: Final = 256 * 1024
_STORED: Final = wire.Line("STORED")


class MemcacheConnection:
    """A `LoadConnection` that speaks the memcache protocol."""

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
        """Add items, pipelined."""
        name = queue.encode()
        answers = self._ask(b"".join(wire.set_request(name, item) for item in items), len(items))
        refused = next((answer for answer in answers if answer != _STORED), None)
        if refused is not None:
            raise LoadTestError(f"queue {queue} refused an item: {_shown(refused)}")

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items, pipelined; the first request waits."""
        name = queue.encode()
        first = wire.get_request(name, wait_ms=round(wait * 1000))
        self._send(first + wire.get_request(name) * (most - 1), wait)
        return [item for _ in range(most) if (item := self._item()) is not None]

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read."""
        wait_ms = round(wait * 1000)
        self._send(wire.get_request(queue.encode(), wait_ms=wait_ms, open_read=True), wait)
        return self._item()

    def confirm(self, queue: str) -> bool:
        """Confirm the open read."""
        (answer,) = self._ask(wire.confirm_request(queue.encode(), 1), 1)
        match answer:
            case wire.EndOfList():
                return True
            case wire.ErrorReply("ERROR"):
                return False
            case _:
                raise LoadTestError(f"confirm {queue}: {_shown(answer)}")

    def abort(self, queue: str) -> None:
        """Give the item of the open read back."""
        self._expect(wire.get_request(queue.encode(), abort=True), wire.EndOfList())

    def abandon(self, queue: str) -> None:  # noqa: ARG002 # all queues of the connection
        """Close the connection and make a new one."""
        self.close()
        self._connect()

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""
        self._expect(wire.queue_request("flush", queue.encode()), wire.EndOfList())

    def delete(self, queue: str) -> None:
        """Delete the queue."""
        self._expect(wire.queue_request("delete", queue.encode()), wire.Line("DELETED"))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _connect(self) -> None:
        self._socket = connected_socket(self._address, self._tls)
        self._parser = wire.ReplyParser()
        self._replies: deque[wire.Reply] = deque()
        if self._credentials is not None:
            (answer,) = self._ask(wire.sign_in_request(*self._credentials), 1)
            if answer != _STORED:
                raise LoadTestError(f"{self._address}: {_shown(answer)}")

    def _expect(self, request: bytes, expected: wire.Reply) -> None:
        (answer,) = self._ask(request, 1)
        if answer != expected:
            raise LoadTestError(f"{request.decode().strip()}: {_shown(answer)}")

    def _ask(self, request: bytes, answers: int) -> list[wire.Reply]:
        self._send(request, 0)
        return [self._reply() for _ in range(answers)]

    def _send(self, request: bytes, wait: float) -> None:
        send(self._socket, self._address, request, wait)

    def _item(self) -> bytes | None:
        """Read the reply to a get; return its item, or None if it has none."""
        item = None
        while True:
            match self._reply():
                case wire.Value(data=data):
                    item = data
                case wire.EndOfList():
                    return item
                case answer:
                    raise LoadTestError(f"{self._address} answered {_shown(answer)}")

    def _reply(self) -> wire.Reply:
        while not self._replies:
            try:
                data = self._socket.recv(_CHUNK)
                if not data:
                    raise LoadTestError(f"{self._address} closed the connection")
                self._replies.extend(self._parser.feed(data))
            except (OSError, ProtocolError) as error:
                raise LoadTestError(f"{self._address}: {error}") from error
        return self._replies.popleft()


def _shown(answer: wire.Reply) -> str:
    match answer:
        case wire.Line(text):
            return text
        case wire.ErrorReply(kind, reason):
            return f"{kind} {reason}".strip()
        case _:
            return type(answer).__name__.upper()
