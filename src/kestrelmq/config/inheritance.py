"""Which settings are in force for a queue.

A fanout child takes what it sets itself, then what its master sets, then `[default]`, then the
built-in values. This is the inheritance of Kestrel 2.3.4 and later. `fanout_only` alone is never
inherited by a child: it says that the items are the children's.
"""

from typing import Any

from kestrelmq.config.model import QueueConfig, ServerConfig
from kestrelmq.names import master_of


def effective(config: ServerConfig, queue_name: str) -> QueueConfig:
    """Return the settings in force for `queue_name`; pure, so callers may remember the answer."""
    merged = _explicit(config.default)
    master = master_of(queue_name)
    if master is not None:
        merged |= _explicit(config.queues.get(master))
        merged.pop("fanout_only", None)
    merged |= _explicit(config.queues.get(queue_name))
    # Every value was validated with its layer.
    return QueueConfig.model_construct(**merged)


def _explicit(layer: QueueConfig | None) -> dict[str, Any]:
    """Return the settings that a layer sets itself."""
    if layer is None:
        return {}
    return {name: getattr(layer, name) for name in layer.model_fields_set}
