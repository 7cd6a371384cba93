"""How long tests wait for what must come."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE: Final = 300
"""Seconds after which what has not come is missing.

It only ends a test that would hang: however busy the machine is, nothing takes so long.
"""


def until(condition: Callable[[], bool], pause: float = 0.01) -> None:
    """Wait until `condition` holds, and look every `pause` seconds.

    Raises:
        AssertionError: it does not hold after `PATIENCE`.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "what was waited for never came"
        time.sleep(pause)
