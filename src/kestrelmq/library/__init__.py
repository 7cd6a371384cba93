"""Queues without a server: for threads, for asyncio, and collections of all queues of a path.

The files in a queue path are the same as a server's, so a server can use them later. While a server
uses a path, the library cannot use it, and the other way round.
"""

from kestrelmq.library.aio import AsyncPersistentQueue
from kestrelmq.library.blocking import BlockingQueue, HeldItem, PersistentQueue
from kestrelmq.library.collection import QueueCollection
from kestrelmq.library.items import Expiry, FoundItem, FoundItems, Item
from kestrelmq.library.operations import AsyncHeldItem
from kestrelmq.queues.moving import Moved

__all__ = [
    "AsyncHeldItem",
    "AsyncPersistentQueue",
    "BlockingQueue",
    "Expiry",
    "FoundItem",
    "FoundItems",
    "HeldItem",
    "Item",
    "Moved",
    "PersistentQueue",
    "QueueCollection",
]
