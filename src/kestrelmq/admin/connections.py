"""The connections of the admin listener: how many there may be, and how long one may do nothing.

There is room for a small part of the process's descriptors only, so that however many clients come
here, those of the queues are still accepted. When it is full, a newcomer takes the place of a
connection on which no request is served: the oldest of the peer that has most. Whoever holds many
connections therefore loses its own, and others are served.

A connection on which no request is served is ended when, for `IDLE` seconds, no whole request came
and no more of a reply was taken: one that is kept for later, a request that is sent byte by byte,
and a client that does not read, alike.
"""

import asyncio
import ipaddress
import logging
import resource
import socket
from collections import Counter
from collections.abc import Callable, Collection, Hashable
from typing import Any, Final, TypeVar

from aiohttp import web
from aiohttp.web_request import BaseRequest

from kestrelmq.admin.errors import ApiError, Handler, error_reply
from kestrelmq.admin.headers import SECURITY_HEADERS

IDLE = 30.0
"""Seconds in which a whole request must come, or more of a reply be taken."""
MOST: Final = 256
"""Most connections."""
_SHARE: Final = 4
"""One in so many of the process's descriptors may be a connection's."""
_LOOK: Final = 4
"""Looks for idle connections within `IDLE` seconds."""
_LINGER: Final = 2.0
"""Seconds for which the rest of a request is read that was answered already."""
_MOST_HEADERS: Final = 64
_IPV6_NETWORK: Final = 64

log = logging.getLogger(__name__)

# What a handler raises is logged where it becomes a reply; aiohttp would only add a traceback for
# each request that is no HTTP, which anyone could fill the log with.
_quiet = logging.getLogger(f"{__name__}.http")
_quiet.setLevel(logging.CRITICAL)

Place = TypeVar("Place")


def peer_of(address: object) -> str:
    """Return who a client counts as, by its socket's address: an address, or an IPv6 network.

    Whoever has one address of an IPv6 network has as many as there are descriptors.
    """
    host = str(address[0]) if isinstance(address, tuple) and address else ""
    try:
        parsed = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(parsed, ipaddress.IPv6Address):
        if parsed.ipv4_mapped is not None:
            return str(parsed.ipv4_mapped)
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK), strict=False))
    return host


def displaced(
    newcomer: Hashable,
    places: Collection[Place],
    peer: Callable[[Place], Hashable],
    free: Callable[[Place], bool],
    *,
    own: bool,
) -> Place | None:
    """Return which of `places` a newcomer may have, oldest first; None if it must be refused.

    It is the oldest of the peer that has most of them; one that has more than the newcomer's peer.

    Args:
        newcomer: the peer that wants a place.
        places: all that are taken, oldest first.
        peer: says whose a place is.
        free: says whether a place may be taken away at all.
        own: whether the newcomer's peer may lose one of its own instead.
    """
    counts = Counter(map(peer, places))
    candidates = [place for place in places if free(place)]
    if not candidates:
        return None
    found = max(candidates, key=lambda one: (counts[peer(one)], own and peer(one) == newcomer))
    has_more = counts[peer(found)] > counts[newcomer]
    return found if has_more or (own and peer(found) == newcomer) else None


class HttpConnection(web.RequestHandler):
    """A client's connection.

    Attributes:
        peer: who the client counts as.
        serving: whether a request is served, or a reply made.
        since: when it last got on (loop's time): a request ended, or more of a reply was taken.
        unsent: bytes of replies that were not taken at the last look.
    """

    __slots__ = ("_connections", "peer", "serving", "since", "unsent")

    def __init__(self, connections: "Connections", server: web.Server) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type] # as aiohttp documents it
            logger=_quiet,
            max_headers=_MOST_HEADERS,
            lingering_time=_LINGER,
            auto_decompress=False,
        )
        self._connections = connections
        self.peer = ""
        self.serving = False
        self.since = 0.0
        self.unsent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, if there is room."""
        self.peer = peer_of(transport.get_extra_info("peername"))
        self.since = self._connections.now()
        if not self._connections.admit(self):
            if isinstance(transport, asyncio.Transport):
                transport.abort()
            return
        _limit_silence(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._connections.discard(self)
        super().connection_lost(exc)

    def abort(self) -> None:
        """End it now, whatever was not sent."""
        self._connections.discard(self)
        if self.transport is not None:
            self.transport.abort()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 # holds what the client sent
    ) -> web.StreamResponse:
        """Return the reply to what is no request, or went wrong outside of every handler."""
        if request.writer.output_size > 0:
            raise ConnectionError("part of a reply was sent already")
        # A client that goes while it sends is no failure of ours.
        if status >= 500 and not isinstance(exc, ConnectionError):
            log.error("%s %s failed", request.method, request.path, exc_info=exc)
        code, text = (
            ("bad_request", "this is no valid HTTP request")
            if status == 400
            else ("internal_error", "internal error; see the log")
        )
        reply = error_reply(ApiError(status, code, text))
        reply.headers.update(SECURITY_HEADERS)
        reply.force_close()
        return reply


class Connections:
    """All connections of the listener."""

    __slots__ = ("_loop", "_most", "_open")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        # Python gives `RLIM_INFINITY` as a number below 0.
        self._most = min(MOST, soft // _SHARE) if soft > 0 else MOST
        self._open: dict[HttpConnection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def now(self) -> float:
        """Return the loop's time."""
        return self._loop.time()

    def admit(self, connection: HttpConnection) -> bool:
        """Make room for `connection`; return whether there is some."""
        if len(self._open) >= self._most:
            loser = displaced(
                connection.peer,
                self._open,
                lambda one: one.peer,
                lambda one: not one.serving,
                own=True,
            )
            if loser is None:
                return False
            loser.abort()
        self._open[connection] = None
        return True

    def discard(self, connection: HttpConnection) -> None:
        """Forget `connection`."""
        self._open.pop(connection, None)

    async def watch(self) -> None:
        """End connections that are idle for too long, again and again."""
        while True:
            await asyncio.sleep(IDLE / _LOOK)
            self._end_idle(self.now())

    def _end_idle(self, now: float) -> None:
        for connection in list(self._open):
            transport = connection.transport
            unsent = 0 if transport is None else transport.get_write_buffer_size()
            if connection.serving or unsent < connection.unsent:
                connection.since = now
            connection.unsent = unsent
            if now - connection.since >= IDLE:
                connection.abort()


@web.middleware
async def marked_as_serving(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note on the connection that a request is served."""
    connection = request.protocol
    if not isinstance(connection, HttpConnection):
        return await handler(request)
    connection.serving = True
    try:
        return await handler(request)
    finally:
        connection.serving = False
        connection.since = asyncio.get_running_loop().time()


def _limit_silence(client: Any) -> None:
    """Have the system end a connection whose peer does not acknowledge what was sent."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None and client is not None:
        client.setsockopt(socket.IPPROTO_TCP, option, int(IDLE * 1000))
