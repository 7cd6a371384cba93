"""kestrelmq: the Kestrel message queue, rebuilt in Python.

The public API. Each name is imported when it is first used, so that the command starts quickly and
a program pays only for the parts it needs.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kestrelmq.version import VERSION

if TYPE_CHECKING:
    from kestrelmq.client import AsyncClient, Client, ClientOptions
    from kestrelmq.config import QueueConfig
    from kestrelmq.errors import (
        ClientError,
        ConfigError,
        ConnectionLost,
        DamagedJournal,
        InvalidQueueName,
        InvalidRequest,
        JournalError,
        KestrelError,
        NotSynced,
        OperationTimeout,
        ProtocolError,
        QueuePathLocked,
        QueueUnavailable,
        ServerRefused,
        ServerUnavailable,
    )
    from kestrelmq.library import AsyncPersistentQueue, Item, PersistentQueue, QueueCollection

__all__ = [
    "AsyncClient",
    "AsyncPersistentQueue",
    "Client",
    "ClientError",
    "ClientOptions",
    "ConfigError",
    "ConnectionLost",
    "DamagedJournal",
    "InvalidQueueName",
    "InvalidRequest",
    "Item",
    "JournalError",
    "KestrelError",
    "NotSynced",
    "OperationTimeout",
    "PersistentQueue",
    "ProtocolError",
    "QueueCollection",
    "QueueConfig",
    "QueuePathLocked",
    "QueueUnavailable",
    "ServerRefused",
    "ServerUnavailable",
    "__version__",
]

__version__ = VERSION

_HOMES: Final = {
    "AsyncClient": "kestrelmq.client",
    "AsyncPersistentQueue": "kestrelmq.library",
    "Client": "kestrelmq.client",
    "ClientOptions": "kestrelmq.client",
    "Item": "kestrelmq.library",
    "PersistentQueue": "kestrelmq.library",
    "QueueCollection": "kestrelmq.library",
    "QueueConfig": "kestrelmq.config",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "kestrelmq.errors")), name)


def __dir__() -> list[str]:
    return sorted(__all__)
