"""Queues that a server has but refuses to read: still loading, damaged, or refused by its status.

Such a queue is not empty, and a read that ends when nothing is left must not treat it as empty:
it waits while the queue is loading, and fails otherwise.
"""

import time
from collections.abc import Callable
from typing import Final, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import KestrelError, ServerRefused

T = TypeVar("T")

_PASSING: Final = ("is still loading", "the reserved items of queue")
"""What refusals say that end by themselves: the second when other readers finish theirs."""
_PAUSE: Final = 0.1


class QueueCannotBeRead(KestrelError):  # noqa: N818 # says what it is
    """A server answers, but refuses to let the queue be read."""


def is_refusal(error: Exception) -> bool:
    """Whether a server refused a correct request because of its state or the queue's."""
    return isinstance(error, ServerRefused) and error.kind == "SERVER_ERROR"


def is_retired(error: object) -> bool:
    """Whether a server refused a tag because its epoch was retired."""
    return isinstance(error, ServerRefused) and "is retired" in str(error)


def ask_when_loaded(
    queue: str,
    server: str,
    ask: Callable[[], T],
    patience: float,
    *,
    clock: Clock | None = None,
    pause: Callable[[float], None] = time.sleep,
) -> T:
    """Return what `ask` returns; repeat it for up to `patience` seconds while the queue is loading.

    Raises:
        QueueCannotBeRead: the server refuses, or the queue is still loading after that time.
        ClientError: any other error of `ask`.
    """
    clock = clock or SystemClock()
    deadline = clock.monotonic() + patience
    while True:
        try:
            return ask()
        except ServerRefused as error:
            if not is_refusal(error):
                raise
            passing = any(reason in str(error) for reason in _PASSING)
            if not passing or clock.monotonic() >= deadline:
                raise QueueCannotBeRead(
                    f"queue {queue!r} on {server} cannot be read: {error}"
                ) from error
        pause(_PAUSE)
