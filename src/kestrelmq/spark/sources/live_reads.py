"""The reads of a task: it asks a server for what is held under tags, as often as need be."""

import logging
import time
from collections.abc import Sequence
from typing import Final

from kestrelmq.client import commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import Connection, connected
from kestrelmq.client.commands import ReservedRead
from kestrelmq.errors import ClientError, KestrelError, ServerRefused
from kestrelmq.spark.sources.live_offsets import Chunk
from kestrelmq.spark.sources.live_options import KestrelReadOptions
from kestrelmq.spark.sources.refusals import is_refusal, is_retired

_PAUSE: Final = 0.3
"""Seconds between two attempts to reach a server that is away, or loading."""

_log: Final = logging.getLogger("kestrelmq.spark")


class HeldItemsAreGone(KestrelError):  # noqa: N818 # says what it is
    """Items of a batch that Spark has logged are not held any more."""


class HeldItems:
    """Reads what a partition of a batch has at its server. It takes nothing."""

    def __init__(self, options: KestrelReadOptions) -> None:
        self._options = options
        self._clients = options.cluster.client_options()
        self._connection: Connection | None = None

    def read(self, chunk: Chunk) -> Sequence[ReservedRead]:
        """Return the items of a chunk: the same each time.

        Raises:
            HeldItemsAreGone: it does not have them any more.
            ClientError: the server cannot be reached, or refuses.
        """
        found, why = self._ask(chunk)
        if not why and (len(found) != chunk.count or not found[0].read.endswith(chunk.nonce)):
            why = f"{len(found)} of {chunk.count} items are there"
        if not why:
            return found
        message = (
            f"queue {chunk.queue!r} on {chunk.server} does not hold the items of this batch any "
            f"more ({why}): somebody released or deleted them, or another query has gone on with "
            "this checkpoint; with failOnDataLoss=false the query goes on without them"
        )
        if self._options.fails_on_loss:
            raise HeldItemsAreGone(message)
        _log.warning("%s", message)
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, chunk: Chunk) -> tuple[list[ReservedRead], str]:
        """Return the items under a tag; and why there are none, if they were finished."""
        name = chunk.tag.partition(":")[0]
        terms = commands.reserve_terms(0, chunk.tag, name, again=True)
        command = commands.reserve([commands.checked_queue(chunk.queue)], 1, terms, 0.0)
        deadline = time.monotonic() + self._options.patience
        while True:
            try:
                found = self._connected(chunk.server).run(command)
            except ServerRefused as error:
                if is_retired(error):
                    return [], str(error)
                if not is_refusal(error) or time.monotonic() >= deadline:
                    raise
            except ClientError:
                if time.monotonic() >= deadline:
                    raise
            else:
                return (found, "") if found is not None else ([], "they are finished")
            time.sleep(_PAUSE)

    def _connected(self, server: str) -> Connection:
        connection = self._connection
        if connection is None or not connection.is_usable() or str(connection.address) != server:
            self.close()
            connection = self._connection = connected(parse_address(server), self._clients)
        return connection
