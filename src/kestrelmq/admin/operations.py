"""The table of the API's operations, and their routes."""

from typing import Final

from aiohttp import web

from kestrelmq.admin import clients, items, queues, reserving, serverwide, transfers
from kestrelmq.admin.bodies import BodyReader
from kestrelmq.admin.calls import AdminContext, ApiOperation, Call, to_response
from kestrelmq.admin.errors import Handler
from kestrelmq.admin.guard import GUARDED, SERVER_ACTION, TRAFFIC
from kestrelmq.admin.models import (
    ClientPage,
    ConfigAnswer,
    Created,
    Extended,
    Extending,
    ExtendingOwner,
    Finished,
    Finishing,
    Flushed,
    HistoryAnswer,
    HistoryQuery,
    Imported,
    ListQuery,
    MovedAnswer,
    NewItem,
    NewPlace,
    NewQueue,
    NewStatus,
    OpenQuery,
    OpenReadsAnswer,
    Operations,
    OwnerPage,
    OwnersQuery,
    PageQuery,
    PausedAnswer,
    PeekAnswer,
    PeekQuery,
    QueueDetail,
    QueuePage,
    Redrive,
    Released,
    Releasing,
    ReleasingOwner,
    Reloaded,
    Requeue,
    Requeued,
    ReservedAnswer,
    Reserving,
    Retired,
    Retiring,
    ServerAnswer,
    StatusAnswer,
    Stored,
)

PREFIX: Final = "/api/v1"
_ONE: Final = "/queues/{name}"
_PATTERNS: Final = {"{name}": "{name:[^/]+}", "{id}": "{id:[0-9]{1,18}}"}
"""Of the parts of a path; a queue name may contain braces, which `{name}` does not match."""

OPERATIONS: Final = (
    ApiOperation("GET", "/queues", queues.list_queues, QueuePage, "queues", query=ListQuery),
    ApiOperation(
        "POST",
        "/queues",
        queues.create_queue,
        Created,
        "queues",
        body=NewQueue,
        statuses=(200, 201),
        failures=(422, 503),
    ),
    ApiOperation("GET", _ONE, queues.show_queue, QueueDetail, "queues", failures=(404,)),
    ApiOperation(
        "DELETE",
        _ONE,
        queues.delete_queue,
        None,
        "queues",
        statuses=(204,),
        failures=(404, 503),
    ),
    ApiOperation(
        "GET",
        f"{_ONE}/history",
        queues.queue_history,
        HistoryAnswer,
        "queues",
        query=HistoryQuery,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST", f"{_ONE}/flush", queues.flush_queue, Flushed, "queues", failures=(404, 503)
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/pause",
        queues.pause_queue,
        PausedAnswer,
        "queues",
        body=Operations,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/resume",
        queues.resume_queue,
        PausedAnswer,
        "queues",
        body=Operations,
        failures=(404, 503),
    ),
    ApiOperation(
        "GET",
        f"{_ONE}/items",
        items.peek_items,
        PeekAnswer,
        "items",
        query=PeekQuery,
        failures=(404, 503),
        secret=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/items",
        items.put_item,
        Stored,
        "items",
        body=NewItem,
        statuses=(201,),
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "GET",
        f"{_ONE}/export",
        transfers.export_items,
        None,
        "items",
        failures=(404, 503),
        secret=True,
        sends_lines=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/import",
        transfers.import_items,
        Imported,
        "items",
        failures=(408, 409, 413, 415, 503),
        takes_lines=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/move",
        items.move_items,
        MovedAnswer,
        "items",
        body=NewPlace,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/copy",
        items.copy_items,
        MovedAnswer,
        "items",
        body=NewPlace,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/redrive",
        items.redrive,
        MovedAnswer,
        "items",
        body=Redrive,
        failures=(404, 503),
    ),
    ApiOperation(
        "GET",
        f"{_ONE}/open-reads",
        items.list_open_reads,
        OpenReadsAnswer,
        "open reads",
        query=OpenQuery,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/open-reads/requeue",
        items.requeue,
        Requeued,
        "open reads",
        body=Requeue,
        failures=(404, 503),
    ),
    ApiOperation(
        "POST",
        "/reserve",
        reserving.reserve_items,
        ReservedAnswer,
        "reserved reads",
        body=Reserving,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/finish",
        reserving.finish_reads,
        Finished,
        "reserved reads",
        body=Finishing,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/release",
        reserving.release_reads,
        Released,
        "reserved reads",
        body=Releasing,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/extend",
        reserving.extend_reads,
        Extended,
        "reserved reads",
        body=Extending,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "GET",
        "/owners",
        reserving.list_owners,
        OwnerPage,
        "reserved reads",
        query=OwnersQuery,
    ),
    ApiOperation(
        "POST",
        "/release-owner",
        reserving.release_owner,
        Released,
        "reserved reads",
        body=ReleasingOwner,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation(
        "POST",
        "/extend-owner",
        reserving.extend_owner,
        Extended,
        "reserved reads",
        body=ExtendingOwner,
        is_traffic=True,
    ),
    ApiOperation(
        "POST",
        f"{_ONE}/retire",
        reserving.retire_tags,
        Retired,
        "reserved reads",
        body=Retiring,
        failures=(409, 503),
        is_traffic=True,
    ),
    ApiOperation("GET", "/clients", clients.list_clients, ClientPage, "clients", query=PageQuery),
    ApiOperation(
        "DELETE",
        "/clients/{id}",
        clients.disconnect_client,
        None,
        "clients",
        statuses=(204,),
        failures=(404,),
        action="client kill",
    ),
    ApiOperation("GET", "/server", serverwide.show_server, ServerAnswer, "server"),
    ApiOperation(
        "GET", "/history", queues.server_history, HistoryAnswer, "server", query=HistoryQuery
    ),
    ApiOperation("GET", "/status", serverwide.show_status, StatusAnswer, "server"),
    ApiOperation(
        "PUT",
        "/status",
        serverwide.set_status,
        StatusAnswer,
        "server",
        body=NewStatus,
        failures=(503,),
        action="status",
    ),
    ApiOperation("GET", "/config", serverwide.show_config, ConfigAnswer, "server"),
    ApiOperation(
        "POST",
        "/reload",
        serverwide.reload,
        Reloaded,
        "server",
        failures=(422,),
        action="reload",
    ),
)


def add_operations(app: web.Application, admin: AdminContext) -> None:
    """Add a route for every operation to `app`."""
    bodies = BodyReader()
    for operation in OPERATIONS:
        path = PREFIX + operation.path
        for part, pattern in _PATTERNS.items():
            path = path.replace(part, pattern)
        serve = _handler(operation, admin, bodies)
        for method in ("GET", "HEAD") if operation.method == "GET" else (operation.method,):
            app.router.add_route(method, path, serve)


def _handler(operation: ApiOperation, admin: AdminContext, bodies: BodyReader) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        body = b"" if operation.body is None else await bodies.read(request)
        return to_response(await operation.serve(Call(admin, request, body, bodies)))

    setattr(serve, GUARDED, operation.secret)
    setattr(serve, SERVER_ACTION, operation.action)
    setattr(serve, TRAFFIC, operation.is_traffic)
    return serve
