"""Slow down the guessing of tokens, as that of passwords: see `access/failures.py`."""

import logging
import math
import time
from collections.abc import Callable
from typing import Final

from kestrelmq.access.failures import FAILURE_BURST, Failures
from kestrelmq.admin.errors import ApiError
from kestrelmq.server.logs import LogThrottle

__all__ = ["FAILURE_BURST", "SignIns"]

log: Final = logging.getLogger(__name__)


class SignIns:
    """Refuses the tokens of a peer that failed too often; until then, even a valid one."""

    __slots__ = ("_failures", "_throttle")

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, failures: Failures | None = None
    ) -> None:
        """`clock` returns the time in seconds; `failures` are those of passwords, too."""
        self._failures = Failures(clock) if failures is None else failures
        self._throttle = LogThrottle(clock)

    def check(self, peer: str) -> None:
        """Refuse a peer that failed too often. Raises ApiError."""
        wait = self._failures.wait(peer)
        if wait > 0:
            raise ApiError(
                429,
                "too_many_failures",
                "too many wrong tokens; wait a moment",
                {"Retry-After": str(math.ceil(wait))},
            )

    def failed(self, peer: str, address: str) -> None:
        """Count a wrong token of `peer`, which came from `address`, and log it."""
        self._failures.count(peer)
        count = self._throttle.count(peer)
        if count:
            log.warning("%s showed a wrong admin token (failures lately: %d)", address, count)
