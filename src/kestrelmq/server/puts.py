"""The `put` of text and thrift: items in a row, added until one is refused.

Large ones are written in a thread first, as a memcache `set` is; then all are added in one turn.
"""

from collections.abc import Callable, Iterable, Sequence

from kestrelmq.engine.queue import Queue
from kestrelmq.errors import KestrelError
from kestrelmq.journal import records
from kestrelmq.server.ahead import WriteAhead
from kestrelmq.server.connection import WRITING, Connection, Touched
from kestrelmq.server.context import ServerContext
from kestrelmq.server.large_item import AHEAD

Answer = Callable[[int, Touched], None]
"""Takes how many items were accepted, and what the reply depends on."""
Refuse = Callable[[KestrelError], None]


class PutItems:
    """One client's items, on their way to a queue or to what an alias stands for."""

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        queue: str,
        items: Sequence[bytes],
        answer: Answer,
        refuse: Refuse,
    ) -> None:
        """Prepare; `begin` begins.

        Args:
            connection: it applies no other request while large items are written.
            context: the server's.
            queue: where to.
            items: in their order.
            answer: called at the end, maybe at once.
            refuse: called instead, later, when something went wrong.
        """
        self._connection = connection
        self._context = context
        self._name = queue
        self._items = items
        self._answer = answer
        self._refuse = refuse
        self._expiry = 0

    def begin(self, lifetime: int) -> None:
        """Add the items, which expire after so many ms; 0 is never, below 0 has passed.

        Raises:
            KestrelError: this client may not, or the queue cannot; nothing follows.
        """
        context = self._context
        context.check_writable()
        context.check_client(self._name, write=True)
        now = context.turns.clock.now()
        self._expiry = lifetime and max(now + lifetime, 1)
        queue = context.collection.queues.get(self._name)
        large = [data for data in self._items if len(data) >= AHEAD]
        if not large or queue is None or not queue.writes_ahead:
            self._answer(*self._add())
            return
        self._connection.paused |= WRITING
        written = [records.item(now, self._expiry, data) for data in large]
        WriteAhead(
            queue,
            written,
            lambda files: self._add(queue, zip(written, files, strict=True)),
            self._added,
        ).start(context.writer)

    def _add(
        self, queue: Queue | None = None, written: Iterable[tuple[bytes, str]] = ()
    ) -> tuple[int, Touched]:
        """Add items until one is refused.

        Args:
            queue: where the large ones were written ahead, if they were.
            written: their records and files.
        """
        context, large = self._context, iter(written)
        count = 0
        for data in self._items:
            context.counters.cmd_set += 1
            if queue is not None and len(data) >= AHEAD:
                record, file = next(large)
                accepted = queue.add_begun(record, file, self._expiry)
            else:
                accepted = context.collection.add(self._name, data, self._expiry)
            if not accepted:
                break
            count += 1
        return count, tuple(context.collection.destinations(self._name))

    def _added(self, outcome: tuple[int, Touched] | KestrelError) -> None:
        if isinstance(outcome, KestrelError):
            self._refuse(outcome)
        else:
            self._answer(*outcome)
        self._connection.unpause(WRITING)
