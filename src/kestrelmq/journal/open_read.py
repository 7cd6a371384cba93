"""An open read: an item that was taken off the head, and is neither finished nor given back.

`life` says in which states it may be, and what happens to it.

A read is what one reader has: when it loses the item, the read is over for good. If it is given
back, and read again, that is another read. If the item stays open without a reader, because it
waits for its retry delay, another read takes the place of the first, under the same xid.

What a pack writes of a read, its item, reservation and `is_counted`, does not change once it is
committed: a thread may look at it in a copy of the table that has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from kestrelmq.format.records import Item, item_deliveries, record_of
from kestrelmq.journal.life import HELD, RESERVED

NO_DEADLINE: Final = -1.0
"""The deadline of a read that has none; a literal, because mypyc compiles that to a constant."""


@dataclass(frozen=True, slots=True)
class ReserveTerms:
    """On what terms reads are reserved.

    Attributes:
        lease: how long they are reserved, unless extended (ms); 0 is without end, whatever becomes
            of the owner.
        grace: how long after the owner's last connection has ended (ms).
        owner: whose they are; may be empty.
        tag: the step that they belong to; may be empty.
    """

    lease: int
    grace: int = 5000
    owner: str = ""
    tag: str = ""


@dataclass(slots=True, eq=False, init=False)
class Reservation:
    """Reads that were reserved together.

    As in `idempotent_producers.PutMark`, its `__init__` is written out.

    Attributes:
        nonce: a random number that names it; a client must know it.
        terms: the terms in force.
        xids: the reads, in order, those that have ended included; a range if many were opened
            together.
        size: the memory that their items take, those included.
        left: how many have not ended.
        number: orders those of an owner; 0 if it was not needed yet. This and what follows is of no
            meaning for the journal; `queue.leases` says more.
        deadline: when the lease ends (monotonic seconds).
        set_at: when the deadline was set, as a number that grows.
        extended: the deadlines of reads that were extended alone, and when those were set.
        due: when the queue looks at the lease next; infinite when it does not.
    """

    nonce: int
    terms: ReserveTerms
    xids: Sequence[int]
    size: int
    left: int
    number: int
    deadline: float
    set_at: int
    extended: dict[int, tuple[float, int]] | None
    due: float

    def __init__(
        self, nonce: int, terms: ReserveTerms, xids: Sequence[int], size: int, left: int
    ) -> None:
        self.nonce = nonce
        self.terms = terms
        self.xids = xids
        self.size = size
        self.left = left
        self.number = self.set_at = 0
        self.deadline = 0.0
        self.extended = None
        self.due = inf


class OpenRead:
    """An open read.

    Attributes:
        xid: its xid.
        item: the item as it waited.
        state: HELD, RESERVED, RETRYING, ASIDE or LEAVING; the last of them if the read is over.
        is_over: whether it has ended. If that cannot be written, it is open again.
        deadline: when it is to be given back (monotonic seconds), or NO_DEADLINE; a reservation has
            its own.
        reservation: whose it is, if it is RESERVED.
        is_counted: whether the item was handed out, so that to give it back counts as a delivery.
        is_plain: whether its reader asked for no transaction: it is open only until the item can be
            removed.
    """

    __slots__ = (
        "deadline",
        "is_counted",
        "is_over",
        "is_plain",
        "item",
        "reservation",
        "state",
        "xid",
    )

    def __init__(self, xid: int, item: Item) -> None:
        """Begin as HELD."""
        self.xid = xid
        self.item = item
        self.state = HELD
        self.is_over = self.is_plain = False
        self.is_counted = True
        self.deadline = NO_DEADLINE
        self.reservation: Reservation | None = None

    @property
    def record(self) -> bytes:
        """The item's record."""
        return record_of(self.item)

    @property
    def deliveries(self) -> int:
        """How often the item was handed out before."""
        return item_deliveries(self.item)

    @property
    def has_reader(self) -> bool:
        """Whether a reader, or a name, has the item."""
        return not self.is_over and self.state <= RESERVED

    def reserve(self, reservation: Reservation | None) -> None:
        """Let the read be RESERVED; with None, undo that."""
        self.reservation = reservation
        self.state = HELD if reservation is None else RESERVED

    def without_reader(self, state: int, *, counted: bool) -> "OpenRead":
        """Return the read that takes the place of this one, which is over."""
        self.is_over = True
        other = OpenRead(self.xid, self.item)
        other.state = state
        other.is_counted = counted
        return other
