"""What is wrong with settings, in words: a line for each problem.

A line has the key, what was found, and what is allowed. Secrets are not shown.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kestrelmq.config.toml import toml_key
from kestrelmq.config.values import value_kind_of

_MOST_SHOWN: Final = 60

_ALLOWED: Final = {
    "string_type": "allowed: text in quotes",
    "dict_type": "allowed: a table",
    "mapping_type": "allowed: a table",
    "model_type": "allowed: a table",
    "too_short": "allowed: a list that is not empty",
}


def problem_lines(error: ValidationError, model: type[BaseModel]) -> list[str]:
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


def table_of(field: FieldInfo) -> type[BaseModel]:
    """Return the model of a table, or of each table in a mapping of tables."""
    return _model_within(field.annotation)


def _model_within(annotation: Any) -> type[BaseModel]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in reversed(annotation.__args__):
        if argument is not type(None) and argument is not str:
            return _model_within(argument)
    raise TypeError(annotation)
