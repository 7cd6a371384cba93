"""The version, in one place: the package metadata, the protocols and the command read it here."""

from importlib.util import find_spec
from typing import Final, Literal

# libmemcached takes a major version of 0 for a broken reply: memcping and memcstat would fail.
VERSION: Final = "1.0.0"


def _build() -> Literal["compiled", "interpreted"]:
    # All modules of the hot path are compiled, or none; looking for one does not import it.
    found = find_spec("kestrelmq.clock")
    is_source = found is None or found.origin is None or found.origin.endswith(".py")
    return "interpreted" if is_source else "compiled"


BUILD: Final = _build()
"""Whether the hot path is compiled; as plain Python it needs up to three times the CPU."""
