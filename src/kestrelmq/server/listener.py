"""A listening socket of a protocol: accepts clients and gives each a session."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from kestrelmq.access.users import User, Users
from kestrelmq.queues.counters import Counters
from kestrelmq.server.admission import Admission
from kestrelmq.server.certificates import Certificates
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.logs import LogThrottle
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.sockets import (
    Endpoint,
    ListeningSocket,
    TcpEndpoint,
    is_unix,
    peer_name,
    peer_of,
    peer_uid,
)
from kestrelmq.server.tls import Handshake, Handshakes, TlsTransport

_ACCEPTED_AT_ONCE: Final = 32
"""Clients to accept before others are served; to accept so many takes a few milliseconds."""
_PAUSE: Final = 0.2
"""Seconds without accepting when the system has no room for another connection."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_REFUSALS: Final = {"memcache": "SERVER_ERROR {}\r\n", "text": "-{}\n"}
"""What a client that is refused is told. Thrift has no reply without a request."""
_READ_BEFORE_REFUSAL: Final = 65_536

log = logging.getLogger(__name__)

SessionFactory = Callable[[Connection], Session]


class Exhaustion:
    """Logs that a listener cannot accept connections: now and then, while that lasts."""

    __slots__ = ("_protocol", "_throttle")

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._throttle = LogThrottle()

    def log(self, error: OSError) -> None:
        """Log that `accept` failed with `error`, unless it was logged a moment ago."""
        if self._throttle.count(self._protocol):
            log.warning("%s: cannot accept connections: %s", self._protocol, error.strerror)


class Listener:
    """Accepts the clients of one protocol at one endpoint."""

    def __init__(  # noqa: PLR0913 # one place makes it
        self,
        protocol: str,
        turns: TurnLoop,
        counters: Counters,
        connections: dict[int, Connection],
        new_session: SessionFactory,
        admission: Admission,
        certificates: Certificates,
        handshakes: Handshakes,
        *,
        users: Users,
        trace: bool = False,
    ) -> None:
        """Prepare.

        Args:
            protocol: the name of the protocol.
            turns: serves the connections.
            counters: the server's counters.
            connections: the open connections of all listeners, by their ids.
            new_session: makes the session of a connection.
            admission: counts the clients of all listeners, and refuses some.
            certificates: what TLS needs, if this listener speaks it.
            handshakes: the unfinished ones of all listeners.
            users: the users.
            trace: whether to log the start and end of every connection.
        """
        self._connections = connections
        self.protocol = protocol
        self._turns = turns
        self._counters = counters
        self._new_session = new_session
        self._admission = admission
        self._certificates = certificates
        self._handshakes = handshakes
        self._throttle = LogThrottle()
        self._users = users
        self._trace = trace
        self._listening: ListeningSocket | None = None
        self._paused: asyncio.TimerHandle | None = None
        self._exhaustion = Exhaustion(protocol)

    def open(self, endpoint: Endpoint, backlog: int) -> Endpoint:
        """Listen; return the endpoint with the port that it got.

        Raises:
            CannotListen: the endpoint cannot be used.
        """
        self._listening = listening = ListeningSocket(endpoint, backlog)
        asyncio.get_running_loop().add_reader(listening.socket, self._accept)
        return listening.endpoint

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            if self._listening is None:
                return
            is_port = isinstance(self._listening.endpoint, TcpEndpoint)
            context = self._certificates.context(self.protocol) if is_port else None
            if context is not None and not self._handshakes.has_room():
                self._pause()
                return
            try:
                client, peer = self._listening.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._exhaustion.log(error)
                self._pause()
                return
            self._serve(client, peer_name(client, peer), context)

    def _pause(self) -> None:
        """Stop accepting for a moment; clients in the backlog keep waiting."""
        loop = asyncio.get_running_loop()
        if self._listening is not None:
            loop.remove_reader(self._listening.socket)
            self._paused = loop.call_later(_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._paused = None
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening.socket, self._accept)

    def _serve(self, client: socket.socket, peer: str, context: ssl.SSLContext | None) -> None:
        """Begin to serve a client, with TLS if there is a `context`, or refuse it."""
        client.setblocking(False)
        if not is_unix(client):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A client whose machine is gone would otherwise keep its open reads for ever.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        refusal = self._admission.admit(peer)
        if refusal is not None:
            self._refuse(client, peer, refusal, is_plain=context is None)
            return
        self._counters.curr_connections += 1
        if context is None:
            self._start_connection(client, peer, self._users.first(peer_uid(client)))
        else:
            buffered = self._counters.buffered
            handshake = Handshake(
                client, context, peer, self._turns, buffered, self._handshake_ended
            )
            self._handshakes.add(handshake)
            handshake.start()

    def _refuse(self, client: socket.socket, peer: str, reason: str, *, is_plain: bool) -> None:
        """Close a client's socket, and tell it why in its protocol, if that is possible."""
        if self._throttle.count("refused"):
            log.warning("%s: %s refused: %s", self.protocol, peer, reason)
        with client, suppress(OSError):
            reply = _REFUSALS.get(self.protocol)
            if reply is not None and is_plain:
                client.send(reply.format(reason).encode())
                # What has arrived and is not read would reset the connection, and lose the reply.
                client.recv(_READ_BEFORE_REFUSAL)

    def _handshake_ended(
        self, handshake: Handshake, transport: TlsTransport | None, error: OSError | None
    ) -> None:
        self._handshakes.discard(handshake)
        if transport is not None:
            user = self._users.first(None, transport.certificate_name)
            connection = self._start_connection(transport, handshake.peer, user)
            if transport.has_input:
                connection.on_input()
            return
        self._left(handshake.peer)
        self._counters.failed_handshakes += 1
        if self._throttle.count(peer_of(handshake.peer.rpartition(":")[0])):
            reason = getattr(error, "reason", None) or error
            log.info("%s: no TLS with %s: %s", self.protocol, handshake.peer, reason)

    def _start_connection(
        self, client: socket.socket | TlsTransport, peer: str, user: User | None
    ) -> Connection:
        counters = self._counters
        counters.total_connections += 1
        identity = counters.total_connections
        connection = Connection(
            client, identity, self.protocol, peer, self._turns, counters, self._connection_closed
        )
        connection.user = user
        self._connections[identity] = connection
        if self._trace:
            log.info("%s: %s connected", self.protocol, peer, extra=connection.log_fields)
        connection.start(self._new_session(connection))
        return connection

    def _connection_closed(self, connection: Connection) -> None:
        del self._connections[connection.id]
        self._left(connection.peer)
        if self._trace:
            fields = connection.log_fields
            log.info("%s: %s disconnected", self.protocol, connection.peer, extra=fields)

    def _left(self, peer: str) -> None:
        self._admission.leave(peer)
        self._counters.curr_connections -= 1

    def stop_accepting(self) -> None:
        """Close the listening socket; the connections stay open."""
        if self._paused is not None:
            self._paused.cancel()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.socket)
            self._listening.close()
            self._listening = None
