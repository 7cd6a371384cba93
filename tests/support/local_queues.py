"""The queues of a queue path, used in this process, without a server or a thread."""

from pathlib import Path

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import Directory
from kestrelmq.format.records import item_data
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.worker import Worker
from tests.support.fake_clock import FakeClock
from tests.support.open_reads import open_read


def queue_settings(path: Path, **settings: object) -> ServerConfig:
    """Return the settings of a server whose queues are in `path` and all have `settings`."""
    return ServerConfig(queue_path=path, default=QueueConfig.model_validate(settings))


class LocalQueues:
    """Queues that are opened when this is made, and can be closed and opened again.

    Attributes:
        config: their settings.
        clock: their clock.
        directory: where they are, if it is one that fails or crashes on demand.
        collection: the queues, as they were last opened.
    """

    def __init__(
        self,
        config: ServerConfig,
        directory: Directory | None = None,
        *,
        clock: FakeClock | None = None,
        worker: Worker | None = None,
    ) -> None:
        """Open the queues.

        Args:
            config: their settings.
            directory: where they are; None for the queue path of `config`.
            clock: their clock; None for a new one.
            worker: packs their journals; None does it at once.
        """
        self.config = config
        self.clock = clock or FakeClock()
        self.directory = directory
        self._worker = worker
        self.open()

    def open(self) -> None:
        """Load the queues from their journals."""
        self.collection = QueueCollection(self.config, self.clock, self.directory)
        if self._worker is not None:
            self.collection.commits.worker = self._worker
        self.collection.open()

    def close(self) -> None:
        """Close the queues and their files."""
        self.collection.close()

    def restart(self) -> None:
        """Close the queues, and load them again."""
        self.close()
        self.open()

    def kill(self) -> None:
        """Open the queues again as they are on disk, without closing them first."""
        self.collection._lock.release()  # as the system does for a killed process
        self.open()

    def advance(self, seconds: float) -> None:
        """Let time pass, do what is due by then, and commit."""
        self.clock.advance(seconds)
        self.collection.check_deadlines()
        self.commit()

    def reload(self, config: ServerConfig) -> list[str]:
        """Put settings in force, and commit; return which could not be, and why."""
        self.config = config
        refused = self.collection.reload(config)
        self.commit()
        return refused

    def queue(self, name: str = "jobs") -> Queue:
        """Return a queue; it is created if it is not there."""
        return self.collection.obtain(name)

    def commit(self) -> None:
        """Write what was changed. Raises AssertionError if that fails."""
        failed = self.collection.commits.commit()
        if failed:
            raise AssertionError(failed)

    def add(self, *items: bytes, name: str = "jobs", expiry: int = 0) -> None:
        """Add items that expire at `expiry` (ms; 0 for never), and commit.

        Raises AssertionError if the queue refuses one.
        """
        for data in items:
            if not self.collection.add(name, data, expiry):
                raise AssertionError(f"queue {name} refuses {data[:99]!r}")
        self.commit()

    def take(self, name: str = "jobs") -> bytes | None:
        """Remove the head, and commit; return its data, or None when there is none."""
        record = self.queue(name).line.remove()
        self.commit()
        return None if record is None else item_data(record)

    def open_read(self, name: str = "jobs") -> int:
        """Open a read, and commit; return its xid. Raises AssertionError if there is no item."""
        opened = open_read(self.queue(name))
        if opened is None:
            raise AssertionError(f"queue {name} is empty")
        self.commit()
        return opened[0]

    def drain(self, name: str = "jobs") -> list[bytes]:
        """Remove all items of a queue, and return them."""
        found = []
        while (data := self.take(name)) is not None:
            found.append(data)
        return found

    def items(self, name: str = "jobs") -> list[bytes]:
        """Return the items that wait in a queue, and leave them there."""
        queue = self.queue(name)
        return [item_data(record) for record in queue.backlog.browse(len(queue))]

    def churn(self, times: int, size: int = 100, name: str = "jobs") -> None:
        """Add and remove an item of `size` bytes, again and again, so that the journal grows."""
        for _ in range(times):
            self.queue(name).add(bytes(size))
            self.take(name)


def items_on_disk(path: Path, name: str = "jobs", **settings: object) -> list[bytes]:
    """Return the items of a queue that a server finds in `path` when it starts.

    Raises QueueUnavailable if the queue is damaged.
    """
    queues = LocalQueues(queue_settings(path, **settings))
    try:
        return queues.items(name)
    finally:
        queues.close()
