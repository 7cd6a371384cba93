"""The files of one queue: an ordered list of rotated ones, and the current one, which grows.

Invariants: replaying `files` in order gives the queue's state as of the last append that returned;
all files but the last are on disk, whole.

A crash may leave a record cut short at the end of the last file (loading sets it aside), a
rotated file and no current one, an empty temporary, or a pack beside the files that it replaces.
"""

import contextlib
import logging
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Final, Literal

from kestrelmq.clock import Pause, no_pause
from kestrelmq.journal.files import AppendFile, Directory, UnnamedFiles
from kestrelmq.journal.names import (
    DELETE,
    NEXT,
    later_timestamp,
    newest_timestamp,
    pack_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.journal.reader import JournalReader

Dialect = Literal["documented", "kestrel-2"]

_PROBE: Final = 4096
_PIECE: Final = 128 << 10
"""Bytes that are written in a small part of a millisecond."""
_LARGE: Final = 1 << 20
"""Bytes of a file that it takes a while to free."""

log = logging.getLogger(__name__)


class NoJournal:
    """The journal of a queue that is only held in memory."""

    __slots__ = ()
    size = 0
    is_torn = False
    rewrites = 0
    rotations = 0
    syncs = 0

    def append(self, data: bytes) -> None:
        """Keep nothing."""

    def sync(self) -> None:
        """Nothing to force to disk."""

    def probe(self, now: int) -> None:
        """Nothing that could fail."""

    def close(self) -> None:
        """Nothing to release."""


class Follower:
    """Who reads the files of a journal while they change; this one reads none."""

    __slots__ = ()

    def file_renamed(self, old: str, new: str) -> None:
        """Learn that the file `old` is called `new` now."""

    def file_ended(self, name: str, end: int, following: str) -> None:
        """Learn that what was to come after byte `end` of `name` begins the file `following`."""


_NOBODY: Final = Follower()


class FileJournal:
    """A queue's journal on disk.

    Attributes:
        directory: where its files are.
        queue: the queue's name.
        sizes: bytes in each rotated file by its name, in replay order.
        size: bytes in all files.
        dialect: how the current file says which xid a read got; None while it does not.
        is_ending: the queue is being deleted, and no other file may be begun.
        is_torn: a failed write left something in the current file, which takes no more: what comes
            next goes to a file of its own, see `append_to_new_file`.
        follower: who reads the files, and is told when their names change.
        suspect: a sync failed, and what it should have covered may never reach the disk: until
            the journal is replaced, no sync succeeds.
        rewrites: how often what lives in its files, or in the oldest of them, was written to one
            that took their place, since it was opened.
        rotations: how often a new current file was begun.
        syncs: how often it was forced to disk.
        begun_after: bytes in the rotated files that one made by `begin` followed, since the last
            `end_file`.
    """

    __slots__ = (
        "_after",
        "_current",
        "_lock",
        "_name",
        "_names_changed",
        "_synced",
        "begun_after",
        "dialect",
        "directory",
        "follower",
        "is_ending",
        "is_torn",
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
        dialect: Dialect | None = None,
        *,
        after: int = 0,
    ) -> None:
        """Describe a journal; `open` opens it.

        Args:
            directory: where its files are.
            queue: the queue's name.
            rotated: the size of each rotated file, in replay order.
            dialect: that of the current file.
            after: a timestamp (ms) up to which rotated files are another queue's, which goes.
        """
        self._after = after
        self.is_ending = False
        self.queue = queue
        self.sizes = rotated
        self.size = sum(rotated.values())
        self.dialect = dialect
        self.is_torn = self.suspect = False
        self.rewrites = self.rotations = self.syncs = 0
        self.begun_after = 0
        self.follower: Follower = _NOBODY
        self.directory = directory
        self._current: AppendFile | None = None
        self._name = queue
        # Bytes of the current file that are on disk for certain.
        self._synced = 0
        self._names_changed = False
        # Of the current file, what is synced of it, and the names; held for a moment only.
        self._lock = Lock()

    @property
    def current_name(self) -> str:
        """Name of the current file; the queue's, unless a rotation failed half-way."""
        return self._name

    @property
    def files(self) -> list[str]:
        """Names of the files in replay order; the last is the current one."""
        return [*self.sizes, self._name]

    def open(self) -> None:
        """Open the current file, creating it when it is not there. Raises OSError."""
        self._current = self.directory.append_to(self._name)
        self._names_changed = True
        self.size += self._current.size

    def append(self, data: bytes) -> None:
        """Write whole records, all or none. Raises OSError."""
        current = self._current
        if current is None:
            raise OSError("the journal is closed")
        try:
            current.append(data)
        except OSError:
            self.is_torn = current.is_torn
            raise
        self.size += len(data)

    def append_to_new_file(self, records: bytes, name: str, now: int) -> None:
        """Write whole records, all or none, where the current file takes no more. Raises OSError.

        They are written to the temporary `name` first, which then becomes the current file. So a
        failure leaves the files as they were: a disk that stays full does not get a file with
        every attempt.
        """
        self.begin(name, records, no_pause)
        old, end = self._name, self.current_size
        try:
            rotated = self.rotate(now, name)
        except OSError:
            self.forget(name)
            raise
        log.info("queue %s goes on in a new file: the end of %s was cut off", self.queue, old)
        self.follower.file_ended(rotated, end, self._name)

    @property
    def current_size(self) -> int:
        """Bytes in the current file."""
        return self._current.size if self._current is not None else 0

    def reader(self, file: str, position: int) -> JournalReader:
        """Return a reader that stands at `position` in `file`."""
        directory = self.directory
        return JournalReader(directory.path, file, position, open_file=directory.open)

    # --- syncing ---

    def sync(self) -> None:
        """Force to disk what was appended; from any thread. Raises OSError.

        After a failure the system may have dropped what it could not write, and a later fsync of
        the same file would succeed without it. So a failure makes the journal `suspect`.
        """
        with self._lock:
            names_changed, self._names_changed = self._names_changed, False
        if self.suspect:
            raise OSError("an earlier sync failed; the journal is being written anew")
        try:
            self.sync_current()
            if names_changed:
                self.directory.sync()
        except OSError:
            self.suspect = self._names_changed = True
            raise
        self.syncs += 1

    @property
    def unsynced(self) -> int:
        """Bytes of the current file that no sync has covered: what a rotation waits for."""
        return self.current_size - self._synced

    def sync_current(self) -> None:
        """Force the current file to disk, as far as it is written; from any thread.

        Raises:
            OSError: it failed, and the journal is `suspect`.
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
                return  # it was rotated, and so synced, and packed since
            self.suspect = True
            raise
        with self._lock:
            if self._current is current:
                self._synced = max(self._synced, size)

    def probe(self, now: int) -> None:
        """See whether the disk works: write and remove a little file. Raises OSError."""
        if self.suspect:
            raise OSError("an earlier sync failed; the journal is being written anew")
        if self._current is not None:
            self._current.settle()
            self.is_torn = self._current.is_torn
        name = temporary_name(self.queue, NEXT, now)
        file = self.directory.create(name)
        try:
            file.append(bytes(_PROBE))
        finally:
            file.close()
            self.directory.remove(name)

    # --- rotating ---

    def end_file(self, now: int) -> str:
        """Have no more written to the files there are; return the last one's name.

        The current file is rotated, unless nothing was written to it yet. Raises OSError.
        """
        self.begun_after = 0
        if self.sizes and not self.current_size:
            return list(self.sizes)[-1]
        return self.rotate(now)

    def begin(self, name: str, record: bytes, pause: Pause) -> None:
        """Write `record` to a file that is not part of the journal yet; from any thread.

        It is synced, and the current file too, so that `rotate` has little left to sync.

        Args:
            name: of the file, a temporary; for `rotate` or `forget`.
            record: what it will begin with.
            pause: called after each short piece.

        Raises:
            OSError: there is no such file.
        """
        try:
            file = self.directory.create(name)
            try:
                for start in range(0, len(record), _PIECE):
                    file.append(record[start : start + _PIECE])
                    pause()
                file.sync()
            finally:
                file.close()
            self.sync_current()
        except OSError:
            self.forget(name)
            raise
        self.directory.reached("begin: record written")

    def forget(self, begun: str) -> None:
        """Remove a file that `begin` made, if it is still one."""
        with contextlib.suppress(OSError):
            self.directory.remove(begun)

    def rotate(self, now: int, begun: str | None = None) -> str:
        """Begin a new current file; return the name of the one that was current until now.

        The name has the time `now` (ms), or a later one if the clock stepped back. What is
        `unsynced` of the old file is forced to disk first: only the last file of a queue may end
        in a record that is cut short, and the system writes names and contents in any order.

        Args:
            now: see above.
            begun: a file that `begin` made, which becomes the new one; its record comes after all
                others.

        Raises:
            OSError: the journal goes on in the file that it had; its name may have changed.
        """
        current = self._current
        if current is None:
            raise OSError("the journal is closed")
        if self.is_ending:
            raise OSError("the queue is being deleted")
        current.settle()
        timestamp = self._timestamp(now)
        old = self._name
        rotated = rotated_name(self.queue, timestamp) if old == self.queue else old
        temporary = begun or temporary_name(self.queue, NEXT, timestamp)
        new = self.directory.append_to(temporary)
        try:
            self._sync_rest()
            if rotated != old:
                self.directory.rename(old, rotated)
                self._current_renamed(current, rotated)
                self.directory.reached("rotate: current file renamed")
            self.directory.rename(temporary, self.queue)
        except OSError:
            new.close()
            self.forget(temporary)
            raise
        new.renamed(self.queue)
        self.directory.reached("rotate: new file named")
        with self._lock:
            self._names_changed = True
            self.sizes[rotated] = current.size
            self._current = new
            self._synced = new.size  # that is what `begin` wrote
            if begun is not None:
                self.begun_after += current.size
            self.size += new.size
        current.close()
        self._name = self.queue
        self.is_torn = False
        self.rotations += 1
        return rotated

    def _current_renamed(self, current: AppendFile, name: str) -> None:
        old, self._name = self._name, name
        current.renamed(name)
        self.follower.file_renamed(old, name)

    def _sync_rest(self) -> None:
        """Sync what is left to sync of the current file. Raises OSError."""
        if not self.unsynced:
            return
        # What a suspect journal lost is written anew, and for that it must go on in a new file.
        was_suspect = self.suspect
        try:
            self.sync_current()
        except OSError:
            if not was_suspect:
                raise

    def replaced(self, files: list[str], name: str, size: int) -> None:
        """Take note that the file `name` of `size` bytes stands for the rotated ones of `files`."""
        kept = {file: bytes_ for file, bytes_ in self.sizes.items() if file not in files}
        self.size += size - (sum(self.sizes.values()) - sum(kept.values()))
        self.sizes = {name: size, **kept}

    def renamed(self, old: str, new: str) -> None:
        """Take note that the rotated file `old` is called `new` now."""
        self.sizes = {new if name == old else name: size for name, size in self.sizes.items()}
        self.follower.file_renamed(old, new)

    # --- the end ---

    def begin_removal(self, now: int, also: Iterable[str] = ()) -> "Removal":
        """Return what removes the queue's files, and those named `also`.

        Until the journal is closed it goes on, in the file that it has, but begins no other one:
        all that it writes is removed, too. What was set aside as torn stays.

        Raises:
            OSError: the queue is as it was.
        """
        current = self._current
        if current is not None and self._name == self.queue:
            # No file follows; a new queue of this name begins one that is called so.
            rotated = rotated_name(self.queue, self._timestamp(now))
            self.directory.rename(self._name, rotated)
            self._current_renamed(current, rotated)
            self._names_changed = True
            self.directory.reached("delete: current file renamed")
        newest = max(newest_timestamp(list(self.sizes)), newest_timestamp([self._name]))
        self.is_ending = True
        sizes = {**self.sizes, self._name: self.current_size}
        return Removal(self.directory, self.queue, newest, sizes, also)

    def _timestamp(self, now: int) -> int:
        """Return the time (ms) that names the next rotated file."""
        return max(later_timestamp(list(self.sizes), now), self._after + 1)

    def close(self) -> None:
        """Release the files."""
        with self._lock:
            current, self._current = self._current, None
        if current is not None:
            current.close()
        self.follower = _NOBODY  # or the two would wait for the collector of cycles


class Removal:
    """The files of a queue that goes, and the empty pack that stands for them meanwhile.

    A crash before `replace` leaves everything, a later one an empty queue or none. Both steps may
    run in another thread.

    Attributes:
        newest: the timestamp (ms) up to which files belong to the queue that goes.
    """

    def __init__(
        self,
        directory: Directory,
        queue: str,
        newest: int,
        sizes: Mapping[str, int],
        also: Iterable[str],
    ) -> None:
        """Describe it; see `FileJournal.begin_removal`.

        Args:
            directory: where the files are.
            queue: the queue's name.
            newest: see above.
            sizes: the files, and how many bytes they have.
            also: names of more files.
        """
        self.newest = newest
        self._directory = directory
        self._queue = queue
        self._sizes = sizes
        self._also = also
        self._pack = pack_name(queue, newest)

    def replace(self, _pause: Pause) -> None:
        """Let the files mean nothing any more. Raises OSError: they still do."""
        directory = self._directory
        temporary = temporary_name(self._queue, DELETE, self.newest)
        directory.create(temporary).close()
        # The pack stands for the files by the names that they have now.
        directory.sync()
        directory.rename(temporary, self._pack)
        try:
            directory.sync()
        except OSError:
            directory.remove(self._pack)
            raise
        directory.reached("delete: empty pack in place")

    def remove(self, unnamed: UnnamedFiles, _pause: Pause) -> None:
        """Remove the files, once they are replaced and the journal is closed.

        `unnamed` gets what is still to be freed, where nobody waits for it.
        """
        directory = self._directory
        for name, size in self._sizes.items():
            if size > _LARGE:
                unnamed.hold(name, directory.open)
        try:
            for name in (*self._sizes, *self._also):
                directory.remove(name)
                directory.reached("delete: file removed")
            directory.sync()
            directory.remove(self._pack)
            directory.reached("delete: pack removed")
            directory.sync()
        except OSError as error:
            log.warning("queue %s is deleted, but not all of its files: %s", self._queue, error)
