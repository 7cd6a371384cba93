"""Configuration files to `ServerConfig`, with everything that is wrong reported at once."""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kestrelmq.config.model import LISTENERS, ServerConfig
from kestrelmq.config.problems import dotted, problem_lines
from kestrelmq.errors import ConfigError

RELOADED = frozenset({"default", "queues", "aliases"})
"""What a reload changes; every other setting needs a restart."""


def load_config(path: Path | str) -> ServerConfig:
    """Read the configuration file at `path`.

    Raises:
        ConfigError: it cannot be read, is no TOML, or holds settings that cannot be used.
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
        ConfigError: it is no TOML, or holds settings that cannot be used.
    """
    try:
        settings = tomllib.loads(text)
        return _validated(settings, source)
    except RecursionError:
        raise ConfigError(f"{source}: tables or lists are nested too deeply") from None
    except ValueError as error:  # also for what TOML allows and Python does not, as long numbers
        raise ConfigError(f"{source}: not TOML: {error}") from None


def apply_overrides(
    config: ServerConfig, overrides: Mapping[str, Any], source: str = "command line"
) -> ServerConfig:
    """Return `config` with the settings in `overrides` replaced; those that are None stay.

    A port may be text, as a flag gives it: a number, or "none".

    Raises:
        ConfigError: the settings cannot be used together.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name.endswith("_port") and isinstance(value, str) and value.isdecimal():
            given[name] = int(value)
    kept = {name: getattr(config, name) for name in config.model_fields_set}
    return _validated(kept | given, source)


def changed_globals(old: ServerConfig, new: ServerConfig) -> list[str]:
    """Return the settings that differ and that a reload does not change."""
    return [
        name
        for name in ServerConfig.model_fields
        if name not in RELOADED and getattr(old, name) != getattr(new, name)
    ]


def config_warnings(config: ServerConfig, queues: Collection[str] = ()) -> list[str]:
    """Return what is allowed but is probably not meant, where `queues` are there already."""
    return [
        f"{dotted(('aliases', name))} masks the queue of that name"
        for name in config.aliases
        if name in config.queues or name in queues
    ]


def _validated(settings: Mapping[str, Any], source: str) -> ServerConfig:
    try:
        return ServerConfig.model_validate(settings)
    except ValidationError as error:
        lines = problem_lines(error, ServerConfig) + _conflicts(settings, error)
        raise ConfigError("\n".join(f"{source}: {line}" for line in lines)) from None


def _conflicts(settings: Mapping[str, Any], error: ValidationError) -> list[str]:
    """Return the broken rules over several settings, which are not looked at while one is wrong."""
    wrong = {str(detail["loc"][0]) for detail in error.errors() if detail["loc"]}
    if not wrong:
        return []  # `error` is about such rules already
    remaining = {name: value for name, value in settings.items() if name not in wrong}
    # A port that is wrong must not collide as its default either.
    remaining |= dict.fromkeys(wrong.intersection(LISTENERS))
    try:
        ServerConfig.model_validate(remaining)
    except ValidationError as conflicts:
        return problem_lines(conflicts, ServerConfig)
    return []
