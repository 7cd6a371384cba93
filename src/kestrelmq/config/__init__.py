"""Configuration: model (one documented field per setting), inheritance, loading, rendering."""

from kestrelmq.config.inheritance import effective
from kestrelmq.config.loading import (
    apply_overrides,
    changed_globals,
    config_from_toml,
    config_warnings,
    load_config,
)
from kestrelmq.config.model import AliasConfig, QueueConfig, ServerConfig, ZooKeeperConfig
from kestrelmq.config.rendering import config_toml, queue_settings, queues_toml

__all__ = [
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
]
