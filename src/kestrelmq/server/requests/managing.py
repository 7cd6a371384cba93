"""Looking at queues, changing them and moving their items: one place for every protocol.

A session parses such a request, and formats its answer. The admin API uses the functions below
this module, because its answers have more in them.
"""

from collections.abc import Coroutine
from typing import Final, TypeAlias

from kestrelmq.access.users import User
from kestrelmq.errors import InvalidQueueName, KestrelError
from kestrelmq.names import queue_name_error
from kestrelmq.protocol.managing import (
    Browse,
    Declare,
    Delete,
    Flush,
    FlushAll,
    FlushExpired,
    KillClient,
    Manage,
    Move,
    Pause,
    Reload,
    SetStatus,
    Shutdown,
)
from kestrelmq.queue.paused import Paused
from kestrelmq.queues.browsing import parse_place, place_text
from kestrelmq.queues.moving import Moved
from kestrelmq.queues.searching import Page, Search
from kestrelmq.server.browsing import MAX_COUNT
from kestrelmq.server.connection import Connection
from kestrelmq.server.context import NO_ROOM_TO_SEND, OutOfMemory, ServerContext
from kestrelmq.server.requests import changes, moving
from kestrelmq.server.server_actions import Action

ManageAnswer: TypeAlias = tuple[Page, str] | Moved | int | None
"""The answer to a request: a page and the place behind it; a number, or None, if it is done."""
_ACTIONS: Final[dict[type[object], Action]] = {
    SetStatus: "status",
    Reload: "reload",
    Shutdown: "shutdown",
    KillClient: "client kill",
}


class QueueNotFound(KestrelError):  # noqa: N818 # says what it is
    """There is no such queue."""

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no queue {name}")


def manage(
    context: ServerContext, request: Manage, by: Connection
) -> Coroutine[None, None, ManageAnswer]:
    """Return what serves the request of `by`; what takes items away or pauses a queue is logged.

    Raises:
        Forbidden: the server does not allow it at present. What is returned raises it, too, and
            QueueNotFound, and whatever else the server's functions for it raise.
    """
    if not isinstance(request, Browse | Move | Pause):
        context.check_writable()
    _log(context, request, by)
    match request:
        case Browse():
            return _browse(context, request)
        case Move():
            return _move(context, request, by.user)
        case Pause():
            return _pause(context, request)
        case Declare(name):
            return changes.declare(context, name, request.settings)
        case Flush(name):
            return changes.flush(context, name)
        case FlushAll():
            return changes.flush_all(context)
        case FlushExpired(expired):
            return changes.flush_expired(context, expired)
        case Delete(name):
            return changes.delete(context, name)


def _log(context: ServerContext, request: Manage, by: Connection) -> None:
    """Log a request of `by` that takes items away or pauses a queue."""
    name: str | None
    match request:
        case Move(name, copies=copies, redrives=redrives):
            action = "copy" if copies else "redrive" if redrives else "move"
        case Pause(name, operations, resume):
            action = f"{'resume' if resume else 'pause'} {operations}"
        case Flush(name):
            action = "flush"
        case FlushAll():
            action, name = "flush_all", None
        case Delete(name):
            action = "delete"
        case _:
            return
    context.actions.log_request(action, by.protocol, by.peer, name, user=by.user)


def check_action(context: ServerContext, request: object, by: Connection) -> None:
    """Log a request of `by` that acts on the whole server; ignore any other.

    Raises:
        RemoteAdminRefused: the client is on another machine, and that is not allowed.
    """
    action = _ACTIONS.get(type(request))
    if action is not None:
        context.actions.check(action, by.protocol, by.peer, user=by.user)


async def _browse(context: ServerContext, request: Browse) -> tuple[Page, str]:
    context.check_readable()
    if not context.status.has_memory:
        raise OutOfMemory(NO_ROOM_TO_SEND)
    queue = context.collection.existing(request.queue)
    if queue is None:
        raise QueueNotFound(request.queue)
    search = Search(request.search, request.is_pattern) if request.search else None
    start = parse_place(queue, request.place) if request.place else None
    page = await context.browser.page(
        queue, request.offset, min(request.count, MAX_COUNT), search, place=start
    )
    return page, place_text(queue, page.behind)


async def _move(context: ServerContext, request: Move, user: User | None) -> Moved:
    moved = await moving.move(context, request, user)
    if moved is None:
        raise QueueNotFound(request.queue)
    return moved


async def _pause(context: ServerContext, request: Pause) -> None:
    name, operations = request.queue, Paused.parse(request.operations)
    problem = queue_name_error(name)
    if problem is not None:
        raise InvalidQueueName(problem)
    if not await changes.pause(context, name, operations, resume=request.resume):
        raise QueueNotFound(name)
