"""What the server counts itself, as plain attributes that are rendered only when asked for."""

from dataclasses import dataclass
from typing import Final

COUNTERS: Final = (
    "bytes_read",
    "bytes_written",
    "cmd_monitor",
    "cmd_monitor_get",
    "cmd_peek",
    "cmd_set",
    "curr_connections",
    "total_connections",
)
"""The attributes of `Counters`, which are statistics of the same names; see the guide."""


class Counters:
    """What the server counts itself; see `COUNTERS`."""

    def __init__(self) -> None:
        self.bytes_read = 0
        self.bytes_written = 0
        self.cmd_monitor = 0
        self.cmd_monitor_get = 0
        self.cmd_peek = 0
        self.cmd_set = 0
        self.curr_connections = 0
        self.total_connections = 0


@dataclass(slots=True)
class Retired:
    """What queues that were deleted had counted."""

    total_items: int = 0
    get_hits: int = 0
    get_misses: int = 0
