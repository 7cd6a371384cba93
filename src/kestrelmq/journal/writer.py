"""Writing the journal of one queue: an ordered list of rotated files, and the current file.

Invariants: replaying `files` in order gives the queue's state as of the last append that returned;
all files but the last are completely on disk.

A crash may leave a record cut short at the end of the last file (loading sets it aside), a rotated
file without a current one, an empty temporary, or a pack beside the files that it replaces.
"""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from threading import Lock
from typing import Final, Literal

from kestrelmq.clock import Clock, Pause
from kestrelmq.deferred_logs import get_logger
from kestrelmq.disk.directories import AppendFile, Directory, UnnamedFiles, write_file
from kestrelmq.disk.opening import FoundFile
from kestrelmq.format.names import (
    DELETE,
    NEXT,
    is_pack,
    later_timestamp,
    newest_timestamp,
    pack_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.journal.reader import JournalReader

Dialect = Literal["documented", "kestrel-2"]

_PROBE: Final = 4096
_LARGE: Final = 1 << 20
"""Bytes from which on a file takes noticeable time to free."""
_SUSPECT: Final = "an earlier sync failed; the journal is being rewritten"

log = get_logger(__name__)


class NoJournal:
    """Stands in for the journal of a queue that is held only in memory."""

    __slots__ = ()
    size = 0
    is_torn = False
    is_writing = False
    rewrites = 0
    rotations = 0
    syncs = 0

    def append(self, data: bytes) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing: there are no files."""

    def probe(self) -> None:
        """Do nothing: no write can fail."""

    def close(self) -> None:
        """Do nothing: no file is open."""


class JournalFollower:
    """Told about file changes that a reader of a growing journal must follow; ignores them."""

    __slots__ = ()

    def file_renamed(self, old: str, new: str) -> None:
        """Follow a rename: the file `old` is now called `new`."""

    def file_ended(self, name: str, end: int, following: str) -> None:
        """Note that the file `following` goes on after byte `end` of `name`."""


_NOBODY: Final = JournalFollower()


class FileJournal:
    """A queue's journal on disk.

    Attributes:
        directory: where its files are.
        queue: the queue's name.
        current_name: name of the current file: the queue's, unless a rotation failed half-way.
        after: a timestamp (ms). Rotated files up to it belong to a deleted queue of this name.
        sizes: bytes in each rotated file by its name, in replay order.
        size: bytes in all files.
        is_ending: whether the journal is being removed, so that no other file may be begun.
        kept: files that the first one, a pack, had replaced before the start, and that are still
            there for those who follow them; the last has the final name of the pack.
        kept_for: how long they have been kept so far (seconds).
        is_torn: whether a failed write was cut off the current file, which takes no more: the next
            records go to a new file, see `append`.
        follower: told when the names of the files change.
        suspect: whether a sync failed. What it should have covered may never reach the disk, so no
            sync succeeds until the journal is replaced.
        rewrites: how often, since it was opened, the live items and reads of all files, or of the
            oldest, were written to one file that replaced them.
        rotations: how often a new current file was begun.
        syncs: how often the journal was forced to disk.
        is_writing: whether `append_all` is running; then nothing else is done to the current file,
            but to sync it.
    """

    __slots__ = (
        "_clock",
        "_current",
        "_found",
        "_is_closed",
        "_lock",
        "_names_changed",
        "_names_synced",
        "_synced",
        "_writes_at",
        "after",
        "current_name",
        "directory",
        "follower",
        "is_ending",
        "is_torn",
        "kept",
        "kept_for",
        "queue",
        "rewrites",
        "rotations",
        "size",
        "sizes",
        "suspect",
        "syncs",
    )

    def __init__(
        self,
        directory: Directory,
        queue: str,
        rotated: dict[str, int],
        clock: Clock,
        *,
        after: int = 0,
        found: FoundFile | None = None,
    ) -> None:
        """Describe a journal; `open` opens it.

        Args:
            directory: where its files are.
            queue: the queue's name.
            rotated: the size of each rotated file, in replay order.
            clock: tells the timestamps of new files.
            after: as the attribute.
            found: the current file, if it was read already.
        """
        self._clock = clock
        self.after = after
        self.is_ending = False
        self.kept: tuple[str, ...] = ()
        self.kept_for = 0.0
        self.queue = queue
        self.sizes = rotated
        self.size = sum(rotated.values())
        self.is_torn = self.suspect = False
        self.rewrites = self.rotations = self.syncs = 0
        # Bytes in the current file when `append_all` began; None if it is not running.
        self._writes_at: int | None = None
        self.follower: JournalFollower = _NOBODY
        self.directory = directory
        self._current: AppendFile | None = None
        self._is_closed = False
        self._found = found
        self.current_name = queue
        # Bytes of the current file that are on disk for certain.
        self._synced = 0
        # How often names of files changed, and how many of these changes are on disk.
        self._names_changed = self._names_synced = 0
        # Guards the current file, how much of it is synced, and the names; held only for a moment.
        self._lock = Lock()

    @property
    def files(self) -> list[str]:
        """Names of the files in replay order; the last is the current one."""
        return [*self.sizes, self.current_name]

    @property
    def is_new(self) -> bool:
        """Whether it has no file yet; the first write, or `open`, creates one."""
        return self._current is None and self._found is None and not self.sizes

    def open(self) -> None:
        """Open the current file; it is created if it does not exist. Raises OSError."""
        self._current = self.directory.append_to(self.current_name, self._found)
        self._found = None
        self._names_changed += 1
        self.size += self._current.size

    def _opened(self) -> AppendFile:
        """Return the current file, which a new journal may not have yet. Raises OSError."""
        if self._current is None and not self._is_closed:
            self.open()
        if self._current is None:
            raise OSError("the journal is closed")
        return self._current

    def append(self, data: bytes) -> None:
        """Write whole records, all or none; to a new file if the current one takes no more.

        Raises:
            OSError: they could not be written.
        """
        if self.is_torn:
            self._append_to_new_file(data)
            return
        current = self._current
        if current is None:
            current = self._opened()
        try:
            current.append(data)
        except BaseException:
            self.is_torn = current.is_torn
            raise
        self.size += len(data)

    @property
    def is_writing(self) -> bool:
        """Whether `append_all` is running."""
        return self._writes_at is not None

    def begin_append_all(self) -> None:
        """Prepare for `append_all`, and let `current_size` stay as it is until `end_append_all`.

        The current file must not be torn. Raises OSError; then `append_all` does so, too.
        """
        self._writes_at = 0
        self._writes_at = self._opened().size

    def append_all(self, records: Sequence[bytes], pause: Pause) -> None:
        """Append all of these as `append` does, in any thread.

        `pause` is called after each short piece.
        """
        current = self._current
        if current is None:
            raise OSError("the journal is closed")
        current.append_all(records, pause)

    def end_append_all(self, size: int) -> None:
        """End `append_all`, which has written `size` bytes; 0 if it failed."""
        self._writes_at = None
        self.size += size
        if self._current is not None:
            self.is_torn = self._current.is_torn

    def _append_to_new_file(self, records: bytes) -> None:
        """Write whole records, all or none, to a new current file. Raises OSError.

        They are first written to a temporary file, which then becomes the current one. So a failure
        leaves the files as they were, and attempts on a full disk do not each leave a file.
        """
        name = temporary_name(self.queue, NEXT, self._clock.now())
        write_file(self.directory, name, (records,))
        old, end = self.current_name, self.current_size
        try:
            rotated = self.rotate(name)
        except OSError:
            with contextlib.suppress(OSError):
                self.directory.remove(name)
            raise
        log.info(
            "queue %s continues in a new file: the end of %s was cut off",
            self.queue,
            old,
            extra={"queue": self.queue},
        )
        self.follower.file_ended(rotated, end, self.current_name)

    @property
    def current_size(self) -> int:
        """Bytes in the current file."""
        if self._writes_at is not None:
            return self._writes_at
        return self._current.size if self._current is not None else 0

    def reader(self, file: str, position: int) -> JournalReader:
        """Return a reader that starts at `position` in `file`."""
        directory = self.directory
        return JournalReader(directory.path, file, position, open_file=directory.open)

    # --- syncing ---

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError.

        After a failed fsync the system may have dropped the data that it could not write, and a
        later fsync of the same file would succeed without it. So a failure makes the journal
        `suspect`.
        """
        with self._lock:
            names_changed = self._names_changed
        if self.suspect:
            raise OSError(_SUSPECT)
        try:
            self.sync_current()
            if names_changed != self._names_synced:
                self.directory.sync()
        except OSError:
            self.suspect = True
            raise
        self._names_synced = names_changed
        self.syncs += 1

    @property
    def unsynced(self) -> int:
        """Bytes of the current file that no sync has covered; a rotation must sync them."""
        return self.current_size - self._synced

    def sync_current(self) -> None:
        """Force to disk what has been written to the current file; from any thread.

        Raises:
            OSError: the sync failed, and the journal is `suspect`.
        """
        with self._lock:
            current = self._current
        if current is None:
            return
        size = current.size
        try:
            current.sync()
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._current is not current:
                return  # since then it was rotated, and so synced, and packed
            self.suspect = True
            raise
        with self._lock:
            if self._current is current:
                self._synced = max(self._synced, size)

    def probe(self) -> None:
        """Test the disk: write and remove a small file. Raises OSError."""
        if self.suspect:
            raise OSError(_SUSPECT)
        if self._current is not None:
            self._current.cut_failed_write()
            self.is_torn = self._current.is_torn
        name = temporary_name(self.queue, NEXT, self._clock.now())
        file = self.directory.create(name)
        try:
            file.append(bytes(_PROBE))
        finally:
            file.close()
            self.directory.remove(name)

    # --- rotating ---

    def end_file(self, *, cures: bool = False) -> str:
        """Make all existing content part of rotated files; return the name of the last of those.

        Rotates the current file, unless it is empty and follows a rotated one that is no
        pack: what replaces these files has the name of a pack with the timestamp of the last.

        Raises:
            OSError: as `rotate`.
        """
        last = next(reversed(self.sizes), None)
        if last is None or self.current_size or is_pack(last):
            return self.rotate(cures=cures)
        return last

    def rotate(self, next_file: str | None = None, *, cures: bool = False) -> str:
        """Begin a new current file; return the new name of the one that was current until now.

        The `unsynced` part of the old file is forced to disk first: only the last file of a queue
        may end in a record that is cut short, and the system writes names and contents in any
        order.

        Args:
            next_file: a file that is written and synced. It becomes the current one, and its
                records come after all others.
            cures: whether all rotated files are about to be replaced. Only then may a `suspect`
                journal be rotated: what the failed sync should have covered may be missing after
                a power loss, and records in a later file would then stand behind a gap.

        Raises:
            OSError: the journal continues in its current file, whose name may have changed.
        """
        current = self._opened()
        if self.suspect and not cures:
            raise OSError(_SUSPECT)
        if self.is_ending:
            raise OSError("the journal is being removed")
        current.cut_failed_write()
        timestamp = self._timestamp()
        old = self.current_name
        rotated = rotated_name(self.queue, timestamp) if old == self.queue else old
        temporary = next_file or temporary_name(self.queue, NEXT, timestamp)
        new = self.directory.append_to(temporary) if next_file else self._empty_file(temporary)
        try:
            self._sync_rest()
            if rotated != old:
                self.directory.rename(old, rotated)
                self._current_renamed(current, rotated)
                self.directory.crash_point("rotate: current file renamed")
            self.directory.rename(temporary, self.queue)
        except OSError:
            new.close()
            with contextlib.suppress(OSError):
                self.directory.remove(temporary)
            raise
        new.renamed(self.queue)
        self.directory.crash_point("rotate: new file named")
        with self._lock:
            self._names_changed += 1
            self.sizes[rotated] = current.size
            self._current = new
            self._synced = new.size  # of a `next_file`
            self.size += new.size
        current.close()
        self.current_name = self.queue
        self.is_torn = False
        self.rotations += 1
        return rotated

    def _empty_file(self, name: str) -> AppendFile:
        """Open `name`, a new file; what stands there could not be removed. Raises OSError."""
        file = self.directory.append_to(name)
        if file.size:
            file.close()
            self.directory.create(name).close()
            file = self.directory.append_to(name)
        return file

    def _current_renamed(self, current: AppendFile, name: str) -> None:
        old, self.current_name = self.current_name, name
        current.renamed(name)
        self.follower.file_renamed(old, name)

    def _sync_rest(self) -> None:
        """Sync the `unsynced` part of the current file. Raises OSError."""
        if not self.unsynced:
            return
        # A suspect journal is rotated to be rewritten, even if syncs keep failing.
        was_suspect = self.suspect
        try:
            self.sync_current()
        except OSError:
            if not was_suspect:
                raise

    def replaced(self, files: list[str], name: str, size: int) -> None:
        """Note that the file `name` of `size` bytes has replaced the rotated `files`."""
        kept = {file: bytes_ for file, bytes_ in self.sizes.items() if file not in files}
        self.size += size - (sum(self.sizes.values()) - sum(kept.values()))
        self.sizes = {name: size, **kept}

    def renamed(self, old: str, new: str) -> None:
        """Follow a rename: the rotated file `old` is now called `new`."""
        self.sizes = {new if name == old else name: size for name, size in self.sizes.items()}
        self.follower.file_renamed(old, new)

    # --- the end ---

    def begin_removal(self, also: Iterable[str] = ()) -> "JournalRemoval":
        """Prepare to remove the queue's files, and those named `also`.

        Until it is closed, the journal continues in its current file and begins no other one. What
        it still writes is removed, too. Files that were set aside as torn stay.

        Raises:
            OSError: the queue is as it was.
        """
        current = self._opened()
        if self.current_name == self.queue:
            # This frees the name for the current file of a new queue that is called the same.
            rotated = rotated_name(self.queue, self._timestamp())
            # If somebody has removed the file, the queue can only be deleted.
            with contextlib.suppress(FileNotFoundError):
                self.directory.rename(self.current_name, rotated)
            self._current_renamed(current, rotated)
            self._names_changed += 1
            self.directory.crash_point("delete: current file renamed")
        newest = max(newest_timestamp(list(self.sizes)), newest_timestamp([self.current_name]))
        self.is_ending = True
        sizes = {**self.sizes, self.current_name: self.current_size}
        return JournalRemoval(self.directory, self.queue, newest, sizes, also)

    def _timestamp(self) -> int:
        """Return the timestamp (ms) of the next rotated file: they increase, whatever the clock."""
        return max(later_timestamp(list(self.sizes), self._clock.now()), self.after + 1)

    def close(self) -> None:
        """Release the files."""
        self._is_closed = True
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()
        self.follower = _NOBODY  # breaks a reference cycle, which only the collector would free


class JournalRemoval:
    """Removes the files of a queue that is deleted, by way of an empty pack.

    `replace` puts the empty pack in the place of all files, `remove` deletes these and then the
    pack. A crash before `replace` leaves everything, a later one an empty queue or none. Both
    steps may run in another thread.

    Attributes:
        newest: the timestamp (ms) up to which files belong to the deleted queue.
        sizes: the size in bytes of each file.
        also: names of more files to remove.
    """

    def __init__(
        self,
        directory: Directory,
        queue: str,
        newest: int,
        sizes: Mapping[str, int],
        also: Iterable[str],
    ) -> None:
        """Describe the removal; see `FileJournal.begin_removal`.

        Args:
            directory: where the files are.
            queue: the queue's name.
            newest: the timestamp (ms) up to which files belong to the deleted queue.
            sizes: the size in bytes of each file.
            also: names of more files to remove.
        """
        self.newest = newest
        self._queue = queue
        self.sizes = dict(sizes)
        self.also = list(also)
        self._directory = directory

    def replace(self, _pause: Pause) -> None:
        """Replace the files by an empty pack. Raises OSError: they are not replaced."""
        directory = self._directory
        temporary = temporary_name(self._queue, DELETE, self.newest)
        directory.create(temporary).close()
        # The pack replaces the files only under the names that they have now: these must be on
        # disk before it.
        directory.sync()
        directory.rename(temporary, self._pack)
        try:
            directory.sync()
        except OSError:
            directory.remove(self._pack)
            raise
        directory.crash_point("delete: empty pack in place")

    def remove(self, unnamed: UnnamedFiles, _pause: Pause) -> None:
        """Delete the files, once they are replaced and the journal is closed.

        Large files are handed to `unnamed`, which frees them later.
        """
        directory = self._directory
        for name, size in self.sizes.items():
            if size > _LARGE:
                unnamed.keep_open(name, directory.open)
        try:
            for name in (*self.sizes, *self.also):
                directory.remove(name)
                directory.crash_point("delete: file removed")
            directory.sync()
            directory.remove(self._pack)
            directory.crash_point("delete: pack removed")
            directory.sync()
        except OSError as error:
            log.warning(
                "queue %s is deleted, but not all of its files: %s",
                self._queue,
                error,
                extra={"queue": self._queue},
            )

    @property
    def _pack(self) -> str:
        return pack_name(self._queue, self.newest)
