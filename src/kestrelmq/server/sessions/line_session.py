"""What the sessions of memcache and text have in common: open reads belong to the connection."""

from collections.abc import Sequence

from kestrelmq.scheduling.durability import Committable
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.context import ServerContext
from kestrelmq.server.requests.reads import ConnectionOpenReads
from kestrelmq.server.requests.reserving import ConnectionOwners


class LineSession(Session):
    """The session of one client, with its open reads."""

    def __init__(self, connection: Connection, context: ServerContext) -> None:
        self._connection = connection
        self._context = context
        self._reads = ConnectionOpenReads()
        self._owners = ConnectionOwners(context)
        self.bytes_needed = 0

    def open_reads(self) -> dict[str, int]:
        """Return how many reads the client holds open, by queue; of very many only the first."""
        counts = self._reads.counts()
        self._owners.add_reads(counts)
        return counts

    def holds(self, queue: str) -> list[int]:
        """Return the xids of the client's open reads of a queue; of very many only the first."""
        return self._reads.first_xids(queue) + self._owners.first_xids(queue)

    def connection_closed(self) -> None:
        """Give the open reads back; those that are reserved stay so, perhaps for a short time."""
        self._context.finish_in_slices(self._reads.giving_back())
        self._owners.end()

    def _lose_reply(self, reply: bytes, item_begin: bytes, queues: Sequence[Committable]) -> None:
        """End the connection if `reply`, which an error replaces, has items that were opened.

        They go back then. Otherwise the client's next request to confirm the oldest open read would
        confirm what it has never seen. `item_begin` is how a reply with an item begins.
        """
        is_reserve = self._connection.lose_answer(reply)
        if not is_reserve and reply.startswith(item_begin) and self._reads.has_of(queues):
            self._connection.closing = True
