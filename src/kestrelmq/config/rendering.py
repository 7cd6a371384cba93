"""Writing settings as TOML that loads as the same settings again."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from kestrelmq.config.model import QueueConfig, ServerConfig, effective_settings, value_kinds
from kestrelmq.config.toml import toml_key, toml_value
from kestrelmq.config.values import ValueKind


def config_toml(config: ServerConfig) -> str:
    """Return the whole configuration as TOML: every setting except secrets."""
    lines = [*_pairs(ServerConfig, dict(config) | {"status_file": config.status_path})]
    if config.zookeeper is not None:
        lines += _table(("zookeeper",), config.zookeeper)
    if config.tls is not None:
        lines += _table(("tls",), config.tls)
    lines += _table(("default",), config.default)
    for name in config.queues:
        lines += _table(("queues", name), effective_settings(config, name))
    for name, alias in config.aliases.items():
        lines += _table(("aliases", name), alias)
    for name, user in config.users.items():
        lines += _table(("users", name), user)
    return "\n".join(lines) + "\n"


def queues_toml(config: ServerConfig, names: Iterable[str]) -> str:
    """Return the settings in force for the queues `names`, as TOML."""
    lines = [
        line
        for name in names
        for line in _table(("queues", name), effective_settings(config, name))
    ]
    return "\n".join(lines[1:]) + "\n"


def queue_settings(config: QueueConfig) -> list[tuple[str, str]]:
    """Return each setting in force and its value, without quotes."""
    found = value_kinds(QueueConfig)
    return [(name, value_in_toml(found[name], value).strip('"')) for name, value in config]


def value_in_toml(kind: ValueKind, value: Any) -> str:
    """Return a value in TOML."""
    return toml_value(kind.none if value is None else kind.write(value))


def default_in_toml(model: type[BaseModel], name: str) -> str:
    """Return a setting's default in TOML; empty when it has none or it depends on the user."""
    field = model.model_fields[name]
    if field.is_required() or field.default_factory is not None:
        return ""
    return value_in_toml(value_kinds(model)[name], field.default)


def _table(path: tuple[str, ...], settings: BaseModel) -> list[str]:
    # Iterating a model yields every field, set or not.
    return ["", f"[{toml_key(path)}]", *_pairs(type(settings), dict(settings))]


def _pairs(model: type[BaseModel], values: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in value_kinds(model).items():
        value = values[name]
        if not kind.secret:
            yield f"{name} = {value_in_toml(kind, value)}"
        elif value:
            yield f"# {name} {'are' if isinstance(value, tuple) else 'is'} set, and not shown"
        elif value is not None:
            yield f"{name} = {toml_value(value)}"
