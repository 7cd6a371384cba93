"""One client's connection: its socket, what was received and not applied, what is not sent yet.

Both buffers are bounded. A client that does not read its replies is not read from until it has;
one that pipelines behind a waiting read is read from until `READ_AHEAD` bytes wait, and then only
watched for its end.
"""

import logging
import select
import selectors
import socket
import sys
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from kestrelmq.engine.counters import Counters
from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError
from kestrelmq.server.turns import TurnConnection, Turns

RECEIVE: Final = 65_536
RECEIVE_SMALL: Final = 479
"""Bytes to make room for when a client sends only short requests: with the header of the object
they still come from the interpreter's pools of small blocks."""
_SHORT_ENOUGH: Final = 8
"""Short requests in a row, after which a client is taken to send no others."""
RECEIVE_LARGE: Final = 256 << 10
"""Bytes to make room for when much is missing: they are copied in a small part of a millisecond."""
SEND: Final = 256 << 10
"""Bytes to send at once when there are many: as with `RECEIVE_LARGE`, others are served between."""
READ_AHEAD: Final = 65_536
"""Bytes received behind a request that waits, before reading stops."""
OUTPUT_LIMIT: Final = 1 << 20
"""Bytes of replies that may be due before no further request is applied."""
SLOW: Final = 2048
"""Bytes that the reply to a request counts as at least, unless it is one that is served quickly:
so a connection has a bounded time of each turn, too."""

_IN: Final = selectors.EVENT_READ
_OUT: Final = selectors.EVENT_WRITE
_READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
_WRITABLE: Final = select.EPOLLOUT if sys.platform == "linux" else selectors.EVENT_WRITE
_GONE: Final = (select.EPOLLHUP | select.EPOLLERR) if sys.platform == "linux" else 0

Touched = Committable | tuple[Committable, ...] | None
"""What a reply depends on: a queue, a tuple of queues, or None."""
PART: Final = Committable()
"""In place of that: this is more of the reply before."""

log = logging.getLogger(__name__)


class Session:
    """What a protocol does with a connection's bytes.

    Attributes:
        wanted: how many bytes would be of use when `feed` left some; 0 is any.
    """

    wanted: int = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`, and return what is left.

        That is a request that is not whole, or what comes after one that waits.
        """
        raise NotImplementedError

    def resume(self) -> None:
        """Go on with a request that was interrupted, if any, now that the pause is over."""

    def broken(self) -> None:
        """A request raised what it must not: reply with an error and close."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection is gone: give back what it holds."""
        raise NotImplementedError

    def failure_reply(self, failure: JournalError, reply: bytes) -> bytes:
        """Return the reply to an operation that was taken back, instead of `reply`."""
        raise NotImplementedError


_NO_SESSION: Final = Session()
"""The session of a connection that is closed."""

WAITING: Final = 1
"""A request waits for an item; what follows it waits too."""
STALLED: Final = 2
"""The client has too many replies to read first."""
WRITING: Final = 4
"""An item is being written in a thread; what follows it waits."""
YIELDING: Final = 8
"""Others are served first, for the next request is slow, or the rest of the present one."""


class Connection(TurnConnection):
    """A client's connection.

    Attributes:
        out: replies to send at the end of the turn, in order.
        touched: for each of them, what must have been written first: a queue, several, or None;
            or `PART`, for more of the one before.
        paused: why no request is applied at present; WAITING, STALLED, WRITING and
            YIELDING, or 0.
        closing: whether the connection ends once everything is sent.
        last_served: number of the event it was last served in; see `Turns`.
        peer: the client's address.
    """

    def __init__(
        self,
        client: socket.socket,
        peer: str,
        turns: Turns,
        counters: Counters,
        on_close: Callable[["Connection"], None],
    ) -> None:
        self._socket = client
        self._descriptor = client.fileno()
        self._receive = client.recv
        self._send = client.send
        self._turns = turns
        self._counters = counters
        self._on_close = on_close
        self._chunks: list[bytes] = []
        self._buffered = 0
        self._short = 0
        self._unsent = b""
        self._sent = 0
        self._events = 0
        self._queued = False
        self._held: deque[tuple[int, list[bytes], list[Touched]]] = deque()
        self._is_closed = False
        self.out: list[bytes] = []
        self.touched: list[Touched] = []
        self.paused = 0
        self.closing = False
        self.last_served = 0
        self.peer = peer

    def start(self, session: Session) -> None:
        """Begin to serve the client with `session`."""
        self._session = session
        self._turns.add(self._descriptor, self, _IN)
        self._events = _IN

    # --- input ---

    def readable(self) -> None:
        """Receive once, and apply what is whole."""
        if self._short >= _SHORT_ENOUGH:
            room = RECEIVE_SMALL
        else:
            missing = self._session.wanted - self._buffered
            room = RECEIVE if missing <= RECEIVE else RECEIVE_LARGE
        try:
            data = self._receive(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end_of_input()
            return
        size = len(data)
        self._counters.bytes_read += size
        self._short = self._short + 1 if size < RECEIVE_SMALL else 0
        if self._chunks or self.paused:
            self._chunks.append(data)
            self._buffered += size
            if self.paused:
                if self._buffered > READ_AHEAD:
                    self._watch(self._events & ~_IN)
                return
            if self._buffered < self._session.wanted:
                return
            data = self._take_buffered()
        self._feed(data)

    def _take_buffered(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        return data

    def _feed(self, data: bytes) -> None:
        try:
            rest = self._session.feed(data)
        except Exception:
            # Whatever escapes is a bug; it must not take the other clients along.
            log.exception("connection %s: request failed", self.peer)
            self._session.broken()
            rest = b""
        if rest:
            self._chunks.append(rest)
            self._buffered = len(rest)
        if self.closing:
            self._chunks.clear()
            self._watch(self._events & ~_IN)
        if (self.out or self.closing) and not self._queued:
            self._queued = True
            self._turns.replying.append(self)

    def resume(self) -> None:
        """Go on with what was interrupted, and with input that was received before."""
        self.paused &= ~YIELDING
        if self._is_closed or self.closing or self.paused:
            return
        self.guard(self._session.resume)
        self._go_on()

    def _go_on(self) -> None:
        if self._chunks and not self.paused:
            self._feed(self._take_buffered())
        if not self.paused and not self.closing:
            self._watch(self._events | _IN)

    def unpause(self, reason: int) -> None:
        """End a pause; what was received meanwhile is applied in the next turn."""
        self.paused &= ~reason
        if not self.paused:
            self._turns.resuming.append(self)

    def guard(self, callback: Callable[[], None]) -> None:
        """Call what goes on with a request; what it raises is answered, and ends the connection."""
        try:
            callback()
        except Exception:
            log.exception("connection %s: request failed", self.peer)
            self.paused = 0
            self._session.broken()
            self.closing = True
            self.push(b"", None)

    def stall(self) -> None:
        """Apply no further request until the client has read what is due."""
        if self.out:
            self.paused |= STALLED
        else:
            self.yield_turn()

    def yield_turn(self) -> None:
        """Go on with the session's request, or with the input, when others were served."""
        self.paused |= YIELDING
        self._turns.resuming.append(self)

    def push(self, reply: bytes, touched: Touched) -> None:
        """Send `reply` at the end of the turn; for replies outside of `feed`."""
        if self._is_closed:
            return
        self.out.append(reply)
        self.touched.append(touched)
        if not self._queued:
            self._queued = True
            self._turns.replying.append(self)

    # --- output ---

    def reply(
        self,
        failures: Mapping[Committable, JournalError],
        unsynced: Collection[Committable],
        sync: int,
    ) -> None:
        """Send what the turn produced."""
        self._queued = False
        if self._is_closed:
            return
        out = self.out
        if failures:
            self._replace_failed(out, self.touched, failures)
        if self._held or (unsynced and touches(self.touched, unsynced)):
            self._held.append((sync, out.copy(), self.touched.copy()))
            out.clear()
            self.touched.clear()
            return
        if out:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self.touched.clear()
            if self._unsent or self.paused:
                self._transmit(data)
            else:
                try:
                    sent = self._send(data)
                except OSError as error:
                    self._not_sent(data, error)
                    return
                self._counters.bytes_written += sent
                if sent != len(data):
                    self._keep_unsent(data, sent)
        if self.closing and not self._unsent:
            self.close()

    def synced(self, sync: int, failures: Mapping[Committable, JournalError]) -> None:
        """Send what waited for syncs up to number `sync`."""
        due: list[bytes] = []
        while self._held and self._held[0][0] <= sync:
            _, out, touched = self._held.popleft()
            if failures:
                self._replace_failed(out, touched, failures)
            due += out
        if due and not self._is_closed:
            self._transmit(b"".join(due))
        if self.closing and not self._unsent and not self._held:
            self.close()

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a sync."""
        return bool(self._held)

    def _replace_failed(
        self, out: list[bytes], touched: list[Touched], failures: Mapping[Committable, JournalError]
    ) -> None:
        failed = False
        for index, one in enumerate(touched):
            if one is PART:
                if failed:
                    out[index] = b""
                continue
            failed = False
            for queue in touched_queues(one):
                if queue in failures:
                    failed = True
                    out[index] = self._session.failure_reply(failures[queue], out[index])

    def _transmit(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._send(memoryview(data)[:SEND])
        except OSError as error:
            self._not_sent(data, error)
            return
        self._counters.bytes_written += sent
        if sent != len(data):
            self._keep_unsent(data, sent)
        elif self.paused & STALLED:
            self.unpause(STALLED)

    def _not_sent(self, data: bytes, error: OSError) -> None:
        if isinstance(error, BlockingIOError | InterruptedError):
            self._keep_unsent(data, 0)
        else:
            self.close()

    def _keep_unsent(self, data: bytes, sent: int) -> None:
        """Send the rest when the client reads; until then nothing is read from it."""
        self._unsent, self._sent = data, sent
        self.paused |= STALLED
        self._watch(_OUT)

    def ready(self, mask: int) -> None:
        """Act on an event that is not just input."""
        if mask & _GONE and not mask & _READABLE:
            self.close()
            return
        if mask & _WRITABLE and self._unsent:
            self._send_rest()
        if mask & _READABLE and not self._is_closed:
            self.readable()

    def _send_rest(self) -> None:
        try:
            sent = self._send(memoryview(self._unsent)[self._sent : self._sent + SEND])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._counters.bytes_written += sent
        self._sent += sent
        if self._sent < len(self._unsent):
            return
        self._unsent = b""
        if self.closing:
            self.close()
            return
        self._watch(_IN)
        self.unpause(STALLED)

    # --- the end ---

    def _end_of_input(self) -> None:
        if self.paused and not self.paused & WAITING:
            # It is seen again when the request is done and what came after it applied.
            self._watch(self._events & ~_IN)
            return
        if self.paused or not (self.out or self._unsent or self._held):
            self.close()
            return
        self.closing = True
        self._watch(self._events & ~_IN)

    def close(self) -> None:
        """End the connection now; what its session holds goes back."""
        if self._is_closed:
            return
        self._is_closed = True
        self._turns.discard(self._descriptor)
        self._socket.close()
        # Memory must come back now, and not when a collector of cycles comes along. Somebody may
        # still know this connection for a while: a turn, a sync, a look for silent clients.
        self._chunks.clear()
        self._held.clear()
        self._unsent = b""
        self.out.clear()
        self.touched.clear()
        session, self._session = self._session, _NO_SESSION
        session.closed()
        self._on_close(self)

    def _watch(self, events: int) -> None:
        if events != self._events and not self._is_closed:
            self._turns.watch(self._descriptor, events)
            self._events = events


def touched_queues(touched: Touched) -> tuple[Committable, ...]:
    """Return the queues that a reply depends on."""
    if touched is None:
        return ()
    return touched if isinstance(touched, tuple) else (touched,)


def touches(touched: Sequence[Touched], queues: Collection[Committable]) -> bool:
    """Whether any of the replies depends on one of `queues`."""
    return any(queue in queues for one in touched for queue in touched_queues(one))
