"""Reading configuration files into a `ServerConfig`.

All problems are reported at once, each with its key, what was found, and what is allowed.
"""

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kestrelmq.config.model import LISTEN_PORTS, RELOADED, ServerConfig
from kestrelmq.config.problems import problem_lines
from kestrelmq.config.toml import toml_key
from kestrelmq.errors import ConfigError


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
    config = config_from_toml(text, str(path))
    for name in ("status_file", "log_file"):
        file: Path | None = getattr(config, name)
        if file is not None and os.path.realpath(file) == os.path.realpath(path):
            raise ConfigError(f"{path}: {name}: {file} is this configuration file")
    return config


def config_from_toml(text: str, source: str) -> ServerConfig:
    """Return the configuration that `text` holds; errors call it `source`.

    Raises:
        ConfigError: it is not TOML, or holds settings that cannot be used.
    """
    try:
        settings = tomllib.loads(text)
        return validated_config(settings, source)
    except ConfigError:
        raise
    except RecursionError:
        raise ConfigError(f"{source}: tables or lists are nested too deeply") from None
    except ValueError as error:  # also for TOML that Python does not take, such as long numbers
        raise ConfigError(f"{source}: not TOML: {error}") from None


def apply_overrides(config: ServerConfig, overrides: Mapping[str, Any]) -> ServerConfig:
    """Return `config` with the settings in `overrides` replaced; None leaves a setting as it is.

    They are from the command line. A port may be text: a number, or "none".

    Raises:
        ConfigError: the settings cannot be used together.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    for name in given.keys() & LISTEN_PORTS.values():
        if isinstance(given[name], str) and given[name].isdecimal():
            given[name] = int(given[name])
    kept = {name: getattr(config, name) for name in config.model_fields_set}
    return validated_config(kept | given, "command line")


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
        lines = problem_lines(error, ServerConfig) + _conflicts(settings, error)
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
        return problem_lines(conflicts, ServerConfig)
    return []
