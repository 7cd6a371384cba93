"""`QueueCollection`: all the queues of a path, with fanouts, aliases and `expire_to_queue`.

It has the path to itself, as a server would. Threads work in the background while it is set up: one
drops (or moves) what expired and does what else only the passing of time brings about, one forces
journals to disk where a period asks for it, and one rewrites and packs them when that is needed.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection as Queues
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.worker import ThreadWorker
from kestrelmq.errors import ConfigError, InvalidQueueName, QueueUnavailable
from kestrelmq.library.blocking import BlockingQueue
from kestrelmq.library.gate import UPKEEP_PERIOD, Gate, Ticker
from kestrelmq.library.items import Expiry, expiry_time
from kestrelmq.names import queue_name_error

T = TypeVar("T")


class QueueCollection:
    """The queues of a path: `with QueueCollection("/var/spool/app") as queues`.

    Safe to use from several threads. A queue comes into being when an add or a read first refers
    to it. Errors are those of `PersistentQueue`; besides, InvalidQueueName for a name that no
    queue can have, and QueueUnavailable for one that could not be loaded.
    """

    def __init__(
        self,
        path: str | Path,
        default: QueueConfig | None = None,
        queues: Mapping[str, QueueConfig] | None = None,
        aliases: Mapping[str, Sequence[str]] | None = None,
        *,
        sweep_period: float | None = 1.0,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing is opened before `setup`.

        Args:
            path: directory of the journals; made if need be.
            default: settings of every queue that does not set its own.
            queues: settings by queue; a fanout child (`orders+audit`) inherits its master's.
            aliases: for each alias, the queues that every item added to it goes to.
            sweep_period: seconds between looks for what expired; None looks only when a queue is
                used.
            clock: tells the time; the machine's by default.

        Raises:
            ConfigError: a name that no queue can have, or an alias that leads back to itself.
        """
        self._config = _config(Path(path), default, queues or {}, aliases or {})
        self._clock = clock or SystemClock()
        self._sweep_period = sweep_period
        self._queues = Queues(self._config, self._clock)
        self._gate = Gate(self._queues.commits)
        self._queues.commits.worker = ThreadWorker(self._gate.report)
        self._is_open = False
        self._tickers: list[Ticker] = []

    # --- start and stop ---

    def setup(self) -> None:
        """Take the path and load every queue in it; those that are damaged are set apart.

        Raises:
            QueuePathLocked: a server, or another user of the library, has the path.
            OSError: it cannot be created or read.
        """
        self._gate.change(self._open)

    def _open(self) -> None:
        if self._is_open:
            return
        self._queues.open()
        self._is_open = True
        period = UPKEEP_PERIOD if self._sweep_period is None else self._sweep_period
        self._tickers = [Ticker(period, self._keep_up, "kestrelmq-upkeep")]
        configured = (self._config.default, *self._config.queues.values())
        periods = [config.sync_journal for config in configured if config.sync_journal]
        if periods:
            sync = Ticker(min(periods), self._sync, "kestrelmq-sync")
            self._tickers.append(sync)
            sync.start()
        if self._sweep_period is not None or any(
            queue.upkeep_waits for queue in self._queues.queues.values()
        ):
            self._keep_time()

    @property
    def is_closed(self) -> bool:
        """Whether the queues cannot be used: they were closed, or not set up yet."""
        return not self._is_open

    def close(self) -> None:
        """Stop every queue and give the path back; those who wait get QueueUnavailable."""
        if self._is_open:
            self._sync()
        tickers, _ = self._gate.change(self._shut)
        # None begins any more; one may have to go through the gate before it ends.
        for ticker in tickers:
            ticker.stop()

    def _shut(self) -> list[Ticker]:
        tickers, self._tickers = self._tickers, []
        if self._is_open:
            self._is_open = False
            self._queues.close()
        return tickers

    def __enter__(self) -> Self:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- queues ---

    def queue(self, name: str) -> BlockingQueue:
        """Return the queue called `name`, to add to and to read from; it need not be there yet.

        Raises:
            InvalidQueueName: no queue can have that name, or it is an alias, which has no items.
        """
        problem = queue_name_error(name)
        if problem is None and name in self._config.aliases:
            problem = f"{name} is an alias; it can only be added to"
        if problem is not None:
            raise InvalidQueueName(problem)
        return _CollectionQueue(name, self._gate, self._clock, self._obtain, self._keep_time)

    def add(self, name: str, data: bytes, expiry: Expiry = None) -> bool:
        """Add an item to a queue and its fanouts, or to every destination of an alias.

        Returns:
            False when it was refused; for an alias, when a destination refused it.
        """
        due = expiry_time(expiry, self._clock.now())

        def add() -> tuple[bool, list[Queue]]:
            accepted = self._collection().add(name, data, due)
            destinations = self._queues.destinations(name)
            if any(queue.upkeep_waits for queue in destinations):
                self._keep_time()
            return accepted, destinations

        (accepted, destinations), failures = self._gate.change(add)
        for queue in destinations:
            if queue in failures:
                raise failures[queue]
        return accepted

    def flush(self, name: str) -> int:
        """Drop every waiting item of a queue; return how many. An alias or no queue has none."""
        return self._change(lambda queues: queues.flush(name))

    def delete(self, name: str) -> bool:
        """Drop a queue with its items and its journal; False when there is none."""
        return self._change(lambda queues: queues.delete(name))

    def names(self) -> list[str]:
        """Return the names of the queues that are up, sorted."""
        return self._change(lambda queues: sorted(queues.queues))

    def damaged(self) -> dict[str, str]:
        """Return the queues that could not be loaded, and why."""
        return self._change(
            lambda queues: {name: str(error) for name, error in queues.damaged.items()}
        )

    def sweep(self) -> None:
        """Drop or move what expired, and give overdue reads back; happens by itself, too."""
        self._change(lambda queues: queues.sweep())

    # --- inside the gate ---

    def _collection(self) -> Queues:
        if not self._is_open:
            raise QueueUnavailable("the queues are not set up, or were closed")
        return self._queues

    def _obtain(self, name: str) -> Queue:
        return self._collection().obtain(name)

    def _change(self, operation: Callable[[Queues], T]) -> T:
        result, failures = self._gate.change(lambda: operation(self._collection()))
        for failure in failures.values():
            raise failure
        return result

    def _keep_time(self) -> None:
        if self._tickers:
            self._tickers[0].start()

    def _keep_up(self) -> None:
        """Do what only the passing of time brings about."""
        if not self.is_closed:
            if self._sweep_period is not None:
                self.sweep()
            self._change(lambda queues: queues.tick())

    def _sync(self) -> None:
        if self._gate.sync_written():
            self._gate.change(self._keep_time)


class _CollectionQueue(BlockingQueue):
    """One queue of a collection."""

    def __init__(
        self,
        name: str,
        gate: Gate,
        clock: Clock,
        obtain: Callable[[str], Queue],
        keep_time: Callable[[], None],
    ) -> None:
        super().__init__(name, gate, clock)
        self._obtain = obtain
        self._begin_keeping_time = keep_time

    def _queue(self) -> Queue:
        return self._obtain(self._name)

    def _keep_time(self) -> None:
        self._begin_keeping_time()


def _config(
    path: Path,
    default: QueueConfig | None,
    queues: Mapping[str, QueueConfig],
    aliases: Mapping[str, Sequence[str]],
) -> ServerConfig:
    settings: dict[str, Any] = {
        "queue_path": path.absolute(),
        "queues": dict(queues),
        "aliases": {
            name: AliasConfig(destination_queues=tuple(destinations))
            for name, destinations in aliases.items()
        },
    }
    if default is not None:
        settings["default"] = default
    try:
        return ServerConfig(**settings)
    except ValueError as error:
        raise ConfigError(str(error)) from None
