"""Work for which a request waits, and which would hold up all others: in threads of the loop."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

from kestrelmq.errors import KestrelError

P = ParamSpec("P")
T = TypeVar("T")


class NoThread(KestrelError):  # noqa: N818 # says what it is
    """The system has no room for a thread, so that nothing was done; a later try may succeed."""


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `function` in a thread, and return what it returns.

    Raises what it raises, and NoThread: the system has no room for a thread.
    """
    try:
        # Not `asyncio.to_thread`: its RuntimeError may as well be one of `function`.
        called = asyncio.get_running_loop().run_in_executor(
            None, partial(function, *args, **kwargs)
        )
    except RuntimeError as error:
        raise NoThread(f"the server has no thread for that now: {error}") from error
    return await called
