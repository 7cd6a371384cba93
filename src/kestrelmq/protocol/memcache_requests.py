"""The requests of the memcache protocol: one immutable value each."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Set:
    """Add an item; `size` bytes of data and a line end follow."""

    queue: str
    expiry: int
    size: int
    noreply: bool


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a `get`: a queue and what to do with it.

    Attributes:
        queue: its name.
        echo: what the VALUE line calls it, in bytes.
        timeout: milliseconds to wait for an item; None is not at all.
        open, close, abort, peek: the options that were given.
    """

    queue: str
    echo: bytes
    timeout: int | None = None
    open: bool = False
    close: bool = False
    abort: bool = False
    peek: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Read from queues.

    Attributes:
        keys: the queues, and what to do with each.
        cas: whether VALUE lines have a fourth field.
        plain: the queue of a `get` of one key that has no option but perhaps a time-out.
        prefix: start of the VALUE line of a plain `get`, up to the length.
    """

    keys: tuple[Key, ...]
    cas: bool
    plain: str | None
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Monitor:
    """Open reads of items as they arrive, for a time and up to a number."""

    queue: str
    seconds: int
    max_items: int | None


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the oldest `count` open reads."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class TouchRead:
    """Extend every open read of this connection on a queue."""

    queue: str
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Drop a queue."""

    queue: str
    noreply: bool


@dataclass(frozen=True, slots=True)
class Flush:
    """Drop what waits in a queue."""

    queue: str
    noreply: bool


@dataclass(frozen=True, slots=True)
class FlushAll:
    """Drop what waits in every queue."""

    noreply: bool


@dataclass(frozen=True, slots=True)
class FlushExpired:
    """Drop expired items of a queue, or of every queue (None)."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Stats:
    """Tell the statistics of the server, or of one queue."""

    queue: str | None


@dataclass(frozen=True, slots=True)
class Dump:
    """Tell statistics or settings, grouped by queue; of all queues when none is named."""

    what: Literal["stats", "config"]
    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """Tell the server's status, or change it."""

    new: str | None


@dataclass(frozen=True, slots=True)
class Simple:
    """A command without arguments."""

    verb: Literal["version", "reload", "shutdown", "quit"]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that is refused once its data, if any, has been read and dropped."""

    reply: bytes
    """What to answer; nothing if the client reads no reply."""
    size: int | None
    """Bytes of data that follow, before a line end; None when there is no data."""


Request = (
    Set
    | Get
    | Monitor
    | Confirm
    | TouchRead
    | Delete
    | Flush
    | FlushAll
    | FlushExpired
    | Stats
    | Dump
    | Status
    | Simple
    | Refused
)
