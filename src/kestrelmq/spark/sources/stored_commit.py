"""Commit a write to a queue path in a store: put parts in place as journal files.

A store has no rename. So an object with a journal's name is only made at one moment: the store
copies it, whole, from the directory of the write. The contents of a queue change with one such step
(*), all others leave what a reader finds as it is. So a crash leaves each queue as it was, or as it
is after the commit, and perhaps files that mean nothing:

    no files, one part       (*) copy the part to a rotated file
    no files, several parts  put an empty pack whose name is later than all parts', so that nobody
                             reads them; copy the parts to rotated files; (*) delete the pack
    append, no current file  (*) copy all parts, joined, to the next rotated file
    append, a current file   (*) copy the current file and all parts, joined, to the current file
    replace, no current file (*) copy the new file to a pack; delete what it replaces; copy it to
                             its last name, and delete the pack
    replace, one current file only
                             (*) copy the new file to the current file
    replace, both            (*) copy the new file to the current file, behind records that take all
                             that the rotated files leave; put an empty pack, which replaces these;
                             copy the new file alone to the current file; delete the others

The records that take what the rotated files leave confirm each open read and remove each item. They
do nothing in an empty queue, which is why the rotated files can go afterwards.

HDFS has a rename. There a current file is rotated first, which changes nothing, so that the steps
are those without one, and files are renamed to their places.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

import pyarrow as pa

from kestrelmq.errors import JournalError
from kestrelmq.format.names import (
    QueueFiles,
    QueuePathFiles,
    group_files,
    later_timestamp,
    pack_name,
    rotated_name,
    temporary_name,
)
from kestrelmq.format.records import REMOVE_RECORD, confirm_removes, save_xid
from kestrelmq.spark.plan.noted_replay import MEMORY_LIMIT, replay_noted
from kestrelmq.spark.plan.opening import open_view
from kestrelmq.spark.plan.spool import SpoolFile, by_queue, list_files
from kestrelmq.spark.sources.journal_commit import check_tail
from kestrelmq.spark.sources.journal_parts import JournalPart
from kestrelmq.spark.storage import Location, in_parallel

Reached = Callable[[str], None]
"""Called behind each step that others see; crash tests stop there."""

_REMOVES: Final = REMOVE_RECORD * (1 << 20)


def files_found(path: Location) -> QueuePathFiles:
    """Return the files of a queue path in a store."""
    return group_files(one.name for one in path.entries() if not one.is_directory)


class StoredJournalCommit:
    """Puts files of a write into a queue path in a store. It must be the write's turn."""

    def __init__(
        self,
        work: Location,
        now: int,
        *,
        overwrite: bool,
        check: Callable[[], None] = lambda: None,
        reached: Reached = lambda _step: None,
    ) -> None:
        """Prepare a commit.

        Args:
            work: the directory of the write, in the queue path.
            now: the least timestamp of new files (ms).
            overwrite: replace the contents of queues, instead of adding to them.
            check: called before a queue is changed; raises if it is not the write's turn any more.
            reached: called behind each step.
        """
        self._work = work
        self._path = work.parent
        self._now = now
        self._overwrite = overwrite
        self._check = check
        self._reached = reached
        self._files: dict[str, list[SpoolFile]] = {}

    def run(
        self,
        parts: Mapping[str, Sequence[JournalPart]],
        behind: Callable[[Location], Location] | None = None,
        *,
        found: QueuePathFiles | None = None,
    ) -> None:
        """Commit the parts of each queue, given in their final order; several queues at once.

        Args:
            parts: of each queue; the delayed items of a queue are a queue of their own here, named
                as their journal.
            behind: where a file is that `write_behind` has made of a queue's only part, if the
                queue has rotated files and a current one; None to make it here.
            found: the files of the queue path, if they have been listed since the turn began.

        Raises:
            JournalError: nothing can be appended to a queue, or it is not the write's turn.
            StorageError: the store cannot be reached, or refuses.
        """
        found = found or files_found(self._path)
        for queue in found.queues.values():
            # A killed driver may have left what means nothing in any of them.
            for files in (queue, queue.delayed):
                if files is not None and (files.dead or files.rename):
                    self._check()
                    self._clean_up(files)

        def commit(queue: str) -> None:
            self._check()
            existing = found.of_journal(queue)
            mine = [self._work / part.path.name for part in parts[queue]]
            if existing is None or not existing.files:
                self._create(queue, mine)
            elif self._overwrite:
                new = self._joined(queue, mine)
                self._replace(existing, new, behind(new) if behind is not None else None)
            else:
                self._append(existing, mine)

        # The names of files are their last ones now.
        self._files = {
            files[0].queue: files for files in by_queue(list_files(self._path, delayed=True))
        }
        in_parallel(commit, sorted(parts))

    def set_aside(self, tail: Location, name: str) -> None:
        """Put the bytes at the end of the file `name` that are no record beside it, for good."""
        now = self._now
        while (self._path / (aside := temporary_name(name, "torn", now))).exists():
            now += 1
        self._place(tail, aside)

    def _replace(self, files: QueueFiles, new: Location, behind: Location | None) -> None:
        files = self._without_current(files)
        queue, timestamp = files.queue, later_timestamp(files.rotated, self._now)
        if not files.has_current:
            pack = pack_name(queue, timestamp)
            self._place(new, pack)
            packed = group_files([*files.rotated, pack]).of_journal(queue)
            assert packed is not None  # noqa: S101 # it has the pack at least
            self._clean_up(packed)
            return
        if files.rotated:
            if behind is None:
                behind = self._work / f"behind-{queue}"
                rotated = [file for file in self._files[queue] if not file.is_current]
                write_behind(rotated, new.pieces(), behind)
            self._place(behind, queue)
            self._put_empty(pack_name(queue, timestamp))
        self._place(new, queue)
        if files.rotated:
            for name in files.rotated:
                self._delete(name)
            self._delete(pack_name(queue, timestamp))

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

    def _append(self, files: QueueFiles, parts: Sequence[Location]) -> None:
        last = self._files[files.queue][-1]
        _check_end(last, goes_on=files.has_current and not self._path.has_rename)
        files = self._without_current(files)
        if files.has_current:
            current = self._path / files.queue
            self._place(self._joined(files.queue, [current, *parts]), files.queue)
        else:
            name = rotated_name(files.queue, later_timestamp(files.rotated, self._now))
            self._place(self._joined(files.queue, parts), name)

    def _without_current(self, files: QueueFiles) -> QueueFiles:
        """Rotate the current file, if the store has a rename."""
        if not (files.has_current and self._path.has_rename):
            return files
        name = rotated_name(files.queue, later_timestamp(files.rotated, self._now))
        self._place(self._path / files.queue, name)
        return files._replace(rotated=(*files.rotated, name), has_current=False)

    def _clean_up(self, files: QueueFiles) -> None:
        """Do what `journal.loading.clean_up` does."""
        for name in files.dead:
            self._delete(name)
        for old, new in files.rename:
            self._place(self._path / old, new)
            if not self._path.has_rename:
                self._delete(old)

    def _joined(self, queue: str, files: Sequence[Location]) -> Location:
        """Return one file with the contents of several."""
        if len(files) == 1:
            return files[0]
        joined = self._work / f"joined-{queue}"
        joined.write_pieces(chain.from_iterable(file.pieces() for file in files))
        return joined

    def _place(self, file: Location, name: str) -> None:
        if self._path.has_rename:
            file.move(self._path / name)
        else:
            file.copy(self._path / name)
        self._reached(f"placed {name}")

    def _put_empty(self, name: str) -> None:
        (self._path / name).write(b"")
        self._reached(f"placed {name}")

    def _delete(self, name: str) -> None:
        (self._path / name).delete()
        self._reached(f"deleted {name}")


def write_behind(rotated: Sequence[SpoolFile], new: Iterable[pa.Buffer], target: Location) -> None:
    """Write a new file to `target`, behind records that take all that the rotated files leave.

    Raises:
        DamagedJournal: one of the files is damaged.
        StorageError: the store cannot be reached, or refuses.
    """
    target.write_pieces(chain(_taking_all(rotated), new))


def _taking_all(files: Sequence[SpoolFile]) -> Iterator[bytes]:
    state = replay_noted(files, MEMORY_LIMIT)
    if state.is_note_cut:
        yield save_xid(state.last_xid)
    for page in state.open.drain():
        yield confirm_removes([xid for xid, _ in page])
    whole, rest = divmod(state.items, len(_REMOVES))
    for _ in range(whole):
        yield _REMOVES
    yield _REMOVES[:rest]


def _check_end(file: SpoolFile, *, goes_on: bool) -> None:
    """Check that records may follow the last file of a queue; in it, if it `goes_on`.

    Raises:
        JournalError: they may not.
    """
    view = open_view(file, begin=0)
    check_tail(view, file.path)
    if not goes_on:
        return
    state = replay_noted([file], MEMORY_LIMIT)
    if state.is_note_cut or view.has_state_dump:
        raise JournalError(
            f"nothing can be appended: {file.path} has a STATE_DUMP or part of a note at its end: "
            "pack the queue path once"
        )
