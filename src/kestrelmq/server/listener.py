"""A listening socket of a protocol: accepts clients and gives each a session."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

from kestrelmq.access.users import Users
from kestrelmq.queues.counters import Counters
from kestrelmq.server.connection import Connection, Session
from kestrelmq.server.logs import LogThrottle
from kestrelmq.server.loop.turns import TurnLoop
from kestrelmq.server.sockets import Endpoint, ListeningSocket, is_unix, peer_name, peer_uid

_ACCEPTED_AT_ONCE: Final = 128
_PAUSE: Final = 0.2
"""Seconds without accepting when the system has no room for another connection."""
_EXHAUSTED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

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

    def __init__(
        self,
        protocol: str,
        turns: TurnLoop,
        counters: Counters,
        connections: dict[int, Connection],
        new_session: SessionFactory,
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
            users: the users.
            trace: whether to log the start and end of every connection.
        """
        self._connections = connections
        self.protocol = protocol
        self._turns = turns
        self._counters = counters
        self._new_session = new_session
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
            try:
                client, peer = self._listening.socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause_accepting(error)
                return
            self._start_connection(client, peer_name(client, peer))

    def _pause_accepting(self, error: OSError) -> None:
        """Stop accepting for a moment; clients in the backlog keep waiting."""
        self._exhaustion.log(error)
        loop = asyncio.get_running_loop()
        if self._listening is not None:
            loop.remove_reader(self._listening.socket)
            self._paused = loop.call_later(_PAUSE, self._resume_accepting)

    def _resume_accepting(self) -> None:
        self._paused = None
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening.socket, self._accept)

    def _start_connection(self, client: socket.socket, peer: str) -> None:
        client.setblocking(False)
        if not is_unix(client):
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A client whose machine is gone would otherwise keep its open reads for ever.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        counters = self._counters
        counters.curr_connections += 1
        counters.total_connections += 1
        identity = counters.total_connections
        connection = Connection(
            client, identity, self.protocol, peer, self._turns, counters, self._connection_closed
        )
        connection.user = self._users.first(peer_uid(client))
        self._connections[identity] = connection
        if self._trace:
            log.info("%s: %s connected", self.protocol, peer, extra=connection.log_fields)
        connection.start(self._new_session(connection))

    def _connection_closed(self, connection: Connection) -> None:
        del self._connections[connection.id]
        self._counters.curr_connections -= 1
        if self._trace:
            fields = connection.log_fields
            log.info("%s: %s disconnected", self.protocol, connection.peer, extra=fields)

    def stop_accepting(self) -> None:
        """Close the listening socket; the connections stay open."""
        if self._paused is not None:
            self._paused.cancel()
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.socket)
            self._listening.close()
            self._listening = None
