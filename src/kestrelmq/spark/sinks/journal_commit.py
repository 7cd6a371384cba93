"""Commit a write: turn parts into journal files that a server loads at start.

The contents of a queue change with a single step, so a crash leaves each queue either as it was
or as it is after the commit. Which step this is depends on what the queue has:

    no files, one part       the part is renamed to a journal file
    no files, several parts  an empty pack is written, whose name is later than all parts', so that
                             servers ignore them; the parts are renamed to journal files; then the
                             pack is removed
    files, append            the current file is rotated, which changes nothing; then all parts,
                             joined to one file, are renamed to the next journal file
    files, overwrite         all parts, joined to one file, replace all other files as a packed
                             journal does (`journal.packing.take_place`)
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from kestrelmq.disk.directories import Directory
from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.format.names import (
    QueueFiles,
    QueuePathFiles,
    group_files,
    later_timestamp,
    pack_name,
    rotated_name,
)
from kestrelmq.journal.loading import clean_up
from kestrelmq.journal.packing import take_place
from kestrelmq.spark.sinks.journal_parts import JournalPart, join_parts
from kestrelmq.spark.storage.opening import map_last
from kestrelmq.spark.storage.scanning import FileView


class JournalCommit:
    """Puts parts into a queue path. The caller must hold its lock."""

    def __init__(self, directory: Directory, work: Path, now: int, *, overwrite: bool) -> None:
        """Prepare a commit.

        Args:
            directory: the queue path.
            work: the job's directory, in the queue path.
            now: the least timestamp of new files (ms).
            overwrite: replace the contents of queues, instead of adding to them.
        """
        self._directory = directory
        self._work = work
        self._now = now
        self._overwrite = overwrite
        self._count = count()

    def run(
        self, parts: Mapping[str, Sequence[JournalPart]], found: QueuePathFiles | None = None
    ) -> None:
        """Commit the parts of each queue, given in their final order.

        Args:
            parts: of each queue.
            found: the files of the queue path, if they have been listed since it was locked.
        """
        found = found or group_files(self._directory.names())
        for queue in sorted(parts):
            existing = found.queues.get(queue)
            if existing is None:
                self._create(queue, parts[queue], self._now)
                continue
            clean_up(self._directory, existing)
            if self._overwrite:
                self._replace(existing, parts[queue])
            else:
                self._append(existing, parts[queue])

    def _create(self, queue: str, parts: Sequence[JournalPart], timestamp: int) -> None:
        directory = self._directory
        if len(parts) == 1:
            self._move_in(parts[0].path, rotated_name(queue, timestamp))
            return
        guard = pack_name(queue, timestamp + len(parts))
        directory.append_to(guard).close()
        directory.sync()
        for place, part in enumerate(parts, start=1):
            directory.crash_point("part")
            self._move_in(part.path, rotated_name(queue, timestamp + place), sync=False)
        directory.sync()
        directory.crash_point("guarded")
        directory.remove(guard)
        directory.sync()

    def _replace(self, existing: QueueFiles, parts: Sequence[JournalPart]) -> None:
        take_place(self._directory, existing, self._inside(self._joined(parts)), self._now)

    def _append(self, existing: QueueFiles, parts: Sequence[JournalPart]) -> None:
        directory, queue = self._directory, existing.queue
        timestamp = later_timestamp(existing.rotated, self._now)
        if existing.files:
            path = directory.path / existing.files[-1]
            check_tail(map_last(path), path)
        single = self._joined(parts)
        if existing.files:
            # It will not be the last file any more, so no crash may leave its end torn.
            directory.sync_file(existing.files[-1])
        if existing.has_current:
            directory.rename(queue, rotated_name(queue, timestamp))
            directory.sync()
            directory.crash_point("rotated")
        self._move_in(single, rotated_name(queue, timestamp + 1))

    def _joined(self, parts: Sequence[JournalPart]) -> Path:
        return join_parts(parts, self._work / f"joined-{next(self._count)}")

    def _inside(self, part: Path) -> str:
        """Return the name of a part within the queue path."""
        return f"{self._work.name}/{part.name}"

    def _move_in(self, part: Path, name: str, *, sync: bool = True) -> None:
        self._directory.rename(self._inside(part), name)
        if sync:
            self._directory.sync()


def check_tail(view: FileView, shown: str | Path) -> None:
    """Check that the last file of a journal is not torn: no other file may be.

    Args:
        view: the whole file.
        shown: where it is, for the error.

    Raises:
        JournalError: it is torn or damaged.
    """
    try:
        for _ in view.chunks():
            pass
    except DamagedJournal as damage:
        reason = f"{shown}: {damage.reason} at byte {damage.position}"
        raise JournalError(f"nothing can be appended: {reason}") from None
    if view.torn_at is not None:
        raise JournalError(
            f"nothing can be appended: {shown}: the last record is cut short at byte "
            f"{view.torn_at}: start a server on the queue path once, or repair the journal"
        )
