"""A stream of journals against a plain model: a random life of a queue gives each record once.

The files are written by the code that servers use. The model has a list of the files that are on
disk, each with its records, and says what a stream must find at any moment.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from kestrelmq.clock import no_pause
from kestrelmq.disk.directories import DiskDirectory, UnnamedFiles
from kestrelmq.format.names import newest_timestamp
from kestrelmq.format.records import item
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.replacement import MemorySource, Replacement
from kestrelmq.journal.writer import FileJournal
from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.spool_follower import (
    EVERYTHING,
    FileRange,
    JournalDataLost,
    SpoolFollower,
)
from tests.support.examples import examples
from tests.support.fake_clock import FakeClock

NOW = 1_700_000_000_000
SAVED = b"\x04\x00\x00\x00\x00"
"""The SAVE_XID that a pack in the documented dialect begins with."""


@dataclass
class ModelFile:
    """A file on disk: its records, and the timestamp in its name."""

    records: list[bytes] = field(default_factory=list)
    timestamp: int | None = None
    packed: bool = False
    replaced: bool = False


@dataclass
class Place:
    """Where the stream is: behind so many records of a file, or behind the file `after`."""

    after: int | None = None
    file: ModelFile | None = None
    read: int = 0


def followed(spool: Path, **options: Any) -> SpoolFollower:
    """Return a follower that does not wait."""
    return SpoolFollower(JournalStreamOptions(str(spool), wait=0, **options))


def records_of(ranges: Sequence[FileRange]) -> list[bytes]:
    """Return the records that a task finds in ranges."""
    found = []
    for one in ranges:
        view = one.open()
        for chunk in view.chunks(begin=one.file.begin):
            for start, end in zip(chunk.starts, chunk.ends, strict=True):
                found.append(view.bytes[start:end].tobytes())
    return found


class FollowedSpool(RuleBasedStateMachine):
    """The rules."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="followed-"))
        self.spool = self.root / "spool"
        self.spool.mkdir()
        (self.spool / "~~lock").touch()
        self.directory = DiskDirectory(self.spool)
        self.clock = FakeClock(NOW)
        self.journal: FileJournal | None = None
        self.deleted_up_to = 0
        # With the pack, and the files that it replaces; the oldest first.
        self.replacements: list[tuple[Replacement, ModelFile, list[ModelFile]]] = []
        self.disk: list[ModelFile] = []
        self.number = 0
        self.copies = 0
        self.place = Place()
        self.offset: dict[str, Any] = {"version": 1, "spools": {}}
        self.last: tuple[dict[str, Any], dict[str, Any], list[bytes], Place] | None = None

    def teardown(self) -> None:
        """Remove the files."""
        if self.journal is not None:
            self.journal.close()
        shutil.rmtree(self.root)

    # --- the queue ---

    @precondition(lambda self: self.journal is None)
    @rule()
    def create(self) -> None:
        """Create the queue, perhaps again."""
        self.journal = FileJournal(self.directory, "work", {}, self.clock, after=self.deleted_up_to)
        self.journal.open()
        self.disk = [ModelFile()]

    @precondition(lambda self: self.journal is not None)
    @rule(count=st.integers(1, 4), size=st.sampled_from([0, 10, 5000]))
    def append(self, count: int, size: int) -> None:
        """Add items, each unlike any other."""
        assert self.journal is not None
        for _ in range(count):
            self.number += 1
            record = item(NOW + self.number, 0, b"%d " % self.number + bytes(size))
            self.journal.append(record)
            self.disk[-1].records.append(record)

    @precondition(lambda self: self.journal is not None)
    @rule()
    def rotate(self) -> None:
        """Begin another file."""
        assert self.journal is not None
        rotated = self.journal.rotate()
        self.disk[-1].timestamp = newest_timestamp([rotated])
        self.disk.append(ModelFile())

    @precondition(lambda self: len(self.replacements) < 3 and self.replaceable())
    @rule(kept=st.integers(0, 3), later=st.integers(0, 2))
    def put_pack(self, kept: int, later: int) -> None:
        """Write a pack beside the files that it replaces, all rotated ones or some less."""
        assert self.journal is not None
        least = 2 if self.replacements else 1
        names = list(self.journal.sizes)
        names = names[: max(least, len(names) - later)]
        live = self.replaceable()[: len(names)]
        adds = [one for file in live for one in file.records if one != SAVED]
        records = adds[len(adds) - min(kept, len(adds)) :]
        source = MemorySource("documented", 0, ReadTable(), list(records))
        replacement = Replacement(self.directory, "work", names, source)
        replacement.place(no_pause)
        self.journal.replaced(list(replacement.files), replacement.pack, replacement.size)
        for one in live:
            one.replaced = True
        pack = ModelFile([SAVED, *records], live[-1].timestamp, packed=True)
        self.disk.insert(self.disk.index(live[-1]) + 1, pack)
        self.replacements.append((replacement, pack, live))

    def replaceable(self) -> list[ModelFile]:
        """Return what a pack may replace; nothing if that is a pack alone."""
        found = [one for one in self.disk if one.timestamp is not None and not one.replaced]
        return found if found and not found[-1].packed else []

    @precondition(lambda self: self.replacements)
    @rule(whole=st.booleans())
    def clear(self, whole: bool) -> None:  # noqa: FBT001 # a random choice
        """Remove the files that a pack replaces; only the first of them, if a crash ends that."""
        assert self.journal is not None
        replacement, pack, dead = self.replacements[0]
        if not whole and len(dead) > 1:
            (self.spool / replacement.files[-len(dead)]).unlink()
            self.disk.remove(dead.pop(0))
            return
        del self.replacements[0]
        self.disk = [one for one in self.disk if not any(one is other for other in dead)]
        if self.replacements:
            replacement.remove_old(no_pause)
            return
        replacement.clear(no_pause)
        self.journal.renamed(replacement.pack, replacement.name)
        pack.packed = False

    @precondition(lambda self: self.journal is not None and not self.replacements)
    @rule()
    def delete(self) -> None:
        """Delete the queue."""
        assert self.journal is not None
        removal = self.journal.begin_removal()
        self.journal.close()
        removal.replace(no_pause)
        removal.remove(UnnamedFiles(), no_pause)
        self.deleted_up_to = removal.newest
        self.journal = None
        self.disk = []

    # --- the stream ---

    @rule(room=st.sampled_from([1, 100, 12_000, EVERYTHING]), torn=st.integers(0, 30))
    def read(self, room: int, torn: int) -> None:
        """Read a batch, while a record is being written."""
        partial = item(NOW, 0, bytes(100))[:torn]
        if self.journal is not None:
            with (self.spool / "work").open("ab") as file:
                file.write(partial)
        try:
            self.read_batch(self.spool, room)
        finally:
            if self.journal is not None:
                size = (self.spool / "work").stat().st_size
                with (self.spool / "work").open("r+b") as file:
                    file.truncate(size - torn)

    @rule()
    def read_a_copy(self) -> None:
        """Go on in a copy of the spool, whose files have other inode numbers."""
        self.copies += 1
        copy = self.root / f"copy{self.copies}"
        shutil.copytree(self.spool, copy)
        self.read_batch(copy, EVERYTHING)
        shutil.rmtree(copy)

    @precondition(lambda self: self.last is not None)
    @rule()
    def read_again(self) -> None:
        """Read the last batch once more: the same records, or an error if any may be missing.

        That is so, too, if the file behind which it begins was replaced: who knows what followed.
        """
        assert self.last is not None
        start, end, records, place = self.last
        try:
            again = records_of(followed(self.spool).ranges(start, end))
        except JournalDataLost:
            now, self.place = self.place, place
            _, _, is_lost = self.expected()
            self.place = now
            assert is_lost or not all(self.is_on_disk(record) for record in records)
        else:
            assert again == records

    def is_on_disk(self, record: bytes) -> bool:
        """Whether a record is in a file that is no pack, or in a pack that the stream read."""
        return any(record in one.records for one in self.disk if one.records[:1] != [SAVED])

    def read_batch(self, spool: Path, room: int) -> None:
        """Read a batch and compare it with the model."""
        place, files, is_lost = self.expected()
        follower = followed(spool)
        if is_lost:
            with pytest.raises(JournalDataLost):
                follower.latest_offset(self.offset, room)
            follower = followed(spool, fails_on_loss=False)
        end = follower.latest_offset(self.offset, room)
        if not self.disk:
            place, files = Place(), []
        if end == self.offset:
            assert not any(file.records[read:] for file, read in files)
            return
        records = records_of(follower.ranges(self.offset, end))
        expected = [one for file, read in files for one in file.records[read:]]
        assert records == expected[: len(records)]
        assert bool(records) == bool(expected)
        assert room < EVERYTHING or records == expected
        self.last = self.offset, end, records, self.place
        self.offset = end
        self.go_on(place, files, len(records))

    def expected(self) -> tuple[Place, list[tuple[ModelFile, int]], bool]:
        """Return what is unread, and whether something else was lost."""
        place = self.place
        live = [one for one in self.disk if not one.replaced]
        if place.after is None and place.file is None:
            return place, [(one, 0) for one in live], False
        later = [one for one in self.disk if self.is_later(one, place.after)]
        plain = [one for one in later if not one.packed]
        if place.file is not None and any(one is place.file for one in self.disk):
            behind = [one for one in plain if self.is_later(one, place.file.timestamp)]
            if place.file.timestamp is None:
                behind = []
            behind = [one for one in behind if one is not place.file]
            return place, [(place.file, place.read), *((one, 0) for one in behind)], False
        has_anchor = any(one.timestamp == place.after is not None for one in self.disk)
        if place.file is None and has_anchor:
            return place, [(one, 0) for one in plain], False
        after = place.after if has_anchor else None
        left = [one for one in live if self.is_later(one, after)]
        return Place(after), [(one, 0) for one in left], bool(self.disk)

    @staticmethod
    def is_later(one: ModelFile, after: int | None) -> bool:
        """Whether a file is behind the one with a timestamp."""
        return one.timestamp is None or after is None or one.timestamp > after

    def go_on(self, place: Place, files: list[tuple[ModelFile, int]], count: int) -> None:
        """Move the place behind `count` records."""
        self.place = Place(place.after)
        is_last = [one for one in self.disk if not one.replaced][-1:]
        for file, read in files:
            taken = min(count, len(file.records) - read)
            count -= taken
            at = read + taken
            if at == len(file.records) and not any(file is one for one in is_last):
                self.place = Place(file.timestamp)
                continue
            self.place = Place(self.place.after, file if at else None, at)
            return


TestFollowedSpool = FollowedSpool.TestCase
TestFollowedSpool.settings = settings(
    max_examples=examples(100), stateful_step_count=40, deadline=None
)
