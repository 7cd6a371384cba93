"""The connections of the admin listener: limits on their number and on idle time.

The listener uses only a small part of the process's file descriptors. However many clients connect
to it, the server can still accept clients of the queues. When that limit is reached, or
`max_connections` for the clients of all listeners, a new connection replaces one of this listener
on which no request is being served: the oldest connection of the peer that has the most. A peer
that opens many connections therefore loses its own, and others are served. If there is none to
replace, the new one is refused with 503.

A connection on which no request is being served is closed when, for `IDLE_TIMEOUT` seconds, no
whole request has arrived and the client has read nothing more of a reply. This covers a keep-alive
connection, a request that is sent byte by byte, and a client that does not read.
"""

import asyncio
import logging
import resource
import socket
import ssl
import time
from asyncio.sslproto import SSLProtocol
from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

from aiohttp import StreamReader, web
from aiohttp.web_request import BaseRequest

from kestrelmq.admin.errors import ApiError, Handler, busy, error_reply
from kestrelmq.admin.headers import HEADERS
from kestrelmq.server import sockets
from kestrelmq.server.admission import Admission
from kestrelmq.server.logs import LogThrottle
from kestrelmq.server.loop.turns import HANDSHAKE_SHARE
from kestrelmq.server.sockets import is_unix, peer_name
from kestrelmq.server.tls import HANDSHAKE_TIME

IDLE_TIMEOUT = 30.0
"""Seconds within which a whole request must arrive, or the client must read more of a reply."""
MAX_CONNECTIONS: Final = 256
"""Most connections at the same time."""
_DESCRIPTOR_SHARE: Final = 4
"""At most one in this many of the process's file descriptors is used for a connection."""
_CHECKS_PER_TIMEOUT: Final = 4
"""How many times in `IDLE_TIMEOUT` seconds to look for idle connections."""
_LINGER_SECONDS: Final = 2.0
"""Seconds for which the rest of a request is still read after its reply was sent."""
_MOST_HEADERS: Final = 64
_TLS_LOOK: Final = 0.01
"""Seconds between looks at whether all of a reply was sent."""

log = logging.getLogger(__name__)

# An exception from a handler is logged where it is turned into a reply. aiohttp would also log a
# traceback for each request that is not valid HTTP, so that anyone could fill the log.
_quiet = logging.getLogger(f"{__name__}.http")
_quiet.setLevel(logging.CRITICAL)

Place = TypeVar("Place")


def peer_of(address: object) -> str:
    """Return the peer that a socket address counts as."""
    return sockets.peer_of(str(address[0]) if isinstance(address, tuple) and address else "")


def displaced(
    newcomer: Hashable,
    places: Collection[Place],
    peer: Callable[[Place], Hashable],
    free: Callable[[Place], bool],
    *,
    own: bool,
) -> Place | None:
    """Return the place that a newcomer takes over; None if the newcomer must be refused.

    It is the oldest place of the peer that has the most, if that peer has more than the newcomer's.

    Args:
        newcomer: the peer that wants a place.
        places: all occupied places, oldest first.
        peer: returns the peer that occupies a place.
        free: returns whether a place may be taken away at all.
        own: whether the newcomer may otherwise take over a place of its own peer.
    """
    counts = Counter(map(peer, places))
    candidates = [place for place in places if free(place)]
    if not candidates:
        return None
    found = max(candidates, key=lambda one: (counts[peer(one)], own and peer(one) == newcomer))
    has_more = counts[peer(found)] > counts[newcomer]
    return found if has_more or (own and peer(found) == newcomer) else None


class HttpConnection(web.RequestHandler):
    """The connection of one client.

    Attributes:
        address: the client's address.
        peer: the peer that the client counts as (see `peer_of`).
        serving: whether a request is being served.
        since: time of the last progress (loop time): a request finished, or the client read more.
        unsent: bytes of replies that were still unsent at the last check.
    """

    __slots__ = (
        "_connections",
        "_end_wait",
        "_input_ended",
        "_last_body",
        "_lower",
        "_next_arrived",
        "address",
        "peer",
        "serving",
        "since",
        "unsent",
    )

    def __init__(self, connections: "Connections", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as aiohttp documents it
            logger=_quiet,
            max_headers=_MOST_HEADERS,
            lingering_time=_LINGER_SECONDS,
            auto_decompress=False,
        )
        self._connections = connections
        self._input_ended = False
        self._last_body: StreamReader | None = None
        self._lower: asyncio.BaseTransport | None = None
        self.address = self.peer = ""
        self.serving = False
        self.since = 0.0
        self.unsent = 0
        self._end_wait: Callable[[], object] | None = None
        self._next_arrived: Callable[[], None] | None = None

    def take_place(self, transport: asyncio.BaseTransport, *, is_plain: bool) -> bool:
        """Return whether there is a place for the connection; close it if there is none.

        `transport` is the connection itself, below TLS; without TLS the client is told why.
        """
        self._lower = transport
        peername = transport.get_extra_info("peername")
        self.address = peer_name(transport.get_extra_info("socket"), peername)
        self.peer = peer_of(peername)
        self.since = self._connections.now()
        refusal = self._connections.admit(self)
        if refusal is not None:
            if is_plain and isinstance(transport, asyncio.Transport):
                transport.write(_refusal(refusal))
            transport.close()
            return False
        _limit_silence(transport.get_extra_info("socket"))
        return True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve the connection, or close it if there is no place for it."""
        if self._lower is not None or self.take_place(transport, is_plain=True):
            super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the connection's place."""
        self._connections.discard(self)
        super().connection_lost(exc)
        self.end_wait()

    def data_received(self, data: bytes) -> None:
        """Take input; a next request ends what the one that is served waits for.

        aiohttp stops reading after some of these; then nobody sees that the client disconnects.
        """
        super().data_received(data)
        if self._messages:
            self._last_body = self._messages[-1][1]
            if self._next_arrived is not None:
                self._next_arrived()

    def eof_received(self) -> bool:  # type: ignore[override] # asyncio asks whether to keep it
        """Keep the connection until the whole requests that have come are answered.

        A client may end only its own side, as `nc -N` does after what it sends from a file. It
        counts as gone, though, while its request waits for something, since that could not reach
        it then, and once its reply has begun, since that may go on for ever.
        """
        if self.transport is not self._lower:
            return False  # asyncio ends both sides of TLS
        self._input_ended = self._end_wait is None and self._awaits_reply()
        return self._input_ended

    def _awaits_reply(self) -> bool:
        """Whether all of the last request is there, and nothing was sent in reply to it yet."""
        if self._last_body is None or not self._last_body.is_eof():
            return False
        if self._messages:
            return True
        is_served, request = self._waiter is None, self._current_request
        return is_served and (request is None or not request.writer.output_size)

    def request_served(self) -> None:
        """Close the connection if the request that was just served was its last."""
        if self._input_ended and not self._messages:
            self.close()

    @property
    def may_be_gone(self) -> bool:
        """Whether the client is gone, or has ended its side, which looks the same."""
        return self.transport is None or self._input_ended

    @contextmanager
    def waiting(
        self, end_wait: Callable[[], object], next_arrived: Callable[[], None]
    ) -> Iterator[None]:
        """Call `end_wait` if the client disconnects, or the service ends, within the block.

        And call `next_arrived` if the client sends another request, or has done so already.

        Raises ConnectionError: the client is gone already, or may be.
        """
        if self.may_be_gone:
            raise _gone()
        self._end_wait, self._next_arrived = end_wait, next_arrived
        try:
            if self._messages:
                next_arrived()
            yield
        finally:
            self._end_wait = self._next_arrived = None

    def end_wait(self) -> None:
        """End what the request that is served waits for, if it says how."""
        if self._end_wait is not None:
            self._end_wait()

    @property
    def below(self) -> asyncio.Transport | None:
        """The connection itself, below TLS; None before it has a place."""
        return self._lower if isinstance(self._lower, asyncio.Transport) else None

    @property
    def unsent_size(self) -> int:
        """How many bytes of replies the socket has not taken; with TLS, once they are encrypted."""
        transports = {self.transport, self._lower}
        return sum(
            one.get_write_buffer_size() for one in transports if isinstance(one, asyncio.Transport)
        )

    async def all_sent(self, request: BaseRequest) -> None:
        """Wait until the socket has taken all that was written in reply to `request`.

        Raises ConnectionError: the client disconnected before that.
        """
        if self.transport is not self._lower:
            # TLS hands all on to the socket's own transport, which has no one to tell.
            while self.transport is not None and self.unsent_size:  # noqa: ASYNC110 # see above
                await asyncio.sleep(_TLS_LOOK)
        elif self.transport is not None:
            self.transport.set_write_buffer_limits(0)
            try:
                await request.writer.drain()
            finally:
                if self.transport is not None:
                    self.transport.set_write_buffer_limits()
        if self.transport is None or self.transport.is_closing():
            raise _gone()

    def abort(self) -> None:
        """Close the connection at once and drop what is unsent."""
        self._connections.discard(self)
        if self.below is not None:
            self.below.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 # holds what the client sent
    ) -> web.StreamResponse:
        """Return the reply to invalid HTTP or to an error outside of every handler."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of a reply was sent already")
        # A client that disconnects while it sends is not an error of the server.
        if status >= 500 and not isinstance(exc, ConnectionError):
            log.error("%s %s failed", request.method, request.path, exc_info=exc)
        code, text = (
            ("bad_request", "this is not a valid HTTP request")
            if status == 400
            else ("internal_error", "internal error; see the log")
        )
        reply = error_reply(ApiError(status, code, text))
        reply.headers.update(HEADERS)
        reply.force_close()
        return reply


class TlsBeforeHttp(SSLProtocol):
    """TLS below a connection, which has its place from the beginning of the handshake."""

    def __init__(
        self, connection: HttpConnection, connections: "Connections", context: ssl.SSLContext
    ) -> None:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.cancel()  # nobody waits for it
        patience = int(HANDSHAKE_TIME)
        super().__init__(
            loop, connection, context, done, server_side=True, ssl_handshake_timeout=patience
        )
        self._connection = connection
        self._connections = connections

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or close the connection if there is no place for it."""
        if self._connection.take_place(transport, is_plain=False):
            super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        """Take what has arrived; a step of the handshake when there is time for it."""
        lower = self._connection.below
        if self._connection.transport is not None or lower is None:
            super().buffer_updated(nbytes)
            return
        lower.pause_reading()
        self._connections.defer(partial(self._take_step, lower, nbytes))

    def _take_step(self, lower: asyncio.Transport, nbytes: int) -> None:
        if not lower.is_closing():
            super().buffer_updated(nbytes)
            lower.resume_reading()

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the connection's place, also if the handshake has not finished."""
        self._connections.discard(self._connection)
        super().connection_lost(exc)


class Connections:
    """All connections of the listener.

    Attributes:
        most: the most at the same time.
    """

    __slots__ = ("_admission", "_loop", "_open", "_steps", "_throttle", "most")

    def __init__(self, admission: Admission) -> None:
        """`admission` counts the clients of all listeners."""
        self._admission = admission
        self._throttle = LogThrottle()
        self._loop = asyncio.get_running_loop()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # `RLIM_INFINITY` is negative in Python.
        self.most = min(MAX_CONNECTIONS, soft // _DESCRIPTOR_SHARE) if soft > 0 else MAX_CONNECTIONS
        self._open: dict[HttpConnection, None] = {}
        self._steps: deque[Callable[[], None]] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def admit(self, connection: HttpConnection) -> str | None:
        """Add `connection`, in place of another if necessary; return why it is refused, or None."""
        is_full = len(self._open) >= self.most or self._admission.is_full
        if is_full and not self._admission.is_full_for(connection.address):
            loser = displaced(
                connection.peer,
                self._open,
                lambda one: one.peer,
                lambda one: not one.serving,
                own=True,
            )
            if loser is not None:
                loser.abort()
        refusal: str | None = f"{self.most} HTTP requests are being served"
        if len(self._open) < self.most:
            refusal = self._admission.admit(connection.address)
        if refusal is None:
            self._open[connection] = None
        elif self._throttle.count("refused"):
            log.warning("admin: %s refused: %s", connection.address, refusal)
        return refusal

    def defer(self, step: Callable[[], None]) -> None:
        """Take a step of a handshake of TLS soon; all together get the time that they may take."""
        self._steps.append(step)
        if len(self._steps) == 1:
            self._loop.call_soon(self._take_steps)

    def _take_steps(self) -> None:
        ends = time.perf_counter() + HANDSHAKE_SHARE
        try:
            while self._steps and time.perf_counter() < ends:
                self._steps.popleft()()
        finally:
            if self._steps:
                self._loop.call_soon(self._take_steps)

    def end_waits(self) -> None:
        """End what requests wait for: the service ends."""
        for connection in list(self._open):
            connection.end_wait()

    def discard(self, connection: HttpConnection) -> None:
        """Remove `connection` if it is there."""
        if connection in self._open:
            del self._open[connection]
            self._admission.leave(connection.address)

    async def watch(self) -> None:
        """Close connections that are idle for too long, until cancelled."""
        while True:
            await asyncio.sleep(IDLE_TIMEOUT / _CHECKS_PER_TIMEOUT)
            self._end_idle(self.now())

    def _end_idle(self, now: float) -> None:
        for connection in list(self._open):
            unsent = connection.unsent_size
            if connection.serving or unsent < connection.unsent:
                connection.since = now
            connection.unsent = unsent
            if now - connection.since >= IDLE_TIMEOUT:
                connection.abort()


@web.middleware
async def marked_as_serving(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Mark the connection as serving while `handler` runs."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        return await handler(request)
    connection.serving = True
    try:
        return await handler(request)
    finally:
        connection.serving = False
        connection.since = asyncio.get_running_loop().time()
        connection.request_served()


def _refusal(reason: str) -> bytes:
    """Return the reply to a connection for which there is no place."""
    reply = error_reply(busy("too_many_connections", reason))
    reply.headers.update(HEADERS)
    reply.headers["Connection"] = "close"
    reply.headers["Content-Length"] = str(len(reply.text or ""))
    head = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
    return f"HTTP/1.1 {reply.status} {reply.reason}\r\n{head}\r\n{reply.text}".encode()


def _gone() -> ConnectionError:
    return ConnectionResetError("the client disconnected")


def _limit_silence(client: Any) -> None:
    """Have the system close a connection whose peer does not acknowledge what was sent."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and client is not None and not is_unix(client):
        client.setsockopt(socket.IPPROTO_TCP, option, int(IDLE_TIMEOUT * 1000))
