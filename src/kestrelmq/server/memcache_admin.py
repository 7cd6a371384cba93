"""Requests of the memcache protocol that are about the server or whole queues."""

from collections.abc import Callable
from functools import partial
from typing import Any

from kestrelmq.config import queue_settings
from kestrelmq.engine.stats import sorted_names, stats_of
from kestrelmq.errors import ConfigError, InvalidQueueName, JournalError, QueueUnavailable
from kestrelmq.protocol import memcache
from kestrelmq.protocol.memcache import (
    DELETED,
    END,
    FLUSHED_ALL,
    OK,
    RELOADED,
    Delete,
    Dump,
    Flush,
    FlushAll,
    FlushExpired,
    Request,
    Simple,
    Stats,
    Status,
)
from kestrelmq.server.context import Forbidden, ServerContext
from kestrelmq.server.long_reply import Pieces
from kestrelmq.server.replies import Queues
from kestrelmq.server.server_actions import Action, RemoteAdminRefused
from kestrelmq.server.status import Status as ServerStatusValue
from kestrelmq.server.status import StatusNotSaved
from kestrelmq.version import VERSION

Answer = tuple[bytes, Queues]


def serve_admin(context: ServerContext, request: Request, peer: str) -> Answer:
    """Serve `request` of `peer`; return the reply, and what must be written before it may leave.

    Raises:
        Forbidden: the server does not allow it now, which ends the connection.
    """
    try:
        action = _server_action(request)
        if action is not None:
            context.actions.check(action, "memcache", peer)
        return _serve(context, request)
    except Forbidden:
        raise
    except (JournalError, QueueUnavailable) as error:
        return memcache.server_error(str(error)), None
    except (InvalidQueueName, RemoteAdminRefused) as error:
        return memcache.client_error(str(error)), None


def _server_action(request: Request) -> Action | None:
    match request:
        case Status(str()):
            return "status"
        case Simple("shutdown"):
            return "shutdown"
        case Simple("reload"):
            return "reload"
    return None


def _serve(context: ServerContext, request: Request) -> Answer:  # one case a request
    collection = context.collection
    match request:
        case Delete(doomed, noreply):
            return _change(context, partial(collection.delete, doomed), DELETED, noreply=noreply)
        case Flush(flushed, noreply):
            return _change(context, partial(collection.flush, flushed), END, noreply=noreply)
        case FlushAll(noreply):
            done = OK if context.config.memcache_dialect == "memcached" else FLUSHED_ALL
            return _change(context, collection.flush_all, done, noreply=noreply)
        case FlushExpired(None):
            context.check_writable()
            count = collection.flush_all_expired()
            return memcache.line(str(count)), tuple(collection.queues.values())
        case FlushExpired(str(queue)):
            context.check_writable()
            count = collection.flush_expired(queue)
            return memcache.line(str(count)), collection.queues.get(queue)
        case Status(new):
            return _status(context, new), None
        case Simple("version"):
            return b"VERSION " + VERSION.encode() + b"\r\n", None
        case Simple("reload"):
            return _reload(context), None
        case Simple("shutdown"):
            context.shutdown()
            return b"", None
        case _:
            raise AssertionError(f"{request} is served elsewhere")


def _change(
    context: ServerContext, change: Callable[[], object], done: bytes, *, noreply: bool
) -> Answer:
    context.check_writable()
    try:
        change()
    except (JournalError, QueueUnavailable) as error:
        done = memcache.server_error(str(error))
    return b"" if noreply else done, None


def listing(context: ServerContext, request: Stats | Dump) -> Pieces:
    """Return the reply to a request about all queues, or some, in pieces."""
    match request:
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


def _stats(context: ServerContext, name: str) -> list[tuple[str, Any]]:
    collection = context.collection
    if name not in collection.queues:
        collection.loading.check((name,))  # nothing at all would say that there is no such queue
    return stats_of(collection, name)


def _all_stats(context: ServerContext) -> Pieces:
    collection = context.collection
    yield memcache.stats((yield from context.server_stats()))
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
        context.status.set(ServerStatusValue.parse(new))
    except ValueError as error:
        return memcache.client_error(str(error))
    except StatusNotSaved as error:
        return memcache.server_error(str(error))
    return END


def _reload(context: ServerContext) -> bytes:
    try:
        context.reload()
    except (ConfigError, OSError) as error:
        return memcache.server_error(str(error))
    return RELOADED
