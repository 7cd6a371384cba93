"""Requests of the memcache protocol about the server or whole queues."""

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from kestrelmq.config import queue_settings
from kestrelmq.engine.paused import Paused
from kestrelmq.engine.stats import sorted_names, stats_of
from kestrelmq.errors import KestrelError, QueueUnavailable
from kestrelmq.journal.records import ADDX_HEADER, item_add_time, item_expiry
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import (
    DELETED,
    END,
    FLUSHED_ALL,
    KILLED,
    NOT_FOUND,
    OK,
    RELOADED,
    BareCommand,
    Browse,
    Declare,
    Delete,
    Dump,
    Flush,
    FlushAll,
    FlushExpired,
    KillClient,
    Move,
    Pause,
    Request,
    Stats,
    StatusCommand,
)
from kestrelmq.protocol.stats import SERVER_STATS
from kestrelmq.server import changes
from kestrelmq.server.browsing import MAX_COUNT, Page, Search
from kestrelmq.server.clients import ConnectedClient, connected_clients, kill_client
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import ServerContext
from kestrelmq.server.long_reply import Pieces
from kestrelmq.server.memcache_reads import error_reply
from kestrelmq.server.moving import Moved, copy, move
from kestrelmq.server.server_actions import Action, RemoteAdminRefused
from kestrelmq.server.status import Status, StatusNotSaved
from kestrelmq.version import VERSION

_SHOWN: Final = {stat.name for stat in SERVER_STATS if stat.shown == "everywhere"}
Result = TypeVar("Result")
Change = Delete | Flush | FlushAll | FlushExpired


def serve_admin(context: ServerContext, connection: Connection, request: Request) -> bytes:
    """Serve `request`; return the reply, or b"" when it has none or is answered later.

    Raises:
        Forbidden: the server does not allow it at present; the connection must close.
    """
    try:
        action = _server_action(request)
        if action is not None:
            context.actions.check(action, "memcache", connection.peer)
        if isinstance(request, Change):
            _start_change(context, connection, request)
            return b""
        return _serve_server(context, connection, request)
    except RemoteAdminRefused as error:
        return memcache.client_error(str(error))


def _server_action(request: Request) -> Action | None:
    match request:
        case StatusCommand(str()):
            return "status"
        case BareCommand("shutdown"):
            return "shutdown"
        case BareCommand("reload"):
            return "reload"
        case KillClient():
            return "client kill"
    return None


def _serve_server(context: ServerContext, connection: Connection, request: Request) -> bytes:
    match request:
        case BareCommand("reload"):
            _answer_later(connection, changes.reload(context), lambda _: RELOADED)
            return b""
        case Move():
            _start_move(context, connection, request)
            return b""
        case Browse():
            _answer_later(connection, _browse(context, request), _page)
            return b""
        case Declare():
            context.check_writable()
            declaring = changes.declare(context, request.queue, _declared(request))
            _answer_later(connection, declaring, lambda _: END)
            return b""
        case Pause(name, operations, resume):
            pausing = changes.pause(context, name, Paused.parse(operations), resume=resume)
            _answer_later(connection, pausing, lambda found: END if found else NOT_FOUND)
            return b""
        case StatusCommand(new):
            return _status(context, new)
        case KillClient(number):
            return KILLED if kill_client(context, number) else NOT_FOUND
        case BareCommand("version"):
            return b"VERSION " + VERSION.encode() + b"\r\n"
        case BareCommand("shutdown"):
            context.shutdown()
            return b""
        case _:
            raise AssertionError(f"{request} is served elsewhere")


def _start_move(context: ServerContext, connection: Connection, request: Move) -> None:
    word, name, target = b"MOVED", request.queue, request.target
    if request.copies and target is not None:
        word = b"COPIED"
        moving = copy(context, name, target, request.count)
    else:
        moving = move(context, name, target, request.count)

    def reply(moved: Moved | None) -> bytes:
        if moved is None:
            return NOT_FOUND
        return word + b" " + memcache.line(f"{moved.count} {moved.stopped or ''}")

    _answer_later(connection, moving, reply)


async def _browse(context: ServerContext, request: Browse) -> Page | None:
    """Return the items that are asked for; None if there is no such queue."""
    context.check_readable()
    context.check_client(request.queue, write=False)
    queue = context.collection.queues.get(request.queue)
    if queue is None:
        context.collection.check_usable(request.queue)
        return None
    search = Search(request.search, request.is_pattern) if request.search else None
    return await context.browser.page(queue, request.offset, min(request.count, MAX_COUNT), search)


def _page(page: Page | None) -> bytes:
    """Return the reply to `browse`."""
    if page is None:
        return NOT_FOUND
    lines = [
        memcache.browsed(
            place,
            item_add_time(record),
            item_expiry(record),
            memoryview(record)[ADDX_HEADER:],
        )
        for place, record in page.items
    ]
    if page.next_offset is not None:
        lines.append(b"NEXT %d\r\n" % page.next_offset)
    return b"".join(lines) + END


def _declared(request: Declare) -> dict[str, object]:
    """Return the settings that a request declares, by their names in the configuration."""
    given: dict[str, object | None] = {
        "fanout_only": request.fanout_only or None,
        "keep_journal": request.journal,
        "max_queue_age": None if request.expires is None else request.expires / 1000,
        "max_age": None if request.max_age is None else request.max_age / 1000,
        "max_items": request.max_items,
    }
    return {name: value for name, value in given.items() if value is not None}


def _start_change(context: ServerContext, connection: Connection, request: Change) -> None:
    context.check_writable()
    match request:
        case Delete(name, noreply):
            deletion = changes.delete(context, name, connection)
            _answer_later(connection, deletion, lambda _: DELETED, noreply=noreply)
        case Flush(name, noreply):
            flush = changes.flush(context, name, connection)
            _answer_later(connection, flush, lambda _: END, noreply=noreply)
        case FlushAll(noreply):
            done = OK if context.config.memcache_dialect == "memcached" else FLUSHED_ALL
            flush_all = changes.flush_all(context, connection)
            _answer_later(connection, flush_all, lambda _: done, noreply=noreply)
        case FlushExpired(None):
            _answer_later(connection, changes.flush_expired(context), _count)
        case FlushExpired(str(name)):
            _answer_later(connection, changes.flush_expired(context, name), _count)


def _count(count: int) -> bytes:
    return memcache.line(str(count))


def _answer_later(
    connection: Connection,
    change: Coroutine[None, None, Result],
    reply: Callable[[Result], bytes],
    *,
    noreply: bool = False,
) -> None:
    def answer(result: Result) -> None:
        connection.push(b"" if noreply else reply(result))

    def refuse(error: KestrelError) -> None:
        connection.push(b"" if noreply else error_reply(error))

    changes.answer_later(connection, change, answer, refuse)


def listing(context: ServerContext, request: Stats | Dump | BareCommand) -> Pieces:
    """Return the pieces of the reply to `stats`, a dump or `clients`."""
    match request:
        case BareCommand():
            yield from map(_client, connected_clients(context))
        case Stats(None):
            yield from _all_stats(context)
        case Stats(str(name)):
            try:
                yield memcache.stats(_stats(context, name))
            except QueueUnavailable as error:
                yield memcache.server_error(str(error))
                return
        case Dump(what, names):
            yield from _dump(context, what, names)
    yield END


def _client(client: ConnectedClient) -> bytes:
    fields: list[tuple[str, object]] = [
        ("id", client.id),
        ("address", client.address),
        ("protocol", client.protocol),
        ("since", client.since),
        ("replies", client.replies),
        ("state", client.state),
    ]
    if client.queue is not None:
        fields.append(("queue", client.queue))
    # A queue name has no "/", so this is unambiguous.
    fields += (("open", f"{name}/{count}") for name, count in client.open_reads.items())
    return memcache.client(fields)


def _stats(context: ServerContext, name: str) -> list[tuple[str, Any]]:
    collection = context.collection
    if name not in collection.queues:
        collection.loading.check((name,))  # an empty reply would mean that there is no such queue
    return stats_of(collection, name)


def _all_stats(context: ServerContext) -> Pieces:
    collection = context.collection
    found = yield from context.server_stats()
    yield memcache.stats([(name, value) for name, value in found if name in _SHOWN])
    for name in (yield from sorted_names(collection)):
        yield memcache.stats(stats_of(collection, name), f"queue_{name}_")


def _dump(context: ServerContext, what: str, names: tuple[str, ...]) -> Pieces:
    collection = context.collection
    for name in names or (yield from sorted_names(collection)):
        if what == "stats":
            found = stats_of(collection, name)
        else:
            queue = collection.queues.get(name)
            found = [] if queue is None else [*queue_settings(queue.config)]
        yield memcache.dump(name, found) if found else None


def _status(context: ServerContext, new: str | None) -> bytes:
    if new is None:
        return memcache.line(context.status.status.value)
    try:
        context.status.set(Status.parse(new))
    except ValueError as error:
        return memcache.client_error(str(error))
    except StatusNotSaved as error:
        return memcache.server_error(str(error))
    return END
