"""What the sessions of all protocols share: the queues, the status, the counters, the loop."""

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from kestrelmq.access.signing_in import SignIns, WrongPassword
from kestrelmq.access.users import NOBODY, User, Users
from kestrelmq.config import ServerConfig
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.format.records import LATEST
from kestrelmq.passwords import SIGN_IN_FIRST
from kestrelmq.protocol.reserving import ExtendOwner, Release
from kestrelmq.protocol.rights import RIGHTS, Right
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.counters import COUNTED, LARGE_ITEM, Counters
from kestrelmq.queues.metrics import Latencies
from kestrelmq.queues.stats import ServerNumbers, server_stats
from kestrelmq.scheduling.worker import InlineWorker, Worker
from kestrelmq.server.admission import Admission
from kestrelmq.server.browsing import Browser
from kestrelmq.server.certificates import Certificates
from kestrelmq.server.connection import Connection, PendingRequest
from kestrelmq.server.long_reply import SlicedWork
from kestrelmq.server.loop.turns import LARGE_SHARE, TurnLoop
from kestrelmq.server.server_actions import ServerActionGuard
from kestrelmq.server.sockets import peer_of
from kestrelmq.server.status import ServerStatus
from kestrelmq.version import VERSION

NO_ROOM: Final = "out of memory storing object"
_OF_QUEUES: Final = frozenset({Right.READ, Right.SEE, Right.WRITE})
NO_ROOM_TO_SEND: Final = "out of memory writing the reply"
MOST_SIGN_INS: Final = 3
"""Failed sign-ins after which a connection closes."""


class Forbidden(QueueUnavailable):
    """The server's status or its number of connections does not allow the request at present."""


class OutOfMemory(QueueUnavailable):  # says what it is
    """Too much is buffered for clients at present (`max_buffered_bytes`)."""


class ClientForbidden(KestrelError):  # noqa: N818 # says what it is
    """The user may not do this, or the settings of the queue do not name the client."""


class NotSignedIn(ClientForbidden):
    """There are users, and the client has not signed in as one yet."""


class TooManyRequests(ClientForbidden):
    """The user has made as many requests lately as `rate_limit` allows."""


@dataclass(slots=True)
class ServerContext:
    """What all sessions of a server share.

    Attributes:
        config: the settings at the start of the server; a reload changes those of `collection`.
        collection: the queues.
        status: what the server accepts at present.
        counters: the server's counters.
        turns: the server's turns.
        writer: writes large items.
        loop: the event loop.
        reload: reads the configuration file again and applies it; returns the settings that need a
            restart. Raises ConfigError.
        shutdown: begins to stop the server.
        connections: the open connections of clients, by their ids.
        admission: counts the clients of all listeners.
        certificates: what the listeners that speak TLS need for it.
        waiting: the requests that wait for an item, and perhaps some that have waited.
        browser: shows items that stay in their queues.
        actions: decides who may act on the whole server.
        explains_dialect: whether the log has yet to say which clients the dialect is for.
        users: the users.
        password_worker: hashes passwords.
        sign_ins: checks passwords.
        started: when the server started (monotonic seconds).
    """

    config: ServerConfig
    collection: QueueCollection
    status: ServerStatus
    counters: Counters
    turns: TurnLoop
    writer: Worker
    loop: asyncio.AbstractEventLoop
    reload: Callable[[], Coroutine[None, None, list[str]]]
    shutdown: Callable[[], None]
    connections: dict[int, Connection] = field(default_factory=dict)
    certificates: Certificates = field(default_factory=Certificates)
    admission: Admission = field(init=False)
    waiting: dict[PendingRequest, None] = field(default_factory=dict)
    browser: Browser = field(default_factory=Browser)
    actions: ServerActionGuard = field(init=False)
    explains_dialect: bool = field(init=False)
    started: float = field(default_factory=time.monotonic)
    users: Users = field(default_factory=Users)
    password_worker: Worker = field(default_factory=InlineWorker)
    sign_ins: SignIns = field(init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.config, self.counters)
        self.actions = ServerActionGuard(self.config)
        self.sign_ins = SignIns(self.users, self.password_worker)
        buffered = self.counters.buffered
        limit = self.config.max_buffered_bytes
        buffered.limit = sys.maxsize if limit is None else limit
        buffered.on_change = lambda: self.status.set_memory(is_full=buffered.is_full)
        self.explains_dialect = self.config.memcache_dialect == "kestrel"
        self.status.on_quiescent = lambda: self.finish_in_slices(self._ending_waits())

    @property
    def latencies(self) -> Latencies:
        """How long operations take."""
        return self.turns.latencies

    def check_writable(self) -> None:
        """Raise Forbidden if nothing may be added or changed at present."""
        if not self.status.writes_allowed:
            raise Forbidden(self.status.reason_for_refusal(write=True))
        self._check_connections(self.config.connection_limit_refuse_writes)

    def check_readable(self) -> None:
        """Raise Forbidden if nothing may be read at present."""
        if not self.status.reads_allowed:
            raise Forbidden(self.status.reason_for_refusal(write=False))
        self._check_connections(self.config.connection_limit_refuse_reads)

    def has_time_for(self, name: str) -> bool:
        """Whether this turn has time to obtain the queue `name`, which may have to be created.

        Creating one takes a third of a millisecond, and one client may ask for thousands.
        """
        return name in self.collection.queues or not self.turns.slow_share_is_over()

    def prepare_head(self, queue: Queue) -> bool:
        """Prepare the head of a queue to be read, as far as there is time for it in this turn.

        Returns:
            Whether it is prepared; otherwise, others are to be served first.

        Raises:
            QueueUnavailable: the queue cannot be read.
            OutOfMemory: there is no room for the head among the unread replies.
        """
        while not queue.line.is_settled:
            if self.turns.slow_share_is_over():
                return False
            if queue.line.settle():
                break
        if not self.status.has_memory:
            if len(queue.line.peek() or b"") >= COUNTED:
                raise OutOfMemory(NO_ROOM_TO_SEND)
        elif self.turns.large_output > LARGE_SHARE:
            return len(queue.line.peek() or b"") < LARGE_ITEM
        return True

    def preparing_head(self, queue: Queue) -> Generator[None, None, None]:
        """Prepare the head, as `prepare_head`, to the end; yields when others are to be served."""
        while not self.prepare_head(queue):
            yield

    def finish_in_slices(self, work: Generator[None, None, None]) -> None:
        """Do work at once if it is short, and otherwise in this and later turns.

        If the server stops before it is done, the rest is not.
        """
        SlicedWork(self.turns, work).resume()

    def _ending_waits(self) -> Generator[None, None, None]:
        """End the waits for an item: the status, which allowed them, allows no reads any more."""
        while self.waiting and not self.status.reads_allowed:
            request, _ = self.waiting.popitem()
            request.end_wait()
            yield

    def expiry_after(self, lifetime: int) -> int:
        """Return when an item that lives for `lifetime` ms expires (epoch ms); 0 has no end."""
        return lifetime and min(max(self.turns.clock.now() + lifetime, 1), LATEST)

    def due_after(self, delay: int) -> int:
        """Return when an item that is delayed by `delay` ms is due (epoch ms); 0 if it is not."""
        return delay and min(self.turns.clock.now() + delay, LATEST)

    async def sign_in(self, connection: Connection, name: str, password: str) -> None:
        """Make the client of a connection a user. After some failures the connection closes.

        Raises:
            SignInRefused: it is not that user.
        """
        user = await self.user_of(name, password, connection.protocol, connection.peer, connection)
        connection.user = user

    async def user_of(
        self,
        name: str,
        password: str,
        protocol: str,
        peer: str,
        connection: Connection | None = None,
    ) -> User:
        """Return the user of this name and password; count and log it if there is none.

        Raises:
            SignInRefused: there is none, or the peer must wait.
        """
        try:
            return await self.sign_ins.sign_in(name, password, peer_of(peer.rpartition(":")[0]))
        except WrongPassword:
            self.counters.failed_sign_ins += 1
            # A name that is none may be anything: part of an item, or a password.
            known = None if self.users.get(name) is None else name
            self.actions.log_failed_sign_in(known, protocol, peer)
            if connection is not None:
                connection.failed_sign_ins += 1
                connection.closing |= connection.failed_sign_ins >= MOST_SIGN_INS
            raise

    def check_request(self, user: User | None, request: object) -> None:
        """Count a request of a client, and check that the client may make it.

        Raises:
            ClientForbidden: it may not, or there were too many.
        """
        if user is not None and RIGHTS[type(request)][0][0] is not Right.ANYONE:
            self.count_request(user)
        self.check_rights(user, request)

    def count_request(self, user: User) -> None:
        """Count a request of a user. Raises TooManyRequests."""
        if user.count_request(time.monotonic()):
            return
        self.counters.rate_limited_requests += 1
        what = f"make more than {user.rate_limit} requests a second"
        self.actions.log_forbidden(user, what, "rate_limit")
        raise TooManyRequests(f"user {user.name} may not {what} (rate_limit); try again")

    def check_rights(self, user: User | None, request: object) -> None:
        """Check that a client may make a request, by the table in `protocol/rights.py`.

        Args:
            user: who it is; None where there are no users.
            request: the request.

        Raises:
            ClientForbidden: it may not.
        """
        for right, names_of in RIGHTS[type(request)]:
            names = names_of(request)
            if right in _OF_QUEUES:
                for name in names:
                    self.check_queue(user, right, name)
            else:
                self.check_right(user, right)
        if isinstance(request, ExtendOwner) or (isinstance(request, Release) and not request.queue):
            for name in self.collection.owners.reads_of(request.owner):
                self.check_client(user, name, write=False)

    def check_right(self, user: User | None, right: Right) -> None:
        """Raise ClientForbidden if a user has not this right, which concerns no single queue."""
        if user is None or user.is_admin or right is Right.ANYONE:
            return
        if right is Right.ADMIN or user is NOBODY:
            raise self._forbidden(user, "do that: it takes admin = true")

    def check_queue(self, user: User | None, right: Right, name: str) -> None:
        """Raise ClientForbidden if a user has not this right for a queue."""
        if right is not Right.SEE:
            self.check_client(user, name, write=right is Right.WRITE)
        elif user is not None and not user.may(name, write=False):
            raise self._forbidden(user, f"read {name}")

    def check_client(self, user: User | None, queue: str, *, write: bool) -> None:
        """Check that a client may read a queue, or add to it.

        To add to an alias, a client must be allowed to add to each of its queues.

        Raises:
            ClientForbidden: the user has not the right, or the queue's settings do not name it.
        """
        for name in self.collection.leaves(queue) if write else (queue,):
            existing = self.collection.queues.get(name)
            if existing is not None and user is None and not existing.restricted:
                continue
            if not self._is_allowed(user, name, write=write):
                if existing is not None:
                    existing.refusals.count("forbidden")
                raise self._forbidden(user, f"{'add to' if write else 'read'} {name}")
            if existing is not None and user is not None and user.rate_limit is None:
                view = user.writable if write else user.readable
                view[name] = existing

    def may(self, user: User, queue: str, *, write: bool) -> bool:
        """Whether a user may read a queue, or add to it, as `check_client` checks it."""
        names = self.collection.leaves(queue) if write else (queue,)
        return all(self._is_allowed(user, name, write=write) for name in names)

    def _is_allowed(self, user: User | None, queue: str, *, write: bool) -> bool:
        if user is not None and not user.may(queue, write=write):
            return False
        config = self.collection.settings(queue)
        allowed = (
            config.allowed_client_ids_for_enqueue
            if write
            else config.allowed_client_ids_for_dequeue
        )
        return allowed is None or (user is not None and user.name in allowed)

    def _forbidden(self, user: User | None, what: str) -> ClientForbidden:
        """Count and log a refusal; return the error."""
        self.counters.forbidden_requests += 1
        if user is NOBODY:
            return NotSignedIn(SIGN_IN_FIRST)
        if user is None:
            return ClientForbidden(f"this client may not {what}")
        self.actions.log_forbidden(user, what)
        return ClientForbidden(f"user {user.name} may not {what}")

    def _check_connections(self, limit: int | None) -> None:
        count = self.counters.curr_connections
        if limit is not None and count > limit:
            raise Forbidden(f"too many connections ({count}, the limit is {limit})")

    @property
    def has_connection_limit(self) -> bool:
        """Whether the settings refuse operations above a number of connections."""
        return (
            self.config.connection_limit_refuse_reads is not None
            or self.config.connection_limit_refuse_writes is not None
        )

    def server_stats(self) -> Generator[None, None, list[tuple[str, Any]]]:
        """Return the server's statistics; yield after each small piece of work."""
        uptime = int(time.monotonic() - self.started)
        numbers = ServerNumbers(self.collection, self.counters, uptime, int(time.time()), VERSION)
        return server_stats(numbers)
