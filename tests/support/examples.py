"""How many random examples a test draws."""

import os
from typing import Final

_TIMES: Final = int(os.environ.get("KESTRELMQ_EXAMPLES", "1"))


def examples(count: int) -> int:
    """Return `count`, times the environment's KESTRELMQ_EXAMPLES, which `make soak` sets."""
    return count * _TIMES
