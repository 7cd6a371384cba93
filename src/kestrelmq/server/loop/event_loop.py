"""The server's asyncio loop and its selector, which serves clients while asyncio waits."""

import asyncio
import select
import selectors
import sys
from asyncio.events import Handle, TimerHandle
from collections.abc import Callable
from contextvars import Context
from typing import Final, TypeVarTuple

MAX_EVENTS: Final = 512
"""The most connections served in one turn; bounds its memory and time."""

READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
"""The event mask of a descriptor that has only input."""

END_OF_INPUT: Final = 4
"""Besides `selectors.EVENT_READ` and `EVENT_WRITE`: the client sends nothing more, even if some of
its input was not read yet."""

_Arguments = TypeVarTuple("_Arguments")

RunTurns = Callable[[float | None], list[tuple[int, int]]]
"""Waits at most so many seconds, serves clients, and returns the events of other descriptors."""

if sys.platform == "linux":
    _Selector = selectors.EpollSelector
else:
    _Selector = selectors.DefaultSelector


class TurnSelector(_Selector):
    """Waits for events of clients and of asyncio with one system call.

    Attributes:
        has_callback: whether an asyncio callback was scheduled since this was last set to False.
        poll: waits for events for at most so many seconds (below 0: for ever), and returns at most
            so many of them, as (descriptor, system's event mask).
    """

    poll: Callable[[float, int], list[tuple[int, int]]]

    def __init__(self, run_turns: RunTurns) -> None:
        super().__init__()
        self.has_callback = False
        self._run_turns = run_turns
        if sys.platform == "linux":
            # The selector would build a key object for each event; clients need none.
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]
            self.poll = self._epoll.poll
        else:
            self.poll = self._poll

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve the clients that are ready; return the events for asyncio."""
        others = self._run_turns(timeout)
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
            """Change the events to wait for; the end of a connection is always an event."""
            mask = select.EPOLLIN if events & selectors.EVENT_READ else 0
            mask |= select.EPOLLOUT if events & selectors.EVENT_WRITE else 0
            mask |= select.EPOLLRDHUP if events & END_OF_INPUT else 0
            self._epoll.modify(descriptor, mask)

    else:

        def watch(self, descriptor: int, events: int) -> None:
            """Change the events to wait for; the end of a connection is always an event."""
            # Other selectors need at least one event.
            self.modify(descriptor, events & ~END_OF_INPUT or selectors.EVENT_READ)

        def _poll(self, timeout: float, _most: int) -> list[tuple[int, int]]:
            found = super().select(None if timeout < 0 else timeout)
            return [(key.fd, events) for key, events in found]


class ServerEventLoop(asyncio.SelectorEventLoop):
    """An asyncio loop that tells its selector when a callback is scheduled during the wait.

    Callbacks from other threads and from signals wake the selector anyway.
    """

    def __init__(self, selector: TurnSelector) -> None:
        self._turn_selector = selector
        super().__init__(selector)

    def call_soon(
        self,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> Handle:
        """Schedule `callback` for the loop's next iteration."""
        self._turn_selector.has_callback = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*_Arguments], object],
        *args: *_Arguments,
        context: Context | None = None,
    ) -> TimerHandle:
        """Schedule `callback` for `when`, a time of the loop's clock."""
        self._turn_selector.has_callback = True
        return super().call_at(when, callback, *args, context=context)


def _selector_events(mask: int) -> int:
    """Translate the system's event mask; an error or hang-up counts as readable and writable."""
    if sys.platform != "linux":
        return mask
    events = 0
    if mask & ~select.EPOLLIN:
        events |= selectors.EVENT_WRITE
    if mask & ~select.EPOLLOUT:
        events |= selectors.EVENT_READ
    return events
