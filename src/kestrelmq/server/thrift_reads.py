"""Reads of the thrift protocol: `get`, which may wait, and the open reads it leaves behind.

An open read belongs to no connection: any client that was told its id may end it, and otherwise it
ends by itself. A `get` that removes at once but has to wait opens its reads first and confirms
them when it answers, so a client that leaves meanwhile takes nothing with it.
"""

import secrets
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Wanted
from kestrelmq.errors import KestrelError
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.protocol import thrift
from kestrelmq.protocol.thrift_messages import Get, Head, Item
from kestrelmq.server.collect import Collect, Reader
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext

MAX_ITEMS: Final = 10_000
"""The most items in one answer, so that a turn stays short."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""No item is added to an answer that has as many bytes of data."""

_AT_ONCE: Final = 1000
"""So many items are removed in one turn; a read of more opens them first."""
_LOOK_AGAIN: Final = 32
"""Items that are encoded before others may have to be served first."""
_SLACK: Final = 64
_ID_BITS: Final = 53
"""Bits of an id: as many as every language's numbers hold exactly."""


class _Read(NamedTuple):
    """An open read; `order` grows from read to read."""

    order: int
    queue: Queue
    xid: int

    @property
    def is_open(self) -> bool:
        # A queue gives an xid again only after 2^31 others; its id is forgotten long before.
        return self.xid in self.queue.open


class ThriftReads:
    """The open reads of all thrift clients of a server, by the ids that the clients got.

    An id is random, so that only who was given it can end the read. No more ids are kept than a
    small multiple of the reads that are open.
    """

    __slots__ = ("_limit", "_order", "_reads")

    def __init__(self) -> None:
        self._reads: dict[int, _Read] = {}
        self._order = 0
        self._limit = _SLACK

    def __len__(self) -> int:
        return len(self._reads)

    def add(self, queue: Queue, xid: int) -> int:
        """Remember a read that was just opened; return its id."""
        if len(self._reads) >= self._limit:
            self._forget_ended()
        identity = 0
        while not identity or identity in self._reads:
            identity = secrets.randbits(_ID_BITS)
        self._order += 1
        self._reads[identity] = _Read(self._order, queue, xid)
        return identity

    def is_open(self, identity: int) -> bool:
        """Whether a read is open."""
        read = self._reads.get(identity)
        return read is not None and read.is_open

    def take(self, name: str, ids: Iterable[int]) -> tuple[Queue, list[int]] | None:
        """Forget the reads of a queue that have one of `ids`.

        Returns:
            The queue and the xids of those that are open, oldest first; None if none are.
        """
        taken = []
        # A client can choose ids that collide in a set or dict of them; among ours they cannot.
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
        """Forget the reads that ended by themselves; done each time the number has doubled."""
        self._reads = {one: read for one, read in self._reads.items() if read.is_open}
        self._limit = 2 * len(self._reads) + _SLACK


class ThriftGet(Reader):
    """One `get`: collects items until there are enough, or the time is up; then answers.

    Answering with thousands of items takes several turns. They stay open until all of the answer
    is made, and so a client that leaves meanwhile takes nothing with it.
    """

    __slots__ = (
        "_answer",
        "_connection",
        "_context",
        "_encoded",
        "_get",
        "_head",
        "_items",
        "_most",
        "_own",
        "_queue",
        "_refuse",
        "_shared",
        "_wanted",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        shared: ThriftReads,
        own: dict[str, set[int]],
        head: Head,
        get: Get,
        answer: Callable[[list[bytes], Queue | None], None],
        refuse: Callable[[KestrelError], None],
    ) -> None:
        """Prepare; `begin` reads.

        Args:
            connection: paused while the read waits.
            context: the server's.
            shared: the open reads of every client.
            own: by queue, those that this connection opened, whose number is limited.
            head: of the request.
            get: what is asked.
            answer: called once with the items, encoded, and the queue they came from.
            refuse: called instead when none could be read, with the reason.
        """
        self._connection = connection
        self._context = context
        self._shared = shared
        self._own = own
        self._head = head
        self._get = get
        self._answer = answer
        self._refuse = refuse
        self._items: list[tuple[bytes, int]] = []
        self._encoded: list[bytes] = []
        self._most = min(get.max_items, MAX_ITEMS)
        self._queue: Queue | None = None
        # A read that is answered at once needs no opening to be removed.
        at_once = not get.auto_abort and get.timeout <= 0 and self._most <= _AT_ONCE
        self._wanted = Wanted.REMOVE if at_once else Wanted.OPEN

    def begin(self) -> None:
        """Read what is there, and wait for more if there is need."""
        name = self._get.queue
        if self._get.auto_abort:
            self._most = min(self._most, self._room(name))
        Collect(
            self._connection,
            self._context,
            self,
            name,
            self._wanted,
            self._get.timeout / 1000,
            self._most,
            MAX_BYTES,
        ).begin()

    def _room(self, name: str) -> int:
        """Return how many more reads this connection may open."""
        held = {identity for identity in self._own.get(name, ()) if self._shared.is_open(identity)}
        self._own[name] = held
        return max(0, self._context.config.max_monitor_transactions - len(held))

    def take(self, queue: Queue, record: bytes, xid: int) -> bool:
        """Collect an item."""
        self._queue = queue
        self._items.append((record, xid))
        return True

    def end(self, queue: Queue | None) -> None:
        """Answer."""
        self._queue = queue
        self.resume()

    def fail(self, error: KestrelError) -> None:
        """Answer with what was read already; without any, with the error."""
        if self._items:
            self.resume()
        else:
            self._refuse(error)

    def cancel(self) -> None:
        """Give back what was read."""
        if self._queue is not None:
            self._queue.give_back([xid for _, xid in self._items])

    def resume(self) -> None:
        """Encode the items; answer when that is done with all."""
        connection, queue = self._connection, self._queue
        while queue is not None and len(self._encoded) < len(self._items):
            if self._is_time_over():
                connection.yield_turn()
                connection.interrupt(self)
                return
            self._encode(queue, *self._items[len(self._encoded)])
        connection.done()
        items = [] if queue is None else self._kept(queue)
        if queue is not None:
            queue.get_misses += not items and self._most > 0
        self._answer(items, queue)

    def _is_time_over(self) -> bool:
        """Whether others are to be served first; what was removed could not be given back then."""
        return (
            self._wanted is not Wanted.REMOVE
            and len(self._encoded) % _LOOK_AGAIN == _LOOK_AGAIN - 1
            and self._context.turns.share_is_over()
        )

    def _encode(self, queue: Queue, record: bytes, xid: int) -> None:
        """Encode an item; nothing stands for one whose read ended while others were waited for."""
        identity = 0
        if self._get.auto_abort:
            if not queue.extend(xid, self._get.auto_abort / 1000):
                self._encoded.append(b"")
                return
            identity = self._shared.add(queue, xid)
            self._own[queue.name].add(identity)
        item = Item(record[ADDX_HEADER:], identity)
        self._encoded.append(thrift.encode_item(self._head, item))

    def _kept(self, queue: Queue) -> list[bytes]:
        """Make what was read the client's; return the items whose reads had not ended."""
        if self._wanted is Wanted.REMOVE:
            return self._encoded
        if self._get.auto_abort:
            return [encoded for encoded in self._encoded if encoded]
        both = zip(self._encoded, self._items, strict=True)
        return [encoded for encoded, (_, xid) in both if queue.confirm(xid)]
