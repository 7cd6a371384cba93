"""Requests of the memcache protocol about the server or whole queues."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from kestrelmq.access.users import User
from kestrelmq.config import queue_settings
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.format.notes import dead_letter
from kestrelmq.format.records import item_deliveries, item_times, record_of
from kestrelmq.protocol import memcache
from kestrelmq.protocol.managing import (
    Browse,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    GetStatus,
    KillClient,
    ListClients,
    Manage,
    Move,
    NameClient,
    Reload,
    SetStatus,
    Shutdown,
    Version,
)
from kestrelmq.protocol.memcache import (
    DELETED,
    END,
    FLUSHED_ALL,
    KILLED,
    NAMED,
    NOT_FOUND,
    OK,
    Dump,
    Request,
    Stats,
)
from kestrelmq.protocol.reserving import ListOwners
from kestrelmq.protocol.stats import SERVER_STATS
from kestrelmq.queues.moving import Moved
from kestrelmq.queues.searching import Page
from kestrelmq.queues.stats import sorted_names, stats_of
from kestrelmq.server.clients import connected_clients, kill_client
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import Pieces
from kestrelmq.server.replies import Part, data_of
from kestrelmq.server.requests import changes
from kestrelmq.server.requests.managing import ManageAnswer, QueueNotFound, check_action, manage
from kestrelmq.server.server_actions import RemoteAdminRefused
from kestrelmq.server.sessions.memcache_reads import refuse
from kestrelmq.server.status import Status, StatusNotSaved
from kestrelmq.version import VERSION

_SHOWN: Final = {stat.name for stat in SERVER_STATS if stat.shown == "everywhere"}
Result = TypeVar("Result")


def serve_admin(context: ServerContext, connection: Connection, request: Request) -> bytes:
    """Serve `request`; return the reply, or b"" when it has none or is answered later.

    Raises:
        Forbidden: the server does not allow it at present; the connection must close.
    """
    try:
        check_action(context, request, connection)
        if isinstance(request, Manage):
            _answer_later(
                connection,
                manage(context, request, connection),
                lambda answer: _managed(context, request, answer),
                noreply=isinstance(request, Delete | Flush | FlushAll) and request.noreply,
                is_search=isinstance(request, Browse) and bool(request.search),
            )
            return b""
        return _serve_server(context, connection, request)
    except RemoteAdminRefused as error:
        return memcache.client_error(str(error))


def _serve_server(context: ServerContext, connection: Connection, request: Request) -> bytes:
    match request:
        case Reload():
            _answer_later(connection, context.reload(), lambda left: (memcache.reloaded(left),))
            return b""
        case GetStatus():
            return memcache.line(context.status.status.value)
        case SetStatus(name):
            return _set_status(context, connection, name)
        case NameClient(client):
            connection.client_name = client
            return NAMED
        case KillClient(number):
            return KILLED if kill_client(context, number) else NOT_FOUND
        case Version():
            return b"VERSION " + VERSION.encode() + b"\r\n"
        case Shutdown():
            context.shutdown()
            return b""
        case _:
            raise AssertionError(f"{request} is served elsewhere")


def _managed(context: ServerContext, request: Manage, answer: ManageAnswer) -> Sequence[Part]:
    """Return the reply to a request about queues."""
    match answer:
        case (Page() as page, str(place)):
            return _page(page, place)
        case Moved(count, stopped):
            word = b"COPIED" if isinstance(request, Move) and request.copies else b"MOVED"
            return (word + b" " + memcache.line(f"{count} {stopped or ''}"),)
    match request:
        case Delete():
            return (DELETED,)
        case FlushAll():
            is_memcached = context.config.memcache_dialect == "memcached"
            return (OK if is_memcached else FLUSHED_ALL,)
        case FlushExpired():
            return (memcache.line(str(answer)),)
    return (END,)


def _page(page: Page, place: str) -> Sequence[Part]:
    """Return the reply to `browse`."""
    parts: list[Part] = []
    for offset, record in page.items:
        data = data_of(record_of(record))
        letter = dead_letter(record)
        words = b"" if letter is None else memcache.letter_words(*letter, item_deliveries(record))
        parts += memcache.browsed_parts(offset, item_times(record), data, words)
    parts.append(memcache.line(f"PLACE {place}"))
    if page.next_offset is not None:
        parts.append(b"NEXT %d\r\n" % page.next_offset)
    parts.append(END)
    return parts


def _answer_later(
    connection: Connection,
    change: Coroutine[None, None, Result],
    reply: Callable[[Result], Sequence[Part]],
    *,
    noreply: bool = False,
    is_search: bool = False,
) -> None:
    def answer(result: Result) -> None:
        connection.push_parts(() if noreply else reply(result))

    def fail(error: KestrelError) -> None:
        if isinstance(error, QueueNotFound):
            connection.push(NOT_FOUND)
        else:
            refuse(connection, error, noreply=noreply)

    changes.answer_later(connection, change, answer, fail, is_search=is_search)


def listing(
    context: ServerContext,
    request: Stats | Dump | ListClients | ListOwners,
    user: User | None = None,
) -> Pieces:
    """Return the pieces of the reply to `stats`, a dump, `clients` or `owners`.

    Of all queues, those are listed that `user` may read.
    """
    match request:
        case ListClients():
            yield from (memcache.client(one.fields()) for one in connected_clients(context))
        case ListOwners(pattern):
            for one in context.collection.owners.holding(pattern):
                yield (
                    None
                    if one is None
                    else memcache.owner_line(
                        one.owner,
                        one.reads,
                        one.queues,
                        one.tags,
                        round(one.age * 1000),
                        one.connections,
                    )
                )
        case Stats(None):
            yield from _all_stats(context, user)
        case Stats(str(name)):
            try:
                yield memcache.stats(_stats(context, name))
            except QueueUnavailable as error:
                yield memcache.server_error(str(error))
                return
        case Dump(what, names):
            yield from _dump(context, what, names, user)
    yield END


def _stats(context: ServerContext, name: str) -> list[tuple[str, Any]]:
    collection = context.collection
    if name not in collection.queues:
        collection.loading.check((name,))  # an empty reply would mean that there is no such queue
    return stats_of(collection, name)


def _all_stats(context: ServerContext, user: User | None) -> Pieces:
    collection = context.collection
    found = yield from context.server_stats()
    yield memcache.stats([(name, value) for name, value in found if name in _SHOWN])
    for name in (yield from sorted_names(collection)):
        if user is None or user.may(name, write=False):
            yield memcache.stats(stats_of(collection, name), f"queue_{name}_")
        else:
            yield None


def _dump(context: ServerContext, what: str, names: tuple[str, ...], user: User | None) -> Pieces:
    collection = context.collection
    for name in names or (yield from sorted_names(collection)):
        if user is not None and not user.may(name, write=False):
            found: list[tuple[str, Any]] = []
        elif what == "stats":
            found = stats_of(collection, name)
        else:
            queue = collection.queues.get(name)
            found = [] if queue is None else [*queue_settings(queue.config)]
        yield memcache.dump(name, found) if found else None


def _set_status(context: ServerContext, connection: Connection, name: str) -> bytes:
    try:
        context.status.set(Status.parse(name))
    except ValueError as error:
        connection.closing = True  # as in Kestrel
        return memcache.client_error(str(error))
    except StatusNotSaved as error:
        return memcache.server_error(str(error))
    return END
