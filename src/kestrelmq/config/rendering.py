"""Settings as TOML that loads again to the same settings."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, SecretStr

from kestrelmq.config.inheritance import effective
from kestrelmq.config.model import QueueConfig, ServerConfig
from kestrelmq.config.problems import dotted
from kestrelmq.units import format_duration, format_size

_SIZES: Final = frozenset(
    {
        "max_size",
        "max_item_size",
        "default_journal_size",
        "max_memory_size",
        "max_journal_size",
    }
)
# How None is written, where it is not "none".
_NONE_WORDS: Final = {
    "max_items": "unlimited",
    "max_size": "unlimited",
    "max_item_size": "unlimited",
    "max_age": "unlimited",
    "max_expire_sweep": "unlimited",
    "sync_journal": "never",
    "expire_to_queue": "",
    "allowed_client_ids_for_dequeue": "everyone",
    "allowed_client_ids_for_enqueue": "everyone",
    "client_initializer": "",
    "server_set_initializer": "",
    "log_file": "stderr",
}
_TABLES: Final = frozenset({"zookeeper", "default", "queues", "aliases"})


def config_toml(config: ServerConfig) -> str:
    """Return the whole configuration with every setting written out, credentials left out."""
    settings = {
        name: getattr(config, name) for name in ServerConfig.model_fields if name not in _TABLES
    }
    lines = [*_pairs(settings | {"status_file": config.status_path})]
    if config.zookeeper is not None:
        lines += _table(("zookeeper",), config.zookeeper)
    lines += _table(("default",), config.default)
    for name in config.queues:
        lines += _table(("queues", name), effective(config, name))
    for name, alias in config.aliases.items():
        lines += _table(("aliases", name), alias)
    return "\n".join(lines) + "\n"


def queues_toml(config: ServerConfig, names: Iterable[str]) -> str:
    """Return the settings in force for the queues `names`."""
    lines = [line for name in names for line in _table(("queues", name), effective(config, name))]
    return "\n".join(lines[1:]) + "\n"


def queue_settings(config: QueueConfig) -> list[tuple[str, str]]:
    """Return each setting in force and its value, without quotes."""
    return [(name, _value(name, value).strip('"')) for name, value in dict(config).items()]


def _table(path: tuple[str, ...], settings: BaseModel) -> list[str]:
    # Iterating a model yields every field, set or not.
    return ["", f"[{dotted(path)}]", *_pairs(dict(settings))]


def _pairs(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, SecretStr):
            yield f"# {name} is set, and not shown"
        elif name == "admin_tokens" and value:
            yield f"# {name} are set, and not shown"
        elif name != "credentials":
            yield f"{name} = {_value(name, value)}"


def _value(name: str, value: Any) -> str:
    match value:
        case None:
            return _text(_NONE_WORDS.get(name, "none"))
        case bool():
            return str(value).lower()
        case int():
            return _text(format_size(value)) if name in _SIZES else str(value)
        case float():
            return _text(format_duration(value))
        case tuple():
            return f"[{', '.join(map(_text, value))}]"
        case str() | Path():
            return _text(str(value))
    raise TypeError(f"{name} has no TOML form")


def _text(value: str) -> str:
    # JSON escapes what TOML wants escaped, but for the delete character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
