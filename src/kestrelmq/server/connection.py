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
from collections.abc import Callable, Collection, Mapping
from typing import Final

from kestrelmq.engine.counters import Counters
from kestrelmq.engine.durability import Committable
from kestrelmq.errors import JournalError
from kestrelmq.server.replies import OUTPUT_LIMIT, Queues, Replies
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
SLOW: Final = 2048
"""Bytes of replies that a request counts as, beside its own, unless it is one that is served
quickly: so a connection has a bounded time of each turn, too."""

_IN: Final = selectors.EVENT_READ
_OUT: Final = selectors.EVENT_WRITE
_READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
_WRITABLE: Final = select.EPOLLOUT if sys.platform == "linux" else selectors.EVENT_WRITE
_GONE: Final = (select.EPOLLHUP | select.EPOLLERR) if sys.platform == "linux" else 0

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

    def broken(self) -> None:
        """A request raised what it must not: reply with an error and close."""
        raise NotImplementedError

    def closed(self) -> None:
        """The connection is gone, and its request cancelled: give back what it holds."""
        raise NotImplementedError

    def failure_reply(self, failure: JournalError, reply: bytes) -> bytes:
        """Return the reply to an operation that was taken back, instead of `reply`."""
        raise NotImplementedError


_NO_SESSION: Final = Session()
"""The session of a connection that is closed."""


class Unfinished:
    """A request that is not done when `Session.feed` returns: it waits, or takes several turns.

    It is its connection's `unfinished` until it is done.
    """

    def resume(self) -> None:
        """Go on, after a pause."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The client is gone: end, and give back what was taken for it."""
        raise NotImplementedError


# Why no request is applied at present.
_WAITING: Final = 1
"""A request waits for an item; what follows it waits too."""
_STALLED: Final = 2
"""The client has too many replies to read first."""
_WRITING: Final = 4
"""A thread writes an item, or queues are being changed; what follows waits."""
_YIELDING: Final = 8
"""Others are served first: the next request is slow, or more of the present one is to come."""


class Connection(TurnConnection):
    """A client's connection.

    Attributes:
        replies: what is to be sent when this turn ends, or later.
        produced: bytes of replies since the connection was last served or resumed.
        paused: why no request is applied at present, or 0. Like `unfinished`, it is changed by the
            methods of this class only.
        unfinished: the request that goes on after the pause; it is cancelled when the client goes.
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
        self._is_closed = False
        self.replies = Replies()
        self.produced = 0
        self.paused = 0
        self.unfinished: Unfinished | None = None
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
        self.produced = 0
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
        if (self.replies.parts or self.closing) and not self._queued:
            self._queued = True
            self._turns.replying.append(self)

    # --- pauses: what follows a request waits until they are over ---

    def wait(self, request: Unfinished) -> bool:
        """Pause: `request` waits for an item, until `done`.

        Returns:
            False when it is resumed instead, once the client has read what is due.
        """
        if self.paused & (_STALLED | _YIELDING):
            self.interrupt(request)
            return False
        self.unfinished = request
        self.paused |= _WAITING
        return True

    def write(self, request: Unfinished) -> None:
        """Pause: `request` is being written in a thread, until `done`."""
        self.unfinished = request
        self.paused |= _WRITING

    def interrupt(self, request: Unfinished) -> None:
        """Have `request` resumed when the client has read what is due, and others were served."""
        self.unfinished = request
        self.paused &= ~(_WAITING | _WRITING)
        if not self.paused:
            self.yield_turn()

    def done(self) -> None:
        """Go on with what follows the request: it was answered."""
        self.unfinished = None
        if self.paused & (_WAITING | _WRITING):
            self.paused &= ~(_WAITING | _WRITING)
            if not self.paused:
                self.yield_turn()

    @property
    def is_interrupted(self) -> bool:
        """Whether a request that has more to do is to stop, and call `interrupt`."""
        return self.paused & (_STALLED | _YIELDING) != 0

    def stall(self) -> None:
        """Pause until the client has read what is due; when nothing is, for a turn."""
        if self.replies.parts:
            self.paused |= _STALLED
        else:
            self.yield_turn()

    def yield_turn(self) -> None:
        """Pause until others were served."""
        if not self.paused & _YIELDING:
            self.paused |= _YIELDING
            self._turns.resuming.append(self)

    def _end_stall(self) -> None:
        """Go on in the next turn; nothing that is received before that is applied before it."""
        self.paused &= ~_STALLED
        if not self.paused:
            self.yield_turn()

    def resume(self) -> None:
        """Go on with the request that was interrupted, and with input that was received before."""
        self.paused &= ~_YIELDING
        if self._is_closed or self.closing or self.paused:
            return
        self.produced = 0
        if self.unfinished is not None:
            self.guard(self.unfinished.resume)
        self._go_on()

    def _go_on(self) -> None:
        """Apply what was received during the pause, and receive more."""
        if self._chunks and not self.paused:
            self._feed(self._take_buffered())
        if not self.paused and not self.closing:
            self._watch(self._events | _IN)

    def guard(self, step: Callable[[], None]) -> None:
        """Call what goes on with a request; what it raises is answered, and ends the connection."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 # it is logged
            self.request_failed(error)

    def request_failed(self, error: Exception) -> None:
        """Log what a request raised that went on, answer with an error, and close."""
        log.error("connection %s: request failed", self.peer, exc_info=error)
        if not self._is_closed:
            self.paused = 0
            self._session.broken()
            self.closing = True
            self.push(b"")

    # --- output ---

    def push(self, reply: bytes, queues: Queues = None) -> None:
        """Send `reply` at the end of the turn, or when what it depends on is synced.

        When there is more than a client should have to read, no further request is applied.
        """
        if self._is_closed:
            return
        self.replies.add(reply, queues)
        if not self._queued:
            self._queued = True
            self._turns.replying.append(self)
        self.produce(len(reply))

    def charge(self) -> None:
        """Count a request that is not served quickly, as if its reply had so many bytes more."""
        self.produce(SLOW)

    def produce(self, size: int) -> None:
        """Count bytes of replies; with too many, apply no further request until they are read."""
        self.produced += size
        if self.produced > OUTPUT_LIMIT:
            self.stall()

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
        replies = self.replies
        if failures or replies.failure is not None:
            replies.fail(failures, self._session.failure_reply)
        data = replies.take(unsynced, sync)
        if data is None:
            return
        if self._unsent or self.paused:
            self._transmit(data)
        elif data:
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
        data = self.replies.synced(sync, failures, self._session.failure_reply)
        if not self._is_closed and (data or not self.replies.is_held):
            self._transmit(data)
        if self.closing and not self._unsent and not self.replies.is_held:
            self.close()

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a sync."""
        return self.replies.is_held

    def _transmit(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._send(memoryview(data)[:SEND]) if data else 0
        except OSError as error:
            self._not_sent(data, error)
            return
        self._counters.bytes_written += sent
        if sent != len(data):
            self._keep_unsent(data, sent)
        elif self.paused & _STALLED:
            self._end_stall()

    def _not_sent(self, data: bytes, error: OSError) -> None:
        if isinstance(error, BlockingIOError | InterruptedError):
            self._keep_unsent(data, 0)
        else:
            self.close()

    def _keep_unsent(self, data: bytes, sent: int) -> None:
        """Send the rest when the client reads; until then nothing is read from it."""
        self._unsent, self._sent = data, sent
        self.paused |= _STALLED
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
        self._end_stall()

    # --- the end ---

    def _end_of_input(self) -> None:
        if self.paused and not self.paused & _WAITING:
            # It is seen again when the request is done and what came after it applied.
            self._watch(self._events & ~_IN)
            return
        if self.paused or not (self.replies.parts or self._unsent or self.replies.is_held):
            self.close()
            return
        self.closing = True
        self._watch(self._events & ~_IN)

    def close(self) -> None:
        """End the connection now: cancel its request, and give back what its session holds."""
        if self._is_closed:
            return
        self._is_closed = True
        self.paused = 0
        self._turns.discard(self._descriptor)
        self._socket.close()
        # Memory must come back now, and not when a collector of cycles comes along. Somebody may
        # still know this connection for a while: a turn, a sync, a look for silent clients.
        self._chunks.clear()
        self._unsent = b""
        self.replies.clear()
        unfinished, self.unfinished = self.unfinished, None
        if unfinished is not None:
            unfinished.cancel()
        session, self._session = self._session, _NO_SESSION
        session.closed()
        self._on_close(self)

    def _watch(self, events: int) -> None:
        if events != self._events and not self._is_closed:
            self._turns.watch(self._descriptor, events)
            self._events = events
