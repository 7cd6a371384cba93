"""Which clients are silent: those that `client_timeout` is for."""

from collections.abc import Iterable

from kestrelmq.server.connection import Connection


class SilenceWatch:
    """Finds the connections that sent nothing between one look and the next."""

    def __init__(self) -> None:
        self._seen: dict[Connection, int] = {}

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Return those of `connections` that were silent since the last look.

        A client that waits for the server is not silent; its silence begins when the wait is over.
        """
        seen = {one: one.last_served for one in connections if not one.paused}
        silent = [one for one, served in seen.items() if self._seen.get(one) == served]
        self._seen = seen
        return silent
