"""Taking back operations whose journal records could not be written.

Each change has an exact inverse; applied newest first they restore the queue. An add needs no
entry of its own: its record says it all. A plain remove is the item itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """An item was set aside under `xid`, by a reader or not; `last_xid` is the counter before."""

    xid: int
    item: bytes
    last_xid: int
    by_reader: bool = True


@dataclass(frozen=True, slots=True)
class Confirmed:
    """An open read was finished."""

    xid: int
    item: bytes


@dataclass(frozen=True, slots=True)
class GivenBack:
    """An open read was given back to the head."""

    xid: int
    item: bytes


@dataclass(frozen=True, slots=True)
class Dropped:
    """The head was taken off, but not by a reader."""

    item: bytes


Change = bytes | Opened | Confirmed | GivenBack | Dropped
