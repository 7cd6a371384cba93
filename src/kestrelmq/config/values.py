"""The kinds of values that a setting can have: how each is read, checked and written.

Each kind converts the text that people write for it (`"16 MiB"`, `"30 minutes"`, `"none"`). Nothing
else is converted: `"5"` is not a number.
"""

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    SecretStr,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from kestrelmq.arguments import is_host, is_node_path
from kestrelmq.names import queue_name_error
from kestrelmq.passwords import PasswordHash, user_name_error
from kestrelmq.units import format_duration, format_size, parse_duration, parse_size

# Far above any sensible value, but small enough that sums in bytes or milliseconds fit 64 bits.
MAX_COUNT: Final = 2**62
MAX_DURATION: Final = 100 * 366 * 86_400.0
_MAX_FACTOR: Final = 1000

# The words for "no limit" and "not at all".
OFF_WORDS: Final = ("none", "unlimited")

MIN_TOKEN_LENGTH: Final = 16
"""Fewest characters of a token: a shorter one could be guessed."""
MAX_SOCKET_PATH: Final = 103
"""Most bytes in the path of a Unix socket: what every system allows, without the final zero."""
_MODE: Final = re.compile(r"0?[0-7]{3}")
_OWNER: Final = re.compile(r"[^\s:]+(:[^\s:]+)?|:[^\s:]+")
_TOKEN: Final = re.compile(rf"[!-~]{{{MIN_TOKEN_LENGTH},}}")


@dataclass(frozen=True, slots=True, eq=False)
class ValueKind:
    """A kind of value.

    Attributes:
        read: converts the value in the file, before its type is checked; its ValueError says what
            is allowed. When `read` is None, the value is one of the words of a `Literal`, in upper
            or lower case.
        write: converts a value other than None to one that TOML can hold.
        none: how None is written.
        schema: its JSON Schema; None for the schema of the type.
        secret: whether a value is never shown.
    """

    read: Callable[[Any], Any] | None = None
    write: Callable[[Any], Any] = lambda value: value
    none: str = "none"
    schema: Mapping[str, Any] | None = None
    secret: bool = False

    def or_none(self, *words: str, written: str = "none", meant: Any = None) -> "ValueKind":
        """Return the kind that also accepts None, and any of `words`, in any case, as `meant`."""
        convert = self.read
        if convert is None:
            raise ValueError("a choice has no None")

        def read(value: Any) -> Any:
            if value is None or (isinstance(value, str) and value.lower() in words):
                return meant
            try:
                return convert(value)
            except ValueError as error:
                also = ", ".join(f'"{word}"' for word in words if word)
                raise ValueError(f"{error}, or {also}" if also else str(error)) from None

        return replace(self, read=read, none=written)

    def described(self, description: str, *kinds: Mapping[str, Any]) -> "ValueKind":
        """Return the kind with a JSON Schema that allows any of `kinds`."""
        return replace(self, schema={"anyOf": list(kinds), "description": description})

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        read = self.read or _one_of(get_args(source))
        return core_schema.no_info_before_validator_function(read, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(schema) if self.schema is None else dict(self.schema)


def value_kind_of(field: FieldInfo) -> ValueKind | None:
    """Return the kind of a setting's value; None for a table of settings."""
    return next((part for part in field.metadata if isinstance(part, ValueKind)), None)


def _size(value: Any) -> int:
    try:
        size = parse_size(value)
    except TypeError as error:  # pydantic collects only ValueError
        raise ValueError(str(error)) from None
    if size > MAX_COUNT:
        raise ValueError("a size is at most 4096 PiB")
    return size


def _duration(value: Any) -> float:
    try:
        seconds = parse_duration(value)
    except TypeError as error:  # pydantic collects only ValueError
        raise ValueError(str(error)) from None
    if seconds > MAX_DURATION:
        raise ValueError("a duration is at most 100 years")
    return seconds


def _period(value: Any) -> float:
    seconds = _duration(value)
    if seconds == 0:
        raise ValueError("must be longer than 0")
    return seconds


def _whole_number(least: int, most: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        upper = "or more" if most == MAX_COUNT else f"to {most}"
        raise ValueError(f"allowed: a whole number, {least} {upper}")

    return read


def _factor(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and 1 <= value <= _MAX_FACTOR:
        return float(value)
    raise ValueError(f"allowed: a number, 1 to {_MAX_FACTOR}")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("allowed: true or false")


def _one_of(words: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if isinstance(value, str) and value.lower() in words:
            return value.lower()
        raise ValueError(f"allowed: {', '.join(words)}")

    return read


def _text(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise ValueError("allowed: text on one line, not empty")


def _host(value: Any) -> str:
    if isinstance(value, str) and is_host(value):
        return value
    raise ValueError("allowed: the name or the address of a host")


def _path(value: Any) -> Path:
    text = _text(str(value) if isinstance(value, Path) else value)
    # Only `~` itself stands for the home directory: `~~status` is a plain file name.
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _socket_path(value: Any) -> Path:
    path = _path(value)
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise ValueError(
            f"the path of a Unix socket has at most {MAX_SOCKET_PATH} bytes, not {size}"
        )
    return path


def _mode(value: Any) -> str:
    if isinstance(value, str) and _MODE.fullmatch(value):
        return value
    raise ValueError("allowed: octal permissions as text, such as '0660'")


def _owner(value: Any) -> str:
    if isinstance(value, str) and _OWNER.fullmatch(value):
        return value
    raise ValueError("allowed: 'USER', 'USER:GROUP' or ':GROUP'")


def _absolute_node(value: Any) -> str:
    if isinstance(value, str) and is_node_path(value):
        return value
    raise ValueError("allowed: a ZooKeeper path that starts with '/', without '.' and '..'")


def _credentials(value: Any) -> Any:
    if isinstance(value, str) and ":" in value.strip(":"):
        return SecretStr(value)
    if isinstance(value, SecretStr):
        return value
    raise ValueError("allowed: 'user:password'")


def _tokens(value: Any) -> tuple[SecretStr, ...]:
    if isinstance(value, list | tuple):
        tokens = [
            token.get_secret_value() if isinstance(token, SecretStr) else token for token in value
        ]
        if all(isinstance(token, str) and _TOKEN.fullmatch(token) for token in tokens):
            return tuple(map(SecretStr, tokens))
    raise ValueError(
        f"allowed: a list of texts of {MIN_TOKEN_LENGTH} or more characters, "
        "printable ASCII without blanks"
    )


def _password_hash(value: Any) -> SecretStr:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not isinstance(text, str):
        text = ""
    return SecretStr(str(PasswordHash.parse(text)))


def _user_name(name: str) -> str:
    problem = user_name_error(name)
    if problem is not None:
        raise ValueError(problem)
    return name


def _queue_pattern(pattern: str) -> str:
    problem = queue_name_error(pattern.replace("*", "x").replace("?", "x"))
    if problem is not None:
        raise ValueError(f"matches no queue: {problem}")
    return pattern


def _queue_name(name: str) -> str:
    problem = queue_name_error(name)
    if problem is not None:
        raise ValueError(problem)
    return name


def _function(value: Any) -> str:
    if isinstance(value, str):
        module, colon, function = value.partition(":")
        if colon and function.isidentifier() and all(map(str.isidentifier, module.split("."))):
            return value
    raise ValueError("allowed: 'module:function'")


def _list_of_text(value: Any) -> tuple[str, ...]:
    if isinstance(value, list | tuple) and all(isinstance(part, str) and part for part in value):
        return tuple(value)
    raise ValueError("allowed: a list of texts, such as ['one', 'two']")


def _zookeeper_host(text: str) -> str:
    from kazoo.hosts import collect_hosts  # noqa: PLC0415 # few configurations have any

    with suppress(ValueError):
        if all(is_host(host) for host, _ in collect_hosts(text)[0]):
            return text
    raise ValueError("allowed: 'host' or 'host:port'")


_TEXT_OR_NUMBER: Final = ({"type": "number", "minimum": 0}, {"type": "string"})
_TEXT_OR_INTEGER: Final = ({"type": "integer", "minimum": 0}, {"type": "string"})
_COUNT_OR_WORD: Final = {"enum": OFF_WORDS}

_SIZE: Final = ValueKind(_size, format_size)
_DURATION: Final = ValueKind(_duration, format_duration)
_PERIOD: Final = ValueKind(_period, format_duration)
_PATH: Final = ValueKind(_path, str)
_FUNCTION: Final = ValueKind(_function)
_LIST: Final = ValueKind(_list_of_text)
_FROM_0: Final = ValueKind(_whole_number(0, MAX_COUNT))
_FROM_1: Final = ValueKind(_whole_number(1, MAX_COUNT))

CHOICE: Final = ValueKind()
"""The kind of a setting whose value is one of the words of its `Literal`."""

Size = Annotated[int, _SIZE.described("Bytes, or text such as '16 MiB'.", *_TEXT_OR_INTEGER)]
SizeOrOff = Annotated[
    int,
    _SIZE.or_none("none", meant=0).described(
        "Bytes, or text such as '16 MiB'; 0 or 'none' is not at all.", *_TEXT_OR_INTEGER
    ),
]
SizeLimit = Annotated[
    int | None,
    _SIZE.or_none(*OFF_WORDS, written="unlimited").described(
        "Bytes, text such as '16 MiB', or 'unlimited'.", *_TEXT_OR_INTEGER
    ),
]
Duration = Annotated[
    float, _DURATION.described("Seconds, or text such as '100ms'.", *_TEXT_OR_NUMBER)
]
DurationOrOff = Annotated[
    float,
    _DURATION.or_none("none", meant=0.0).described(
        "Seconds, or text such as '100ms'; 0 or 'none' is not at all.", *_TEXT_OR_NUMBER
    ),
]
_OPTIONAL_DURATION: Final = _DURATION.or_none(*OFF_WORDS).described(
    "Seconds, text such as '1 minute', or 'none'.", *_TEXT_OR_NUMBER
)
OptionalDuration = Annotated[float | None, _OPTIONAL_DURATION]
DurationLimit = Annotated[float | None, replace(_OPTIONAL_DURATION, none="unlimited")]
Period = Annotated[
    float, _PERIOD.described("Seconds above 0, or text such as '10s'.", *_TEXT_OR_NUMBER)
]
OptionalPeriod = Annotated[
    float | None,
    _PERIOD.or_none(*OFF_WORDS).described(
        "Seconds above 0, text such as '1s', or 'none'.", *_TEXT_OR_NUMBER
    ),
]
SyncPeriod = Annotated[
    float | None,
    _DURATION.or_none("never", "none", written="never").described(
        "Seconds, text such as '100ms' or '0ms', or 'never'.", *_TEXT_OR_NUMBER
    ),
]
Factor = Annotated[
    float,
    ValueKind(_factor).described(
        f"1 to {_MAX_FACTOR}.", {"type": "number", "minimum": 1, "maximum": _MAX_FACTOR}
    ),
]
Count = Annotated[int, _FROM_1.described("1 or more.", {"type": "integer", "minimum": 1})]
CountLimit = Annotated[
    int | None,
    _FROM_0.or_none(*OFF_WORDS, written="unlimited").described(
        "0 or more, or 'unlimited'.", {"type": "integer", "minimum": 0}, _COUNT_OR_WORD
    ),
]
_OPTIONAL_POSITIVE: Final = _FROM_1.or_none(*OFF_WORDS).described(
    "1 or more, or 'unlimited'.", {"type": "integer", "minimum": 1}, _COUNT_OR_WORD
)
OptionalPositive = Annotated[int | None, _OPTIONAL_POSITIVE]
PositiveLimit = Annotated[int | None, replace(_OPTIONAL_POSITIVE, none="unlimited")]
PORT: Final = (
    ValueKind(_whole_number(0, 65_535))
    .or_none("none")
    .described(
        "0 picks a free port; 'none' turns the listener off.",
        {"type": "integer", "minimum": 0, "maximum": 65_535},
        {"const": "none"},
    )
)
Port = Annotated[int | None, PORT]
Flag = Annotated[bool, ValueKind(_flag)]
_HOST: Final = ValueKind(_host)
Host = Annotated[str, _HOST]
OPTIONAL_HOST: Final = _HOST.or_none("none")
"""The kind of a setting that holds the address of one listener."""
OptionalHost = Annotated[str | None, OPTIONAL_HOST]
FilePath = Annotated[Path, _PATH]
OptionalFilePath = Annotated[Path | None, _PATH.or_none("none")]
SOCKET_PATH: Final = ValueKind(_socket_path, str).or_none("none")
"""The kind of a setting that holds the path of a Unix socket to listen on."""
SocketPath = Annotated[Path | None, SOCKET_PATH]
Mode = Annotated[str, ValueKind(_mode)]
OptionalOwner = Annotated[str | None, ValueKind(_owner).or_none("", "none", written="")]
LogFile = Annotated[
    Path | None,
    _PATH.or_none("stderr", "none", written="stderr").described(
        "A path, or 'stderr'.", {"type": "string"}
    ),
]
QueueName = Annotated[str, AfterValidator(_queue_name)]
OptionalQueueName = Annotated[
    QueueName | None,
    ValueKind(lambda value: value)
    .or_none("", "none", written="")
    .described("A queue or an alias; '' or 'none' is none.", {"type": "string"}),
]
OptionalFunction = Annotated[str | None, _FUNCTION.or_none("", "none", written="")]
ZooKeeperHosts = Annotated[
    tuple[Annotated[str, AfterValidator(_zookeeper_host)], ...], _LIST, Field(min_length=1)
]
QueueList = Annotated[tuple[QueueName, ...], _LIST, Field(min_length=1)]
ListenerName = Literal["memcache", "text", "thrift", "admin"]
Listeners = Annotated[tuple[Annotated[ListenerName, CHOICE], ...], _LIST]
NodePath = Annotated[str, ValueKind(_absolute_node)]
Credentials = Annotated[SecretStr | None, ValueKind(_credentials, secret=True).or_none("none")]
OptionalPasswordHash = Annotated[
    SecretStr | None, ValueKind(_password_hash, secret=True).or_none("none")
]
UserName = Annotated[str, AfterValidator(_user_name)]
QueuePatterns = Annotated[tuple[Annotated[str, AfterValidator(_queue_pattern)], ...], _LIST]
OptionalText = Annotated[str | None, ValueKind(_text).or_none("", "none", written="")]
Tokens = Annotated[
    tuple[SecretStr, ...],
    ValueKind(_tokens, secret=True).described(
        f"A list of secrets, each of {MIN_TOKEN_LENGTH} or more printable ASCII characters.",
        {"type": "array", "items": {"type": "string", "minLength": MIN_TOKEN_LENGTH}},
    ),
]
OptionalTextList = Annotated[
    tuple[str, ...] | None,
    _LIST.or_none("everyone", "none", written="everyone").described(
        "A list, of which an empty one allows nobody; or 'everyone'. 'none' means everyone, too.",
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"const": "everyone"},
    ),
]
