"""Kestrel's thrift service: the table of its methods, and their requests and answers as values.

The codec knows the service from `METHODS` alone. `kestrel.thrift`, beside this file, is the same
service in thrift's own language, for those who generate a client from it; a test compares the two.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, TypeAlias

from kestrelmq.protocol import thrift_wire as wire
from kestrelmq.protocol.managing import (
    Delete,
    Flush,
    FlushAll,
    GetStatus,
    SetStatus,
    SignIn,
    Version,
)
from kestrelmq.protocol.thrift_wire import Field, Kind


@dataclass(frozen=True, slots=True)
class Put:
    """Add `items`, which expire after `expiration` ms: 0 is never, a negative one has passed.

    Large items of a large frame are memoryviews.
    """

    queue: str
    items: tuple[bytes | memoryview, ...]
    expiration: int


@dataclass(frozen=True, slots=True)
class Get:
    """Read up to `max_items` within `timeout` ms.

    With an `auto_abort` above 0 the items are opened, and given back after so many ms.
    """

    queue: str
    max_items: int
    timeout: int
    auto_abort: int

    def __post_init__(self) -> None:
        """Check it. Raises ValueError."""
        if self.auto_abort < 0:
            raise ValueError("auto_abort_msec is below 0")


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


Request: TypeAlias = (
    Put
    | Get
    | Confirm
    | Abort
    | Peek
    | Flush
    | FlushAll
    | Delete
    | GetStatus
    | SetStatus
    | SignIn
    | Version
)


class Item(NamedTuple):
    """An item in an answer; `id` is 0 when the item was removed for good."""

    data: bytes | memoryview
    id: int


class QueueInfo(NamedTuple):
    """An answer to `Peek`; `age` is in milliseconds."""

    head_item: bytes | memoryview | None
    items: int
    bytes: int
    journal_bytes: int
    age: int
    waiters: int
    open_transactions: int


class ThriftStatus(IntEnum):
    """A server's status, with the numbers of the service."""

    NOT_CONFIGURED = 0
    QUIESCENT = 1
    READ_ONLY = 2
    UP = 3


Answer: TypeAlias = int | str | list[Item] | QueueInfo | ThriftStatus | None


class RefusalReason(Enum):
    """Why a request was refused: the types of TApplicationException that are used."""

    UNKNOWN_METHOD = 1
    INVALID_MESSAGE_TYPE = 2
    INTERNAL_ERROR = 6
    PROTOCOL_ERROR = 7


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A request that cannot be served as it was sent, and why."""

    reason: RefusalReason
    message: str


def _set_status(number: int) -> SetStatus:
    try:
        return SetStatus(ThriftStatus(number).name)
    except ValueError:
        raise ValueError(f"unknown status {number}") from None


@dataclass(frozen=True, slots=True)
class Method:
    """A method of the service.

    Attributes:
        request: makes the request from the arguments. Raises ValueError.
        arguments: the fields of a call.
        result: the fields of its answer: one, or none if it returns nothing.
    """

    request: Callable[..., Request]
    arguments: tuple[Field, ...]
    result: tuple[Field, ...] = ()


def _returning(kind: Kind) -> tuple[Field, ...]:
    return (Field(0, "success", kind),)


_MAX_CLIENT_ID: Final = 256
"""Characters of the id of a client that are read: it is shown and logged."""
_I32: Final = Kind(wire.I32)
_I64: Final = Kind(wire.I64)
_TEXT: Final = Kind(wire.STRING, is_text=True)
_BINARY: Final = Kind(wire.STRING)
_STATUS: Final = _I32
ITEM: Final = Kind(wire.STRUCT, fields=(Field(1, "data", _BINARY), Field(2, "id", _I64)), make=Item)
"""The type of an item in an answer."""
_CLIENT_ID: Final = Kind(
    wire.STRUCT, fields=(Field(1, "name", _TEXT),), make=lambda name: name[:_MAX_CLIENT_ID]
)
REQUEST_HEADER: Final = (Field(6, "client_id", _CLIENT_ID, None),)
"""What is read of Finagle's request header."""

_QUEUE_INFO: Final = Kind(
    wire.STRUCT,
    fields=(
        Field(1, "head_item", _BINARY, None),
        Field(2, "items", _I64),
        Field(3, "bytes", _I64),
        Field(4, "journal_bytes", _I64),
        Field(5, "age", _I64),
        Field(6, "waiters", _I32),
        Field(7, "open_transactions", _I32),
    ),
    make=QueueInfo,
)
_QUEUE: Final = Field(1, "queue_name", _TEXT)
_ITEMS: Final = Field(2, "items", Kind(wire.LIST, element=_BINARY))
_IDS: Final = Field(2, "ids", Kind(wire.SET, element=_I64))

METHODS: Final = {
    "put": Method(Put, (_QUEUE, _ITEMS, Field(3, "expiration_msec", _I32, 0)), _returning(_I32)),
    "get": Method(
        Get,
        (
            _QUEUE,
            Field(2, "max_items", _I32),
            Field(3, "timeout_msec", _I32, 0),
            Field(4, "auto_abort_msec", _I32, 0),
        ),
        _returning(Kind(wire.LIST, element=ITEM)),
    ),
    "confirm": Method(Confirm, (_QUEUE, _IDS), _returning(_I32)),
    "abort": Method(Abort, (_QUEUE, _IDS), _returning(_I32)),
    "peek": Method(Peek, (_QUEUE,), _returning(_QUEUE_INFO)),
    "flush_queue": Method(Flush, (_QUEUE,)),
    "flush_all_queues": Method(FlushAll, ()),
    "delete_queue": Method(Delete, (_QUEUE,)),
    "current_status": Method(GetStatus, (), _returning(_STATUS)),
    "set_status": Method(_set_status, (Field(1, "status", _STATUS),)),
    "login": Method(SignIn, (Field(1, "user", _TEXT), Field(2, "password", _TEXT))),
    "get_version": Method(Version, (), _returning(_TEXT)),
}
"""The methods, by their names."""

EXCEPTION: Final = (Field(1, "message", _TEXT, ""), Field(2, "type", _I32, 0))
"""The fields of a TApplicationException, with which any method answers a refused request."""
