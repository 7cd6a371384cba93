"""One client's connection: its socket, the input not yet applied, the replies not yet sent.

Both buffers are bounded. The server reads nothing more from a client that does not read its replies
until the client has read them. If a client pipelines requests behind a read that waits, the server
buffers up to `READ_AHEAD` bytes, and then only watches for the end of the connection.
"""

import contextlib
import fcntl
import logging
import select
import selectors
import socket
import struct
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

from kestrelmq.access.users import User
from kestrelmq.errors import JournalError
from kestrelmq.queues.counters import COUNTED, Counters
from kestrelmq.scheduling.durability import Committable, Round
from kestrelmq.server.loop.event_loop import END_OF_INPUT
from kestrelmq.server.loop.turns import TurnConnection, TurnLoop
from kestrelmq.server.replies import OUTPUT_LIMIT, Part, Queues, Replies
from kestrelmq.server.tls import TlsTransport

RECEIVE_SIZE: Final = 65_536
RECEIVE_SIZE_SMALL: Final = 479
"""Bytes to receive at once when a client sends only short requests: a buffer of this size and its
object header still fit the interpreter's pools of small blocks."""
_SHORT_IN_A_ROW: Final = 8
"""Short requests in a row after which a client is assumed to send only short ones."""
RECEIVE_SIZE_LARGE: Final = 256 << 10
"""Bytes to receive at once when many are missing; copying them takes well below a millisecond."""
SEND_SIZE: Final = 256 << 10
"""The most bytes to send at once, so that others are served in between."""
READ_AHEAD: Final = 65_536
"""Bytes buffered behind a request that waits before the server stops reading."""
SLOW_COST: Final = 2048
"""Bytes of replies that a slow request counts as, besides its own. This bounds the time that one
connection takes of each turn."""

_IN: Final = selectors.EVENT_READ
_OUT: Final = selectors.EVENT_WRITE
_READABLE: Final = select.EPOLLIN if sys.platform == "linux" else selectors.EVENT_READ
_WRITABLE: Final = select.EPOLLOUT if sys.platform == "linux" else selectors.EVENT_WRITE
_GONE: Final = (select.EPOLLHUP | select.EPOLLERR) if sys.platform == "linux" else 0
_INPUT_ENDED: Final = select.EPOLLRDHUP if sys.platform == "linux" else 0
_INT_SIZE: Final = struct.calcsize("i")

log = logging.getLogger(__name__)

ClientState = Literal["idle", "waiting", "working", "stalled"]
"""idle: no request is in progress · waiting: for an item · working: a request takes several turns ·
stalled: it must first read its replies."""


class Session:
    """A protocol's side of a connection: it applies the input and makes the replies.

    Attributes:
        bytes_needed: how many buffered bytes `feed` needs before it can go on; 0 for any number.
    """

    bytes_needed: int = 0

    def feed(self, data: bytes) -> bytes:
        """Apply the requests in `data`; return the rest.

        The rest is an incomplete request, or the input after a request that waits.
        """
        raise NotImplementedError

    def answer_internal_error(self) -> None:
        """Reply with an error and close: a request raised an unexpected exception."""
        raise NotImplementedError

    def connection_closed(self) -> None:
        """Give back what the session holds; the connection is closed and its request cancelled."""

    def failure_reply(
        self, failure: JournalError, reply: bytes, queues: Sequence[Committable]
    ) -> bytes:
        """Return the error that replaces `reply`, which depends on `queues`, after a failure.

        The operation was undone, or could not be synced.
        """
        raise NotImplementedError

    def open_reads(self) -> dict[str, int]:
        """Return how many reads the client holds open, by queue; of very many only the first."""
        return {}

    def holds(self, queue: str) -> list[int]:  # noqa: ARG002 # for sessions that have any
        """Return the xids of the client's open reads of a queue; of very many only the first.

        Reserved reads are among them if the client has named their owner.
        """
        return []


_NO_SESSION: Final = Session()
"""The session of a closed connection."""


class PendingRequest:
    """A request that goes on after `Session.feed` returned: it waits, or takes several turns.

    It is the `pending` request of its connection until it is done.
    """

    @property
    def queue_names(self) -> tuple[str, ...]:
        """The queues that it reads or adds to; none if they are not shown."""
        return ()

    def resume(self) -> None:
        """Continue after a pause."""
        raise NotImplementedError

    def input_arrived(self) -> None:
        """Hear that the client sent something while this request waits for an item."""

    def end_wait(self) -> None:
        """Answer now, as when the time is up, if this request waits for an item."""
        raise NotImplementedError

    def input_ended(self) -> None:
        """Answer now, without the item that this request waits for: the client is perhaps gone."""
        raise NotImplementedError

    def cancel(self) -> None:
        """End, and give back what was taken for the client, which is gone."""
        raise NotImplementedError

    def lose_answer(self, reply: bytes) -> bool:  # noqa: ARG002 # few are pending once answered
        """Hear that an error replaces `reply`; return whether that was this request's answer."""
        return False


# The reasons for a pause, in which no request is applied.
_WAITING: Final = 1
"""A request waits for an item; the input after it waits too."""
_STALLED: Final = 2
"""The client must read its replies first: there are too many."""
_WORKING: Final = 4
"""A thread writes an item, or a task changes queues; the input after that request waits."""
_YIELDING: Final = 8
"""Other clients are served first: the next request, or the rest of this one, is slow."""


class Connection(TurnConnection):
    """A client's connection.

    Attributes:
        replies: the replies to be sent at the end of this turn or later.
        produced: bytes of replies since the connection was last served or resumed.
        paused: the reasons for the current pause, 0 when there is none. Only the methods of this
            class change it and `pending`.
        pending: the request that continues after the pause; it is cancelled when the client
            disconnects.
        closing: whether the connection closes once everything is sent.
        last_served: the number of the event for which it was last served; see `TurnLoop`.
        id: its number; a later connection has a higher one.
        protocol: the name of its protocol.
        peer: the client's address.
        since: when it began (ms since the epoch).
        reply_count: how many replies were made.
        client_name: what the client calls itself; empty if it has not said.
        user: who the client is; None where there are no users.
        failed_sign_ins: how many of its sign-ins have failed.
    """

    def __init__(
        self,
        client: socket.socket | TlsTransport,
        identity: int,
        protocol: str,
        peer: str,
        turns: TurnLoop,
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
        self._unsent: bytes | memoryview = b""
        self._sent = 0
        self._unsent_later: list[Part] = []
        self._input_counted = 0
        self._rest_counted = 0
        self._output_held = 0
        self._events = 0
        self._queued = False
        self._is_closed = False
        self.replies = Replies()
        self.produced = 0
        self.paused = 0
        self.pending: PendingRequest | None = None
        self.closing = False
        self.last_served = 0
        self.id = identity
        self.protocol = protocol
        self.peer = peer
        self.since = turns.clock.now()
        self.reply_count = 0
        self.client_name = ""
        self.user: User | None = None
        self.failed_sign_ins = 0

    def start(self, session: Session) -> None:
        """Begin to serve the client; `session` applies its requests."""
        self._session = session
        self._turns.add(self._descriptor, self, _IN)
        self._events = _IN

    def become(self, session: Session) -> None:
        """Let another session apply what comes from now on; the one before holds nothing."""
        if not self._is_closed:
            self._session = session

    # --- input ---

    def on_input(self) -> None:
        """Receive once, and apply the complete requests."""
        if self._short >= _SHORT_IN_A_ROW:
            room = RECEIVE_SIZE_SMALL
        elif self.paused or self._counters.buffered.is_full:
            room = COUNTED
        else:
            missing = self._session.bytes_needed - self._buffered
            room = RECEIVE_SIZE if missing <= RECEIVE_SIZE else RECEIVE_SIZE_LARGE
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
        self._short = self._short + 1 if size < RECEIVE_SIZE_SMALL else 0
        if self._chunks or self.paused:
            self._chunks.append(data)
            self._buffered += size
            if self.paused:
                self._add_rest(self._buffered)
                if self._buffered > READ_AHEAD or self._counters.buffered.is_full:
                    self._watch(self._events & ~_IN)
                    self._watch_for_end()
                self._tell_waiting()
                return
            if self._buffered < self._session.bytes_needed:
                return
            data = self._take_buffered()
        self._feed(data)

    def _take_buffered(self) -> bytes:
        data = b"".join(self._chunks)
        self._chunks.clear()
        self._buffered = 0
        if self._rest_counted:
            self._add_rest(0)
        return data

    def _feed(self, data: bytes) -> None:
        self.produced = 0
        try:
            rest = self._session.feed(data)
        except Exception:
            # Any exception here is a bug; it must not affect other clients.
            log.exception("connection %s: request failed", self.peer, extra=self.log_fields)
            self._session.answer_internal_error()
            rest = b""
        if rest:
            self._chunks.append(rest)
            self._buffered = len(rest)
            if self.paused:
                self._add_rest(len(rest))
            self._tell_waiting()
        if self.closing:
            self._chunks.clear()
            self._watch(self._events & ~_IN)
        if (self.replies.parts or self.closing) and not self._queued:
            self._queued = True
            self._turns.replying.append(self)

    def count_input(self, size: int) -> bool:
        """Count `size` bytes as unfinished input, instead of what was counted before.

        Fewer than `COUNTED` are counted as none.

        Returns:
            False if there is no room for more; the account stays as it is.
        """
        buffered = self._counters.buffered
        change = (size if size >= COUNTED else 0) - self._input_counted
        if change > 0 and buffered.held + change > buffered.limit:
            return False
        if change:
            self._input_counted += change
            buffered.count(change)
        return True

    def count_rest(self, size: int) -> bool:
        """Count waiting input, until it is applied; otherwise as `count_input`."""
        buffered = self._counters.buffered
        if size >= COUNTED and buffered.held + size - self._rest_counted > buffered.limit:
            return False
        self._add_rest(size)
        return True

    def _add_rest(self, size: int) -> None:
        """Count the input that waits here, which has arrived whether there is room or not."""
        change = (size if size >= COUNTED else 0) - self._rest_counted
        if change:
            self._rest_counted += change
            self._counters.buffered.count(change)

    # --- pauses: the input after a request waits until they end ---

    def wait_for_item(self, request: PendingRequest) -> bool:
        """Pause until `request_done`, while `request` waits for an item.

        Returns:
            False when there is no wait, because a pause is in force already: `request` is resumed
            after that.
        """
        if self.paused & (_STALLED | _YIELDING):
            self.resume_later(request)
            return False
        self.pending = request
        self.paused |= _WAITING
        self._watch_for_end()
        return True

    def _watch_for_end(self) -> None:
        """Watch for the end of the client, if a request waits for an item and no input is read.

        The client may have gone before the wait, or while much input waits behind the request. An
        item that it is served then would be lost.
        """
        if self.paused & _WAITING and not self._events & _IN:
            self._watch(self._events | END_OF_INPUT)

    def _end_wait(self) -> None:
        self.paused &= ~_WAITING
        if self._events & END_OF_INPUT:
            self._watch(self._events & ~END_OF_INPUT)

    def wait_for_work(self, request: PendingRequest) -> None:
        """Pause until `request_done`, while a thread or a task works for `request`."""
        self.pending = request
        self.paused |= _WORKING

    def _tell_waiting(self) -> None:
        """Tell the request that waits for an item, if one does, that there is input after it."""
        if self.paused & _WAITING and self.pending is not None:
            self.guard(self.pending.input_arrived)

    def resume_later(self, request: PendingRequest) -> None:
        """Resume `request` once the client has read its replies and others have been served."""
        self.pending = request
        self._end_wait()
        self.paused &= ~_WORKING
        if not self.paused:
            self.yield_turn()

    def request_done(self) -> None:
        """End the request, which was answered, and go on with the input after it."""
        self.pending = None
        if self.paused & (_WAITING | _WORKING):
            self._end_wait()
            self.paused &= ~_WORKING
            if not self.paused:
                self.yield_turn()

    @property
    def must_pause(self) -> bool:
        """Whether a request that has more to do must stop and call `resume_later`."""
        return self.paused & (_STALLED | _YIELDING) != 0

    def stall(self) -> None:
        """Pause until the client has read its replies; if there are none, for a turn."""
        if self.replies.parts or self.replies.is_held:
            self.paused |= _STALLED
        else:
            self.yield_turn()

    def yield_turn(self) -> None:
        """Pause until other clients have been served."""
        if not self.paused & _YIELDING:
            self.paused |= _YIELDING
            self._turns.resuming.append(self)

    def share_turn(self) -> None:
        """Pause until other clients have been served, if slow requests have used up their time."""
        if not self.paused and self._turns.slow_share_is_over():
            self.yield_turn()

    def _end_stall(self) -> None:
        """Resume in the next turn; input received until then is applied after older input."""
        self.paused &= ~_STALLED
        if not self.paused:
            self.yield_turn()

    def resume(self) -> None:
        """Continue with the pending request, and then with the buffered input."""
        self.paused &= ~_YIELDING
        if self._is_closed or self.closing or self.paused:
            return
        self.produced = 0
        if self.pending is not None:
            self.guard(self.pending.resume)
            if self._chunks:  # it came before the request began to wait
                self._tell_waiting()
        self._go_on()

    def _go_on(self) -> None:
        """Apply the input received during the pause, and receive more."""
        if self._chunks and not self.paused:
            self._feed(self._take_buffered())
        if not self.paused and not self.closing:
            self._watch(self._events | _IN)

    def guard(self, step: Callable[[], None]) -> None:
        """Call `step`, which continues a request; if it raises, reply with an error and close."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 # it is logged
            self.request_failed(error)

    def request_failed(self, error: Exception) -> None:
        """Log the exception of a request that was continued, reply with an error, and close."""
        fields = self.log_fields
        log.error("connection %s: request failed", self.peer, exc_info=error, extra=fields)
        if not self._is_closed:
            self.paused = 0
            self._session.answer_internal_error()
            self.closing = True
            self.push(b"")

    # --- output ---

    def push(self, reply: bytes, queues: Queues = None) -> None:
        """Send `reply` at the end of the turn, or once the queues it depends on are synced.

        When the replies exceed `OUTPUT_LIMIT`, no further request is applied until they are read.
        """
        if self._is_closed:
            return
        self.replies.add(reply, queues)
        if not self._queued:
            self._queued = True
            self._turns.replying.append(self)
        self.count_output(len(reply))

    def push_large(
        self, parts: Sequence[Part], size: int, queues: Queues = None, *, hands_out: bool = False
    ) -> None:
        """Send a reply in parts, of about `size` bytes in all, some of which may be large.

        A large part is sent as it is: a copy of 100 MiB would hold all others up. The others are
        copied only once, with all replies of the turn. `hands_out` is whether the reply has items
        that were removed.
        """
        if self._is_closed:
            return
        is_large = size > OUTPUT_LIMIT
        self._turns.large_output += size
        self.replies.add_all(parts, queues, may_be_large=is_large, hands_out=hands_out)
        if not self._queued:
            self._queued = True
            self._turns.replying.append(self)
        self.count_output(size)

    def push_parts(
        self, parts: Sequence[Part], queues: Queues = None, *, hands_out: bool = False
    ) -> None:
        """Push a large reply, as `push_large`, in parts whose size is not known yet."""
        self.push_large(parts, sum(map(len, parts)), queues, hands_out=hands_out)

    def count_slow_request(self) -> None:
        """Count a slow request, as `SLOW_COST` more bytes of replies.

        While the memory for clients is used up, the next is applied when its reply is read.
        """
        self.count_output(OUTPUT_LIMIT if self._counters.buffered.is_full else SLOW_COST)

    def count_output(self, size: int) -> None:
        """Count bytes of replies; when they exceed `OUTPUT_LIMIT`, pause until they are read."""
        self.produced += size
        if self.produced > OUTPUT_LIMIT:
            self.stall()

    def reply(
        self, failures: Mapping[Committable, JournalError], rounds: Mapping[Committable, Round]
    ) -> None:
        """Send the replies of the turn."""
        self._queued = False
        if self._is_closed:
            return
        replies = self.replies
        self.reply_count += len(replies.extents)
        if failures or replies.failure is not None:
            replies.fail(failures, self._session.failure_reply)
        data = replies.take(rounds)
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

    def round_ended(self) -> None:
        """Send the replies whose rounds are over."""
        data = self.replies.take_held(self._session.failure_reply)
        if not self._is_closed and (data or not self.replies.is_held):
            self._transmit(data)
        if self.closing and not self._unsent and not self.replies.is_held:
            self.close()

    def lose_answer(self, reply: bytes) -> bool:
        """Tell the pending request that an error is sent instead of `reply`, if that answers it."""
        return self.pending is not None and self.pending.lose_answer(reply)

    @property
    def is_held(self) -> bool:
        """Whether replies wait for a round."""
        return self.replies.is_held

    @property
    def has_unsent(self) -> bool:
        """Whether the socket has not taken all replies."""
        return bool(self.replies.parts or self._unsent or self.replies.is_held)

    @property
    def awaits_reading(self) -> bool:
        """Whether nothing more is done for the client before it reads of its replies."""
        return self.paused & _STALLED != 0 and len(self._unsent) > 0

    @property
    def unread(self) -> int:
        """How many bytes of replies the system holds that the client has not read yet.

        A slow reader shows in this long before the socket takes more. 0 where the system does not
        say.
        """
        with contextlib.suppress(OSError):
            count = fcntl.ioctl(self._descriptor, termios.TIOCOUTQ, bytes(_INT_SIZE))
            return int.from_bytes(count, sys.byteorder)
        return 0

    def _transmit(self, data: bytes) -> None:
        rest = self.replies.rest
        if self._unsent and data:
            self._unsent_later.append(data)
            self._count_unsent(len(data))
        if rest:
            self._unsent_later += rest
            self._count_unsent(sum(map(len, rest)))
            rest.clear()
        if self._unsent:
            return
        try:
            sent = self._send(memoryview(data)[:SEND_SIZE]) if data else 0
        except OSError as error:
            self._not_sent(data, error)
            return
        self._counters.bytes_written += sent
        if sent != len(data) or self._unsent_later:
            self._keep_unsent(data, sent)
        elif self.paused & _STALLED and not self.replies.is_held:
            self._end_stall()

    def _not_sent(self, data: bytes, error: OSError) -> None:
        if isinstance(error, BlockingIOError | InterruptedError):
            self._keep_unsent(data, 0)
        else:
            self._unsent, self._sent = data, 0
            self.close()

    def _keep_unsent(self, data: bytes, sent: int) -> None:
        """Keep the rest of `data` to send later; until then, receive nothing from the client."""
        if sent == len(data):
            self._take_unsent()
        else:
            self._unsent, self._sent = data, sent
            self._count_unsent(len(data) - sent)
        self.paused |= _STALLED
        self._watch(_OUT)

    def _take_unsent(self) -> None:
        """Begin with the next of the parts to send later."""
        self._unsent, self._sent = self._unsent_later.pop(0), 0

    def _count_unsent(self, change: int) -> None:
        self._output_held += change
        self._counters.buffered.count(change)

    def on_events(self, mask: int) -> None:
        """Handle an event other than just input."""
        if mask & _GONE and not mask & _READABLE:
            self.close()
            return
        if mask & _WRITABLE and self._unsent:
            self._send_rest()
        if mask & _READABLE and not self._is_closed:
            self.on_input()
        elif mask & _INPUT_ENDED and self.paused & _WAITING:
            self._end_of_input()

    def _send_rest(self) -> None:
        try:
            sent = self._send(memoryview(self._unsent)[self._sent : self._sent + SEND_SIZE])
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        self._counters.bytes_written += sent
        self._sent += sent
        self._count_unsent(-sent)
        if self._sent < len(self._unsent):
            return
        if self._unsent_later:
            self._take_unsent()
            return
        self._unsent = b""
        if self.closing:
            self.close()
            return
        self._watch(_IN)
        if not self.replies.is_held:
            self._end_stall()

    # --- what the client does ---

    @property
    def log_fields(self) -> dict[str, object]:
        """What the log says of the client, besides the message."""
        fields = {"peer": self.peer, "protocol": self.protocol, "client": self.id}
        return fields if self.user is None else fields | {"user": self.user.name}

    @property
    def state(self) -> ClientState:
        """What the client does at present."""
        if self.paused & _STALLED:
            return "stalled"
        if self.paused & _WAITING:
            return "waiting"
        return "idle" if self.pending is None else "working"

    def open_reads(self) -> dict[str, int]:
        """Return how many reads the client holds open, by queue; of very many only the first."""
        return self._session.open_reads()

    def holds(self, queue: str) -> list[int]:
        """Return the xids of the client's open reads of a queue; of very many only the first."""
        return self._session.holds(queue)

    # --- the end ---

    def _end_of_input(self) -> None:
        if self.paused and not self.paused & _WAITING:
            # The end is received again once the request is done and the input after it applied.
            self._watch(self._events & ~_IN)
            return
        if not self.paused and not self.has_unsent:
            self.close()
            return
        # A client that waits for an item may be gone, or have closed only its own side. It gets no
        # item, which might be lost, but an answer.
        self.closing = True
        self._watch(self._events & ~_IN)
        if self.pending is not None:
            self.guard(self.pending.input_ended)

    def close(self) -> None:
        """Close the connection now: cancel its request, and give back what its session holds."""
        if self._is_closed:
            return
        self._is_closed = True
        self.paused = 0
        self._turns.discard(self._descriptor)
        self._socket.close()
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.cancel()
        # Free the memory now, not when the garbage collector runs. A turn, a sync or the check for
        # silent clients may still refer to this connection for a while.
        self._chunks.clear()
        self._unsent = b""
        self._unsent_later.clear()
        self._count_unsent(-self._output_held)
        self.count_input(0)
        self._add_rest(0)
        self.replies.clear()
        session, self._session = self._session, _NO_SESSION
        session.connection_closed()
        self._on_close(self)

    def _watch(self, events: int) -> None:
        if events != self._events and not self._is_closed:
            self._turns.watch(self._descriptor, events)
            self._events = events
