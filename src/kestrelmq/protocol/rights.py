"""Which right each request of memcache, text and thrift needs, in one table.

    anyone      signing in, the version, the end of the connection
    signed in   what is about the client itself, or about no queue
    read        of a queue: its items
    see         of a queue: its numbers, and reads of it that are open. It takes `read`, too, but
                not that `allowed_client_ids_for_dequeue` names the client
    write       of a queue: adding to it, and creating it by that
    admin       what takes items from others, or is about the server

The operations of the HTTP API say theirs in `admin/operations.py`. A fanout's children are written
by adding to their master, which takes the right for the master alone. To add to an alias takes
`write` for every queue that it stands for.

A list of all queues takes no right beyond signing in, and has those that the client may read.
"""

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, TypeAlias

from kestrelmq.protocol import memcache, text, thrift_service
from kestrelmq.protocol.managing import (
    Browse,
    Confirm,
    Declare,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    KillClient,
    ListClients,
    Move,
    NameClient,
    Pause,
    Quit,
    Reload,
    SetStatus,
    Shutdown,
    SignIn,
    Version,
)
from kestrelmq.protocol.reserving import (
    Extend,
    ExtendOwner,
    Finish,
    ListOwners,
    Release,
    Reserve,
    Retire,
)


class Right(Enum):
    """A right; the table above says what each is for."""

    ANYONE = "anyone"
    SIGNED_IN = "signed in"
    READ = "read"
    SEE = "see"
    WRITE = "write"
    ADMIN = "admin"


Need: TypeAlias = tuple[Right, Callable[[Any], Iterable[str]]]
"""A right, and for which queues of a request."""


def _queue(request: Any) -> tuple[str, ...]:
    return (request.queue,)


def _queue_if_any(request: Any) -> tuple[str, ...]:
    return (request.queue,) if request.queue else ()


def _none(_request: Any) -> tuple[str, ...]:
    return ()


def _keys(request: memcache.Get) -> list[str]:
    return [key.queue for key in request.keys]


_OPEN: Final[tuple[Need, ...]] = ((Right.ANYONE, _none),)
_SIGNED_IN: Final[tuple[Need, ...]] = ((Right.SIGNED_IN, _none),)
_ADMIN: Final[tuple[Need, ...]] = ((Right.ADMIN, _none),)
_READ: Final[tuple[Need, ...]] = ((Right.READ, _queue),)
_SEE: Final[tuple[Need, ...]] = ((Right.SEE, _queue),)
_WRITE: Final[tuple[Need, ...]] = ((Right.WRITE, _queue),)

RIGHTS: Final[dict[type[object], tuple[Need, ...]]] = {
    SignIn: _OPEN,
    Quit: _OPEN,
    Version: _OPEN,
    # What cannot be served is answered with the reason.
    memcache.RefusedRequest: _OPEN,
    thrift_service.RefusedRequest: _OPEN,
    NameClient: _SIGNED_IN,
    GetStatus: _SIGNED_IN,
    memcache.Get: ((Right.READ, _keys),),
    memcache.Monitor: _READ,
    memcache.TouchRead: _SEE,
    memcache.Stats: ((Right.SIGNED_IN, _none), (Right.SEE, _queue_if_any)),
    memcache.Dump: ((Right.SIGNED_IN, _none), (Right.SEE, lambda request: request.queues)),
    text.Get: _READ,
    text.Peek: _READ,
    text.Monitor: _READ,
    thrift_service.Get: _READ,
    thrift_service.Peek: _READ,
    thrift_service.Confirm: _SEE,
    thrift_service.Abort: _SEE,
    Confirm: _SEE,
    Browse: _READ,
    Reserve: ((Right.READ, lambda request: request.queues),),
    Finish: _READ,
    Extend: _READ,
    Retire: _READ,
    # The reads of an owner may be of any queue: `ServerContext.check_rights` adds those.
    Release: ((Right.SIGNED_IN, _none), (Right.READ, _queue_if_any)),
    ExtendOwner: _SIGNED_IN,
    ListOwners: _ADMIN,
    memcache.Set: _WRITE,
    text.Put: _WRITE,
    thrift_service.Put: _WRITE,
    Declare: _WRITE,
    # The targets of a redrive are checked one by one, if it does not name one.
    Move: (
        (Right.READ, _queue),
        (Right.WRITE, lambda request: () if request.target is None else (request.target,)),
    ),
    Flush: _ADMIN,
    FlushAll: _ADMIN,
    FlushExpired: _ADMIN,
    Delete: _ADMIN,
    Pause: _ADMIN,
    ListClients: _ADMIN,
    KillClient: _ADMIN,
    SetStatus: _ADMIN,
    Reload: _ADMIN,
    Shutdown: _ADMIN,
}
"""What each request needs, by its class."""
