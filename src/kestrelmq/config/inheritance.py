"""Which settings are in force for a queue.

A fanout child takes what it sets itself, then what its master sets, then `[default]`, then the
built-in values. This is the inheritance of Kestrel 2.3.4 and later.
"""

from typing import Any

from kestrelmq.config.model import QueueConfig, ServerConfig
from kestrelmq.names import master_of


def effective(config: ServerConfig, queue_name: str) -> QueueConfig:
    """Return the settings in force for `queue_name`; pure, so callers may remember the answer."""
    names = (master_of(queue_name), queue_name)
    configured = [
        config.queues[name] for name in names if name is not None and name in config.queues
    ]
    merged: dict[str, Any] = {}
    for layer in (config.default, *configured):
        merged |= {name: getattr(layer, name) for name in layer.model_fields_set}
    # Every value was validated with its layer.
    return QueueConfig.model_construct(**merged)
