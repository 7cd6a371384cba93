"""Extending the leases of the items that a blocking client holds, by threads of the client.

There is one for each server, so that one that does not answer costs the items of others nothing.
It is started when the first lease is to be extended, and ends when there was none for a while.
`AsyncClient` has a task for each item instead.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from kestrelmq.errors import ClientError
from kestrelmq.forks import UserProcess

_IDLE: Final = 10.0
"""Seconds without an item after which the thread ends."""

LEASE_ENDED: Final = "a lease ended before it was extended; the item is delivered again"
"""The log line of a client that was too late."""

_log: Final = logging.getLogger("kestrelmq.client")


class Extendable(Protocol):
    """An item with a lease."""

    @property
    def is_over(self) -> bool:
        """Whether it was confirmed or given back."""

    def extend(self) -> bool:
        """Let the lease begin anew; False if it has ended."""


class Heartbeats:
    """Extends the leases of the items of one server. Thread-safe."""

    def __init__(self) -> None:
        """Start with none."""
        self._process = UserProcess().begin()
        self._changed = threading.Condition()
        # When to extend each next (monotonic seconds), after how many seconds again, and the item.
        self._beats: dict[int, tuple[float, float, Extendable]] = {}
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    @contextmanager
    def kept_up(self, item: Extendable, period: float | None) -> Iterator[None]:
        """Extend the lease of `item` every `period` seconds during a `with` block; None: never.

        Raises ClientError: the system has no room for the thread; a later block tries again.
        """
        if period is None:
            yield
            return
        key, due = id(item), time.monotonic() + period
        with self._changed:
            if self._thread is None:
                self._thread = self._started()
            elif due < self._wakes_at:
                self._changed.notify()
            self._beats[key] = (due, period, item)
        try:
            yield
        finally:
            if not self._process.is_another:  # in a fork, nobody might ever release the lock
                with self._changed:
                    self._beats.pop(key, None)

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="kestrelmq-heartbeats", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise ClientError(f"there is no thread to extend the lease: {error}") from error
        return thread

    def _run(self) -> None:
        while (item := self._next()) is not None:
            try:
                extended = item.extend()
            except Exception as error:  # noqa: BLE001 # the other items need the thread
                _log.warning("a lease could not be extended: %s", error)
                continue
            if extended:
                continue
            with self._changed:
                beat = self._beats.pop(id(item), None)
            if beat is not None and not item.is_over:
                _log.warning(LEASE_ENDED)

    def _next(self) -> Extendable | None:
        """Wait until a lease is to be extended; None if there was none for a while."""
        with self._changed:
            idle_until = time.monotonic() + _IDLE
            while True:
                now = time.monotonic()
                due, period, item = min(
                    self._beats.values(), key=_due, default=(idle_until, 0, None)
                )
                if due <= now:
                    break
                self._wakes_at = due
                self._changed.wait(due - now)
            if item is None:
                self._thread = None
                return None
            self._beats[id(item)] = (now + period, period, item)
            return item


def _due(beat: tuple[float, float, Extendable]) -> float:
    return beat[0]
