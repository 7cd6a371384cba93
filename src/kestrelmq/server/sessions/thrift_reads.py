"""Reads of the thrift protocol: `get`, which may wait, and the open reads of its items.

An open read does not belong to a connection: any client that has its id may end it; otherwise it
ends by itself when its time is up. A `get` without `auto_abort` removes its items. If it may wait,
it opens them first and confirms them when it answers, so no item is lost if the client disconnects
in between.
"""

import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import ReadMode
from kestrelmq.errors import KestrelError
from kestrelmq.journal.records import item_deliveries
from kestrelmq.protocol import thrift
from kestrelmq.protocol.thrift_messages import Get, Item, MessageHeader
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.replies import data_of
from kestrelmq.server.requests.reads import PendingRead, ReadHandler

Encoded = tuple[bytes | memoryview, ...]
"""The encoding of an item, in parts if it is large; empty if its read has ended."""

MAX_ITEMS: Final = 10_000
"""The most items in one answer, to keep turns short."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""An answer with so many bytes of data, or more, gets no further items."""

_AT_ONCE: Final = 1000
"""The most items that are removed in one turn; a read of more items opens them first."""
_CHECK_EVERY: Final = 32
"""Items that are encoded between two checks of whether others must be served first."""
_SLACK: Final = 64
_ID_BITS: Final = 53
"""Bits of an id: so many are exact even where all numbers are floating-point."""


class _OpenRead(NamedTuple):
    """An open read.

    Attributes:
        order: a number that is larger for later reads.
        queue: the queue.
        xid: the read's xid.
        deliveries: how often the item was handed out before.
    """

    order: int
    queue: Queue
    xid: int
    deliveries: int

    @property
    def is_open(self) -> bool:
        # An item that was open while the journal was packed keeps its xid, also for its next
        # reader; but it was handed out once more by then. Another item gets the xid only after 2^31
        # others, and the id is forgotten long before that. (To keep the item here, and compare it,
        # would keep large ones in memory that were taken long ago.)
        record = self.queue.open.get(self.xid)
        return record is not None and item_deliveries(record) == self.deliveries


class ThriftOpenReads:
    """The open reads of all thrift clients of a server, by the ids that the clients received.

    Ids are random, so only a client that received an id can end the read. The number of ids kept is
    at most a small multiple of the number of open reads.
    """

    __slots__ = ("_limit", "_order", "_reads")

    def __init__(self) -> None:
        self._reads: dict[int, _OpenRead] = {}
        self._order = 0
        self._limit = _SLACK

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, queue: Queue, xid: int) -> int:
        """Add a read that was just opened; return its id."""
        if len(self._reads) >= self._limit:
            self._forget_ended()
        identity = 0
        while not identity or identity in self._reads:
            identity = secrets.randbits(_ID_BITS)
        self._order += 1
        deliveries = item_deliveries(queue.open[xid])
        self._reads[identity] = _OpenRead(self._order, queue, xid, deliveries)
        return identity

    def is_open(self, identity: int) -> bool:
        """Whether a read is open."""
        read = self._reads.get(identity)
        return read is not None and read.is_open

    def xid_of(self, identity: int, name: str) -> int | None:
        """Return the xid of an open read of the queue `name`; None if it is not one."""
        read = self._reads.get(identity)
        return read.xid if read is not None and read.queue.name == name and read.is_open else None

    def take(self, name: str, ids: Iterable[int]) -> tuple[Queue, list[int]] | None:
        """Remove the reads of the queue `name` that have one of `ids`.

        Returns:
            The queue and the xids of the reads that are open, oldest first; None if none are.
        """
        taken = []
        # Do not put the client's `ids` in a set or dict: it could choose ones whose hashes collide.
        for identity in ids:
            read = self._reads.get(identity)
            if read is not None and read.queue.name == name:
                del self._reads[identity]
                if read.is_open:
                    taken.append(read)
        if not taken:
            return None
        taken.sort()
        return taken[0].queue, [read.xid for read in taken]

    def _forget_ended(self) -> None:
        """Remove the reads that ended by themselves; called when the number has doubled."""
        self._reads = {one: read for one, read in self._reads.items() if read.is_open}
        self._limit = 2 * len(self._reads) + _SLACK


class ThriftGet(ReadHandler):
    """One `get`: collects items until there are enough or the time is up, and then answers.

    An answer with thousands of items takes several turns. The items stay open until the whole
    answer is made, so none is lost if the client disconnects in between.
    """

    __slots__ = (
        "_answer",
        "_connection",
        "_context",
        "_encoded",
        "_get",
        "_header",
        "_items",
        "_mode",
        "_most",
        "_own",
        "_queue",
        "_refuse",
        "_shared",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        shared: ThriftOpenReads,
        own: dict[str, set[int]],
        header: MessageHeader,
        get: Get,
        answer: Callable[[Sequence[Encoded], Queue | None], None],
        refuse: Callable[[KestrelError], None],
    ) -> None:
        """Prepare; `begin` begins the read.

        Args:
            connection: the connection of the request; it is paused while the read waits.
            context: what the sessions share.
            shared: the open reads of all clients.
            own: by queue, the ids of the reads that this connection opened; there is a limit.
            header: the header of the request.
            get: the request.
            answer: called once, with the encoded items and their queue.
            refuse: called instead, with the reason, when no item could be read.
        """
        self._connection = connection
        self._context = context
        self._shared = shared
        self._own = own
        self._header = header
        self._get = get
        self._answer = answer
        self._refuse = refuse
        self._items: list[tuple[bytes, int]] = []
        self._encoded: list[Encoded] = []
        self._most = min(get.max_items, MAX_ITEMS)
        self._queue: Queue | None = None
        # A read that is answered at once can remove its items without opening them.
        at_once = not get.auto_abort and get.timeout <= 0 and self._most <= _AT_ONCE
        removing = ReadMode.REMOVE if at_once else ReadMode.HOLD
        self._mode = ReadMode.OPEN if get.auto_abort else removing

    def begin(self) -> None:
        """Take the items that are there, and wait if more are wanted."""
        name = self._get.queue
        if self._get.auto_abort:
            self._most = min(self._most, self._room(name))
        PendingRead(
            self._connection,
            self._context,
            self,
            name,
            self._mode,
            self._get.timeout / 1000,
            self._most,
            MAX_BYTES,
        ).begin()

    def _room(self, name: str) -> int:
        """Return how many more reads this connection may open."""
        held = {identity for identity in self._own.get(name, ()) if self._shared.is_open(identity)}
        self._own[name] = held
        return max(0, self._context.config.max_monitor_transactions - len(held))

    @property
    def takes_all(self) -> bool:
        """True: thrift can carry every item."""
        return True

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Add an item to the answer."""
        self._queue = queue
        self._items.append((record, xid))
        return True

    def end(self, queue: Queue | None) -> None:
        """Answer with the items read."""
        self._queue = queue
        self.resume()

    def fail(self, error: KestrelError) -> None:
        """Answer with the items read so far; if there are none, with the error."""
        if self._items:
            self.resume()
        else:
            self._refuse(error)

    def give_up(self) -> None:
        """Answer without items."""
        self._answer([], self._queue)

    def cancel(self) -> None:
        """Give back the items that were read."""
        if self._queue is not None:
            self._queue.give_back([xid for _, xid in self._items], counted=False)

    def resume(self) -> None:
        """Encode items, and answer when all are encoded."""
        connection, queue = self._connection, self._queue
        while queue is not None and len(self._encoded) < len(self._items):
            if self._is_time_over():
                connection.yield_turn()
                connection.resume_later(self)
                return
            self._encode(queue, *self._items[len(self._encoded)])
        connection.request_done()
        items = [] if queue is None else self._confirmed(queue)
        if queue is not None:
            queue.get_misses += not items and self._most > 0
        self._answer(items, queue)

    def _is_time_over(self) -> bool:
        """Whether others must be served first; not when items were removed: they could be lost."""
        return (
            self._mode is not ReadMode.REMOVE
            and len(self._encoded) % _CHECK_EVERY == _CHECK_EVERY - 1
            and self._context.turns.slow_share_is_over()
        )

    def _encode(self, queue: Queue, record: bytes, xid: int) -> None:
        """Encode an item; as () if its read has ended since it was opened."""
        identity = 0
        if self._get.auto_abort:
            if not queue.extend(xid, self._get.auto_abort / 1000):
                self._encoded.append(())
                return
            identity = self._shared.add(queue, xid)
            self._own[queue.name].add(identity)
        item = Item(data_of(record), identity)
        self._encoded.append(thrift.encode_item(self._header, item))

    def _confirmed(self, queue: Queue) -> list[Encoded]:
        """Confirm reads that are not to stay open; return the encoded items of reads not ended."""
        if self._mode is ReadMode.REMOVE:
            return self._encoded
        if self._get.auto_abort:
            return [encoded for encoded in self._encoded if encoded]
        xids = [xid for _, xid in self._items]
        both = zip(self._encoded, xids, strict=True)
        found = [encoded for encoded, xid in both if xid in queue.open]
        queue.confirm_all(xids)
        return found
