"""Reading configuration files into a `ServerConfig`.

All problems are reported at once, each with its key, what was found, and what is allowed.
"""

import difflib
import json
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kestrelmq.config.model import LISTEN_PORTS, RELOADED, ServerConfig, table_of
from kestrelmq.config.rendering import toml_key
from kestrelmq.config.values import value_kind_of
from kestrelmq.errors import ConfigError

_MOST_SHOWN: Final = 60

_ALLOWED: Final = {
    "string_type": "allowed: text in quotes",
    "dict_type": "allowed: a table",
    "mapping_type": "allowed: a table",
    "model_type": "allowed: a table",
    "too_short": "allowed: a list that is not empty",
}


def load_config(path: Path | str) -> ServerConfig:
    """Read the configuration file at `path`.

    Raises:
        ConfigError: it cannot be read, is not TOML, or holds settings that cannot be used.
    """
    try:
        text = Path(path).read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8: {error.reason} at byte {error.start}") from None
    return config_from_toml(text, str(path))


def config_from_toml(text: str, source: str) -> ServerConfig:
    """Return the configuration that `text` holds; errors call it `source`.

    Raises:
        ConfigError: it is not TOML, or holds settings that cannot be used.
    """
    try:
        settings = tomllib.loads(text)
        return validated_config(settings, source)
    except RecursionError:
        raise ConfigError(f"{source}: tables or lists are nested too deeply") from None
    except ValueError as error:  # also for TOML that Python does not take, such as long numbers
        raise ConfigError(f"{source}: not TOML: {error}") from None


def apply_overrides(
    config: ServerConfig, overrides: Mapping[str, Any], source: str = "command line"
) -> ServerConfig:
    """Return `config` with the settings in `overrides` replaced; None leaves a setting as it is.

    A port may be text, as on the command line: a number, or "none".

    Raises:
        ConfigError: the settings cannot be used together.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given.keys() & LISTEN_PORTS.values():
        if isinstance(given[name], str) and given[name].isdecimal():
            given[name] = int(given[name])
    kept = {name: getattr(config, name) for name in config.model_fields_set}
    return validated_config(kept | given, source)


def changed_globals(old: ServerConfig, new: ServerConfig) -> list[str]:
    """Return the names of the settings that differ and that a reload does not change."""
    return [
        name
        for name in ServerConfig.model_fields
        if name not in RELOADED and getattr(old, name) != getattr(new, name)
    ]


def config_warnings(config: ServerConfig, queues: Collection[str] = ()) -> list[str]:
    """Return warnings about settings that are valid but probably a mistake.

    `queues` are the queues that exist already.
    """
    return [
        f"{toml_key(('aliases', name))} masks the queue of that name"
        for name in config.aliases
        if name in config.queues or name in queues
    ]


def validated_config(settings: Mapping[str, Any], source: str) -> ServerConfig:
    """Return the configuration of these settings; errors call them `source`.

    Raises:
        ConfigError: they cannot be used.
    """
    try:
        return ServerConfig.model_validate(settings)
    except ValidationError as error:
        lines = _problem_lines(error, ServerConfig) + _conflicts(settings, error)
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def _conflicts(settings: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return the problems between settings, which are not checked while a single one is wrong."""
    wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
    if not wrong:
        return []  # `error` already reports problems of this kind
    remaining = {name: value for name, value in settings.items() if name not in wrong}
    # The default of a wrong port must not be reported as a conflict.
    remaining |= dict.fromkeys(wrong.intersection(LISTEN_PORTS.values()))
    try:
        ServerConfig.model_validate(remaining)
    except ValidationError as conflicts:
        return _problem_lines(conflicts, ServerConfig)
    return []


def _problem_lines(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return one line for each problem."""
    return [_line(detail, model) for detail in error.errors(include_url=False)]


def _line(detail: ErrorDetails, model: type[BaseModel]) -> str:
    # pydantic ends the path of a bad mapping key with "[key]".
    path = [str(step) for step in detail["loc"] if step != "[key]"]
    key = toml_key(path)
    match detail["type"]:
        case "extra_forbidden":
            return f"{key}: unknown setting{_suggestion(path, model)}"
        case "missing":
            return f"{key}: missing"
        case "value_error":
            reason = str(detail["ctx"]["error"])
        case kind:
            reason = _ALLOWED.get(kind, detail["msg"])
    if detail["loc"] and detail["loc"][-1] == "[key]":
        return f"{key}: {reason}"
    found = detail["input"]
    if isinstance(found, Mapping | BaseModel) and detail["type"] == "value_error":
        # The problem is between several settings: the reason names them.
        return f"{key}: {reason}" if key else reason
    shown = "a value that is not shown" if _is_secret(path, model) else _shown(found)
    return f"{key}: found {shown}; {reason}"


def _shown(found: Any) -> str:
    if isinstance(found, bool):
        return str(found).lower()
    text = json.dumps(found, ensure_ascii=False, default=str)
    return text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "..."


def _suggestion(path: Sequence[str], model: type[BaseModel]) -> str:
    known = _settings_at(path[:-1], model)
    close = difflib.get_close_matches(path[-1].lower().replace("-", "_"), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; allowed: {', '.join(known)}"


def _settings_at(path: Sequence[str], model: type[BaseModel]) -> list[str]:
    """Return the names of the settings that the table at `path` may hold."""
    for field in _fields_on(path, model):
        model = table_of(field)
    return list(model.model_fields)


def _is_secret(path: Sequence[str], model: type[BaseModel]) -> bool:
    kinds_on = map(value_kind_of, _fields_on(path, model))
    return any(kind is not None and kind.secret for kind in kinds_on)


def _fields_on(path: Sequence[str], model: type[BaseModel]) -> Iterator[FieldInfo]:
    """Yield the table or setting at each step of `path`."""
    for step in path:
        field = model.model_fields.get(step)
        # A step that is not a field is the NAME of [queues.NAME], or an index in a list.
        if field is not None:
            yield field
            if value_kind_of(field) is None:
                model = table_of(field)
