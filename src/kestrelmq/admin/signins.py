"""Slow down the guessing of tokens: a peer may fail a few times, and then once a second."""

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from kestrelmq.admin.errors import ApiError
from kestrelmq.server.logs import LogThrottle

FAILURE_BURST: Final = 30
"""Failures in a row after which a peer must wait."""
SECONDS_PER_FAILURE: Final = 1.0
"""Time after which one failure is forgotten, in seconds."""
_MOST_PEERS: Final = 4096

log = logging.getLogger(__name__)


class SignIns:
    """Counts the failed sign-ins of each peer.

    A peer that failed too often must wait; until then, even a valid token is refused.
    """

    __slots__ = ("_clock", "_failures", "_throttle")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        # By peer: when all its failures will be forgotten.
        self._failures: OrderedDict[str, float] = OrderedDict()
        self._throttle = LogThrottle(clock)

    def check(self, peer: str) -> None:
        """Refuse a peer that failed too often. Raises ApiError."""
        wait = (
            self._failures.get(peer, 0.0)
            - self._clock()
            - (FAILURE_BURST - 1) * SECONDS_PER_FAILURE
        )
        if wait > 0:
            raise ApiError(
                429,
                "too_many_failures",
                "too many wrong tokens; wait a moment",
                {"Retry-After": str(math.ceil(wait))},
            )

    def failed(self, peer: str, address: str) -> None:
        """Count a wrong token of `peer`, which came from `address`, and log it."""
        now = self._clock()
        self._failures[peer] = max(self._failures.pop(peer, 0.0), now) + SECONDS_PER_FAILURE
        if len(self._failures) > _MOST_PEERS:
            self._failures.popitem(last=False)
        count = self._throttle.count(peer)
        if count:
            log.warning("%s showed a wrong admin token (failures lately: %d)", address, count)
