"""Queues without a server: for threads (`PersistentQueue`), asyncio, and whole queue paths.

A queue path is the server's: the same files, so that a server can serve them later. While a server
has a path the library cannot use it, and the other way round.
"""

from kestrelmq.library.aio import AsyncPersistentQueue
from kestrelmq.library.blocking import BlockingQueue, PersistentQueue
from kestrelmq.library.collection import QueueCollection
from kestrelmq.library.items import Expiry, Item

__all__ = [
    "AsyncPersistentQueue",
    "BlockingQueue",
    "Expiry",
    "Item",
    "PersistentQueue",
    "QueueCollection",
]
