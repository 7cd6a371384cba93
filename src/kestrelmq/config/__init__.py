"""Configuration: model (one documented field per setting), loading, rendering."""

from kestrelmq.config.loading import (
    apply_overrides,
    changed_globals,
    config_from_toml,
    config_warnings,
    load_config,
)
from kestrelmq.config.model import (
    LISTENERS,
    RELOADED,
    AliasConfig,
    QueueConfig,
    ServerConfig,
    ZooKeeperConfig,
    effective,
    secrets,
)
from kestrelmq.config.rendering import (
    config_toml,
    queue_settings,
    queues_toml,
    written_default,
)

__all__ = [
    "LISTENERS",
    "RELOADED",
    "AliasConfig",
    "QueueConfig",
    "ServerConfig",
    "ZooKeeperConfig",
    "apply_overrides",
    "changed_globals",
    "config_from_toml",
    "config_toml",
    "config_warnings",
    "effective",
    "load_config",
    "queue_settings",
    "queues_toml",
    "secrets",
    "written_default",
]
