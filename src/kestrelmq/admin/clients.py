"""API operations on the clients that are connected: list them, disconnect one."""

from dataclasses import asdict
from itertools import islice
from typing import Final

from kestrelmq.admin.calls import Call, operation
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.models import ClientEntry, ClientPage, PageQuery
from kestrelmq.admin.slices import slices
from kestrelmq.protocol.rights import Right
from kestrelmq.server.clients import connected_clients, kill_client

_SLICE: Final = 50


@operation("GET", "/clients", "clients", Right.ADMIN)
async def list_clients(call: Call, query: PageQuery) -> ClientPage:
    """List the connected clients, in the order in which they connected.

    Clients of the admin listener are not among them.
    """
    context = call.admin.context
    total = len(context.connections)
    page = islice(connected_clients(context, query.offset), query.limit)
    entries: list[ClientEntry] = []
    async for clients in slices(page, _SLICE):
        entries += [ClientEntry(**asdict(client)) for client in clients]
    return ClientPage(total=total, offset=query.offset, clients=entries)


@operation(
    "DELETE",
    "/clients/{id}",
    "clients",
    Right.ADMIN,
    failures=(404,),
    action="client kill",
)
async def disconnect_client(call: Call) -> None:
    """Disconnect a client; its open reads go back to their queues."""
    number = call.request.match_info["id"]
    if not kill_client(call.admin.context, int(number)):
        raise ApiError(404, "client_not_found", f"there is no client {number}")
