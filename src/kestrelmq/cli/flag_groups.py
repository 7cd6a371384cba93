"""Groups of flags: one parameter of a command stands for several of them.

A group is a dataclass whose fields are flags. The flags of its own come before those of its bases.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter
from typing import Any


def spread(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command that has the flags of each group that is a parameter of `command`."""
    signature = inspect.signature(command)
    groups: dict[str, Any] = {
        name: one.annotation
        for name, one in signature.parameters.items()
        if is_dataclass(one.annotation)
    }
    parameters = [
        flag
        for name, one in signature.parameters.items()
        for flag in (_flags(groups[name]) if name in groups else [one])
    ]

    @wraps(command)
    def run(**given: Any) -> Any:
        made = {
            name: group(**{one.name: given.pop(one.name) for one in fields(group)})
            for name, group in groups.items()
        }
        return command(**given, **made)

    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined] # of every function
    return run


def _flags(group: Any) -> Iterator[Parameter]:
    flags = {one.name: one for one in fields(group)}
    for kind in group.__mro__:
        for name, annotation in inspect.get_annotations(kind).items():
            default = flags[name].default
            yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
