"""All the queues of a queue path: names, loading, fanout, aliases, expiry.

A queue is created when an add or a read first refers to it. A queue whose journal is damaged is
known but unusable; its files are not touched. Queues may be loaded while others serve: see
`startup` and `loading_queues`.
"""

import contextlib
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import inf
from pathlib import Path
from typing import Final

from kestrelmq.clock import Clock
from kestrelmq.config import QueueConfig, ServerConfig, config_warnings, effective_settings
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk import write_directories
from kestrelmq.disk.directories import Directory, DiskDirectory
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.disk.opening import file_size, list_directory
from kestrelmq.disk.renaming import make_queue_path
from kestrelmq.errors import (
    InvalidDeclaration,
    InvalidQueueName,
    JournalError,
    KestrelError,
    QueueUnavailable,
)
from kestrelmq.format.names import QueueFiles, group_files
from kestrelmq.format.records import Item, item, item_size
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.loading import Pace, load_queue, remove_left_over
from kestrelmq.journal.replay import Replay
from kestrelmq.journal.writer import Dialect, FileJournal
from kestrelmq.names import queue_name_error
from kestrelmq.queue.adding import Put
from kestrelmq.queue.leases import Owners
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.counters import RetiredCounts
from kestrelmq.queues.deletion import Deletions
from kestrelmq.queues.disk_space import DiskSpace
from kestrelmq.queues.loading_queues import LoadingQueues, family_of, in_order
from kestrelmq.queues.path_guard import PathGuard
from kestrelmq.queues.registry import NO_ENTRY, QueueRegistry, check_declarable
from kestrelmq.scheduling.deadline_watch import DeadlineWatch
from kestrelmq.scheduling.durability import Committable, GroupCommit, SyncRound, sync_now
from kestrelmq.scheduling.worker import InlineWorker, run_to_end

_CLOCK_STEP: Final = 0.05
"""Seconds by which the wall clock must get ahead to count as set."""
_IDLE_AT_ONCE: Final = 500
"""Most queues to check in one piece of a sweep, if they have nothing to do."""

_FIXED: Final = ("keep_journal", "journal_dialect")
"""The settings of a queue that are in force from when it is created or loaded, until it is gone."""
_NAMED: Final = 3
"""Most queues that the answer to a reload names for each of those."""

log = get_logger(__name__)


class QueueCollection:
    """The queues of one queue path.

    Attributes:
        queues: loaded queues, by name, without those that an alias masks.
        damaged: queues that could not be loaded, and why.
        loading: queues that are still to be loaded.
        commits: which queues changed since the last commit.
        creates, deletes, expires: how many queues were created, deleted or expired since start.
        retired: what deleted queues had counted.
        guard: watches that the queue path is not replaced.
        deletions: deletes queues.
        disk_space: what is free on the disk of the queue path, as last read.
        registry: what clients have set for single queues.
        owners: the owners of reserved reads.
        views: dictionaries with some of `queues`: what leaves those is taken out of them, too.
    """

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        directory: Directory | None = None,
    ) -> None:
        """Describe the collection; `open` or `take_path` takes the queue path.

        `directory` is the queue path; by default `config.queue_path` on disk.
        """
        self.config = config
        self.queues: dict[str, Queue] = {}
        self.views: Collection[dict[str, Queue]] = ()
        self.damaged: dict[str, QueueUnavailable] = {}
        self.loading = LoadingQueues()
        self.commits = GroupCommit()
        self.creates = self.deletes = self.expires = 0
        self.retired = RetiredCounts()
        self._masked: dict[str, Queue] = {}
        self._most_queues = config.max_queues
        # What changed since the last periodic work; None before the first, and there may be none.
        self._changed: set[Committable] | None = None
        # The queues for which periodic work may have something to do; and those for which it has
        # nothing to do before a time of the wall clock (ms), unless they change.
        self._restless: dict[Queue, None] = {}
        self._resting: DeadlineWatch[Queue] = DeadlineWatch()
        # Names of fanout children, in order, by master.
        self._children: dict[str, dict[str, None]] = {}
        self.clock = clock
        # By how much the wall clock was ahead of the monotonic one (seconds).
        self._clock_ahead = clock.now() / 1000 - clock.monotonic()
        path = Path(config.queue_path) if directory is None else directory.path
        self._lock = QueuePathLock(path)
        self._directory = directory or DiskDirectory(path, lock=self._lock)
        # Queues without a journal that have files of one all the same, from another time.
        self._with_old_files: set[str] = set()
        self.registry = QueueRegistry(self._directory, clock)
        self.deletions = Deletions(self._deleted, self.registry.save)
        self.guard = PathGuard(self._directory, self._lock)
        self.disk_space = DiskSpace(self._directory.path)
        self.owners = Owners(clock, self.commits.watch_deadlines, self._watch_queue)
        self._mover = Mover(self)  # one object for all queues

    # --- start and stop ---

    def open(self) -> None:
        """Take the queue path and load every queue in it. Raises as `take_path`."""
        for queue_files in self.take_path():
            self.add_loaded(queue_files.queue, self.load(queue_files))

    def take_path(self) -> list[QueueFiles]:
        """Take the queue path; return the queues to `load` and then `add_loaded`, by name.

        Raises:
            QueuePathLocked: another server uses it.
            OSError: it cannot be created or read.
        """
        make_queue_path(self._directory.path)
        self._lock.acquire()
        try:
            self.registry.load()
            listing = list_directory(self._directory.path)
        except BaseException:
            self._lock.release()
            raise
        found = group_files(listing.files)
        for warning in config_warnings(self.config, found.queues):
            log.warning("%s", warning)
        for name in found.unknown:
            log.warning("%s is not a journal; it is left alone", self._directory.path / name)
        for name in listing.directories:
            if queue_name_error(name) is None:
                log.warning("%s is a directory, not a queue", self._directory.path / name)
        for name in self.registry.declared:
            found.queues.setdefault(name, QueueFiles(name))
        remove_left_over(self._directory, found.dead)
        write_directories.remove_all(self._directory.path)
        self.loading.expect(found.queues)
        return list(found.queues.values())

    def in_order(self, queues: Collection[QueueFiles], pace: Pace) -> list[QueueFiles]:
        """Return queues in the order in which to load them, see `in_order`; from any thread.

        `pace` is called before each file is looked at.
        """

        def size_of(name: str) -> int:
            pace()
            return file_size(f"{path}/{name}")  # no path object for each of very many

        path = self._directory.path
        return in_order(queues, size_of)

    def check_path(self, names: Collection[str] | None = ()) -> None:
        """Check that the queue path, and files in it, still exist; see `PathGuard.check`."""
        if self.guard.check(names):
            # Records that were written earlier in this turn may be lost, too.
            failure = JournalError(self.guard.lost)
            for queue in self._everything():
                if isinstance(queue.journal, FileJournal):
                    self.commits.failures[queue] = failure

    def look_at_disk(self) -> None:
        """Refuse adds, or take them again, by what `disk_space` has read last."""
        space, least = self.disk_space, self.config.min_free_disk
        is_short = bool(space.total) and space.free < least
        if is_short == self.commits.is_disk_short:
            return
        self.commits.is_disk_short = is_short
        if is_short:
            log.error(
                "the disk of %s has %d bytes free, and min_free_disk is %d: adds are refused",
                self._directory.path,
                space.free,
                least,
            )
            if self._changed is not None:  # queues that hold nothing are to give files back
                self._changed.update(self._everything())
        else:
            log.info("the disk of %s has room again: adds are taken", self._directory.path)

    def _everything(self) -> list[Queue]:
        return [*self.queues.values(), *self._masked.values()]

    def load(self, queue_files: QueueFiles, pace: Pace | None = None) -> Queue | QueueUnavailable:
        """Load a queue from its files; return it, or why it cannot be loaded; from any thread.

        `pace` is called after each piece of work; an exception that it raises ends the loading.
        """
        name = queue_files.queue
        config = self._configured(name)
        if not config.keep_journal:
            if queue_files.present:
                self._with_old_files.add(name)
                log.warning(
                    "queue %s keeps no journal; its files are left alone",
                    name,
                    extra={"queue": name},
                )
            return self._new_queue(name, config)
        try:
            found = load_queue(
                self._directory,
                queue_files,
                config.max_memory_size,
                self.clock,
                pace,
                keep=config.keep_replaced_journals,
                dialect=config.journal_dialect,
            )
        except (JournalError, OSError) as error:
            return _cannot_be_loaded(name, error)
        return self._new_queue(name, config, found.journal, found.state, found.created)

    def add_loaded(self, name: str, found: Queue | QueueUnavailable) -> None:
        """Make a queue that `load` returned usable, or record that it is damaged."""
        if isinstance(found, Queue):
            try:
                found.open_journal()
            except (JournalError, OSError) as error:
                found.close()
                found = _cannot_be_loaded(name, error)
        if isinstance(found, Queue):
            self._register(found)
            if found.config is not self._configured(name):  # or a reload changed it
                self._put_in_force(found)
        else:
            log.error("%s", found, extra={"queue": name})
            self.damaged[name] = found
        self.loading.loaded(name)

    def close(self) -> None:
        """Commit all changes, close every queue, and release the queue path."""
        with contextlib.ExitStack() as last:  # all of it is done, even if some of it fails
            last.callback(self._lock.release)
            last.callback(self.registry.close)
            last.callback(self.commits.worker.close)
            for queue in self._everything():
                last.callback(queue.close)
            self.commits.commit()
            self.commits.finish_writing()

    # --- finding and creating queues ---

    def obtain(self, name: str) -> Queue:
        """Return the queue called `name`; create it if it does not exist.

        Raises:
            InvalidQueueName: no queue can have that name, or it is an alias.
            QueueUnavailable: it is damaged or still loading, its journal cannot be created, or
                there are `max_queues` already.
        """
        queue = self.queues.get(name)
        if queue is not None:
            return queue
        self._check_creatable(name)
        most = self._most_queues
        if most is not None and len(self.queues) + len(self._masked) + len(self.loading) >= most:
            raise QueueUnavailable(f"queue {name} cannot be created: max_queues is {most}")
        queue = self._create(name)
        self.creates += 1
        return queue

    def obtain_single(self, name: str) -> Queue | None:
        """Return the queue called `name`, as `obtain` does; None for an alias."""
        return None if name in self.config.aliases else self.obtain(name)

    def _check_creatable(self, name: str) -> None:
        """Raise as `obtain` if no queue can be created under this name now."""
        problem = queue_name_error(name)
        if problem is not None:
            raise InvalidQueueName(problem)
        if name in self.config.aliases:
            raise InvalidQueueName(f"{name} is an alias")
        self.check_usable(name)

    def check_usable(self, name: str) -> None:
        """Raise QueueUnavailable if the queue is damaged or still loading."""
        if name in self.damaged:
            # A new error each time: one that is raised repeatedly keeps every traceback.
            raise QueueUnavailable(str(self.damaged[name]))
        self.loading.check((name,))

    def leaves(self, name: str) -> Iterator[str]:
        """Return the names of the queues that `name`, an alias or a queue, stands for."""
        return alias_leaves(self.config, name)

    def settings(self, name: str) -> QueueConfig:
        """Return the settings in force for a queue, which need not exist."""
        queue = self.queues.get(name)
        return queue.config if queue is not None else self._configured(name)

    def _configured(self, name: str) -> QueueConfig:
        """Return the settings that the configuration and clients ask for."""
        return effective_settings(self.config, name, self.registry.declared)

    def max_item_size(self, name: str) -> int | None:
        """Return the size of the largest item that an add to `name` may store; None for no limit.

        The settings tell it, so the queue need not exist yet.
        """
        largest = 0
        for leaf in self.leaves(name):
            for reached in (leaf, *self._children.get(leaf, ())):
                limit = self.settings(reached).max_item_size
                if limit is None:
                    return None
                largest = max(largest, limit)
        return largest

    def count_too_large(self, name: str, count: int = 1) -> None:
        """Count items for `name` that were refused before they arrived: see `max_item_size`.

        Raises:
            QueueUnavailable: an add would be refused for another reason, whatever the item's size.
        """
        for leaf in self.leaves(name):
            self.check_usable(leaf)
            if leaf in self.queues:
                queue = self.queues[leaf]
                queue.adding.check_writes()
        for queue in self.destinations(name):
            queue.refusals.count("too_large", count)

    def destinations(self, name: str) -> list[Queue]:
        """Return the loaded queues that an add to `name` is written to."""
        queue = self.queues.get(name)
        if queue is not None:
            found = [queue]
        else:
            found = [self.queues[leaf] for leaf in self.leaves(name) if leaf in self.queues]
        return [one for leaf in found for one in leaf.targets]

    def _create(self, name: str) -> Queue:
        config = self._configured(name)
        journal = None
        if config.keep_journal:
            if name in self._with_old_files:
                raise QueueUnavailable(
                    f"queue {name} cannot be created: it has journal files from another time, "
                    "which the next start loads"
                )
            journal = FileJournal(
                self._directory, name, {}, self.clock, after=self.deletions.newest(name)
            )
        queue = self._new_queue(name, config, journal)
        try:
            queue.open_journal()
        except OSError as error:
            queue.close()
            raise QueueUnavailable(f"queue {name} cannot be created: {error}") from error
        return self._register(queue)

    def _new_queue(
        self,
        name: str,
        config: QueueConfig,
        journal: FileJournal | None = None,
        state: Replay | None = None,
        created: int | None = None,
    ) -> Queue:
        queue = Queue(
            name,
            config,
            self.clock,
            self.commits,
            journal=journal,
            state=state,
            move_to=self._mover,
            created=created,
        )
        paused = self.registry.entry(name).paused
        if paused:
            queue.pause(paused)
        return queue

    def _register(self, queue: Queue) -> Queue:
        name = queue.name
        home = self._masked if name in self.config.aliases else self.queues
        home[name] = queue
        self.commits.note_change(queue)
        self.owners.adopt(name, queue.reads.reservations)
        family = family_of(name)
        if name != family:
            self._children.setdefault(family, {})[name] = None
        self._connect_fanout(family)
        return queue

    def _connect_fanout(self, master: str) -> None:
        """Tell the master, if it is loaded, which children it has now."""
        queue = self.queues.get(master)
        if queue is not None:
            children = self._children.get(master, ())
            queue.connect(tuple(self.queues[name] for name in children if name in self.queues))

    # --- adding ---

    def add(
        self,
        name: str,
        data: bytes,
        expiry: int = 0,
        *,
        due: int = 0,
        mark: PutMark | None = None,
    ) -> bool:
        """Add an item to a queue and its fanouts, or to all destinations of an alias.

        Args:
            name: the queue, or alias.
            data: the item.
            expiry: when it expires (ms since the epoch), 0 for never.
            due: from when on the item waits (ms since the epoch), 0 for now.
            mark: that of the item's producer, which may repeat the add; see `Queue.add`.

        Returns:
            False if the item was refused; for an alias, if any destination refused it.

        Raises:
            InvalidQueueName, QueueUnavailable: as `obtain`; an alias tries every destination first,
                unless one is still loading.
            JournalError: a journal could not be written; all other destinations were tried.
        """
        queue = self.queues.get(name)
        if queue is not None and not len(self.loading):
            return queue.add(data, expiry, due, mark)
        one = item(due or self.clock.now(), expiry, data)
        return self.accept(name, Put(one, is_delayed=due > 0, mark=mark))

    def accept(self, name: str, put: Put) -> bool:
        """Add an item that is already a `Put`, as `add`."""
        self.loading.check(self.leaves(name))
        alias = self.config.aliases.get(name)
        if alias is None:
            return self.obtain(name).accept(put)
        accepted = True
        failure: str | None = None  # keeping the exception itself would be a reference cycle
        unavailable: str | None = None
        for destination in alias.destination_queues:
            try:
                accepted &= self.accept(destination, put)
            except QueueUnavailable as error:
                unavailable = str(error)
            except JournalError as error:
                failure = str(error)
        if failure is not None:
            raise JournalError(failure)
        if unavailable is not None:
            raise QueueUnavailable(unavailable)
        return accepted

    def limited_expiry(self, name: str, added: int, expiry: int) -> int:
        """Return when an item of a queue expires there (ms); of an alias, when it is to expire."""
        queue = self.queues.get(name)
        return expiry if queue is None else queue.state.limits.expiry(added, expiry)

    def move_to(self, name: str, one: Item, *, durable: bool) -> bool:
        """Add and write the item of another queue, before that queue drops it.

        Args:
            name: the queue, or alias, that gets the item.
            one: the item.
            durable: whether it must be on disk when this returns, unless a round has to write it.

        Returns:
            False if the item was refused. If there are several targets, none gets it unless all
            have room.

        Raises:
            QueueUnavailable, JournalError: it cannot be added now.
        """
        queues = self.takers(name, item_size(one))
        accepted = bool(queues)
        for queue in queues:
            accepted &= queue.accept(Put(one))
            for touched in queue.targets:
                touched.core.write_now()
            must_sync = durable and not any(target.core.is_writing for target in queue.targets)
            failure = sync_now(*queue.targets) if must_sync else None
            if failure is not None:
                raise failure
        return accepted

    def takers(self, name: str, size: int) -> list[Queue]:
        """Return the queues that an item of `size` bytes is moved to, by way of `name`.

        If there are several, because `name` is an alias, none gets the item unless all have room;
        if one has none, the result is empty. Raises as `add`, before any queue has the item if it
        is known that one cannot be written: the item would be moved to the others again and again.
        """
        self.loading.check(self.leaves(name))
        queues = [self.obtain(leaf) for leaf in self.leaves(name)]
        for queue in queues:
            for target in queue.targets:
                target.core.check_can_change()
        has_room = len(queues) == 1 or all(queue.has_room(size) for queue in queues)
        return queues if has_room else []

    # --- declaring and pausing ---

    def declare(self, name: str, settings: QueueConfig) -> Queue:
        """Create a queue with settings of its own, or give it others; return it.

        They override inherited settings; the configuration's own table for the queue overrides
        them. They are in force at once; `registry.save` tells when they are on disk.

        Args:
            name: the queue's name.
            settings: its settings, of those in `DECLARABLE`; they replace what was declared before.

        Raises:
            InvalidDeclaration: other settings are given; or the queue exists, and `keep_journal` is
                not as it is.
            InvalidQueueName, QueueUnavailable: as `obtain`.
        """
        check_declarable(settings)
        queue = self.queues.get(name)
        if queue is None:
            self._check_creatable(name)
        elif "keep_journal" in settings.model_fields_set and (
            settings.keep_journal != queue.config.keep_journal
        ):
            raise InvalidDeclaration(
                f"whether queue {name} keeps a journal cannot be changed: delete it first"
            )
        entry = self.registry.entry(name)
        self.registry.put(name, replace(entry, declared=settings))
        try:
            queue = self.obtain(name)
        except KestrelError:
            self.registry.put(name, entry)
            raise
        self._put_family_in_force(name)
        return queue

    def _put_family_in_force(self, name: str) -> None:
        """Put the settings in force that depend on what is declared for a queue: its children's."""
        for one in (name, *self._children.get(name, ())):
            if one in self.queues:
                self._put_in_force(self.queues[one])

    def pause(self, name: str, operations: Paused) -> bool:
        """Pause operations of a queue, besides what is paused; return False if it does not exist.

        This is in force at once; `registry.save` tells when it is on disk.

        Raises:
            InvalidQueueName: no queue can have that name.
            QueueUnavailable: the queue is damaged or still loading.
        """
        return self._set_paused(name, self.registry.entry(name).paused | operations)

    def resume(self, name: str, operations: Paused) -> bool:
        """Resume operations of a queue; return False if it does not exist. As `pause`."""
        return self._set_paused(name, self.registry.entry(name).paused & ~operations)

    def _set_paused(self, name: str, paused: Paused) -> bool:
        queue = self.existing(name)
        if queue is None:
            return False
        self.registry.put(name, replace(self.registry.entry(name), paused=paused))
        queue.pause(paused)
        return True

    # --- flushing and deleting ---

    def flush(self, name: str) -> int:
        """Drop every waiting item of a queue; return how many: 0 for an alias or an unknown name.

        Raises:
            InvalidQueueName: no queue can have that name.
            JournalError: the journal could not be written; not all was dropped.
            QueueUnavailable: the queue is damaged or still loading.
        """
        queue = self.existing(name)
        return queue.flush() if queue is not None else 0

    def existing(self, name: str) -> Queue | None:
        """Return the queue `name`, or None if it does not exist, or is an alias.

        Raises:
            InvalidQueueName: no queue can have that name.
            QueueUnavailable: the queue is damaged or still loading.
        """
        queue = self.queues.get(name)
        if queue is None:
            problem = queue_name_error(name)
            if problem is not None:
                raise InvalidQueueName(problem)
            self.check_usable(name)
        return queue

    def flushing(self) -> Generator[list[Queue], None, None]:
        """Drop every waiting item of every queue that exists now, one queue after the other.

        Yields after each short piece of work:
            The queues that were changed and are not committed yet, and at the end of one from which
            items were dropped that queue.

        Raises, after trying all:
            JournalError: a queue could not be written.
            QueueUnavailable: a queue is still loading.
        """

        def changed(queue: Queue, dropped: int) -> list[Queue]:
            return [queue] if dropped or not queue.changes.are_written else []

        yield from _in_turn(self._one_by_one(), Queue.flushing, changed)
        self.loading.check(sorted(self.loading))

    def delete(self, name: str) -> bool:
        """Delete a queue with its items and its journal; return False if it does not exist.

        Raises:
            InvalidQueueName: no queue can have that name.
            JournalError: its files could not be removed; the queue still exists.
            QueueUnavailable: the queue is damaged or still loading.
        """
        failures: list[JournalError | None] = []
        queue = self.existing(name)
        if queue is None:
            return False
        self.deletions.begin(queue, failures.append, InlineWorker())
        for failure in failures:
            if failure is not None:
                raise failure
        return True

    def _deleted(self, queue: Queue) -> None:
        """Close a deleted queue, and forget it."""
        queue.drop()
        name = queue.name
        self.registry.put(name, NO_ENTRY)
        family = family_of(name)
        if self._masked.get(name) is queue:
            del self._masked[name]
        else:
            self._hide(name)
        self._children.get(family, {}).pop(name, None)
        self._restless.pop(queue, None)
        self._resting.forget(queue)
        self.commits.note_change(queue)
        self._connect_fanout(family)
        self._put_family_in_force(name)  # its children inherit less now
        self.deletes += 1
        self.retired.total_items += queue.backlog.total_items
        self.retired.get_hits += queue.counts.get_hits
        self.retired.get_misses += queue.counts.get_misses

    # --- periodic work ---

    def _hide(self, name: str) -> Queue:
        """Take a queue out of `queues`; return it."""
        for view in self.views:
            view.pop(name, None)
        return self.queues.pop(name)

    def _one_by_one(self) -> Iterator[Queue]:
        """Yield the queues that exist now, except those that are closed when their turn comes."""
        for queue in list(self.queues.values()):
            if not queue.state.is_closed:
                yield queue

    def _finding_restless(self) -> Generator[None, None, list[Queue]]:
        """Return the queues for which periodic work may have something to do.

        Yields after each short piece of work.
        """
        changed = self._changed
        if changed is None:
            changed = self._changed = self.commits.follow(self._everything())
        changed.update(self.commits.dirty)
        for number in range(1, len(changed) + 1):  # those that change meanwhile can wait
            if not changed:
                break
            name = name_of(changed.pop())
            queue = self.queues.get(name, self._masked.get(name))
            if queue is not None:
                self._restless[queue] = None
            if not number % _IDLE_AT_ONCE:
                yield
        now, number = self.clock.now(), 0
        while (queue := self._resting.take(now)) is not None:
            self._restless[queue] = None
            number += 1
            if not number % _IDLE_AT_ONCE:
                yield
        return list(self._restless)

    def sweep(self) -> None:
        """Do all of `sweeping`."""
        run_to_end(self.sweeping())

    def sweeping(self) -> Generator[None, None, None]:
        """Expire items and queues, and give back overdue reads, one queue after the other."""
        for number, queue in enumerate((yield from self._finding_restless())):
            if not number % _IDLE_AT_ONCE:
                yield
            if queue.name in self._masked:
                continue
            if (
                queue.needs_sweep or queue.config.max_queue_age is not None
            ) and not queue.state.is_closed:
                yield from self._sweeping(queue)
                yield

    def _sweeping(self, queue: Queue) -> Generator[None, None, None]:
        try:
            yield from queue.sweeping()
            if self.clock.now() > queue.ends_at and queue not in self.deletions:
                log.info(
                    "deleting queue %s: it is empty and older than max_queue_age",
                    queue.name,
                    extra={"queue": queue.name},
                )
                done = partial(_log_failure, queue.name)
                self.deletions.begin(queue, done, is_empty=True)
                self.expires += queue.state.is_closed
        except QueueUnavailable as error:
            log.error(  # noqa: TRY400 # it says it all
                "queue %s: %s", queue.name, error, extra={"queue": queue.name}
            )
        except Exception as error:
            if not self.commits.survives(error):
                raise
            # A bug in one queue must not keep all others from being swept for ever.
            log.exception("queue %s was not swept", queue.name, extra={"queue": queue.name})

    def tick(self) -> None:
        """Do all of `ticking`."""
        run_to_end(self.ticking())

    def ticking(self) -> Generator[None, None, None]:
        """Do the upkeep of journals that is due by time, one queue after the other."""
        self.check_path()
        for queue in (yield from self._finding_restless()):
            if queue.state.is_closed:
                continue
            try:
                queue.tick()
            except Exception as error:
                if not self.commits.survives(error):
                    raise
                log.exception(
                    "the upkeep of the journal of queue %s failed",
                    queue.name,
                    extra={"queue": queue.name},
                )
            else:
                self._let_rest(queue)
            yield

    def _let_rest(self, queue: Queue) -> None:
        """Do not look at `queue` before there is something to do, or it changes."""
        until = queue.rests_until
        if until > self.clock.now():
            self._restless.pop(queue, None)
            self._resting.later(queue, until if until < inf else None, 0)

    def check_deadlines(self) -> None:
        """Do all of `checking_deadlines`."""
        run_to_end(self.checking_deadlines())

    def checking_deadlines(self) -> Generator[None, None, None]:
        """Give back the open reads whose time is up, and add the delayed items that are due.

        Yields after each short piece of work. A queue with more to do gets its next turn after all
        others, so that much of one queue does not hold up the rest.
        """
        deadlines = self.commits.deadlines
        self._follow_clock()
        deadlines.begin_round()
        while (one := deadlines.take(self.clock.monotonic())) is not None:
            try:
                again = one.check_deadlines()
            except Exception as error:
                if not self.commits.survives(error):
                    raise
                log.exception("what was due in a queue could not be done")
                deadlines.watch(one)
            else:
                deadlines.later(one, again, self.clock.monotonic())
            yield

    def _watch_queue(self, name: str) -> None:
        queue = self.queues.get(name, self._masked.get(name))
        if queue is not None:
            self.commits.deadlines.look_now(queue)

    def _follow_clock(self) -> None:
        """Look at all deadlines if the wall clock was set forward: delayed items may be due."""
        ahead = self.clock.now() / 1000 - self.clock.monotonic()
        if ahead > self._clock_ahead + _CLOCK_STEP:
            self.commits.deadlines.watch_all()
            self._clock_ahead = ahead
        self._clock_ahead = min(ahead, self._clock_ahead)

    def expiring(self, name: str | None = None) -> Generator[list[Queue], None, int]:
        """Drop or move the expired items at the head of a queue, or of every queue, in turn.

        Yields after each short piece of work:
            The queues that were changed and are not committed yet.

        Returns:
            How many items were dropped or moved.

        Raises, after trying all:
            JournalError, QueueUnavailable: a queue could not be read or written.
            InvalidQueueName: a queue cannot have that name.
        """
        if name is None:
            queues = self._one_by_one()
        else:
            queue = self.existing(name)
            queues = iter([] if queue is None else [queue])

        def changed(queue: Queue, _expired: int) -> list[Queue]:
            target = queue.config.expire_to_queue
            moved_to = self.destinations(target) if target is not None else []
            return [one for one in (queue, *moved_to) if not one.changes.are_written]

        return (yield from _in_turn(queues, lambda queue: queue.line.expiring(), changed))

    # --- configuration ---

    def reload(self, config: ServerConfig) -> list[str]:
        """Do all of `reloading`; return what that does."""
        return run_to_end(self.reloading(config))

    def reloading(self, config: ServerConfig) -> Generator[None, None, list[str]]:
        """Put the settings of queues and aliases in force, one queue after the other.

        Aliases, and queues that are created from now on, have their new settings at once.

        Yields after each short piece of work.

        Returns:
            What stays as it is until queues are created or loaded again, for the reply.
        """
        self._set_aliases(config)
        known = (self.queues, self._masked, self.damaged, self.loading.expected)
        masked = [name for name in config.aliases if any(name in names for names in known)]
        for warning in config_warnings(config, masked):
            log.warning("%s", warning)
        yield
        staying: dict[str, list[str]] = {setting: [] for setting in _FIXED}
        for queue in self._everything():
            for setting in self._put_in_force(queue):
                staying[setting].append(queue.name)
            yield
        return [_stays(setting, names) for setting, names in staying.items() if names]

    def _put_in_force(self, queue: Queue) -> list[str]:
        """Put a queue's settings in force; return those of `_FIXED` that stay as they are."""
        if queue.state.is_closed:
            return []
        self.commits.note_change(queue)
        wanted, now = self._configured(queue.name), queue.config
        staying = [one for one in _FIXED if getattr(wanted, one) != getattr(now, one)]
        if staying:
            wanted = _with_journal(wanted, now.keep_journal, now.journal_dialect)
        queue.configure(wanted)
        return staying

    def _set_aliases(self, config: ServerConfig) -> None:
        """Use a new configuration: its aliases mask queues of the same names."""
        self.config = config
        shown = {name: queue for name, queue in self._masked.items() if name not in config.aliases}
        masked = {name: self.queues[name] for name in config.aliases if name in self.queues}
        for name in masked:
            self._masked[name] = self._hide(name)
        for name in shown:
            self.queues[name] = self._masked.pop(name)
        for queue in (*masked.values(), *shown.values()):
            self.commits.note_change(queue)
        for name in self._children:
            self._connect_fanout(name)


def alias_leaves(config: ServerConfig, name: str) -> Iterator[str]:
    """Yield the names of the queues that `name`, an alias of `config` or a queue, stands for."""
    alias = config.aliases.get(name)
    if alias is None:
        yield name
        return
    for destination in alias.destination_queues:
        yield from alias_leaves(config, destination)


class Mover:
    """Moves items of one queue to others: see `MoveTo`."""

    __slots__ = ("_collection",)

    def __init__(self, collection: QueueCollection) -> None:
        self._collection = collection

    def __call__(self, name: str, one: Item, *, durable: bool) -> bool:
        """Add an item and write it."""
        return self._collection.move_to(name, one, durable=durable)

    def has_room(self, name: str, size: int) -> bool:
        """Whether an item of `size` bytes would be accepted now."""
        queues = self._collection.takers(name, size)
        return len(queues) > 0 and all(queue.has_room(size) for queue in queues)

    def being_written(self, name: str) -> list[Queue]:
        """Return the queues that have what was added to `name`, if a round has to write it."""
        return [one for one in self._collection.destinations(name) if one.core.is_writing]

    def sync(self, name: str) -> JournalError | None:
        """Force to disk what was added."""
        return sync_now(*self._collection.destinations(name))

    def syncing(self, name: str) -> SyncRound:
        """Return the round that syncs what was added."""
        sync = SyncRound()
        sync.queues = dict.fromkeys(self._collection.destinations(name))
        return sync


def _in_turn(
    queues: Iterable[Queue],
    work: Callable[[Queue], Generator[None, None, int]],
    changed: Callable[[Queue, int], list[Queue]],
) -> Generator[list[Queue], None, int]:
    """Do work on one queue after the other; return how many items it concerned in all.

    Args:
        queues: the queues.
        work: what to do, in short pieces; it returns the number of items.
        changed: returns what to yield after each piece, given the queue, and the number once it is
            known; 0 before.

    Raises, after trying all:
        JournalError, QueueUnavailable: what a queue's work raised last, unless the queue cannot be
            used because it was deleted meanwhile.
    """
    total = 0
    failure: JournalError | QueueUnavailable | None = None
    for queue in queues:
        pieces, is_done, count = work(queue), False, 0
        while not is_done:
            try:
                next(pieces)
            except StopIteration as end:
                count, is_done = end.value, True
            except JournalError as error:
                failure, is_done = error, True
            except QueueUnavailable as error:
                is_done = True
                if not queue.state.is_closed:
                    failure = error
            yield changed(queue, count)
        total += count
    if failure is not None:
        raise failure
    return total


def name_of(changed: Committable) -> str:
    """Return the name of the queue that has changed."""
    assert isinstance(changed, Queue)  # noqa: S101 # nothing else is committed
    return changed.name


def _cannot_be_loaded(name: str, error: Exception) -> QueueUnavailable:
    return QueueUnavailable(f"queue {name} cannot be loaded: {error}")


@lru_cache(maxsize=64)
def _with_journal(config: QueueConfig, keep_journal: object, dialect: Dialect) -> QueueConfig:
    """Return settings with other values of those in `_FIXED`; very many queues may share them."""
    return config.model_copy(update={"keep_journal": keep_journal, "journal_dialect": dialect})


def _stays(setting: str, names: Sequence[str]) -> str:
    """Describe, for the reply to a reload, which queues keep the value of a setting."""
    named = ", ".join(names[:_NAMED])
    others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{setting} of {named}{others}: delete and create them, or restart"


def _log_failure(name: str, failure: JournalError | None) -> None:
    if failure is not None:
        log.error("queue %s: %s", name, failure, extra={"queue": name})
