"""Parsers of the values of options and arguments; an error names the one that is wrong."""

from collections.abc import Callable
from typing import Any, TypeVar

import typer

from kestrelmq.units import parse_duration, parse_size, parse_time

T = TypeVar("T")


def duration(value: float | str) -> float:
    """Parse a duration; return it in seconds."""
    return _parsed(parse_duration, value)


def size(value: int | str) -> int:
    """Parse a size; return it in bytes."""
    return _parsed(parse_size, value)


def time(value: str) -> int:
    """Parse a time; return it in milliseconds since the epoch."""
    return _parsed(parse_time, value)


def wrong(option: str, reason: object) -> typer.BadParameter:
    """Return the error for an option whose value is wrong, where only the command can tell."""
    return typer.BadParameter(str(reason), param_hint=f"'{option}'")


def _parsed(parse: Callable[[Any], T], value: object) -> T:
    """Parse the value of an option.

    Raises:
        typer.BadParameter: it is wrong. An option that has the parser is named in the message.
    """
    try:
        return parse(value)
    except ValueError as error:
        raise typer.BadParameter(f"{value!r}: {error}") from error
