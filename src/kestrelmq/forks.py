"""What a process does not share with one that is forked from it: locks, connections, threads."""

import os
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from kestrelmq.errors import QueueUnavailable

T = TypeVar("T")


class UserProcess:
    """The process that uses something. One that is forked from it has copies, and no lock."""

    def __init__(self) -> None:
        self._number: int | None = None

    def begin(self) -> Self:
        """Note that this process uses it from now on."""
        self._number = os.getpid()
        return self

    def end(self) -> None:
        """Note that no process uses it any more."""
        self._number = None

    @property
    def is_another(self) -> bool:
        """Whether it is used by a process that this one was forked from."""
        return self._number is not None and self._number != os.getpid()

    def check(self) -> None:
        """Raise QueueUnavailable: queues are used by a process that this one was forked from."""
        if self.is_another:
            raise QueueUnavailable(
                "this process was forked from the one that uses the queue, and cannot use it, too"
            )


class PerProcess(Generic[T]):
    """A value that each process makes for itself.

    Thread-safe without a lock, which a thread of the parent could hold in the copy for ever.
    """

    def __init__(self, make: Callable[[T | None], T]) -> None:
        """`make` is given the value of the process that this one was forked from, if any.

        Threads that need the value first at the same time may all call it; one result counts.
        """
        self._make = make
        self._values = {os.getpid(): make(None)}

    def get(self) -> T:
        """Return the value of this process."""
        number = os.getpid()
        value = self._values.get(number)
        if value is None:
            others = [one for process, one in self._values.copy().items() if process != number]
            value = self._values.setdefault(number, self._make(others[-1]))
        return value
