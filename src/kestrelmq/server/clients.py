"""The clients that are connected: what each does at present, and which ones are disconnected.

Clients of the admin listener are not among them.
"""

import asyncio
import logging
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kestrelmq.access.users import NOBODY, Users
from kestrelmq.protocol.reserving import listed_name
from kestrelmq.server.connection import ClientState, Connection
from kestrelmq.server.context import ServerContext

SIGN_IN_TIME: Final = 10.0
"""Seconds within which a client must sign in, where there are users; it has at least half."""
_LOOKS: Final = 4
"""How often to look in the time after which a client counts as silent."""
_ANSWERED: Final = 0.05
"""Seconds in which a request of a user who was removed may be answered, before another look."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConnectedClient:
    """A connected client.

    Attributes:
        id: its number; a later client of the same server has a higher one.
        name: what it calls itself; None if it has not said.
        user: who it is; None where there are no users, and before it has signed in.
        address: where it connected from, as `HOST:PORT`, or `unix:PID` on a Unix socket.
        protocol: memcache, text or thrift.
        since: when it connected (ms since the epoch).
        commands: how many commands were answered. One with `noreply` does not count, and a monitor
            counts for each item.
        state: what it does at present.
        queue: the queue that its present request reads or adds to, if it takes time; written as
            the list of a `reserve`, which may wait on several.
        open_reads: how many reads it holds open, by queue; of very many only the first. Reads that
            are reserved for an owner count for each client that has named the owner.
    """

    id: int
    name: str | None
    user: str | None
    address: str
    protocol: str
    since: int
    commands: int
    state: ClientState
    queue: str | None
    open_reads: dict[str, int]

    def fields(self) -> list[tuple[str, object]]:
        """Return what to list of it, as the memcache and text protocols do, in words NAME=VALUE."""
        fields: list[tuple[str, object]] = [
            ("id", self.id),
            *([] if self.name is None else [("name", self.name)]),
            *([] if self.user is None else [("user", self.user)]),
            ("address", self.address),
            ("protocol", self.protocol),
            ("since", self.since),
            ("commands", self.commands),
            ("state", self.state),
        ]
        if self.queue is not None:
            fields.append(("queue", self.queue))
        # A queue name has no "/", so this is unambiguous.
        fields += (("open", f"{name}/{count}") for name, count in self.open_reads.items())
        return fields


def client_of(connection: Connection) -> ConnectedClient:
    """Return what there is to say about the client of a connection."""
    return ConnectedClient(
        id=connection.id,
        name=connection.client_name or None,
        user=None if connection.user is None else connection.user.name or None,
        address=connection.peer,
        protocol=connection.protocol,
        since=connection.since,
        commands=connection.reply_count,
        state=connection.state,
        queue=None if connection.pending is None else _list(connection.pending.queue_names),
        open_reads=connection.open_reads(),
    )


def _list(names: tuple[str, ...]) -> str | None:
    """Return queue names as the list of a `reserve`; None if there are none."""
    return b",".join(listed_name(name.encode()) for name in names).decode() or None


def connected_clients(context: ServerContext, offset: int = 0) -> Iterator[ConnectedClient]:
    """Yield the clients after the first `offset`, in the order in which they connected.

    Those that connect or disconnect meanwhile may be left out.
    """
    for number in list(context.connections)[offset:]:
        connection = context.connections.get(number)
        if connection is not None:
            yield client_of(connection)


def holders(
    context: ServerContext, queue: str, xids: Collection[int]
) -> Generator[None, None, dict[int, Connection]]:
    """Return which connections have these open reads of a queue, by xid, as far as that is known.

    Yields after each connection, because there may be very many.

    The reads of one that has very many are not all known. Reserved reads are those of a connection
    that has named their owner; thrift's outlive theirs.
    """
    found: dict[int, Connection] = {}
    for connection in list(context.connections.values()):
        if len(found) == len(xids):
            break
        found.update((xid, connection) for xid in connection.holds(queue) if xid in xids)
        yield
    return found


def kill_client(context: ServerContext, number: int) -> bool:
    """Disconnect a client, after the present turn; return False if there is none of that id.

    As after any disconnection, its open reads go back to their queues.
    """
    connection = context.connections.get(number)
    if connection is None:
        return False
    log.info(
        "disconnecting client %d, %s (%s)",
        number,
        connection.peer,
        connection.protocol,
        extra=connection.log_fields,
    )
    context.loop.call_soon(connection.close)
    return True


class SilenceWatch:
    """Finds the connections whose clients sent nothing, and read nothing, for some time.

    They are found at most a quarter of it late. Serving a client costs nothing for that: only the
    looks compare when it was served.

    Attributes:
        period: seconds between two looks.
    """

    def __init__(self, limit: float) -> None:
        """`limit` is that time, in seconds."""
        self.period = limit / _LOOKS
        # When each was last served and what it had not read, and how many looks found the same.
        self._seen: dict[Connection, tuple[tuple[int, int], int]] = {}

    def look(self, connections: Iterable[Connection]) -> list[Connection]:
        """Return those of `connections` that were silent for all of the time.

        A client that waits for the server is not silent; its silence begins when the wait is over.
        One that does not read its replies is: it would keep its open reads for ever.
        """
        before = self._seen
        self._seen = {}
        silent = []
        for one in connections:
            if one.paused and not one.awaits_reading:
                continue
            state = one.last_served, one.unread if one.paused else 0
            earlier, looks = before.get(one, (None, 0))
            looks = looks + 1 if state == earlier else 0
            self._seen[one] = state, looks
            if looks >= _LOOKS:
                silent.append(one)
        return silent


async def close_silent(connections: Mapping[int, Connection], limit: float) -> None:
    """Close those of `connections` that are silent for `limit` seconds, for ever."""
    watch = SilenceWatch(limit)
    while True:
        await asyncio.sleep(watch.period)
        for one in watch.look(connections.values()):
            log.info("closing %s: silent for %s s", one.peer, limit, extra=one.log_fields)
            one.close()


async def close_unsigned(connections: Mapping[int, Connection]) -> None:
    """Close those of `connections` that do not sign in within `SIGN_IN_TIME` seconds, for ever.

    Where there are no users, there are none.
    """
    before: set[int] = set()
    while True:
        await asyncio.sleep(SIGN_IN_TIME / 2)
        unsigned = [one for one in connections.values() if one.user is NOBODY]
        for one in unsigned:
            if one.id in before:
                log.info("closing %s: not signed in", one.peer, extra=one.log_fields)
                one.close()
        before = {one.id for one in unsigned}


def close_removed(connections: Mapping[int, Connection], users: Users) -> None:
    """Close the connections of users who were removed.

    A request that takes several turns is answered first, such as the reload that removed the user.
    """
    is_any_left = False
    for one in list(connections.values()):
        if users.is_in_force(one.user):
            continue
        if one.state == "working":
            is_any_left = True
            continue
        log.info("closing %s: its user was removed", one.peer, extra=one.log_fields)
        one.close()
    if is_any_left:
        asyncio.get_running_loop().call_later(_ANSWERED, close_removed, connections, users)
