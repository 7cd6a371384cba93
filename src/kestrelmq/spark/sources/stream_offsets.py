"""Where a stream is in the journal of a queue, and what is unread behind that place.

Files change while they are followed: the current file gets a timestamp when it is rotated, and a
pack then replaces files up to some timestamp. So a `Position` names the newest file that is read
whole by its timestamp, and the file behind it by its contents: how many bytes of it are read, and
checksums of its first and its last bytes up to there. The inode number only decides between files
that have the same contents, because it is used again when a file is deleted, and differs in a copy.

What is behind a position follows from the files alone:

- The file that the position is in is there, under whatever name: read on in it, and then the files
  with later timestamps. Packs that cover it repeat what was read, and are not read.
- No byte of the next file is read yet, and there is a file with the timestamp of the newest one
  that is read whole, be it that file or the pack that replaced it: read what is later.
- Otherwise a pack replaced files that were not read to their end, as far as is known, or the queue
  was deleted and created again, which looks the same. This is lost data. What can still be read are
  the files that a server would load, but for those that are covered by what was read.

This module does no I/O.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kestrelmq.spark.storage.spool import QueueKey, SpoolFile

VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Position:
    """How far a queue's journal is read.

    Attributes:
        after: the timestamp (ms) of the newest file that is read whole; None before the first.
        at: bytes read of the file behind it.
        inode: the inode number of that file, if `at` is above 0; likewise:
        head: a checksum of its first bytes;
        tail: a checksum of the bytes before `at`, and of `at`.
        base: bytes read of all files before that one.
        whole: a checksum of the files that the batch that ends here read whole; positions without
            the same one may be equal.
    """

    after: int | None = None
    at: int = 0
    inode: int = 0
    head: int = 0
    tail: int = 0
    base: int = 0
    whole: int = field(default=0, compare=False)

    @property
    def total(self) -> int:
        """Bytes read of all files: how many a batch has is the difference between two of these."""
        return self.base + self.at

    def to_json(self) -> dict[str, int]:
        """Return the fields that differ from those of the beginning."""
        fields = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: value for name, value in fields if value != getattr(BEGINNING, name)}


BEGINNING: Final = Position()

Positions = Mapping[QueueKey, Position]


def to_offset(positions: Positions, *, is_first: bool = False) -> dict[str, Any]:
    """Return positions as an offset of Spark; those at the beginning are left out.

    Args:
        positions: the position of each queue.
        is_first: whether no batch has ended there: see `is_first_offset`.
    """
    spools: dict[str, dict[str, dict[str, int]]] = {}
    for key in sorted(positions, key=lambda key: (key.place, key.queue)):
        fields = positions[key].to_json()
        if fields:
            spools.setdefault(key.place, {})[key.queue] = fields
    offset: dict[str, Any] = {"version": VERSION, "spools": spools}
    return {**offset, "first": True} if is_first else offset


def from_offset(offset: Mapping[str, Any]) -> dict[QueueKey, Position]:
    """Return the positions of an offset.

    Raises:
        ValueError: the offset is of something else.
    """
    try:
        if offset["version"] != VERSION:
            raise ValueError(f"an offset of version {offset['version']}")
        return {
            QueueKey(place, queue): Position(**fields)
            for place, queues in offset["spools"].items()
            for queue, fields in queues.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"no offset of kestrel.journal: {error}") from error


def is_first_offset(offset: Mapping[str, Any]) -> bool:
    """Whether no batch has ended at an offset.

    Spark records only where batches end. So the first batch ends elsewhere even if it has no rows:
    then a query that is started again goes on where it began, not where it would begin now.
    """
    return bool(offset.get("first"))


@dataclass(frozen=True, slots=True)
class Unread:
    """What is behind a position.

    Attributes:
        origin: the position, or the one to count from instead, if the files that it was in are
            gone.
        files: the files to read, in order.
        begin: where to begin in the first of them.
        lost: how data was lost, as far as the files can tell; None if none was.
        was_cut: whether bytes that were read were taken back, by a server that could not write the
            rest of a record, or by a loss of power.
    """

    origin: Position
    files: Sequence[SpoolFile]
    begin: int = 0
    lost: str | None = None
    was_cut: bool = False


Match = Callable[[Position, SpoolFile], int | None]
"""Returns up to which byte a file is what a position says was read of it: `Position.at`, or less if
the file has been cut since; None if it is another file."""


def unread(position: Position, files: Sequence[SpoolFile], match: Match) -> Unread:
    """Return what is unread of a queue that has these files, as `spool.Following` lists them."""
    live = [found for found in files if not found.replaced]
    if position.after is None and not position.at:
        return Unread(position, live)
    later = [found for found in files if _is_later(found, position.after)]
    if position.at:
        # Files with its inode number come first, and then the oldest: sorting keeps their order.
        for found in sorted(later, key=lambda one: one.inode != position.inode):
            begin = match(position, found)
            if begin is not None:
                behind = _plain(later[later.index(found) + 1 :])
                # What was cut off counts as read.
                origin = replace(position, base=position.total - begin)
                return Unread(origin, [found, *behind], begin, was_cut=begin < position.at)
    is_there = any(found.timestamp == position.after is not None for found in files)
    if is_there and not position.at:
        return Unread(position, _plain(later))
    # If it is gone, older files are gone, too: those that are there are of another journal.
    after = position.after if is_there else None
    left = [found for found in live if _is_later(found, after)]
    return Unread(Position(after, base=position.total), left, lost=_lost(position, left))


def unread_replaced(behind: Unread, files: Sequence[SpoolFile]) -> Iterator[Unread]:
    """Yield the same as `behind`, but from files that a pack replaces and not from that pack.

    When a batch was planned that begins with the first file, there may have been no pack yet, or
    another one.
    """
    later = [found for found in files if _is_later(found, behind.origin.after)]
    yield replace(behind, files=_plain(later))
    for place, found in enumerate(later):
        if found.packed and found.replaced:
            yield replace(behind, files=[found, *_plain(later[place + 1 :])])


def up_to(end: Position, behind: Unread, match: Match) -> tuple[list[tuple[SpoolFile, int]], bool]:
    """Return what of `behind` is before `end`: files, each with the byte to end at.

    The second value is whether `end` was found.
    """
    files = []
    for found in behind.files:
        if found.timestamp is None or end.after is None or found.timestamp > end.after:
            if not end.at or match(end, found) != end.at:
                break
            files.append((found, end.at))
            return files, True
        files.append((found, found.size))
    return files, not end.at


def fair_shares(wanted: Mapping[QueueKey, int], room: int) -> dict[QueueKey, int]:
    """Divide `room` bytes among queues: no queue gets more than it wants, small wants are met."""
    shares: dict[QueueKey, int] = {}
    for place, key in enumerate(sorted(wanted, key=lambda key: wanted[key])):
        shares[key] = min(wanted[key], room // (len(wanted) - place))
        room -= shares[key]
    return shares


def _is_later(found: SpoolFile, after: int | None) -> bool:
    return found.timestamp is None or after is None or found.timestamp > after


def _plain(files: Sequence[SpoolFile]) -> list[SpoolFile]:
    return [found for found in files if not found.packed]


def _lost(position: Position, left: Sequence[SpoolFile]) -> str:
    if position.at:
        file = "the first file" if position.after is None else f"the file after {position.after}"
        what = f"{file}, of which {position.at} bytes were read,"
    else:
        what = f"the file {position.after}, the last that was read,"
    names = [found.name for found in left]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"{what} is gone, and so is what may have followed it: it was packed, or the queue was "
        f"deleted and created again; left to read: {shown or 'nothing'}"
    )
