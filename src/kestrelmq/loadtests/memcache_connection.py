"""A load test's connection in the memcache protocol: a connection of the client; it pipelines."""

import ssl
from collections.abc import Sequence
from typing import Final, TypeVar

from kestrelmq.client import commands
from kestrelmq.client.address import Address
from kestrelmq.client.blocking import Connection
from kestrelmq.client.commands import Command
from kestrelmq.client.options import ClientOptions, ItemTimes
from kestrelmq.errors import ClientError, ServerRefused, ServerUnavailable
from kestrelmq.loadtests.connections import REPLY_SECONDS, Credentials, LoadTestError

T = TypeVar("T")

_NO_TIMES: Final = ItemTimes(0, 0)


class MemcacheConnection:
    """A `LoadConnection` that speaks the memcache protocol."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        options = ClientOptions(
            connect_timeout=REPLY_SECONDS, operation_timeout=REPLY_SECONDS, tls=tls or False
        )
        self._connection = Connection(address, options)
        self._credentials = credentials
        self._connect()

    def put(self, queue: str, items: Sequence[bytes]) -> None:
        """Add items, pipelined."""
        stored: list[bool | None] = []
        timed = [(item, _NO_TIMES, None) for item in items]
        self._run(commands.set_items(queue.encode(), timed, stored))
        if not all(stored):
            raise LoadTestError(f"queue {queue} refused an item: NOT_STORED")

    def take(self, queue: str, most: int = 1, wait: float = 0.0) -> list[bytes]:
        """Remove items, pipelined; the first request waits."""
        name = queue.encode()
        others = [commands.get(name)] * (most - 1)
        found = self._run(commands.together([commands.get(name, wait), *others]))
        return [item for item in found if item is not None]

    def open_read(self, queue: str, wait: float) -> bytes | None:
        """Open a read."""
        return self._run(commands.open_read(queue.encode(), wait))

    def confirm(self, queue: str) -> bool:
        """Confirm the open read."""
        try:
            self._run(commands.confirm(queue.encode(), 1))
        except LoadTestError as error:
            refusal = error.__cause__
            if not isinstance(refusal, ServerRefused) or refusal.kind != "ERROR":
                raise
            self._connect()  # an error has closed it
            return False
        return True

    def abort(self, queue: str) -> None:
        """Give the item of the open read back."""
        self._run(commands.abort_read(queue.encode()))

    def abandon(self, queue: str) -> None:  # noqa: ARG002 # all queues of the connection
        """Close the connection and make a new one."""
        self.close()
        self._connect()

    def flush(self, queue: str) -> None:
        """Drop all waiting items of the queue."""
        self._run(commands.flush(queue.encode()))

    def delete(self, queue: str) -> None:
        """Delete the queue."""
        self._run(commands.delete(queue.encode()))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _connect(self) -> None:
        try:
            self._connection.open()
        except ServerUnavailable as error:
            reason = getattr(error.__cause__, "strerror", None) or error.__cause__
            raise LoadTestError(f"{self._connection.address}: {reason}") from error
        if self._credentials is not None:
            self._run(commands.sign_in(*self._credentials))

    def _run(self, command: Command[T]) -> T:
        try:
            return self._connection.run(command)
        except ServerRefused as error:
            raise LoadTestError(f"{self._connection.address}: {error}") from error
        except ClientError as error:
            raise LoadTestError(str(error)) from error
