"""How long tests wait for what must come."""

import asyncio
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


async def connections_end() -> None:
    """Wait until the running loop has no connections: emcache closes its own without waiting.

    TLS ends with an answer from the server. What is left when the loop ends is a warning in
    whatever test runs when it is collected.
    """
    selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
    while len(selector.get_map()) > 1:  # noqa: ASYNC110 # one wakes the loop
        await asyncio.sleep(0.01)
