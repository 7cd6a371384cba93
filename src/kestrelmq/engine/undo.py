"""Taking back operations whose journal records could not be written.

Each change has an exact inverse; applied newest first they restore the queue. An add needs no
entry of its own: its record says it all. A plain remove is the item itself.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Opened:
    """A read was opened; `last_xid` is the counter before."""

    xid: int
    item: bytes
    last_xid: int


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


Change = bytes | Opened | Confirmed | GivenBack
