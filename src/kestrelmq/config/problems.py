"""A refused configuration, told as lines: the key, what was found, and what is allowed."""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_NOT_SHOWN: Final = frozenset({"credentials", "admin_tokens"})
_MOST_SHOWN: Final = 60

_ALLOWED: Final = {
    "string_type": "allowed: text in quotes",
    "dict_type": "allowed: a table",
    "mapping_type": "allowed: a table",
    "model_type": "allowed: a table",
    "too_short": "allowed: a list that is not empty",
}


def problem_lines(error: ValidationError, model: type[BaseModel]) -> list[str]:
    """Return one line for each thing that is wrong."""
    return [_line(detail, model) for detail in error.errors(include_url=False)]


def dotted(path: Sequence[str]) -> str:
    """Return `path` as a TOML key, quoted where TOML asks for it."""
    return ".".join(
        key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path
    )


def _line(detail: ErrorDetails, model: type[BaseModel]) -> str:
    # pydantic marks a bad key of a mapping with a last step "[key]".
    path = [str(step) for step in detail["loc"] if step != "[key]"]
    key = dotted(path)
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
        # A rule over several settings: the reason names them.
        return f"{key}: {reason}" if key else reason
    return f"{key}: found {_shown(path, found)}; {reason}"


def _shown(path: Sequence[str], found: Any) -> str:
    if not _NOT_SHOWN.isdisjoint(path):
        return "a value that is not shown"
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
    for step in path:
        field = model.model_fields.get(step)
        # A step that is no field is the NAME of [queues.NAME]: the model is already the right one.
        if field is not None:
            model = _model_within(field.annotation)
    return list(model.model_fields)


def _model_within(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in reversed(annotation.__args__):
        if argument is not type(None) and argument is not str:
            return _model_within(argument)
    raise TypeError(annotation)
