"""Background tasks, which run as long as the server: one that fails is logged and restarted."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Final

BackgroundTask = Callable[[], Coroutine[None, None, None]]
"""Returns the coroutine of a task that never ends by itself."""

_RESTART: Final = 1.0
"""Seconds until a task that failed is started again."""

log = logging.getLogger(__name__)


async def kept_running(task: BackgroundTask, restart: float = _RESTART) -> None:
    """Run `task` until cancelled; when it fails, run it again after `restart` seconds."""
    while True:
        try:
            await task()
        except Exception:
            log.exception("a background task died; it is started again in %s s", restart)
        else:
            log.error("a background task ended; it is started again in %s s", restart)
        await asyncio.sleep(restart)
