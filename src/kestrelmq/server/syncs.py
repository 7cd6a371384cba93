"""Group commit: one fsync for every reply that waits, in a thread, one round at a time.

While a round runs, what is written waits for the next one, which covers all of it. If something
waits when a round ends, the next begins one turn of the loop later: those who were just answered
may have more to write, and are covered too. Otherwise clients fall into two groups that wait for
each other's rounds.
"""

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from kestrelmq.engine.commits import Committable
from kestrelmq.errors import JournalError

log = logging.getLogger(__name__)


class HeldConnection(Protocol):
    """A connection whose replies wait."""

    def synced(self, sync: int, failures: Mapping[Committable, JournalError]) -> None:
        """Send what waited for syncs up to number `sync`."""

    @property
    def is_held(self) -> bool:
        """Whether replies still wait."""


class Syncs:
    """Rounds of fsync, numbered from 1.

    Attributes:
        rounds: how many were begun.
        files: how many files they forced to disk.
    """

    def __init__(self) -> None:
        self.rounds = 0
        self.files = 0
        self._next: set[Committable] = set()
        self._running = False
        self._held: dict[HeldConnection, None] = {}
        self._executor: ThreadPoolExecutor | None = None

    def request(self, queues: set[Committable]) -> int:
        """Have `queues` forced to disk; return the number of the round that covers them."""
        self._next |= queues
        number = self.rounds + 1
        if not self._running:
            self._begin()
        return number

    def hold(self, connection: HeldConnection) -> None:
        """Tell `connection` about every round until nothing of it waits."""
        self._held[connection] = None

    def _begin(self) -> None:
        queues, self._next = self._next, set()
        self.rounds += 1
        self.files += len(queues)
        self._running = True
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "fsync")
        loop = asyncio.get_running_loop()
        try:
            future = loop.run_in_executor(self._executor, _sync, queues)
        except RuntimeError as error:  # the system has no room for a thread
            loop.call_soon(self._end_round, dict.fromkeys(queues, OSError(str(error))))
            return
        future.add_done_callback(lambda done: self._end_round(done.result()))

    def _end_round(self, errors: Mapping[Committable, OSError]) -> None:
        failures = {queue: queue.failed(error) for queue, error in errors.items()}
        done = self.rounds
        self._running = False
        for connection in list(self._held):
            try:
                connection.synced(done, failures)
            except Exception:
                log.exception("a connection was not told of a sync")
            if not connection.is_held:
                del self._held[connection]
        if self._next:
            self._running = True
            asyncio.get_running_loop().call_soon(self._begin)

    def close(self) -> None:
        """Wait for the round that runs, if any."""
        if self._executor is not None:
            self._executor.shutdown()


def _sync(queues: set[Committable]) -> dict[Committable, OSError]:
    failures = {}
    for queue in queues:
        try:
            queue.sync()
        except OSError as error:
            failures[queue] = error
        except Exception as error:
            # The round must end whatever happens: clients wait for it.
            log.exception("a journal was not synced")
            failures[queue] = OSError(repr(error))
    return failures
