"""The options given to a data source, and parsers for their values.

The options of a source are the fields of a dataclass, each made by `option`.

Spark passes options as text, with names in any case. Every error names the option, the value and
what is allowed: a parser raises `ValueError` with the end of the sentence "it must be ...", or a
`ConfigError` with the whole sentence if the value may have credentials.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, Final, TypeVar

from kestrelmq.errors import ConfigError
from kestrelmq.spark.storage.filesystems import JournalPath
from kestrelmq.spark.storage.locations import STORAGE_OPTION, located, public_value, storage_options
from kestrelmq.units import parse_duration, parse_size

# Options that Spark adds to some calls, or that are those of a streaming query.
_SPARKS_OWN: Final = frozenset(
    {"paths", "__partition_columns", "queryname", "checkpointlocation", "owner"}
)

_OPTION: Final = "option"

T = TypeVar("T")


def option(name: str, parse: Callable[[str], Any], default: Any = None) -> Any:
    """Return the field of a dataclass that the option `name` is, with its parser and default."""
    return field(default=default, metadata={_OPTION: (name, parse)})


def options_of(kind: type) -> dict[str, tuple[str, Callable[[str], Any], Any]]:
    """Return the name, the parser and the default of each field that is an option."""
    return {
        one.name: (*one.metadata[_OPTION], one.default)
        for one in fields(kind)
        if _OPTION in one.metadata
    }


def options_of_created(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that CREATE TABLE makes; None if this is something else.

    Then Spark gives the table's properties, such as `owner` and `comment`. Those that are options
    have twins called `option.NAME`; `path` may be the table's location.
    """
    properties = {name.lower(): value for name, value in given.items()}
    if "provider" not in properties:
        return None
    return {
        name: value
        for name, value in properties.items()
        if name == "path" or f"option.{name}" in properties
    }


class GivenOptions:
    """Options by name, in any case; an option that is not taken is unknown.

    Attributes:
        purpose: what they are for, for error messages.
    """

    def __init__(self, purpose: str, given: Mapping[str, str]) -> None:
        self.purpose = purpose
        given = given if (created := options_of_created(given)) is None else created
        self._given = {name.lower(): (name, value) for name, value in given.items()}
        self._known: list[str] = []

    def journals(self, allowed: str) -> JournalPath:
        """Return the required option `path`, of the file system or in a store."""
        self._known.append("path")
        _, value = self._given.get("path", ("path", ""))
        if not value and "paths" in self._given:
            raise ConfigError(f"option 'path' of {self.purpose}: give one path: it may be a glob")
        if not value:
            raise ConfigError(f"option 'path' of {self.purpose} is missing: it must be {allowed}")
        return located(value, self.storage())

    def storage(self) -> dict[str, str]:
        """Return the storage options, by their own names."""
        self._known.append(f"{STORAGE_OPTION}NAME")
        given = dict(self._given.values())
        self._given = {
            name: one for name, one in self._given.items() if not name.startswith(STORAGE_OPTION)
        }
        return storage_options(given)

    def take(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        """Return the parsed value of an option, or the default if it was not given."""
        self._known.append(name)
        if name.lower() not in self._given:
            return default
        _, value = self._given[name.lower()]
        try:
            return parse(value)
        except ConfigError:
            raise  # it names the option, and shows nothing that is secret
        except ValueError as error:
            raise ConfigError(
                f"option '{name}' of {self.purpose}: {value!r} is not allowed: it must be {error}"
            ) from None

    def of(self, kind: type) -> dict[str, Any]:
        """Return the fields of a dataclass that are options, whether they were given or not."""
        return {
            field: self.take(name, default, parse)
            for field, (name, parse, default) in options_of(kind).items()
        }

    def checked(self, options: T) -> T:
        """Return `options` after checking that every given option was taken."""
        known = {name.lower() for name in self._known} | _SPARKS_OWN
        for name, (written, value) in self._given.items():
            if name not in known:
                shown = public_value(name, value)
                given = "" if shown is None else f" = {shown!r}"
                raise ConfigError(
                    f"option '{written}'{given} of {self.purpose} is unknown: "
                    f"allowed are {', '.join(sorted(set(self._known)))}"
                )
        return options


def one_of(allowed: tuple[str, ...]) -> Callable[[str], str]:
    """Return a parser that accepts one of these words, in any case."""

    def parse(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value.lower()

    return parse


def names(value: str) -> tuple[str, ...]:
    """Parse names that commas separate."""
    found = tuple(name.strip() for name in value.split(",")) if value else ()
    if not all(found):
        raise ValueError("names, separated by commas")
    return found


def a_size(value: str) -> int:
    """Parse a size; return it in bytes."""
    try:
        size = parse_size(int(value) if value.isdecimal() else value)
    except (ValueError, TypeError):
        size = 0
    if size < 1:
        raise ValueError("a size above 0, such as 67108864 or '64 MiB'")
    return size


def a_time(value: str) -> float:
    """Parse a duration; return it in seconds."""
    try:
        return parse_duration(float(value) if value.replace(".", "", 1).isdecimal() else value)
    except (ValueError, TypeError):
        raise ValueError("a time such as '1s' or '500ms'") from None


def a_whole_number(most: int) -> Callable[[str], int]:
    """Return a parser that accepts a whole number from 1 to `most`."""

    def parse(value: str) -> int:
        if not value.isdecimal() or not 1 <= int(value) <= most:
            raise ValueError(f"a whole number from 1 to {most}")
        return int(value)

    return parse
