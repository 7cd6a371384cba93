"""The driver's side of a stream of journals: what is new in a spool, and the batches to read it in.

A batch is what is between two offsets, see `positions`. Its bytes never change, so a batch
that is read again gives the same rows; only names do. Batches end behind whole records: the driver
looks for the last of them in the current file of a queue, and in a file that is larger than the
rest of the batch. Nothing is written, and no server is asked. This module does not need Spark;
`journal_stream` connects it to Spark's interface.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from zlib import crc32

import numpy as np

from kestrelmq.clock import Clock, SystemClock
from kestrelmq.errors import DamagedJournal, JournalError
from kestrelmq.format.records import YEAR_2000
from kestrelmq.spark.sources.journal_options import JournalStreamOptions
from kestrelmq.spark.sources.stream_offsets import (
    BEGINNING,
    Position,
    Positions,
    Unread,
    fair_shares,
    from_offset,
    is_first_offset,
    to_offset,
    unread,
    unread_replaced,
    up_to,
)
from kestrelmq.spark.storage import columns
from kestrelmq.spark.storage.opening import ENDS, open_view, packed_away
from kestrelmq.spark.storage.scanning import FileView
from kestrelmq.spark.storage.spool import Following, QueueKey, SpoolFile, follow

EVERYTHING: Final = sys.maxsize
"""Room in a batch for all there is."""
_CHECKED: Final = ENDS
"""Bytes at the begin of a file, and before a position, that identify it."""
_LOOK: Final = 0.25
"""Seconds between two looks for something new."""
_REST: Final = 20
"""How many times as long as a look the pause behind it is, at least."""
_ATTEMPTS: Final = 20

T = TypeVar("T")

log = logging.getLogger(__name__)


class JournalDataLost(JournalError):  # noqa: N818 # says what it is
    """Files that a stream had not read yet are gone."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """Whole records of a file: those from `file.begin` on, up to `file.size`.

    Attributes:
        file: the file.
        base: bytes of all files of the queue that were read before this one.
        check: checksums of the file up to `file.size`, see `checksums`.
    """

    file: SpoolFile
    base: int
    check: tuple[int, int]

    @property
    def cost(self) -> int:
        """The cost of reading it, in bytes."""
        return self.file.cost

    def open(self) -> FileView:
        """Return a view of the file, up to the end of the range.

        Raises:
            JournalError: the file is gone.
        """
        file = self.file
        view = open_view(file)
        if checksums(view, file.size) != self.check:
            raise packed_away(file.path)
        return view


@dataclass(frozen=True, slots=True)
class Backlog:
    """What is left to read: bytes, and the files and queues that they are in."""

    bytes: int = 0
    files: int = 0
    queues: int = 0


NO_BACKLOG: Final = Backlog()


@dataclass(frozen=True, slots=True)
class _Taken:
    """A part of what is unread of a queue: where it ends, what to read, and what is left."""

    position: Position
    ranges: tuple[FileRange, ...] = ()
    left: Backlog = NO_BACKLOG


@dataclass(frozen=True, slots=True)
class _Seen:
    """A queue with nothing to read behind a position, as long as its files are these."""

    position: Position
    files: tuple[SpoolFile, ...]


class SpoolFollower:
    """Plans the batches of one query."""

    def __init__(
        self,
        options: JournalStreamOptions,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepare to plan batches. No I/O is done before the first call.

        Args:
            options: what to follow, and how.
            clock: measures how long a look takes.
            pause: sleeps between two looks for something new.
        """
        self._pattern = options.path
        self._chooses = options.chooses
        self._starting = options.starting
        self._fails_on_loss = options.fails_on_loss
        self._wait = options.wait
        self._clock = clock or SystemClock()
        self._pause = pause
        self._is_limited = False
        self._limit: dict[QueueKey, Position] | None = None
        self._backlog = NO_BACKLOG
        self._seen: dict[QueueKey, _Seen] = {}
        self._planned: tuple[dict[str, Any], dict[str, Any], list[FileRange]] | None = None

    def initial_offset(self) -> dict[str, Any]:
        """Return the offset before the first batch."""
        if self._starting == "earliest":
            return to_offset({})
        return to_offset(_repeated(self._initial_positions), is_first=True)

    def limit_to_present(self) -> None:
        """Read only what is there when `latest_offset` is called first."""
        self._is_limited = True

    def latest_offset(self, start: Mapping[str, Any], room: int) -> dict[str, Any]:
        """Return the offset of the next batch, of about `room` bytes; `start` if nothing is new.

        Raises:
            JournalDataLost: files that were not read yet are gone.
            ConfigError: the offset is of something else.
        """
        if self._is_limited and self._limit is None:
            # What there is now ends where a batch without a limit of bytes does.
            everything = _repeated(lambda: self._next_batch(start, EVERYTHING)) or dict(start)
            self._limit = from_offset(everything)
            ranges = self.ranges(start, everything)
            if sum(one.file.size - one.file.begin for one in ranges) <= room:
                return everything
        waited = 0.0
        while True:
            began = self._clock.monotonic()
            end = _repeated(lambda: self._next_batch(start, room))
            if end is not None:
                return end
            if not self._is_limited and self._wait:
                took = self._clock.monotonic() - began
                step = max(min(_LOOK, self._wait), _REST * took)
                self._pause(step)
                waited += step
            if self._is_limited or waited >= self._wait:
                return dict(start)

    @property
    def backlog(self) -> Backlog:
        """What was there, and unread, behind the batch that was planned last."""
        return self._backlog

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[FileRange]:
        """Return what to read for the batch between two offsets, which may be read again.

        Raises:
            JournalDataLost: some of it is gone.
        """
        if self._planned is not None and self._planned[:2] == (start, end):
            return self._planned[2]
        return _repeated(lambda: self._batch_again(from_offset(start), from_offset(end)))

    # --- planning a batch ---

    def _next_batch(self, start: Mapping[str, Any], room: int) -> dict[str, Any] | None:
        """Return where the next batch ends; None if nothing is new."""
        before = from_offset(start)
        # Without its queues, a path that went in an earlier batch would not be known any more.
        may_be_gone = not self._fails_on_loss and not is_first_offset(start)
        following = follow(self._pattern, before.keys(), may_be_gone=may_be_gone)
        self._report_gone(before, following)
        parts: dict[QueueKey, _Parts] = {}
        for key, files in following.queues.items():
            if key not in before and not self._chooses(key.queue):
                continue
            seen = self._seen.get(key)
            if seen is not None and seen == _Seen(before.get(key, BEGINNING), files):
                continue
            parts[key] = self._parts(key, before.get(key, BEGINNING), files)
        shares = fair_shares({key: part.size for key, part in parts.items()}, room)
        after = {key: position for key, position in before.items() if key in following.queues}
        ranges: list[FileRange] = []
        left: list[Backlog] = []
        for key, part in parts.items():
            taken = _take(part, max(shares[key], 1))
            if taken.left == NO_BACKLOG:
                self._seen[key] = _Seen(taken.position, following.queues[key])
            after[key] = taken.position
            ranges += taken.ranges
            left.append(taken.left)
        self._backlog = _total(left)
        self._seen = {key: seen for key, seen in self._seen.items() if key in following.queues}
        moved = {key: position for key, position in after.items() if position != BEGINNING}
        if not is_first_offset(start) and moved == before:
            return None
        end = to_offset(after)
        self._planned = dict(start), end, ranges
        return end

    def _report_gone(self, before: Positions, following: Following) -> None:
        for key in before.keys() - following.queues.keys():
            if key.place in following.missing:
                self._lost(key, "the queue path is gone")
            else:
                log.warning(
                    "queue %s was deleted: if its last records were not read, they are gone", key
                )

    def _parts(self, key: QueueKey, position: Position, files: Sequence[SpoolFile]) -> "_Parts":
        """Return what is unread of a queue, up to the limit of the query if it has one."""
        behind = unread(position, files, _match)
        if behind.lost is not None:
            self._lost(key, behind.lost)
        elif behind.was_cut:
            log.warning(
                "queue %s: records at the end of %s were read, and taken back since",
                key,
                behind.files[0].name,
            )
        if self._limit is None:
            return _Parts.of(behind)
        limit = self._limit.get(key)
        return _Parts(behind.origin, []) if limit is None else _Parts.before(limit, behind)[0]

    def _lost(self, key: QueueKey, what: str) -> None:
        message = f"{self._pattern}: data of queue {key} was lost: {what}"
        if self._fails_on_loss:
            raise JournalDataLost(
                f"{message}; with the option failOnDataLoss=false the stream goes on with what is "
                "left; what a packed file repeats then comes again"
            )
        log.warning("%s", message)

    # --- reading a batch again ---

    def _batch_again(self, start: Positions, end: Positions) -> list[FileRange]:
        following = follow(self._pattern, end.keys())
        found: list[FileRange] = []
        for key, position in end.items():
            before = start.get(key, BEGINNING)
            if position.total != before.total:
                found += self._queue_again(key, before, position, following.queues.get(key, ()))
        return found

    def _queue_again(
        self, key: QueueKey, start: Position, end: Position, files: Sequence[SpoolFile]
    ) -> list[FileRange]:
        behind = unread(start, files, _match)
        choices = [behind]
        if start == BEGINNING or behind.lost is not None:
            choices += unread_replaced(behind, files)
        for choice in choices:
            parts, is_complete = _Parts.before(end, choice)
            taken = _take(parts, EVERYTHING)
            found = taken.position
            # Inode numbers differ in a copy.
            same = found == replace(end, inode=found.inode) and found.whole == end.whole
            if is_complete and same:
                return list(taken.ranges)
        self._lost(key, behind.lost or "files of a batch that is to be read again are gone")
        return list(_take(_Parts.before(end, behind)[0], EVERYTHING).ranges)

    # --- where to begin ---

    def _initial_positions(self) -> dict[QueueKey, Position]:
        since = self._starting if isinstance(self._starting, int) else None
        queues = follow(self._pattern).queues
        return {
            key: _position_at(files, since)
            for key, files in queues.items()
            if self._chooses(key.queue)
        }


@dataclass(frozen=True, slots=True)
class _Parts:
    """Files to read.

    Attributes:
        origin: the position before them.
        files: the files, each with its end; None if that is still to be found: the last whole
            record.
        begin: where to begin in the first.
        end: the position in the last file where they end, even if nothing follows there; None if
            they end with a file.
    """

    origin: Position
    files: Sequence[tuple[SpoolFile, int | None]]
    begin: int = 0
    end: Position | None = None

    @classmethod
    def of(cls, behind: Unread) -> "_Parts":
        ends = [(one, None if one.last else one.size) for one in behind.files]
        return cls(behind.origin, ends, behind.begin)

    @classmethod
    def before(cls, end: Position, behind: Unread) -> tuple["_Parts", bool]:
        """Return what of `behind` is before `end`, and whether that is complete."""
        files, is_complete = up_to(end, behind, _match)
        within = end if is_complete and end.at else None
        return cls(behind.origin, files, behind.begin, within), is_complete

    @property
    def size(self) -> int:
        """Bytes in them."""
        return _size(self.files, self.begin)


def _size(files: Sequence[tuple[SpoolFile, int | None]], begin: int) -> int:
    sizes = [one.size if end is None else end for one, end in files]
    return max(0, sum(sizes) - begin)


def _take(parts: _Parts, room: int) -> _Taken:
    """Take about `room` bytes: whole records, at least one if there is one."""
    position = replace(parts.origin, whole=0)
    ranges: list[FileRange] = []
    for place, (file, given_end) in enumerate(parts.files):
        begin = parts.begin if place == 0 else 0
        end = given_end if given_end is None else max(given_end, begin)
        within = parts.end if place == len(parts.files) - 1 else None
        is_limited = False
        if end is None or end - begin > room:
            view = open_view(file, begin=max(0, begin - _CHECKED))
            end, is_limited = _records_end(view, file, begin, room)
            check = checksums(view, end)
        elif within is not None and end == within.at:
            check = within.head, within.tail
        else:
            check = checksums(open_view(file, end, begin=end), end)
        if end > begin:
            wanted = replace(file, begin=begin, size=end)
            ranges.append(FileRange(wanted, position.base, check))
            room -= end - begin
        if not file.last and end == file.size and within is None:
            position = _behind(position, file, check)
            if room <= 0:
                return _Taken(position, tuple(ranges), _left(parts.files[place + 1 :], 0))
            continue
        left = _left(parts.files[place:], end) if is_limited else NO_BACKLOG
        return _Taken(_at(position, file, end, check), tuple(ranges), left)
    return _Taken(position, tuple(ranges))


def _behind(position: Position, file: SpoolFile, check: tuple[int, int]) -> Position:
    """Return the position behind a file that is read whole, whose checksums are `check`."""
    size = file.size
    whole = crc32(repr((file.timestamp, size, *check)).encode(), position.whole)
    return Position(file.timestamp, base=position.base + size, whole=whole)


def _left(files: Sequence[tuple[SpoolFile, int | None]], begin: int) -> Backlog:
    size = _size(files, begin)
    return Backlog(size, len(files), 1) if size else NO_BACKLOG


def _records_end(view: FileView, file: SpoolFile, begin: int, room: int) -> tuple[int, bool]:
    """Return where the last whole record ends within `room` bytes, and whether more follow.

    The first record counts however long it is. Damage ends the file, so the end is that of the
    file: the task that reads it finds the damage. A STATE_DUMP ends it, too, but must wait for the
    next file: only then is it certain not to be the beginning of a CONTINUE.
    """
    end = begin
    try:
        for chunk in view.chunks(begin=begin):
            if chunk.is_state_dump:
                return (end, False) if file.last else (file.size, False)
            fitting = int(np.searchsorted(chunk.ends, begin + room, side="right"))
            if fitting < len(chunk):
                if fitting or end == begin:
                    end = int(chunk.ends[max(fitting - 1, 0)])
                return end, end < file.size
            end = int(chunk.ends[-1])
    except DamagedJournal:
        return file.size, False
    return end, False


def _position_at(files: Sequence[SpoolFile], since: int | None) -> Position:
    """Return the position before the first item that was added at `since` (ms) or later.

    If there is none, or without `since`, that is behind the last whole record.
    """
    position = BEGINNING
    for file in files:
        timestamp = file.timestamp
        if file.replaced:
            continue
        # What is in a rotated file is older than its timestamp, unless that is no time.
        is_early = since is None or (timestamp is not None and YEAR_2000 <= timestamp < since)
        end = None if since is None or is_early else _first_since(file, since)
        if end is None and not file.last:
            position = Position(timestamp)
            continue
        view = open_view(file, end, begin=end)
        if end is None:
            end, _ = _records_end(view, file, 0, EVERYTHING)
        return _at(position, file, end, checksums(view, end))
    return position


def _at(position: Position, file: SpoolFile, end: int, check: tuple[int, int]) -> Position:
    """Return the position at byte `end` of a file, whose checksums up to there are `check`."""
    if not end:
        return replace(position, at=0, inode=0, head=0, tail=0)
    head, tail = check
    return replace(position, at=end, inode=file.inode, head=head, tail=tail)


def _first_since(file: SpoolFile, since: int) -> int | None:
    """Return where the first item begins that was added at `since` (ms) or later."""
    view = open_view(file)
    try:
        for chunk in view.chunks():
            items = chunk.part(chunk.adds)
            times = columns.add_times(view, items).fill_null(0).to_numpy(zero_copy_only=False)
            late = np.flatnonzero(times >= since)
            if len(late):
                return int(items.starts[late[0]])
    except DamagedJournal as damage:
        # The task that reads it must find it.
        return damage.position
    return None


def checksums(view: FileView, end: int) -> tuple[int, int]:
    """Return checksums of the first bytes of a file, and of those before `end` and of `end`."""
    first = view.bytes[: min(end, _CHECKED)].tobytes()
    last = view.bytes[max(0, end - _CHECKED) : end].tobytes()
    return crc32(first), crc32(b"%d" % end, crc32(last))


def _match(position: Position, file: SpoolFile) -> int | None:
    """Say whether a file is what was read of it, as a `positions.Match`."""
    at = position.at
    if file.size < at:
        # A server cuts what it could not write whole; a loss of power takes what was not synced.
        known = min(at, _CHECKED)
        if file.inode != position.inode or file.size < known:
            return None
        view = open_view(file, begin=file.size)
        return file.size if checksums(view, known)[0] == position.head else None
    view = open_view(file, at, begin=at)
    return at if checksums(view, at) == (position.head, position.tail) else None


def _repeated(plan: Callable[[], T]) -> T:
    """Return what `plan` returns; repeat it if a file went while it looked."""
    for _ in range(_ATTEMPTS):
        try:
            return plan()
        except (JournalDataLost, DamagedJournal):
            raise
        except (JournalError, FileNotFoundError):
            continue
    return plan()


def _total(backlogs: Sequence[Backlog]) -> Backlog:
    return Backlog(
        sum(one.bytes for one in backlogs),
        sum(one.files for one in backlogs),
        sum(one.queues for one in backlogs),
    )
