"""Configuration: model (one documented field per setting), loading, rendering."""

from kestrelmq.config.loading import (
    apply_overrides,
    changed_globals,
    config_from_toml,
    config_warnings,
    load_config,
    validated_config,
)
from kestrelmq.config.model import (
    LISTEN_PATHS,
    LISTEN_PORTS,
    RELOADED,
    AliasConfig,
    QueueConfig,
    ServerConfig,
    TlsConfig,
    UserConfig,
    ZooKeeperConfig,
    effective_settings,
    secret_settings,
)
from kestrelmq.config.rendering import (
    config_toml,
    default_in_toml,
    queue_settings,
    queues_toml,
)

__all__ = [
    "LISTEN_PATHS",
    "LISTEN_PORTS",
    "RELOADED",
    "AliasConfig",
    "QueueConfig",
    "ServerConfig",
    "TlsConfig",
    "UserConfig",
    "ZooKeeperConfig",
    "apply_overrides",
    "changed_globals",
    "config_from_toml",
    "config_toml",
    "config_warnings",
    "default_in_toml",
    "effective_settings",
    "load_config",
    "queue_settings",
    "queues_toml",
    "secret_settings",
    "validated_config",
]
