"""The commands of only the text protocol, as plain values; `managing` and `reserving` have more."""

from dataclasses import dataclass
from typing import TypeAlias

from kestrelmq.protocol.managing import (
    GetStatus,
    ManagingRequest,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.protocol.put_options import NO_OPTIONS, PutOptions
from kestrelmq.protocol.reserving import EndsReads, Reserve


@dataclass(frozen=True, slots=True)
class Put:
    """Add `items`; large ones are memoryviews.

    `expiry` is in ms from when they are due: 0 is never, a negative one has passed. `is_cut` tells
    whether an item was too large for the queue; it and those after it were dropped.
    """

    queue: str
    expiry: int
    items: tuple[bytes | memoryview, ...]
    options: PutOptions = NO_OPTIONS
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Get:
    """Confirm the connection's open read on the queue and open the next; `timeout` is in ms."""

    queue: str
    timeout: int


@dataclass(frozen=True, slots=True)
class Peek:
    """Look at the head; `timeout` is in ms."""

    queue: str
    timeout: int


@dataclass(frozen=True, slots=True)
class Monitor:
    """Open up to `most` reads during `timeout` ms; None is as many as may be open."""

    queue: str
    timeout: int
    most: int | None


@dataclass(frozen=True, slots=True)
class Confirm:
    """Confirm the `count` oldest open reads of the connection."""

    queue: str
    count: int


@dataclass(frozen=True, slots=True)
class Quit:
    """Close the connection."""


Command: TypeAlias = (
    Put
    | Get
    | Peek
    | Monitor
    | Confirm
    | Reload
    | GetStatus
    | SetStatus
    | Version
    | Shutdown
    | Quit
    | ManagingRequest
    | Reserve
    | EndsReads
)
