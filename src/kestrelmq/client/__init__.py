"""The client: `Client` blocks, `AsyncClient` is for asyncio; both do what `plans` says.

What happens behind an operation, such as a server that is set aside, is logged to
`kestrelmq.client`; without a logging configuration it is not printed.
"""

import logging

from kestrelmq.client.aio import AsyncClient
from kestrelmq.client.blocking import Client
from kestrelmq.client.options import ClientOptions
from kestrelmq.client.statistics import QueueStats

__all__ = ["AsyncClient", "Client", "ClientOptions", "QueueStats"]

logging.getLogger(__name__).addHandler(logging.NullHandler())
