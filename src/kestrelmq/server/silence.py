"""Which clients are silent: those that `client_timeout` is for."""

from collections.abc import Iterable
from typing import Final

from kestrelmq.server.connection import Connection

_LOOKS: Final = 4
"""How often to look in the time after which a client counts as silent."""


class SilenceWatch:
    """Finds the connections that sent nothing for some time.

    They are found at most a quarter of it late. Serving a client costs nothing for that: only the
    looks compare when it was served.

    Attributes:
        period: seconds between two looks.
    """

    def __init__(self, limit: float) -> None:
        """`limit` is that time, in seconds."""
        self.period = limit / _LOOKS
        # When each was last served, and how many looks found that it was not served since.
        self._seen: dict[Connection, tuple[int, int]] = {}

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Return those of `connections` that were silent for all of the time.

        A client that waits for the server is not silent; its silence begins when the wait is over.
        """
        before = self._seen
        self._seen = {}
        silent = []
        for one in connections:
            if one.paused:
                continue
            served, looks = before.get(one, (-1, 0))
            looks = looks + 1 if served == one.last_served else 0
            self._seen[one] = one.last_served, looks
            if looks >= _LOOKS:
                silent.append(one)
        return silent
