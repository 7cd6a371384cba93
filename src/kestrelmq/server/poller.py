"""The selector of the server's asyncio loop: client connections are served within its wait."""

import asyncio
import select
import selectors
import sys
from asyncio.events import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVarTuple

MAX_EVENTS: Final = 512
"""Connections served in one turn: bounds the memory and the time of a turn."""

READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
"""The event mask of a descriptor that has input and nothing else."""

_Arguments = TypeVarTuple("_Arguments")

Turn = Callable[[float | None], list[tuple[int, int]]]
"""Waits so many seconds at most, serves clients, and returns the events of other descriptors."""

if sys.platform == "linux":
    _Selector = selectors.EpollSelector
else:
    _Selector = selectors.DefaultSelector


class Poller(_Selector):
    """Waits for events of clients and of asyncio with one call to the system.

    Attributes:
        called: whether a callback of asyncio was scheduled since this was last set to False.
        poll: waits for events, so many seconds at most (below 0: for ever), and returns so many
            of them at most, as (descriptor, system's event mask).
    """

    poll: Callable[[float, int], list[tuple[int, int]]]

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.called = False
        self._turn = turn
        if sys.platform == "linux":
            # The selector builds a list of key objects, one an event; clients need none.
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]
            self.poll = self._epoll.poll
        else:
            self.poll = self._poll

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

        def watch(self, descriptor: int, events: int) -> None:
            """Wait for other events of `descriptor`; its end is an event always."""
            mask = select.EPOLLIN if events & selectors.EVENT_READ else 0
            mask |= select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
            self._epoll.modify(descriptor, mask)

    else:

        def watch(self, descriptor: int, events: int) -> None:
            """Wait for other events of `descriptor`; its end is an event always."""
            # This kind of selector cannot wait for nothing.
            self.modify(descriptor, events or selectors.EVENT_READ)

        def _poll(self, timeout: float, _most: int) -> list[tuple[int, int]]:
            found = super().select(None if timeout < 0 else timeout)
            return [(key.fd, events) for key, events in found]


class Loop(asyncio.SelectorEventLoop):
    """An ordinary asyncio loop that tells its selector of callbacks scheduled within its wait.

    Callbacks that other threads and signals schedule wake the selector by themselves.
    """

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        super().__init__(poller)

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> Handle:
        """Schedule `callback` for the next iteration."""
        self._poller.called = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> TimerHandle:
        """Schedule `callback` for the loop's time `when`."""
        self._poller.called = True
        return super().call_at(when, callback, *args, context=context)


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
