"""TLS between a connection and its socket.

OpenSSL never sees the socket: `TlsTransport` receives and sends, and hands the bytes over in
memory. So a turn costs one system call for all records that have arrived, and encrypting never
waits. A `Connection` has a `TlsTransport` in place of its socket and knows nothing of TLS. It is
made when the `Handshake` is over, which is served in the same turns.
"""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable
from selectors import EVENT_READ, EVENT_WRITE
from typing import Final

from kestrelmq.queues.counters import BufferedBytes
from kestrelmq.server.certificates import certificate_name
from kestrelmq.server.loop.turns import TurnConnection, TurnLoop

HANDSHAKE_TIME: Final = 10.0
"""Seconds within which a client must finish its handshake, or `_WATCH_PERIOD` more."""
_WATCH_PERIOD: Final = 1.0
MOST_HANDSHAKES: Final = 1024
"""Unfinished handshakes at a time."""
PLACE_TIME: Final = 1.0
"""Seconds that a handshake has even if others wait for its place."""
MEMORY: Final = 20 << 10
"""Bytes that OpenSSL takes for a connection."""
_RECORD: Final = 16_384
"""The most bytes of data in a record."""
_RECEIVE_SIZE: Final = _RECORD + 512
"""Bytes to receive at least, with room for what a record has beside its data."""
_SEND_SIZE: Final = 256 << 10
"""The most bytes to encrypt at once; what the socket does not take of them is kept."""
_MOST_ANSWERS: Final = 16 << 10
"""The most bytes of answers to a client's own control messages that are kept for it."""


class TlsTransport:
    """What a `Connection` needs of a socket, with TLS.

    All that has arrived is decrypted at once: no event would ever tell of what stays in OpenSSL.
    What is encrypted and not sent belongs to the transport.
    """

    def __init__(
        self, client: socket.socket, context: ssl.SSLContext, buffered: BufferedBytes
    ) -> None:
        self._socket = client
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._buffered = buffered
        self._left = b""
        self._taken = 0
        buffered.count(MEMORY)

    def fileno(self) -> int:
        """Return the socket's descriptor."""
        return self._socket.fileno()

    def shake_hands(self) -> bool:
        """Take the handshake one step on; return whether it is over.

        Raises:
            OSError: it failed, or the client is gone.
        """
        self._flush()
        try:
            data = self._socket.recv(_RECEIVE_SIZE)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            raise ConnectionResetError("the client disconnected")
        self._incoming.write(data)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except OSError:
            with contextlib.suppress(OSError):
                self._flush()  # the alert, which says what is wrong
            raise
        self._flush()
        return True

    @property
    def has_input(self) -> bool:
        """Whether input came with the end of the handshake."""
        return self._incoming.pending > 0

    @property
    def certificate_name(self) -> str | None:
        """The name in the client's certificate; None if it has shown none."""
        return certificate_name(self._object.getpeercert())

    @property
    def has_unsent(self) -> bool:
        """Whether the socket has not taken all that was encrypted."""
        return len(self._left) > 0

    def recv(self, room: int) -> bytes:
        """Return all data that has arrived, even if that is more than `room`; b"" at the end.

        Raises:
            BlockingIOError: no whole record has arrived.
            OSError: the connection is broken.
        """
        if not self._incoming.pending:
            received = self._socket.recv(max(room, _RECEIVE_SIZE))
            if not received:
                return b""
            self._incoming.write(received)
        data = self._decrypt()
        if self._outgoing.pending or self._left:
            self._flush()
            if len(self._left) > _MOST_ANSWERS:
                raise ConnectionAbortedError("the client does not read the answers of TLS")
        if data is None:
            raise BlockingIOError
        return data

    def _decrypt(self) -> bytes | None:
        """Return what is in the records that have arrived; None for nothing, b"" at the end."""
        incoming, found = self._incoming, self._object
        parts: list[bytes] = []
        try:
            while part := found.read(_RECORD):
                parts.append(part)
                if not incoming.pending and not found.pending():  # to ask is cheaper than to raise
                    return part if len(parts) == 1 else b"".join(parts)
            self._end()
        except ssl.SSLWantReadError:
            if not parts:
                return None
        except ssl.SSLError:
            self._end()
        return b"".join(parts)

    def _end(self) -> None:
        """Have the socket report the end of input from now on: TLS ended, or was broken."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def send(self, data: bytes | memoryview) -> int:
        """Encrypt `data`, or its beginning, and send it; return how many bytes were sent.

        If the socket has no room, it returns 0. The next call must be for the same data, and
        returns how many bytes of those the socket has taken meanwhile.

        Raises:
            OSError: the connection is broken.
        """
        if self._left:
            if not self._flush():
                return 0
            if self._taken:
                taken, self._taken = self._taken, 0
                return taken
        encrypt = self._object.write
        size = min(len(data), _SEND_SIZE)
        view = memoryview(data)
        done = encrypt(view[:size])
        while done < size:
            done += encrypt(view[done:size])
        if self._flush():
            return done
        self._taken = done
        return 0

    def _flush(self) -> bool:
        """Send what is encrypted, and keep what the socket does not take; whether all is sent."""
        before = len(self._left)
        left = self._left
        if self._outgoing.pending:
            left += self._outgoing.read()
        if not left:
            return True
        with contextlib.suppress(BlockingIOError, InterruptedError):
            sent = self._socket.send(left)
            left = left[sent:]
        self._left = left
        if len(left) != before:
            self._buffered.count(len(left) - before)
        return not left

    def close(self) -> None:
        """Tell the client that this is the end, if the socket takes that, and close it."""
        if not self._left:
            with contextlib.suppress(OSError):
                # It raises: it would wait for the client to say the same.
                self._object.unwrap()
            with contextlib.suppress(OSError):
                self._flush()
        self._socket.close()
        self._buffered.count(-MEMORY - len(self._left))
        self._left = b""


class Handshake(TurnConnection):
    """A client from its acceptance to the end of its handshake.

    A step costs up to some milliseconds of CPU. When handshakes have used up their share of a turn,
    nothing is received, and the loop reports the client again in the next turn.

    Attributes:
        peer: the client's address.
        began: when it was accepted (monotonic seconds).
    """

    def __init__(
        self,
        client: socket.socket,
        context: ssl.SSLContext,
        peer: str,
        turns: TurnLoop,
        buffered: BufferedBytes,
        on_end: Callable[["Handshake", TlsTransport | None, OSError | None], None],
    ) -> None:
        """Prepare.

        Args:
            client: the client's socket.
            context: the certificate, and what is asked of the client.
            peer: the client's address.
            turns: serves the client.
            buffered: the account of the memory for clients.
            on_end: called once, with the transport of a client that has finished; or with None, and
                with what was wrong if that is known, after the socket was closed.
        """
        self._socket = client
        self._descriptor = client.fileno()
        self._context = context
        self._turns = turns
        self._buffered = buffered
        self._on_end = on_end
        self._transport: TlsTransport | None = None
        self._events = EVENT_READ
        self.peer = peer
        self.began = time.monotonic()
        self.last_served = 0

    def start(self) -> None:
        """Begin to serve the client."""
        self._turns.add(self._descriptor, self, EVENT_READ)

    def on_input(self) -> None:
        """Take one step, if this turn has time for it."""
        turns = self._turns
        if turns.handshake_time <= turns.handshake_share:
            began = time.perf_counter()
            self._step()
            turns.handshake_time += time.perf_counter() - began

    def _step(self) -> None:
        transport = self._transport
        if transport is None:
            # Not earlier: many clients may be accepted in one turn.
            if self._buffered.held + MEMORY > self._buffered.limit:
                self.close(OSError("the memory for clients is used up (max_buffered_bytes)"))
                return
            transport = TlsTransport(self._socket, self._context, self._buffered)
            self._transport = transport
        try:
            is_over = transport.shake_hands()
        except OSError as error:
            self.close(error)
            return
        if is_over:
            self._turns.discard(self._descriptor)
            self._on_end(self, transport, None)
            return
        events = EVENT_READ | EVENT_WRITE if transport.has_unsent else EVENT_READ
        if events != self._events:
            self._events = events
            self._turns.watch(self._descriptor, events)

    def close(self, error: OSError | None = None) -> None:
        """Give up the client."""
        self._turns.discard(self._descriptor)
        if self._transport is None:
            self._socket.close()
        else:
            self._transport.close()
        self._on_end(self, None, error)


class Handshakes:
    """The unfinished handshakes of all listeners: few, and none for long."""

    def __init__(self, most: int = MOST_HANDSHAKES) -> None:
        self._most = most
        self._unfinished: dict[Handshake, None] = {}

    def has_room(self) -> bool:
        """Whether another one may begin; one that others wait for for too long makes room."""
        if len(self._unfinished) < self._most:
            return True
        self._close_older(PLACE_TIME, 1)
        return len(self._unfinished) < self._most

    def add(self, handshake: Handshake) -> None:
        """Count one that begins."""
        self._unfinished[handshake] = None

    def discard(self, handshake: Handshake) -> None:
        """Count one that ended."""
        del self._unfinished[handshake]

    async def watch(self) -> None:
        """Close those that take too long, for ever."""
        while True:
            await asyncio.sleep(_WATCH_PERIOD)
            self.close_late()

    def close_late(self) -> None:
        """Close those that have taken too long."""
        self._close_older(HANDSHAKE_TIME, len(self._unfinished))

    def close(self) -> None:
        """Close all of them."""
        self._close_older(0.0, len(self._unfinished))

    def _close_older(self, seconds: float, most: int) -> None:
        latest = time.monotonic() - seconds
        for handshake in list(self._unfinished)[:most]:
            if handshake.began > latest:
                return  # so are all after it
            handshake.close(TimeoutError("it takes too long"))
