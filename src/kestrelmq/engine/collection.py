"""All the queues of a queue path: names, loading, fanout, aliases, expiry.

A queue comes into being when an add or a read first refers to it. One whose journal is damaged is
known but unusable; its files are not touched.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig, ServerConfig, config_warnings, effective
from kestrelmq.engine.commits import Commits
from kestrelmq.engine.queue import Queue
from kestrelmq.errors import InvalidQueueName, JournalError, QueueUnavailable
from kestrelmq.journal.files import Directory, DiskDirectory, QueuePathLock
from kestrelmq.journal.loading import load_queue
from kestrelmq.journal.names import QueuePlan, plan
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import FileJournal
from kestrelmq.names import master_of, queue_name_error

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Retired:
    """What queues that were deleted had counted."""

    total_items: int = 0
    get_hits: int = 0
    get_misses: int = 0


class QueueCollection:
    """The queues of one queue path.

    Attributes:
        queues: queues that are up, by name; what an alias masks is not among them.
        damaged: queues that could not be loaded, and why.
        commits: which queues changed since the last commit.
        creates, deletes, expires: queues that came and went since start.
        retired: what deleted queues had counted.
    """

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        directory: Directory | None = None,
    ) -> None:
        """`directory` is the queue path; by default `config.queue_path` on disk."""
        self.config = config
        self.queues: dict[str, Queue] = {}
        self.damaged: dict[str, QueueUnavailable] = {}
        self.commits = Commits()
        self.creates = self.deletes = self.expires = 0
        self.retired = Retired()
        self._masked: dict[str, Queue] = {}
        self._clock = clock
        self._directory = directory or DiskDirectory(Path(config.queue_path))
        self._lock = QueuePathLock(self._directory.path)

    # --- start and stop ---

    def open(self) -> None:
        """Take the queue path and load every queue in it.

        Raises:
            QueuePathLocked: another server has it.
            OSError: it cannot be created or read.
        """
        self._directory.path.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        for warning in config_warnings(self.config):
            log.warning("%s", warning)
        spool = plan(self._directory.names())
        for name in spool.unknown:
            log.warning("%s is no journal; it is left alone", self._directory.path / name)
        for queue_plan in spool.queues.values():
            self._load(queue_plan)

    def _load(self, queue_plan: QueuePlan) -> None:
        name = queue_plan.queue
        config = effective(self.config, name)
        if not _is_journaled(config):
            log.warning("queue %s keeps no journal; its files are left alone", name)
            self._register(self._new_queue(name, config))
            return
        try:
            loaded = load_queue(self._directory, queue_plan, config.max_memory_size, self._clock)
            loaded.journal.open()
        except (JournalError, OSError) as error:
            log.error("queue %s cannot be loaded: %s", name, error)  # noqa: TRY400
            self.damaged[name] = QueueUnavailable(f"queue {name} cannot be loaded: {error}")
            return
        self._register(self._new_queue(name, config, loaded.journal, loaded.state))

    def close(self) -> None:
        """Write what was collected, stop every queue, and give the queue path back."""
        self.commits.commit()
        for queue in [*self.queues.values(), *self._masked.values()]:
            queue.close()
        self.commits.worker.close()
        self._lock.release()

    # --- finding and making queues ---

    def obtain(self, name: str) -> Queue:
        """Return the queue called `name`, which comes into being if it is not there.

        Raises:
            InvalidQueueName: no queue can have that name, or it is an alias.
            QueueUnavailable: it is damaged, or its journal cannot be created.
        """
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        problem = queue_name_error(name)
        if problem is not None:
            raise InvalidQueueName(problem)
        if name in self.config.aliases:
            raise InvalidQueueName(f"{name} is an alias")
        if name in self.damaged:
            raise self.damaged[name]
        queue = self._create(name)
        self.creates += 1
        return queue

    def settings(self, name: str) -> QueueConfig:
        """Return the settings in force for a queue, which need not be there."""
        queue = self.queues.get(name)
        return queue.config if queue is not None else effective(self.config, name)

    def destinations(self, name: str) -> list[Queue]:
        """Return the queues that are up and that an add to `name` reaches, fanouts left out."""
        alias = self.config.aliases.get(name)
        if alias is None:
            queue = self.queues.get(name)
            return [queue] if queue is not None else []
        return [
            queue
            for destination in alias.destination_queues
            for queue in self.destinations(destination)
        ]

    def _create(self, name: str) -> Queue:
        config = effective(self.config, name)
        if not _is_journaled(config):
            return self._register(self._new_queue(name, config))
        journal = FileJournal(self._directory, name, {})
        try:
            journal.open()
        except OSError as error:
            raise QueueUnavailable(f"queue {name} cannot be created: {error}") from error
        return self._register(self._new_queue(name, config, journal))

    def _new_queue(
        self,
        name: str,
        config: QueueConfig,
        journal: FileJournal | None = None,
        state: Replay | None = None,
    ) -> Queue:
        return Queue(
            name,
            config,
            self._clock,
            self.commits,
            journal=journal,
            state=state,
            expire_to=self._expire_to,
        )

    def _register(self, queue: Queue) -> Queue:
        home = self._masked if queue.name in self.config.aliases else self.queues
        home[queue.name] = queue
        self._connect_fanout(master_of(queue.name) or queue.name)
        return queue

    def _connect_fanout(self, master: str) -> None:
        """Tell the master, if it is up, which children it has now."""
        queue = self.queues.get(master)
        if queue is not None:
            queue.children = self._children_of(master)

    def _children_of(self, master: str) -> tuple[Queue, ...]:
        prefix = master + "+"
        return tuple(queue for name, queue in self.queues.items() if name.startswith(prefix))

    # --- adding ---

    def add(self, name: str, data: bytes, expiry: int = 0) -> bool:
        """Add an item to a queue and its fanouts, or to all destinations of an alias.

        Returns:
            False when it was refused; for an alias, when a destination refused it.

        Raises:
            InvalidQueueName, QueueUnavailable: as `obtain`; an alias tries every destination first.
        """
        alias = self.config.aliases.get(name)
        if alias is None:
            return self.obtain(name).add(data, expiry)
        accepted = True
        failure: QueueUnavailable | None = None
        for destination in alias.destination_queues:
            try:
                accepted &= self.add(destination, data, expiry)
            except QueueUnavailable as error:
                failure = error
        if failure is not None:
            raise failure
        return accepted

    def _expire_to(self, name: str, data: bytes) -> None:
        """Move an expired item: it is in its new journal before the old queue forgets it."""
        alias = self.config.aliases.get(name)
        for destination in alias.destination_queues if alias else (name,):
            queue = self.obtain(destination)
            queue.add(data)
            for touched in (*queue.children, queue):
                touched.write_now()

    # --- ending queues ---

    def flush(self, name: str) -> int:
        """Drop every waiting item of a queue; return how many. An alias or no queue has none.

        Raises:
            InvalidQueueName: no queue can have that name.
            JournalError: it could not be written; nothing was dropped.
        """
        problem = queue_name_error(name)
        if problem is not None:
            raise InvalidQueueName(problem)
        queue = self.queues.get(name)
        return queue.flush() if queue is not None else 0

    def flush_all(self) -> None:
        """Drop every waiting item of every queue. Raises JournalError, after trying all."""
        failure: JournalError | None = None
        for queue in self.queues.values():
            try:
                queue.flush()
            except JournalError as error:
                failure = error
        if failure is not None:
            raise failure

    def delete(self, name: str) -> bool:
        """Drop a queue with its items and its journal; False when there is none.

        Raises:
            InvalidQueueName: no queue can have that name.
            JournalError: its files could not be removed; the queue is still there.
        """
        problem = queue_name_error(name)
        if problem is not None:
            raise InvalidQueueName(problem)
        queue = self.queues.get(name)
        if queue is None:
            return False
        queue.delete()
        del self.queues[name]
        self._connect_fanout(master_of(name) or name)
        self.deletes += 1
        self.retired.total_items += queue.total_items
        self.retired.get_hits += queue.get_hits
        self.retired.get_misses += queue.get_misses
        return True

    # --- time ---

    def sweep(self) -> None:
        """Expire items and queues, and give back overdue reads; called now and then."""
        now = self._clock.now()
        for queue in list(self.queues.values()):
            try:
                queue.sweep()
                if self._is_expired(queue, now):
                    log.info("queue %s is empty and past its age, deleting it", queue.name)
                    self.delete(queue.name)
                    self.expires += 1
            except (JournalError, QueueUnavailable) as error:
                log.error("queue %s: %s", queue.name, error)  # noqa: TRY400

    @staticmethod
    def _is_expired(queue: Queue, now: int) -> bool:
        age = queue.config.max_queue_age
        return (
            age is not None
            and now > queue.create_time + age * 1000
            and not len(queue)
            and not queue.open
            and not queue.waiters.line
        )

    def tick(self) -> None:
        """Do what upkeep of the journals the passing of time brings about; about once a second."""
        for queue in [*self.queues.values(), *self._masked.values()]:
            queue.tick()

    def abort_overdue(self) -> None:
        """Give back the open reads whose time is up."""
        for queue in list(self.commits.timed):
            if not queue.end_overdue():
                self.commits.timed.discard(queue)

    def flush_expired(self, name: str) -> int:
        """Drop the expired items at the head of a queue; return how many. No queue has none."""
        queue = self.queues.get(name)
        return queue.discard_expired(None) if queue is not None else 0

    def flush_all_expired(self) -> int:
        """Drop the expired items at the head of every queue; return how many."""
        return sum(queue.discard_expired(None) for queue in list(self.queues.values()))

    # --- configuration ---

    def reload(self, config: ServerConfig) -> None:
        """Put the settings of queues and aliases in `config` in force."""
        self.config = config
        for warning in config_warnings(config):
            log.warning("%s", warning)
        everything = {**self.queues, **self._masked}
        self.queues.clear()
        self._masked.clear()
        for name, queue in everything.items():
            queue.configure(effective(config, name))
            (self._masked if name in config.aliases else self.queues)[name] = queue
        for name in self.queues:
            self._connect_fanout(name)


def _is_journaled(config: QueueConfig) -> bool:
    return config.keep_journal and not config.fanout_only
