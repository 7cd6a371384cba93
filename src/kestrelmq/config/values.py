"""The kinds of values a setting can have: what is accepted, and what it becomes.

Each kind converts what people write (`"16 MiB"`, `"30 minutes"`, `"none"`) before the type is
checked, and its error says what is allowed. Nothing else is converted: `"5"` is no number.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema

from kestrelmq.names import queue_name_error
from kestrelmq.units import parse_duration, parse_size

# Far above any sensible value, and small enough that sums of them fit 64 bits, in bytes as in ms.
MAX_COUNT: Final = 2**62
MAX_DURATION: Final = 100 * 366 * 86_400.0

# The words that stand for "no limit" and "not at all".
OFF_WORDS: Final = ("none", "unlimited")

LEAST_TOKEN: Final = 16
"""Fewest characters of a token: what can be guessed is no secret."""
_TOKEN: Final = re.compile(rf"[!-~]{{{LEAST_TOKEN},}}")

_Converter = Callable[[Any], Any]


def _or_none(convert: _Converter, *words: str) -> BeforeValidator:
    """Read None and any of `words`, in any case, as None; convert everything else."""

    def read(value: Any) -> Any:
        if value is None or (isinstance(value, str) and value.lower() in words):
            return None
        try:
            return convert(value)
        except ValueError as error:
            also = ", ".join(f'"{word}"' for word in words if word)
            raise ValueError(f"{error}, or {also}" if also else str(error)) from None

    return BeforeValidator(read)


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


def _whole_number(least: int, most: int) -> _Converter:
    def read(value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        upper = "or more" if most == MAX_COUNT else f"to {most}"
        raise ValueError(f"allowed: a whole number, {least} {upper}")

    return read


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise ValueError("allowed: true or false")


def one_of(*words: str) -> BeforeValidator:
    """Accept one of `words` in any case, and store it in lower case."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value.lower() in words:
            return value.lower()
        raise ValueError(f"allowed: {', '.join(words)}")

    return BeforeValidator(read)


def _text(value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise ValueError("allowed: text on one line, not empty")


def _path(value: Any) -> Path:
    text = _text(str(value) if isinstance(value, Path) else value)
    # Only `~` itself stands for the home directory: `~~status` is a plain file name.
    return Path(text).expanduser() if text == "~" or text.startswith("~/") else Path(text)


def _absolute_node(value: Any) -> str:
    if isinstance(value, str) and value.startswith("/") and value.isprintable():
        return value
    raise ValueError("allowed: a ZooKeeper path that starts with '/'")


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
        f"allowed: a list of texts of {LEAST_TOKEN} or more characters, "
        "printable ASCII without blanks"
    )


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


def _schema(description: str, *kinds: dict[str, Any]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": list(kinds), "description": description})


_TEXT_OR_NUMBER: Final = ({"type": "number", "minimum": 0}, {"type": "string"})
_TEXT_OR_INTEGER: Final = ({"type": "integer", "minimum": 0}, {"type": "string"})

Size = Annotated[
    int, BeforeValidator(_size), _schema("Bytes, or text such as '16 MiB'.", *_TEXT_OR_INTEGER)
]
OptionalSize = Annotated[
    int | None,
    _or_none(_size, *OFF_WORDS),
    _schema("Bytes, text such as '16 MiB', or 'unlimited'.", *_TEXT_OR_INTEGER),
]
Duration = Annotated[
    float,
    BeforeValidator(_duration),
    _schema("Seconds, or text such as '100ms'.", *_TEXT_OR_NUMBER),
]
OptionalDuration = Annotated[
    float | None,
    _or_none(_duration, *OFF_WORDS),
    _schema("Seconds, text such as '1 minute', or 'none'.", *_TEXT_OR_NUMBER),
]
Period = Annotated[
    float,
    BeforeValidator(_period),
    _schema("Seconds above 0, or text such as '10s'.", *_TEXT_OR_NUMBER),
]
OptionalPeriod = Annotated[
    float | None,
    _or_none(_period, *OFF_WORDS),
    _schema("Seconds above 0, text such as '1s', or 'none'.", *_TEXT_OR_NUMBER),
]
SyncPeriod = Annotated[
    float | None,
    _or_none(_duration, "never", "none"),
    _schema("Seconds, text such as '100ms' or '0ms', or 'never'.", *_TEXT_OR_NUMBER),
]
Count = Annotated[
    int,
    BeforeValidator(_whole_number(1, MAX_COUNT)),
    _schema("1 or more.", {"type": "integer", "minimum": 1}),
]
OptionalCount = Annotated[
    int | None,
    _or_none(_whole_number(0, MAX_COUNT), *OFF_WORDS),
    _schema("0 or more, or 'unlimited'.", {"type": "integer", "minimum": 0}, {"enum": OFF_WORDS}),
]
OptionalPositive = Annotated[
    int | None,
    _or_none(_whole_number(1, MAX_COUNT), *OFF_WORDS),
    _schema("1 or more, or 'unlimited'.", {"type": "integer", "minimum": 1}, {"enum": OFF_WORDS}),
]
Port = Annotated[
    int | None,
    _or_none(_whole_number(0, 65_535), "none"),
    _schema(
        "0 picks a free port; 'none' turns the listener off.",
        {"type": "integer", "minimum": 0, "maximum": 65_535},
        {"const": "none"},
    ),
]
Flag = Annotated[bool, BeforeValidator(_flag)]
Text = Annotated[str, BeforeValidator(_text)]
FilePath = Annotated[Path, BeforeValidator(_path)]
OptionalFilePath = Annotated[Path | None, _or_none(_path)]
LogFile = Annotated[
    Path | None, _or_none(_path, "stderr"), _schema("A path, or 'stderr'.", {"type": "string"})
]
QueueName = Annotated[str, AfterValidator(_queue_name)]
OptionalQueueName = Annotated[
    QueueName | None,
    _or_none(lambda value: value, "", "none"),
    _schema("A queue or an alias; '' or 'none' is none.", {"type": "string"}),
]
OptionalFunction = Annotated[str | None, _or_none(_function, "", "none")]
TextList = Annotated[tuple[str, ...], BeforeValidator(_list_of_text)]
QueueList = Annotated[tuple[QueueName, ...], BeforeValidator(_list_of_text), Field(min_length=1)]
NodePath = Annotated[str, BeforeValidator(_absolute_node)]
Credentials = Annotated[SecretStr | None, _or_none(_credentials)]
Tokens = Annotated[
    tuple[SecretStr, ...],
    BeforeValidator(_tokens),
    _schema(
        f"A list of secrets, each of {LEAST_TOKEN} or more printable ASCII characters.",
        {"type": "array", "items": {"type": "string", "minLength": LEAST_TOKEN}},
    ),
]
OptionalTextList = Annotated[
    tuple[str, ...] | None,
    _or_none(_list_of_text, "everyone", "none"),
    _schema(
        "A list; an empty one is nobody. Or 'everyone'; 'none' is no list, and so everyone, too.",
        {"type": "array", "items": {"type": "string", "minLength": 1}},
        {"const": "everyone"},
    ),
]
