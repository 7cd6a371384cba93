"""The names of settings, as keys of TOML."""

import json
import re
from collections.abc import Sequence
from typing import Final

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_key(path: Sequence[str]) -> str:
    """Return `path` as a TOML key, quoted where TOML asks for it."""
    return ".".join(
        key if _BARE_KEY.fullmatch(key) else json.dumps(key, ensure_ascii=False) for key in path
    )
