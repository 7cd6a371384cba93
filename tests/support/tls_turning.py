"""Clients that speak TLS with a server's loop in the process of a test, byte by byte."""

import socket
import ssl
from collections.abc import Callable
from typing import Final

from kestrelmq.queues.counters import BufferedBytes
from kestrelmq.server.tls import Handshake, TlsTransport
from tests.support.turning import Turning

_RECEIVED_AT_ONCE: Final = 1 << 16


class TlsClient:
    """A client of `Turning` that speaks TLS; the server's end of its connection is a `Handshake`.

    Attributes:
        socket: its socket.
        tls: its TLS, of which `outgoing` is what it has not sent yet.
        number: that of its connection.
        received: what the server has sent, as it was sent.
        failure: what the server found wrong with the handshake.
        is_over: whether the handshake has ended, in one way or the other.
        is_refused: whether the server has given up the handshake.
    """

    def __init__(
        self,
        turning: Turning,
        server: ssl.SSLContext,
        client: ssl.SSLContext,
        *,
        on_end: Callable[[Handshake], object] = lambda _: None,
        buffer: int | None = None,
    ) -> None:
        """Connect; `buffer` is how many bytes the sockets of both ends take."""
        self._turning = turning
        self._on_end = on_end
        self.socket, theirs = socket.socketpair()
        self.number = self.socket.fileno()
        for one in (self.socket, theirs):
            one.setblocking(False)
            if buffer is not None:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        self._incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.tls = client.wrap_bio(self._incoming, self.outgoing, server_hostname="localhost")
        self.received = bytearray()
        self.failure: OSError | None = None
        self.is_over = self.is_refused = False
        self.handshake = Handshake(
            theirs, server, str(self.number), turning.turns, self._buffered, self._ended
        )

    @property
    def _buffered(self) -> BufferedBytes:
        return self._turning.context.counters.buffered

    def _ended(
        self, handshake: Handshake, transport: TlsTransport | None, error: OSError | None
    ) -> None:
        self._on_end(handshake)
        self.is_over = True
        if transport is None:
            self.failure, self.is_refused = error, True
            return
        connection = self._turning.serve(transport, self.number, "memcache")
        if transport.has_input:
            connection.on_input()

    def say_hello(self) -> None:
        """Begin the handshake; the server has the hello in its next turn."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.socket.sendall(self.outgoing.read())

    async def shake_hands(self) -> None:
        """Do the handshake, without sending what is last of it."""
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await self.flush()
                await self._fetch()
            else:
                return

    async def connect(self) -> None:
        """Do the handshake; the connection is there then."""
        self.handshake.start()
        await self.shake_hands()
        await self.flush()
        await self._turning.until(lambda: self.number in self._turning.connections)

    async def send(self, data: bytes) -> None:
        """Encrypt and send `data`."""
        rest = memoryview(data)
        while rest:
            rest = rest[self.tls.write(rest) :]
        await self.flush()

    async def flush(self) -> None:
        """Send what is encrypted."""
        rest = memoryview(self.outgoing.read())
        while rest:
            try:
                rest = rest[self.socket.send(rest) :]
            except BlockingIOError:
                await self._turning.turn()

    async def receive(self, end: bytes) -> bytes:
        """Return what comes, up to and with `end`, after which nothing comes."""
        received = bytearray()
        while not received.endswith(end):
            try:
                some = self.tls.read(_RECEIVED_AT_ONCE)
            except ssl.SSLWantReadError:
                await self._fetch()
                continue
            assert some, "the server has ended TLS"
            received += some
        return bytes(received)

    async def end(self) -> bytes:
        """Return the data that comes before the server's close_notify, which must come."""
        received = bytearray()
        while True:
            try:
                some = self.tls.read(_RECEIVED_AT_ONCE)
            except ssl.SSLWantReadError:
                await self._fetch()
                continue
            if not some:
                return bytes(received)
            received += some

    async def _fetch(self) -> None:
        try:
            some = self.socket.recv(_RECEIVED_AT_ONCE)
        except BlockingIOError:
            await self._turning.turn()
            return
        assert some, "the server has closed the connection"
        self.received += some
        self._incoming.write(some)
