"""The server's loop: one turn is receive, apply, write the journals, reply.

`Turns` is the selector of an ordinary asyncio loop. The sockets of clients never become asyncio
transports: `select` serves them itself, all that are ready in one turn, and hands asyncio only the
rest (timers, threads, the admin service). So a turn costs one wait, one read per connection, one
journal write per queue that changed, and one send per connection, and the journal is always ahead
of the reply.

What callbacks of asyncio change is committed before the next wait.
"""

import asyncio
import math
import select
import selectors
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from kestrelmq.clock import TurnClock
from kestrelmq.engine.commits import Commits, Committable
from kestrelmq.errors import JournalError
from kestrelmq.server.syncs import Syncs

MAX_EVENTS: Final = 512
"""Connections served in one turn: bounds the memory and the time of a turn."""

# When many clients are busy but each turn finds few of them ready, most of the cost is that of the
# turn itself. A short pause lets requests gather, so that one write and one wait serve more of
# them; docs/performance.md has the measurements.
GATHER: Final = 100e-6
_FEW: Final = 8
_MANY: Final = 16

_READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ


if sys.platform == "linux":
    _Selector = selectors.EpollSelector
else:
    _Selector = selectors.DefaultSelector


class TurnConnection(Protocol):
    """A client's connection, as a turn sees it.

    Attributes:
        last_served: number of the request-bearing event that it was last served in.
    """

    last_served: int

    def readable(self) -> None:
        """Receive and apply what came in."""

    def ready(self, mask: int) -> None:
        """Act on an event that is not just input."""

    def resume(self) -> None:
        """Go on with input that was received before."""

    def reply(
        self,
        failures: Mapping[Committable, JournalError],
        unsynced: Collection[Committable],
        sync: int,
    ) -> None:
        """Send what the turn produced; see `Connection.reply`."""

    def synced(self, sync: int, failures: Mapping[Committable, JournalError]) -> None:
        """Send what waited for syncs up to number `sync`."""

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a sync."""


class Turns(_Selector):
    """The selector that serves client connections.

    Attributes:
        clock: read once a turn.
        replying: connections that have something to send at the end of this turn.
        resuming: connections that have input left to apply in the next turn.
        served: how many times a connection was served.
        turns: how many turns there were.
    """

    def __init__(self, clock: TurnClock, commits: Commits) -> None:
        super().__init__()
        if sys.platform == "linux":
            # The event list of `EpollSelector` costs more than all the rest of a turn's waiting.
            self._epoll: select.epoll = self._selector  # type: ignore[attr-defined]
        self.clock = clock
        self.replying: list[TurnConnection] = []
        self.resuming: list[TurnConnection] = []
        self.syncs = Syncs()
        self.served = 0
        self.turns = 0
        self._commits = commits
        self._connections: dict[int, TurnConnection] = {}
        self._gather = False
        self._after_commit: list[Callable[[Mapping[Committable, JournalError]], None]] = []

    def add(self, descriptor: int, connection: TurnConnection, events: int) -> None:
        """Serve `connection` when `descriptor` has one of `events` (selectors' flags)."""
        self._connections[descriptor] = connection
        self.register(descriptor, events)

    def watch(self, descriptor: int, events: int) -> None:
        """Serve the connection of `descriptor` from now on when it has one of `events`."""
        # A selector cannot watch for nothing; the end of a connection is reported all the same.
        if sys.platform == "linux":
            self._epoll.modify(descriptor, _poll_events(events))
        else:
            self.modify(descriptor, events or selectors.EVENT_READ)

    def discard(self, descriptor: int) -> None:
        """Serve the connection of `descriptor` no more."""
        if self._connections.pop(descriptor, None) is not None:
            self.unregister(descriptor)

    async def committed(self) -> None:
        """Wait until what was changed so far is in the journals.

        Raises:
            JournalError: a queue could not be written; its changes were taken back.
        """
        future = asyncio.get_running_loop().create_future()

        def settle(failures: Mapping[Committable, JournalError]) -> None:
            if future.done():
                return
            for failure in failures.values():
                future.set_exception(failure)
                return
            future.set_result(None)

        self._after_commit.append(settle)
        await future

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Serve clients that are ready; return the other events, for asyncio."""
        self._end_turn()
        if self._gather and (timeout is None or timeout > GATHER):
            time.sleep(GATHER)
        if self.resuming or self._after_commit:
            timeout = 0
        events = self._poll(timeout)
        self.clock.tick()
        others = []
        connections = self._connections
        served = self.served
        busy = 0
        for descriptor, mask in events:
            connection = connections.get(descriptor)
            if connection is None:
                key = self._key(descriptor)
                if key is not None:
                    others.append((key, _selector_events(mask) & key.events))
                continue
            served += 1
            if served - connection.last_served > _MANY:
                busy += 1
            connection.last_served = served
            if mask == _READABLE:
                connection.readable()
            else:
                connection.ready(mask)
        if self.resuming:
            resuming, self.resuming = self.resuming, []
            for connection in resuming:
                connection.resume()
        self._gather = 0 < len(events) < _FEW and busy == len(events)
        self.served = served
        self._end_turn()
        return others

    def _end_turn(self) -> None:
        """Write the journals, then reply."""
        commits = self._commits
        replying = self.replying
        if not (replying or commits.dirty or commits.failures or self._after_commit):
            return
        failures = commits.commit()
        unsynced = commits.take_unsynced()
        sync = self.syncs.request(unsynced) if unsynced else 0
        self.turns += 1
        if replying:
            self.replying = []
            for connection in replying:
                connection.reply(failures, unsynced, sync)
                if unsynced and connection.is_held:
                    self.syncs.hold(connection)
        if self._after_commit:
            callbacks, self._after_commit = self._after_commit, []
            for callback in callbacks:
                callback(failures)

    if sys.platform == "linux":

        def _poll(self, timeout: float | None) -> list[tuple[int, int]]:
            wait = -1 if timeout is None else math.ceil(max(timeout, 0) * 1e3) * 1e-3
            try:
                return self._epoll.poll(wait, MAX_EVENTS)
            except InterruptedError:
                return []

    else:

        def _poll(self, timeout: float | None) -> list[tuple[int, int]]:
            return [(key.fd, events) for key, events in super().select(timeout)]

    def _key(self, descriptor: int) -> selectors.SelectorKey | None:
        return self.get_map().get(descriptor)


def _poll_events(events: int) -> int:
    mask = 0
    if events & selectors.EVENT_READ:
        mask |= select.EPOLLIN
    if events & selectors.EVENT_WRITE:
        mask |= select.EPOLLOUT
    return mask


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
