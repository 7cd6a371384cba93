"""Writes to a queue path in a store: a directory for each, and the commit.

A write collects its parts in `~~write-OWNER/`, named as `disk.write_directories` does, so the same
rule says which of them are abandoned, and a server that gets a copy of the queue path removes them.

A store has no locks: nobody else may write to the same queues meanwhile. It shows a file at one
moment, when it is whole. The contents of a queue change with one such step (*), all others leave
what a reader finds as it is. So a crash leaves each queue as it was, or as it is after the commit:

    no files, one part       (*) put the part as a rotated file
    no files, several parts  put an empty pack whose name is later than all parts', so that nobody
                             reads them; put the parts as rotated files; (*) delete the pack
    append                   (*) put the parts, joined, as the next rotated file
    overwrite                (*) put the parts, joined, as a pack, which replaces all files; delete
                             these

No single step changes a queue that has a current file, which only servers write. So that is an
error before anything is changed.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.disk.opening import open_stream
from kestrelmq.disk.write_directories import (
    WRITE_MARK,
    WriteOwner,
    may_go_on,
    new_name,
    process_above,
)
from kestrelmq.errors import JournalError
from kestrelmq.format.names import (
    QueueFiles,
    QueuePathFiles,
    group_files,
    later_timestamp,
    pack_name,
    rotated_name,
)
from kestrelmq.spark.sinks.journal_commit import check_tail
from kestrelmq.spark.sinks.journal_parts import JournalPart
from kestrelmq.spark.storage.locations import Location, in_parallel
from kestrelmq.spark.storage.opening import open_view
from kestrelmq.spark.storage.spool import by_queue, list_files

Reached = Callable[[str], None]
"""Called behind each step that others see; crash tests stop there."""

_PIECE: Final = 8 << 20


def files_found(path: Location) -> QueuePathFiles:
    """Return the files of a queue path in a store."""
    return group_files(one.name for one in path.entries(missing_ok=True) if not one.is_directory)


def new_directory(path: Location, owner: WriteOwner) -> Location:
    """Return the directory of a new write; a store makes it with its first file."""
    return path / new_name(owner)


def remove_abandoned(path: Location, clock: Clock | None = None) -> None:
    """Remove the directories of writes that are over. Raises StorageError."""
    now = (clock or SystemClock()).now()
    for one in path.entries(missing_ok=True):
        work = path / one.name
        if one.is_directory and one.name.startswith(WRITE_MARK):
            silence = now / 1000 - work.last_change() / 1e9
            if not may_go_on(one.name, lambda silence=silence: silence):  # type: ignore[misc]
                work.delete_tree()


class StoredJournalCommit:
    """Puts parts of a write into a queue path in a store."""

    def __init__(
        self,
        work: Location,
        now: int,
        *,
        overwrite: bool,
        reached: Reached = lambda _step: None,
    ) -> None:
        """Prepare a commit.

        Args:
            work: the directory of the write, in the queue path.
            now: the least timestamp of new files (ms).
            overwrite: replace the contents of queues, instead of adding to them.
            reached: called behind each step.
        """
        self._work = work
        self._path = work.parent
        self._now = now
        self._overwrite = overwrite
        self._reached = reached

    def run(self, parts: Mapping[str, Sequence[JournalPart]], found: QueuePathFiles) -> None:
        """Commit the parts of each queue, given in their final order; several queues at once.

        Args:
            parts: of each queue.
            found: the files of the queue path.

        Raises:
            JournalError: a queue cannot be changed.
            StorageError: the store cannot be reached, or refuses.
        """
        existing = {queue: found.queues.get(queue) for queue in parts}
        for queue, files in existing.items():
            if files is not None and files.has_current:
                raise JournalError(
                    f"{self._path / queue} is a server's: a store cannot change it and the rotated "
                    "files of the queue at once: pack the queue path to another place first"
                )
        for group in found.queues.values():
            # A killed driver may have left what means nothing in any of them.
            if group.dead or group.pack is not None:
                self._clean_up(group)
        if not self._overwrite:
            self._check_ends({queue for queue, files in existing.items() if files is not None})

        def commit(queue: str) -> None:
            files = existing[queue]
            mine = [self._work / part.path.name for part in parts[queue]]
            if files is None or not files.files:
                self._create(queue, mine)
                return
            timestamp = later_timestamp(files.rotated, self._now)
            if not self._overwrite:
                self._place(self._joined(queue, mine), rotated_name(queue, timestamp))
                return
            pack = pack_name(queue, timestamp)
            self._place(self._joined(queue, mine), pack)
            self._clean_up(group_files([*files.rotated, pack]).queues[queue])

        in_parallel(commit, sorted(parts))

    def _check_ends(self, queues: set[str]) -> None:
        """Check that records may follow the last file of each queue. Raises JournalError."""
        if queues:
            for files in by_queue(list_files(self._path)):
                if files[0].queue in queues:
                    check_tail(open_view(files[-1]), files[-1].path)

    def _create(self, queue: str, parts: Sequence[Location]) -> None:
        timestamp = self._now
        if len(parts) == 1:
            self._place(parts[0], rotated_name(queue, timestamp))
            return
        guard = pack_name(queue, timestamp + len(parts))
        self._put_empty(guard)
        in_parallel(
            lambda one: self._place(one[1], rotated_name(queue, timestamp + one[0])),
            list(enumerate(parts, start=1)),
        )
        self._delete(guard)

    def _clean_up(self, files: QueueFiles) -> None:
        """Clean up in a store, as `journal.loading.clean_up` does in a directory."""
        for name in files.dead:
            self._delete(name)
        if files.pack is not None:
            self._place(self._path / files.pack, files.rotated[0])

    def _joined(self, queue: str, files: Sequence[Location]) -> Location:
        """Return one file with the contents of several."""
        if len(files) == 1:
            return files[0]
        joined = self._work / f"joined-{queue}"
        joined.write_pieces(chain.from_iterable(file.pieces() for file in files))
        return joined

    def _place(self, file: Location, name: str) -> None:
        file.move(self._path / name)
        self._reached(f"placed {name}")

    def _put_empty(self, name: str) -> None:
        (self._path / name).write_bytes(b"")
        self._reached(f"placed {name}")

    def _delete(self, name: str) -> None:
        (self._path / name).delete()
        self._reached(f"deleted {name}")


def upload(path: Path, target: Location) -> None:
    """Copy a file to a store. Raises OSError and StorageError."""
    with open_stream(path, "rb") as file:
        target.write_pieces(iter(lambda: file.read(_PIECE), b""))


def driver() -> WriteOwner:
    """Return the process that runs the job: the nearest ancestor that is not a Python worker."""
    process = process_above(os.getpid())
    while process is not None and _is_python(process):
        process = process_above(process)
    return WriteOwner.of(process or os.getppid())


def _is_python(process: int) -> bool:
    try:
        return "python" in Path(f"/proc/{process}/exe").readlink().name
    except OSError:
        return False
