"""The requests and answers of the thrift service, as plain values in the service's terms."""

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from thriftpy2.thrift import TApplicationException

from kestrelmq.marks import PutMark
from kestrelmq.protocol.managing import GetStatus, ManagingRequest, SetStatus, Version
from kestrelmq.protocol.reserving import EndsReads, Reserve


class Dialect(Enum):
    """How a message is encoded."""

    BINARY = "binary"
    OLD_BINARY = "binary without version"
    COMPACT = "compact"


class ThriftStatus(Enum):
    """A server's status, with the numbers of the service."""

    NOT_CONFIGURED = 0
    QUIESCENT = 1
    READ_ONLY = 2
    UP = 3


class RefusalReason(Enum):
    """Why a request was refused: the types of TApplicationException that are used."""

    UNKNOWN_METHOD = TApplicationException.UNKNOWN_METHOD
    INVALID_MESSAGE_TYPE = TApplicationException.INVALID_MESSAGE_TYPE
    INTERNAL_ERROR = TApplicationException.INTERNAL_ERROR
    PROTOCOL_ERROR = TApplicationException.PROTOCOL_ERROR


@dataclass(frozen=True, slots=True)
class Put:
    """Add `items`, which wait in the queue `delay` ms from now; large ones are memoryviews.

    `expiration` is in ms from when they are due: 0 is never, a negative one has passed. If their
    producer is named, `mark` is that of the first, and the others are numbered from it.
    """

    queue: str
    items: tuple[bytes | memoryview, ...]
    expiration: int
    delay: int = 0
    mark: PutMark | None = None


@dataclass(frozen=True, slots=True)
class Get:
    """Read up to `max_items` within `timeout` ms.

    With an `auto_abort` above 0 the items are opened, and given back after so many ms.
    """

    queue: str
    max_items: int
    timeout: int
    auto_abort: int


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm open reads; `ids` may contain duplicates."""

    queue: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Give open reads back; `ids` may contain duplicates."""

    queue: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peek:
    """Describe the queue and look at its head."""

    queue: str


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that cannot be served as it was sent, and why."""

    reason: RefusalReason
    message: str


Request: TypeAlias = (
    Reserve
    | EndsReads
    | ManagingRequest
    | Put
    | Get
    | Confirm
    | Abort
    | Peek
    | GetStatus
    | SetStatus
    | Version
)


@dataclass(frozen=True, slots=True)
class MessageHeader:
    """A message's header, which the answer repeats; a `oneway` message gets no answer."""

    dialect: Dialect
    name: str
    seqid: int
    oneway: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """An item in an answer; `id` is 0 when the item was removed for good."""

    data: bytes | memoryview
    id: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """An answer to `Peek`; `age` is in milliseconds."""

    head_item: bytes | memoryview | None
    items: int
    bytes: int
    journal_bytes: int
    age: int
    waiters: int
    open_transactions: int


@dataclass(frozen=True, slots=True)
class ReservedItem:
    """A reserved item in an answer; times are in milliseconds since the epoch."""

    queue: str
    read_id: str
    deliveries: int
    add_time: int
    expiry: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class ReservedItems:
    """An answer to `Reserve`; `is_done` is whether its tag is done."""

    items: tuple[ReservedItem, ...]
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class BrowsedItem:
    """An item in an answer to `Browse`; times are in milliseconds since the epoch."""

    place: int
    add_time: int
    expiry: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class BrowsedItems:
    """An answer to `Browse`; `total` items wait, and `next_offset` is None at the queue's end."""

    items: tuple[BrowsedItem, ...]
    total: int
    next_offset: int | None


@dataclass(frozen=True, slots=True)
class MovedItems:
    """An answer to `Move`; `stopped` is why no more were moved, None if all were."""

    count: int
    stopped: str | None


@dataclass(frozen=True, slots=True)
class ClientEntry:
    """A client in an answer to `ListClients`; `since` is in milliseconds since the epoch."""

    id: int
    address: str
    protocol: str
    since: int
    replies: int
    state: str
    queue: str | None
    open_reads: dict[str, int]


@dataclass(frozen=True, slots=True)
class ClientList:
    """An answer to `ListClients`."""

    clients: tuple[ClientEntry, ...]


Answer: TypeAlias = (
    int
    | str
    | list[Item]
    | QueueInfo
    | ReservedItems
    | BrowsedItems
    | MovedItems
    | ClientList
    | ThriftStatus
    | None
)
