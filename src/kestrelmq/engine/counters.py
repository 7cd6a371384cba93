"""Counters of the server, as plain attributes that are rendered only when asked for."""

from dataclasses import dataclass


class Counters:
    """What the server itself counts, besides the queues; `protocol.stats` explains each number."""

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
class RetiredCounts:
    """Sums of what deleted queues had counted."""

    total_items: int = 0
    get_hits: int = 0
    get_misses: int = 0
