"""The table of the API's operations, and their routes."""

from typing import Any, Final

from aiohttp import web

from kestrelmq.admin import clients, items, queues, reserving, serverwide, signing_in, transfers
from kestrelmq.admin.bodies import BodyReader
from kestrelmq.admin.calls import AdminContext, ApiOperation, Call, json_response
from kestrelmq.admin.errors import Handler
from kestrelmq.admin.guard import marked

PREFIX: Final = "/api/v1"
_PATTERNS: Final = {"{name}": "{name:[^/]+}", "{id}": "{id:[0-9]{1,18}}"}
"""Of the parts of a path; a queue name may contain braces, which `{name}` does not match."""

OPERATIONS: Final = (
    queues.list_queues,
    queues.create_queue,
    queues.show_queue,
    queues.delete_queue,
    queues.queue_history,
    queues.flush_queue,
    queues.pause_queue,
    queues.resume_queue,
    items.peek_items,
    items.put_item,
    transfers.export_items,
    transfers.import_items,
    items.move_items,
    items.copy_items,
    items.redrive,
    items.list_open_reads,
    items.requeue,
    reserving.reserve_items,
    reserving.finish_reads,
    reserving.release_reads,
    reserving.extend_reads,
    reserving.list_owners,
    reserving.release_owner,
    reserving.extend_owner,
    reserving.retire_tags,
    clients.list_clients,
    clients.disconnect_client,
    serverwide.show_server,
    queues.server_history,
    serverwide.show_status,
    serverwide.set_status,
    serverwide.show_config,
    serverwide.reload,
    signing_in.show_session,
    signing_in.sign_in,
    signing_in.sign_out,
)


def add_operations(app: web.Application, admin: AdminContext) -> None:
    """Add a route for every operation to `app`."""
    bodies = BodyReader(admin.context.counters.buffered)
    for operation in OPERATIONS:
        path = PREFIX + operation.path
        for part, pattern in _PATTERNS.items():
            path = path.replace(part, pattern)
        serve = _handler(operation, admin, bodies)
        for method in ("GET", "HEAD") if operation.method == "GET" else (operation.method,):
            app.router.add_route(method, path, serve)


def _handler(operation: ApiOperation, admin: AdminContext, bodies: BodyReader) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        call = Call(admin, request, bodies)
        given: dict[str, Any] = {}
        if operation.query is not None:
            given["query"] = call.query(operation.query)
        if operation.body is not None:
            given["body"] = await call.body(operation.body)
        answer = await operation.serve(call, **given)
        if isinstance(answer, web.StreamResponse):
            return answer
        status = operation.statuses[0]
        return web.Response(status=status) if answer is None else json_response(answer, status)

    return marked(
        serve,
        operation.right,
        action=operation.action,
        reads_items=operation.secret,
        is_traffic=operation.is_traffic,
    )
