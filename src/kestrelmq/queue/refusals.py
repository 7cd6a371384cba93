"""What a queue refused: counted by reason, and logged."""

from typing import Final, Literal

from kestrelmq.clock import Clock, Throttle
from kestrelmq.deferred_logs import get_logger
from kestrelmq.journal.shared_empty import NOTHING, own

RefusalReason = Literal[
    "too_large", "full_items", "full_bytes", "memory", "paused", "forbidden", "disk", "failed"
]
"""Why a request was refused; `protocol.stats` has a statistic with the meaning of each."""

LOG_INTERVAL: Final = 60.0
"""Seconds between log lines about what one queue refuses, or cannot move."""

log = get_logger(__name__)


class Refusals:
    """The refusals of one queue since it was loaded or created; an attribute for each reason.

    `count` logs them at most once a minute, with how many there were since the last line. Failed
    changes are only added up: the error by which they failed is logged already.

    Attributes:
        no_room: why the last add for which the disk had no room was refused, and how many had
            succeeded by then; None if there was none.
    """

    __slots__ = (
        "_queue",
        "_since_logged",
        "_throttle",
        "disk",
        "failed",
        "forbidden",
        "full_bytes",
        "full_items",
        "memory",
        "no_room",
        "paused",
        "too_large",
    )

    def __init__(self, queue: str, clock: Clock) -> None:
        self.too_large = self.full_items = self.full_bytes = self.memory = 0
        self.paused = self.forbidden = self.disk = self.failed = 0
        self.no_room: tuple[str, int] | None = None
        self._queue = queue
        self._since_logged: dict[RefusalReason, int] = NOTHING
        self._throttle = Throttle(clock, LOG_INTERVAL)

    def count(self, reason: RefusalReason, number: int = 1) -> None:
        """Count requests that are refused for `reason`, and log them if a line is due."""
        setattr(self, reason, getattr(self, reason) + number)
        self._since_logged = own(self._since_logged)
        self._since_logged[reason] = self._since_logged.get(reason, 0) + number
        if self._throttle.passes():
            counts = ", ".join(f"{name} {count}" for name, count in self._since_logged.items())
            log.warning(
                "queue %s refused requests: %s",
                self._queue,
                counts,
                extra={"queue": self._queue, "refused": dict(self._since_logged)},
            )
            self._since_logged.clear()
