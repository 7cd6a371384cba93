"""Counters of the server, as plain attributes that are rendered only when asked for."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LARGE_ITEM: Final = 256 << 10
"""An item with so many bytes of data, or more, is a large one."""
COUNTED: Final = 16 << 10
"""Fewer bytes of one connection are not counted, and taken even if there is no room."""


class BufferedBytes:
    """The account of what is held in memory for all connections together.

    It has the items of which a part has arrived, by their announced sizes, the input behind
    requests that wait, bodies of HTTP requests, what was to be sent and the sockets have not taken,
    and the buffers of TLS. Less than `COUNTED` of input for each connection is not in it.

    Attributes:
        held: how many bytes there are.
        limit: how many there may be. Output, which is there already when it is counted, may exceed
            it; no more of it is made then.
        is_full: whether the limit is reached.
        on_change: called when `is_full` has changed.
    """

    def __init__(self) -> None:
        self.held = 0
        self.limit = sys.maxsize
        self.is_full = False
        self.on_change: Callable[[], object] = object

    def count(self, change: int) -> None:
        """Count so many more bytes, or fewer if it is negative."""
        self.held += change
        is_full = self.held >= self.limit
        if is_full is not self.is_full:
            self.is_full = is_full
            self.on_change()


class Counters:
    """What the server itself counts, besides the queues; `protocol.stats` explains each number."""

    def __init__(self) -> None:
        self.buffered = BufferedBytes()
        self.bytes_read = 0
        self.bytes_written = 0
        self.cmd_monitor = 0
        self.cmd_monitor_get = 0
        self.cmd_peek = 0
        self.cmd_set = 0
        self.curr_connections = 0
        self.failed_sign_ins = 0
        self.forbidden_requests = 0
        self.failed_handshakes = 0
        self.rate_limited_requests = 0
        self.refused_connections = 0
        self.total_connections = 0


@dataclass(slots=True)
class RetiredCounts:
    """Sums of what deleted queues had counted."""

    total_items: int = 0
    get_hits: int = 0
    get_misses: int = 0
