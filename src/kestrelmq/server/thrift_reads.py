"""Reads of the thrift protocol: `get`, which may wait, and the open reads it leaves behind.

An open read belongs to no connection: any client that knows its id may end it, and otherwise it
ends by itself. A `get` that removes at once but has to wait opens its reads first and confirms
them when it answers, so a client that leaves meanwhile takes nothing with it.
"""

from collections.abc import Callable, Collection
from typing import Final

from kestrelmq.engine.queue import Queue
from kestrelmq.engine.waiters import Wanted
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER
from kestrelmq.protocol.thrift_messages import Get, Item
from kestrelmq.server.connection import WAITING, Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.waiting import WaitingRead

MAX_ITEMS: Final = 10_000
"""The most items in one answer, so that a turn stays short."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""No item is added to an answer that has as many bytes of data."""

_SLACK: Final = 64


class ThriftReads:
    """The open reads of all thrift clients of a server: which ids are theirs to end."""

    __slots__ = ("_by_queue", "_limit", "_sequence", "_size")

    def __init__(self) -> None:
        self._by_queue: dict[str, tuple[Queue, dict[int, int]]] = {}
        self._sequence = 0
        self._size = 0
        self._limit = _SLACK

    def add(self, queue: Queue, xid: int) -> None:
        """Remember a read that was just opened."""
        held = self._by_queue.get(queue.name)
        if held is None or held[0] is not queue:
            # A queue that was deleted took its reads along.
            held = self._by_queue[queue.name] = (queue, {})
        self._sequence += 1
        self._size += xid not in held[1]
        held[1][xid] = self._sequence
        if self._size > self._limit:
            self._forget_ended()

    def is_open(self, name: str, xid: int) -> bool:
        """Whether a read is open."""
        queue, xids = self._by_queue.get(name, (None, {}))
        return queue is not None and xid in xids and xid in queue.open

    def take(self, name: str, ids: Collection[int]) -> tuple[Queue, list[int]] | None:
        """Return those of `ids` that are open, oldest first, and forget them; None if none are."""
        if name not in self._by_queue:
            return None
        queue, xids = self._by_queue[name]
        known = sorted((xids[xid], xid) for xid in ids if xid in xids)
        for _, xid in known:
            del xids[xid]
        self._size -= len(known)
        found = [xid for _, xid in known if xid in queue.open]
        return (queue, found) if found else None

    def _forget_ended(self) -> None:
        """Forget the reads that ended by themselves; done each time the number has doubled."""
        live = {
            name: (queue, {xid: order for xid, order in xids.items() if xid in queue.open})
            for name, (queue, xids) in self._by_queue.items()
        }
        self._by_queue = {name: held for name, held in live.items() if held[1]}
        self._size = sum(len(xids) for _, xids in self._by_queue.values())
        self._limit = 2 * self._size + _SLACK


class ThriftGet:
    """One `get`: collects items until there are enough, or the time is up."""

    __slots__ = (
        "_answer",
        "_bytes",
        "_connection",
        "_context",
        "_deadline",
        "_get",
        "_items",
        "_most",
        "_own",
        "_refuse",
        "_shared",
        "_waiting",
        "_wanted",
    )

    def __init__(
        self,
        connection: Connection,
        context: ServerContext,
        shared: ThriftReads,
        own: dict[str, set[int]],
        get: Get,
        answer: Callable[[list[Item], Queue | None], None],
        refuse: Callable[[KestrelError], None],
    ) -> None:
        """Prepare; `begin` reads.

        Args:
            connection: paused while the read waits.
            context: the server's.
            shared: the open reads of every client.
            own: by queue, those that this connection opened, whose number is limited.
            get: what is asked.
            answer: called once with the items, and the queue they came from.
            refuse: called instead when none could be read, with the reason.
        """
        self._connection = connection
        self._context = context
        self._shared = shared
        self._own = own
        self._get = get
        self._answer = answer
        self._refuse = refuse
        # A read that is answered at once needs no opening to be removed.
        at_once = not get.auto_abort and get.timeout <= 0
        self._wanted = Wanted.REMOVE if at_once else Wanted.OPEN
        self._items: list[tuple[bytes, int]] = []
        self._bytes = 0
        self._most = min(get.max_items, MAX_ITEMS)
        self._deadline = 0.0
        self._waiting: tuple[WaitingRead, Queue] | None = None

    def begin(self) -> None:
        """Read what is there, and wait for more if there is need.

        Raises:
            KestrelError: nothing may be read.
        """
        context, name = self._context, self._get.queue
        refusal = context.refuses_reads()
        if refusal is not None:
            raise QueueUnavailable(refusal)
        context.check_client(name, write=False)
        if name in context.collection.config.aliases:
            self._answer([], None)
            return
        if self._get.auto_abort and self._most > 0:
            self._most = min(self._most, self._room())
        self._deadline = context.loop.time() + self._get.timeout / 1000
        self._collect(context.collection.obtain(name))

    def cancel(self) -> None:
        """The client is gone before its answer: give back what was read for it."""
        if self._waiting is None:
            return
        waiting, queue = self._waiting
        self._waiting = None
        waiting.cancel()
        queue.give_back([xid for _, xid in self._items])

    def _room(self) -> int:
        """Return how many reads this connection may open; there is room for one at least."""
        name = self._get.queue
        held = {xid for xid in self._own.get(name, ()) if self._shared.is_open(name, xid)}
        self._own[name] = held
        room = self._context.config.max_monitor_transactions - len(held)
        if room <= 0:
            raise QueueUnavailable("too many transactions open")
        return room

    def _collect(self, queue: Queue) -> None:
        while len(self._items) < self._most and self._bytes < MAX_BYTES:
            try:
                record, xid = queue.take_as(self._wanted)
            except KestrelError:
                if not self._items:
                    raise
                self._most = 0  # what was read already must reach the client
                break
            if record is None:
                break
            self._take(record, xid)
        self._go_on(queue)

    def _go_on(self, queue: Queue) -> None:
        """Answer if there is enough or no time is left, else get in line for the next item."""
        remaining = self._deadline - self._context.loop.time()
        if len(self._items) >= self._most or self._bytes >= MAX_BYTES or remaining <= 0:
            self._finish(queue)
            return
        waiting = WaitingRead(
            self._connection,
            queue,
            self._wanted,
            lambda record, xid: self._served(queue, record, xid),
            lambda: self._finish(queue),
            lambda error: self._fail(queue, error),
        )
        self._waiting = waiting, queue
        waiting.begin(self._context.loop, remaining)

    def _take(self, record: bytes, xid: int) -> None:
        self._items.append((record, xid))
        self._bytes += len(record) - ADDX_HEADER

    def _served(self, queue: Queue, record: bytes, xid: int) -> None:
        self._waiting = None
        self._take(record, xid)
        # Those who have waited longer are served before this one takes more.
        if queue.waiters.line:
            self._go_on(queue)
        else:
            self._collect(queue)

    def _fail(self, queue: Queue, error: KestrelError) -> None:
        """Answer with what was read already; without any, with the error."""
        if self._items:
            self._finish(queue)
            return
        self._waiting = None
        self._refuse(error)
        if self._connection.paused & WAITING:
            self._connection.unpause(WAITING)

    def _finish(self, queue: Queue) -> None:
        self._waiting = None
        items = [
            Item(record[ADDX_HEADER:], xid if self._get.auto_abort else 0)
            for record, xid in self._items
            if self._keep(queue, xid)
        ]
        queue.get_misses += not items
        self._answer(items, queue)
        if self._connection.paused & WAITING:
            self._connection.unpause(WAITING)

    def _keep(self, queue: Queue, xid: int) -> bool:
        """Make an item the client's; False when its read ended while others were waited for."""
        if self._wanted is Wanted.REMOVE:
            return True
        if not self._get.auto_abort:
            return queue.confirm(xid)
        if not queue.extend(xid, self._get.auto_abort / 1000):
            return False
        self._shared.add(queue, xid)
        self._own.setdefault(queue.name, set()).add(xid)
        return True
