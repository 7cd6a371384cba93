"""Empty containers that all queues share until they put something into theirs.

There may be a hundred thousand queues, and most never need most of their containers. Code that puts
something in takes a container of its own first: `self.done = own(self.done)`.
"""

from collections import OrderedDict
from typing import Any, Final, TypeVar

Key = TypeVar("Key")
Entry = TypeVar("Entry")

NOTHING: Final[dict[Any, Any]] = {}
"""An empty dict that nobody changes."""
NOBODY: Final[OrderedDict[Any, Any]] = OrderedDict()
"""The same, for entries that leave in the order in which they came."""


def own(entries: dict[Key, Entry]) -> dict[Key, Entry]:
    """Return `entries`, or a new dict instead of `NOTHING`."""
    return {} if entries is NOTHING else entries


def own_line(entries: OrderedDict[Key, Entry]) -> OrderedDict[Key, Entry]:
    """Return `entries`, or a new dict instead of `NOBODY`."""
    return OrderedDict() if entries is NOBODY else entries
