"""The client: `Client` blocks, `AsyncClient` is for asyncio; both carry out the plans of `plans`.

Events behind an operation, such as that a server is set aside, are logged to `kestrelmq.client`.
Without a logging configuration they are not printed.
"""

import logging

from kestrelmq.client.aio import AsyncClient, AsyncReservedItem
from kestrelmq.client.blocking import Client, ReservedItem
from kestrelmq.client.commands import (
    BrowsedItem,
    BrowsedPage,
    ConnectedClient,
    DeadLetter,
    Moved,
    ReadsOwner,
    ReservedCount,
    ReservedRead,
)
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.statistics import QueueStats

__all__ = [
    "AsyncClient",
    "AsyncReservedItem",
    "BrowsedItem",
    "BrowsedPage",
    "Client",
    "ClientOptions",
    "ConnectedClient",
    "DeadLetter",
    "Moved",
    "QueueStats",
    "ReadsOwner",
    "ReservedCount",
    "ReservedItem",
    "ReservedRead",
]

logging.getLogger(__name__).addHandler(logging.NullHandler())
