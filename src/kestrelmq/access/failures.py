"""How long a peer must wait that failed to sign in: some failures are free, then one a second."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

FAILURE_BURST: Final = 30
"""Failures in a row after which a peer must wait."""
SECONDS_PER_FAILURE: Final = 1.0
"""Time after which one failure is forgotten, in seconds."""
_MOST_PEERS: Final = 4096


class Failures:
    """Counts the failed sign-ins of each peer."""

    __slots__ = ("_clock", "_until")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns the time in seconds."""
        self._clock = clock
        # By peer: when all its failures will be forgotten.
        self._until: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._until)

    def wait(self, peer: str) -> float:
        """Return the seconds for which nothing that a peer shows is looked at; 0 or less for none.

        Until then, even the right password is refused: otherwise guessing would not slow down.
        """
        burst = (FAILURE_BURST - 1) * SECONDS_PER_FAILURE
        return self._until.get(peer, 0.0) - self._clock() - burst

    def count(self, peer: str) -> None:
        """Count a failure."""
        now = self._clock()
        self._until[peer] = max(self._until.pop(peer, 0.0), now) + SECONDS_PER_FAILURE
        if len(self._until) > _MOST_PEERS:
            self._until.popitem(last=False)
