"""Commit of a write: parts become journal files that a server loads at start.

What a queue holds changes at one rename, so a crash leaves each queue as it was or as it shall be.
Which rename that is depends on what the queue has:

    nothing, one part       the part gets its name
    nothing, several parts  they get their names behind an empty pack, which makes them dead; then
                            the pack is renamed to an older file's name, and they are not
    files, append           the current file is rotated, which changes nothing; then all parts, as
                            one file, get the next name
    files, overwrite        the current file is rotated; then all parts, as one file, become a
                            pack, which makes everything before it dead
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path

from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.journal.files import Directory
from kestrelmq.journal.loading import clean_up
from kestrelmq.journal.names import (
    JournalName,
    QueuePlan,
    pack_name,
    parse_name,
    plan,
    rotated_name,
)
from kestrelmq.spark.journal_parts import Part, joined
from kestrelmq.spark.scanning import open_view


class Commit:
    """Puts parts into a queue path, whose lock must be held."""

    def __init__(self, directory: Directory, work: Path, now: int, *, overwrite: bool) -> None:
        """Commit to `directory`.

        Args:
            directory: the queue path.
            work: the job's directory, within the queue path.
            now: file timestamps are at least this (ms).
            overwrite: replace what queues hold, instead of adding to it.
        """
        self._directory = directory
        self._work = work
        self._now = now
        self._overwrite = overwrite
        self._joined = count()

    def run(self, parts: Mapping[str, Sequence[Part]]) -> None:
        """Commit the parts of each queue, given in their final order."""
        names = self._directory.names()
        found = plan(names).queues
        newest: dict[str, int] = {}
        for name in names:
            parsed = parse_name(name)
            if parsed is not None:
                newest[parsed.queue] = max(newest.get(parsed.queue, 0), parsed.timestamp or 0)
        for queue in sorted(parts):
            timestamp = max(self._now, newest.get(queue, 0) + 1)
            existing = found.get(queue)
            if existing is None:
                self._create(queue, parts[queue], timestamp)
            else:
                clean_up(self._directory, existing)
                self._replace_or_append(queue, parts[queue], timestamp, existing)

    def _create(self, queue: str, parts: Sequence[Part], timestamp: int) -> None:
        directory = self._directory
        if len(parts) == 1:
            self._move_in(parts[0].path, rotated_name(queue, timestamp))
            return
        guard = pack_name(queue, timestamp + len(parts))
        directory.append_to(guard).close()
        directory.sync()
        for place, part in enumerate(parts, start=1):
            directory.reached("part")
            self._move_in(part.path, rotated_name(queue, timestamp + place), sync=False)
        directory.sync()
        directory.reached("guarded")
        opened = rotated_name(queue, timestamp)
        directory.rename(guard, opened)
        directory.sync()
        directory.reached("committed")
        directory.remove(opened)

    def _replace_or_append(
        self, queue: str, parts: Sequence[Part], timestamp: int, existing: QueuePlan
    ) -> None:
        directory = self._directory
        if existing.files and not self._overwrite:
            self._check_tail(existing.files[-1])
        single = joined(parts, self._work / f"joined-{next(self._joined)}")
        if existing.files and not self._overwrite:
            # Only the last file may end in a record that is cut short, after a crash too.
            directory.sync_file(existing.files[-1])
        if existing.has_current:
            directory.rename(queue, rotated_name(queue, timestamp))
            directory.sync()
            directory.reached("rotated")
        if not self._overwrite:
            self._move_in(single, rotated_name(queue, timestamp + 1))
            return
        self._move_in(single, pack_name(queue, timestamp + 1))
        directory.reached("packed")
        for replaced in plan(_of_queue(directory.names(), queue)).queues.values():
            clean_up(directory, replaced)

    def _move_in(self, part: Path, name: str, *, sync: bool = True) -> None:
        self._directory.rename(f"{self._work.name}/{part.name}", name)
        if sync:
            self._directory.sync()

    def _check_tail(self, name: str) -> None:
        """Only a last file may end in a torn record, so none may be put behind such a file."""
        path = self._directory.path / name
        view = open_view(str(path), path.stat().st_size)
        try:
            for _ in view.chunks(tail_may_be_torn=True):
                pass
        except DamagedJournal as damage:
            reason = f"{path}: {damage.reason} at byte {damage.position}"
            raise JournalError(f"nothing can be appended: {reason}") from None
        if view.torn_at is not None:
            raise JournalError(
                f"nothing can be appended: {path}: the last record is cut short at byte "
                f"{view.torn_at}: start a server on the queue path once, or repair the journal"
            )


def _of_queue(names: Sequence[str], queue: str) -> list[str]:
    parsed: list[tuple[str, JournalName | None]] = [(name, parse_name(name)) for name in names]
    return [name for name, journal in parsed if journal is not None and journal.queue == queue]
