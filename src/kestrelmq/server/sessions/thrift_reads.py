"""The open reads of the thrift protocol.

One does not belong to a connection: any client that has its id may end it; otherwise it ends by
itself when its time is up.
"""

import secrets
from collections.abc import Iterable
from typing import Final, NamedTuple

from kestrelmq.queue.queue import Queue

_SLACK: Final = 64
_ID_BITS: Final = 53
"""Bits of an id: so many are exact even where all numbers are floating-point."""


class _OpenRead(NamedTuple):
    """An open read.

    Attributes:
        order: a number that is larger for later reads.
        queue: the queue.
        xid: the read's xid.
    """

    order: int
    queue: Queue
    xid: int

    @property
    def is_open(self) -> bool:
        # Another read gets the xid only after 2^31 others, and the id is forgotten long before
        # that. (To keep the item here, and compare it, would keep large ones in memory that were
        # taken long ago.)
        return self.xid in self.queue.reads.open


class ThriftOpenReads:
    """The open reads of all thrift clients of a server, by the ids that the clients received.

    Ids are random, so only a client that received an id can end the read. The number of ids kept is
    at most a small multiple of the number of open reads.
    """

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
        self._reads[identity] = _OpenRead(self._order, queue, xid)
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
