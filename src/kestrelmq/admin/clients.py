"""API operations on the clients that are connected: list them, disconnect one."""

from dataclasses import asdict
from itertools import islice
from typing import Final

from kestrelmq.admin.calls import Answer, Call
from kestrelmq.admin.errors import ApiError
from kestrelmq.admin.models import ClientEntry, ClientPage, PageQuery
from kestrelmq.admin.slices import slices
from kestrelmq.server.clients import connected_clients, kill_client

_SLICE: Final = 50


async def list_clients(call: Call) -> Answer:
    """List the connected clients, in the order in which they connected.

    Clients of the admin listener are not among them.
    """
    query = call.query(PageQuery)
    context = call.admin.context
    total = len(context.connections)
    page = islice(connected_clients(context, query.offset), query.limit)
    entries: list[ClientEntry] = []
    async for clients in slices(page, _SLICE):
        entries += [ClientEntry(**asdict(client)) for client in clients]
    return Answer(ClientPage(total=total, offset=query.offset, clients=entries))


async def disconnect_client(call: Call) -> Answer:
    """Disconnect a client; its open reads go back to their queues."""
    number = call.request.match_info["id"]
    if not kill_client(call.admin.context, int(number)):
        raise ApiError(404, "client_not_found", f"there is no client {number}")
    return Answer(None, status=204)
