"""The selector of the server's asyncio loop: client connections are served within its wait."""

import math
import select
import selectors
import sys
from collections.abc import Callable
from typing import Final

MAX_EVENTS: Final = 512
"""Connections served in one turn: bounds the memory and the time of a turn."""

READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
"""The event mask of a descriptor that has input and nothing else."""

Turn = Callable[[float | None], list[tuple[int, int]]]
"""Waits so many seconds at most, serves clients, and returns the events of other descriptors."""

if sys.platform == "linux":
    _Selector = selectors.EpollSelector
else:
    _Selector = selectors.DefaultSelector


class Poller(_Selector):
    """Waits for events of clients and of asyncio with one call to the system."""

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self._turn = turn
        if sys.platform == "linux":
            # The selector builds a list of key objects, one an event; clients need none.
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve clients that are ready; return the other events, for asyncio."""
        others = self._turn(timeout)
        if not others:
            return []
        keys = self.get_map()
        events = []
        for descriptor, mask in others:
            key = keys.get(descriptor)
            if key is not None:
                events.append((key, _selector_events(mask) & key.events))
        return events

    if sys.platform == "linux":

        def poll(self, timeout: float | None) -> list[tuple[int, int]]:
            """Wait for events, `timeout` seconds at most (None: for ever)."""
            wait = -1 if timeout is None else math.ceil(max(timeout, 0) * 1e3) * 1e-3
            try:
                return self._epoll.poll(wait, MAX_EVENTS)
            except InterruptedError:
                return []

        def watch(self, descriptor: int, events: int) -> None:
            """Wait for other events of `descriptor`; its end is an event always."""
            mask = select.EPOLLIN if events & selectors.EVENT_READ else 0
            mask |= select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
            self._epoll.modify(descriptor, mask)

    else:

        def poll(self, timeout: float | None) -> list[tuple[int, int]]:
            """Wait for events, `timeout` seconds at most (None: for ever)."""
            return [(key.fd, events) for key, events in super().select(timeout)]

        def watch(self, descriptor: int, events: int) -> None:
            """Wait for other events of `descriptor`; its end is an event always."""
            # This kind of selector cannot wait for nothing.
            self.modify(descriptor, events or selectors.EVENT_READ)


def _selector_events(mask: int) -> int:
    """Translate what the system reports; an error or hang-up counts as both."""
    if sys.platform != "linux":
        return mask
    events = 0
    if mask & ~select.EPOLLIN:
        events |= selectors.EVENT_WRITE
    if mask & ~select.EPOLLOUT:
        events |= selectors.EVENT_READ
    return events
