"""Keys and values, as TOML writes them."""

import json
import re
from collections.abc import Sequence
from typing import Any, Final

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(path: Sequence[str]) -> str:
    """Return `path` as a TOML key, quoted where TOML asks for it."""
    return ".".join(key if _BARE_KEY.fullmatch(key) else toml_value(key) for key in path)


def toml_value(value: Any) -> str:
    """Return a bool, a number, a text or a tuple of these as a TOML value."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case str():
            # JSON escapes everything that TOML requires, except the delete character.
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case tuple():
            return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"{value!r} has no TOML form")
