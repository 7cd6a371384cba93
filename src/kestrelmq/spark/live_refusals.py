"""A queue that a server has but does not give: still loading, damaged, or refused by its status.

Such a queue is not empty. A read that ends when nothing is left must not take it for that: it
waits while the queue is loading, and fails otherwise.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import KestrelError, ServerRefused

T = TypeVar("T")

_LOADING: Final = "is still loading"
_PAUSE: Final = 0.1


class QueueCannotBeRead(KestrelError):  # noqa: N818 # says what it is
    """A server answers, but does not give the queue."""


def is_refusal(error: Exception) -> bool:
    """Whether a server said that it does not give the queue now, though the request was right."""
    return isinstance(error, ServerRefused) and error.kind == "SERVER_ERROR"


def readable(
    queue: str,
    server: str,
    ask: Callable[[], T],
    patience: float,
    *,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Return what `ask` returns; ask again while the queue is loading, up to `patience` seconds.

    Raises:
        QueueCannotBeRead: the server refuses, or the queue is still loading after that time.
        ClientError: as `ask` does otherwise.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + patience
    while True:
        try:
            return ask()
        except ServerRefused as error:
            if not is_refusal(error):
                raise
            if _LOADING not in str(error) or clock.monotonic() >= deadline:
                raise QueueCannotBeRead(
                    f"queue {queue!r} on {server} cannot be read: {error}"
                ) from error
        pause(_PAUSE)
