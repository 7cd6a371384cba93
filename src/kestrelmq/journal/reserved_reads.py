"""Reserved reads in the journal: which open reads are reserved, and which tags are over.

A reserved read belongs to a name, not to a connection. For the format it is an ordinary open read;
notes say the rest:

    16  RESERVED    u64 nonce, u64 lease and u64 grace (ms), u8 length and the owner, u8 length and
                    the tag (both UTF-8, perhaps empty), and the reads
    17  UNRESERVED  the reads
    18  DONE        u32 how many reads were finished, and the tag
    19  RETIRED     u64 epoch, the name, ":", and when that was (ms since the epoch, decimal)
    20  HELD_BACK   the reads: as UNRESERVED, and they will be given back without counting that

The reads are runs of consecutive xids: i32 first, u32 how many. RESERVED comes behind the records
that open the reads, and is written with those. If a crash leaves the records without the note, the
reads are ordinary ones. Records that end a read end its reservation, too.

A tag is done, or retired, as a whole, wherever a crash cuts the journal: DONE itself confirms the
reads of its tag, and the CONFIRM_REMOVEs behind it are for other readers of the format. RETIRED
ends the reservations of open tags, which were no deliveries, and UNREMOVEs of their reads come
behind it. One without a time is an old one: its reads were deliveries, and it is never forgotten.

A tag is `NAME:EPOCH:PART`. It is open with the reads of its reservation, done, retired with all
tags of its name up to an epoch, or none of that.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 # it is a class
from typing import Final

from kestrelmq.clock import Pause, no_pause
from kestrelmq.format.notes import Note, encode
from kestrelmq.format.records import first_xid, is_run
from kestrelmq.journal.life import NOWHERE, Row, noted_row
from kestrelmq.journal.memory_budget import OVERHEAD
from kestrelmq.journal.open_read import OpenRead, Reservation, ReserveTerms
from kestrelmq.journal.read_table import ReadTable
from kestrelmq.journal.shared_empty import NOTHING, own
from kestrelmq.tags import Tag, parse_tag

RESERVED: Final = 16
"""Kind: the reads are reserved, on these terms; if they are already, the terms are new."""
UNRESERVED: Final = 17
"""Kind: the reads are open reads like others again."""
DONE: Final = 18
"""Kind: the reads of a tag were finished."""
RETIRED: Final = 19
"""Kind: the tags of a name up to an epoch are over; what was done is forgotten."""
HELD_BACK: Final = 20
"""Kind: the reads are not reserved any more, and when they are given back that does not count."""

_ROWS: Final = {
    UNRESERVED: noted_row("UNRESERVED"),
    HELD_BACK: noted_row("HELD_BACK"),
    DONE: noted_row("DONE"),
}
"""What becomes of the reads of a note, by its kind."""
_MOST_READS: Final = 1 << 20
"""Most reads of one note; a note with more is not ours."""

_NOTED_AT_ONCE: Final = 4096
"""Most reads that a pack notes at once as not counted."""
_TAG_BYTES: Final = 40
"""About the bytes of a DONE or RETIRED note besides the name."""
_RESERVATION_BYTES: Final = 65
"""About the bytes of a RESERVED note besides the owner and the tag."""

_TERMS: Final = Struct("<QQQ")
_RUN: Final = Struct("<iI")
_U32: Final = Struct("<I")
_U64: Final = Struct("<Q")


class ReservedReads:
    """The reserved reads of a queue, and its tags.

    Attributes:
        opened: the open reads of the queue, reserved or not.
        count: how many of them are reserved.
        by_tag: the reservation of each open tag.
        done: how many reads were finished for each tag that is done.
        retired: the last retired epoch of each name.
        retired_at: when one was last retired, by name (ms since the epoch).
        size: an upper bound of the memory that the items of the reads take.
        note_bytes: about how many bytes notes that say all of this take.
        unconfirmed: reads that DONE confirmed, and no CONFIRM_REMOVE: a crash cut the journal.
    """

    def __init__(self, opened: ReadTable[OpenRead]) -> None:
        """Start with none of the `opened` reads."""
        self.opened = opened
        self.count = self.size = self.note_bytes = 0
        self.unconfirmed: dict[int, None] = NOTHING
        self.by_tag: dict[str, Reservation] = NOTHING
        self.done: dict[str, int] = NOTHING
        self.retired: dict[str, int] = NOTHING
        self.retired_at: dict[str, int] = NOTHING

    # --- changes ---

    def add(self, reservation: Reservation, reads: Sequence[OpenRead]) -> None:
        """Add a reservation of these reads, which are all open and not reserved."""
        for read in reads:
            read.reserve(reservation)
        self.count += len(reads)
        self._begin(reservation)

    def end(self, read: OpenRead) -> None:
        """Forget a read that has ended; it may have been reserved."""
        reservation = read.reservation
        if reservation is not None:
            self.count -= 1
            reservation.left -= 1
            if not reservation.left:
                self._end(reservation)

    def end_all(self, reservation: Reservation) -> None:
        """Do `end` for all reads of a reservation that are left."""
        self.count -= reservation.left
        reservation.left = 0
        self._end(reservation)

    def restore(self, read: OpenRead) -> None:
        """Undo `end`."""
        reservation = read.reservation
        if reservation is not None:
            self.count += 1
            reservation.left += 1
            if reservation.left == 1:
                self._begin(reservation)

    def _change(self, xid: int, row: Row) -> None:
        """Do with the read `xid`, if it is open, what a row says."""
        read = self.opened.get(xid)
        if read is None:
            return
        self.end(read)
        if row.next == NOWHERE:
            del self.opened[xid]
            self.unconfirmed = own(self.unconfirmed)
            self.unconfirmed[xid] = None
        else:
            self.opened[xid] = read.without_reader(row.next, counted=row.counted)

    def set_terms(self, reservation: Reservation, terms: ReserveTerms) -> None:
        """Change the terms of a reservation; the tag stays the same."""
        self.note_bytes += _note_bytes(terms) - _note_bytes(reservation.terms)
        reservation.terms = terms

    def _begin(self, reservation: Reservation) -> None:
        self.size += reservation.size
        self.note_bytes += _note_bytes(reservation.terms)
        if reservation.terms.tag:
            self.by_tag = own(self.by_tag)
            self.by_tag[reservation.terms.tag] = reservation

    def _end(self, reservation: Reservation) -> None:
        self.size -= reservation.size
        self.note_bytes -= _note_bytes(reservation.terms)
        tag = reservation.terms.tag
        if self.by_tag.get(tag) is reservation:
            del self.by_tag[tag]

    def drop_all(self) -> None:
        """Forget everything."""
        for everything in (self.by_tag, self.done, self.retired, self.retired_at):
            everything.clear()
        self.count = self.size = self.note_bytes = 0

    def reservation_of(self, xid: int) -> Reservation | None:
        """Return the reservation of the read `xid`; None if it is not reserved."""
        read = self.opened.get(xid)
        return None if read is None else read.reservation

    def live(self, reservation: Reservation) -> Sequence[int]:
        """Return the reads of a reservation that have not ended, in order."""
        xids = reservation.xids
        if reservation.left == len(xids):
            return xids
        return tuple([xid for xid in xids if self.reservation_of(xid) is reservation])

    def find(self, reads: Sequence[tuple[int, Sequence[int]]]) -> Sequence[int]:
        """Return the xids of those reads, given by nonce, that are reserved; each once."""
        if len(reads) == 1:  # most requests name all reads of a reservation
            nonce, xids = reads[0]
            reservation = self.reservation_of(first_xid(xids))
            if (
                reservation is not None
                and reservation.nonce == nonce
                and are_same(xids, live := self.live(reservation))
            ):
                return live  # with these objects, later look-ups are faster
        found: dict[int, None] = {}
        for nonce, xids in reads:
            for xid in xids:
                reservation = self.reservation_of(xid)
                if reservation is not None and reservation.nonce == nonce:
                    found[xid] = None
        return list(found)

    def reservations(self) -> list[Reservation]:
        """Return the reservations that have reads left, each once."""
        found: dict[Reservation, None] = {}
        for read in self.opened.values():
            if read.reservation is not None:
                found[read.reservation] = None
        return list(found)

    def is_retired(self, tag: Tag) -> bool:
        """Whether the epoch of `tag` was retired."""
        return tag.epoch <= self.retired.get(tag.name, -1)

    def set_done(self, tag: str, count: int) -> None:
        """Remember that `tag` is done, with `count` reads."""
        if tag not in self.done:
            self.note_bytes += _TAG_BYTES + len(tag)
        self.done = own(self.done)
        self.done[tag] = count

    def forget_done(self, tag: str) -> None:
        """Forget that `tag` is done."""
        del self.done[tag]
        self.note_bytes -= _TAG_BYTES + len(tag)

    def retire(self, name: str, epoch: int, now: int = 0) -> dict[str, int]:
        """Retire the epochs of `name` up to `epoch`; return the done tags that are forgotten.

        `now` is in milliseconds since the epoch; 0 if that is not known.
        """
        if name not in self.retired:
            self.note_bytes += _TAG_BYTES + len(name)
        self.retired = own(self.retired)
        self.retired[name] = max(epoch, self.retired.get(name, -1))
        self.retired_at = own(self.retired_at)
        self.retired_at[name] = now
        forgotten = {tag: self.done[tag] for tag in _tags_up_to(self.done, name, epoch)}
        for tag in forgotten:
            self.forget_done(tag)
        return forgotten

    def unretire(self, name: str, before: int | None, forgotten: dict[str, int]) -> None:
        """Undo `retire`; `before` is the epoch that was retired before that."""
        if before is None:
            self._forget_retired(name)
        else:
            self.retired[name] = before
        for tag, count in forgotten.items():
            self.set_done(tag, count)

    def forget_retired(self, before: int) -> None:
        """Forget the names that were last retired before a time (ms) and have no other tags."""
        old = {name for name, at in self.retired_at.items() if 0 < at < before}
        if old:
            old -= {tag.partition(":")[0] for tag in (*self.by_tag, *self.done)}
        for name in old:
            self._forget_retired(name)

    def _forget_retired(self, name: str) -> None:
        del self.retired[name], self.retired_at[name]
        self.note_bytes -= _TAG_BYTES + len(name)

    def open_up_to(self, name: str, epoch: int) -> list[Reservation]:
        """Return the reservations of the open tags of `name` up to `epoch`."""
        return [self.by_tag[tag] for tag in _tags_up_to(self.by_tag, name, epoch)]

    # --- the journal ---

    def apply(self, note: Note) -> None:
        """Apply a note. Ignores a note that makes no sense."""
        try:
            if note.kind == RESERVED:
                self._apply_reserved(note.payload)
            elif note.kind in {UNRESERVED, HELD_BACK}:
                for xid in _decode_reads(note.payload, 0):
                    self._change(xid, _ROWS[note.kind])
            elif note.kind == DONE:
                self._apply_done(note.payload)
            elif note.kind == RETIRED:
                self._apply_retired(*_decode_retired(note.payload))
        except (StructError, ValueError, IndexError):
            return

    def _apply_reserved(self, payload: bytes) -> None:
        nonce, terms, at = _decode_terms(payload)
        xids: list[int] = []
        reads: list[OpenRead] = []
        for xid in dict.fromkeys(_decode_reads(payload, at)):
            read = self.opened.get(xid)
            if read is not None:
                self.end(read)
                read.is_counted = True
                xids.append(xid)
                reads.append(read)
        if xids:
            size = items_size(reads)
            self.add(Reservation(nonce, terms, tuple(xids), size, len(xids)), reads)

    def _apply_retired(self, name: str, epoch: int, retired_at: int) -> None:
        row = _ROWS[HELD_BACK if retired_at else UNRESERVED]
        for reservation in self.open_up_to(name, epoch):
            for xid in self.live(reservation):
                self._change(xid, row)
        self.retire(name, epoch, retired_at)

    def _apply_done(self, payload: bytes) -> None:
        count, tag = _U32.unpack_from(payload)[0], payload[_U32.size :].decode()
        parse_tag(tag)
        reservation = self.by_tag.get(tag)
        for xid in () if reservation is None else self.live(reservation):
            self._change(xid, _ROWS[DONE])
        self.set_done(tag, count)

    def snapshot(self) -> "ReservedSnapshot":
        """Return what there is now, to be written later."""
        return ReservedSnapshot(
            self.opened.copy(), self.done.copy(), self.retired.copy(), self.retired_at.copy()
        )


@dataclass(frozen=True, slots=True)
class ReservedSnapshot:
    """The reserved reads and tags of a queue at some moment.

    Attributes:
        opened: as of `ReservedReads`; `records` empties it.
        done: likewise.
        retired: likewise.
        retired_at: likewise.
    """

    opened: ReadTable[OpenRead]
    done: dict[str, int]
    retired: dict[str, int]
    retired_at: dict[str, int]

    def records(self, last_xid: int, pause: Pause = no_pause) -> Iterator[bytes]:
        """Yield the notes, once; they come after the records that open the reads.

        If the terms of a reservation have changed since, the new ones are noted. That does no harm:
        the journal says the same later.
        """
        for name, epoch in self.retired.items():
            yield retired_note(name, epoch, last_xid, self.retired_at[name])
        for tag, count in self.done.items():
            yield done_note(tag, count, last_xid)
        together: dict[Reservation, list[int]] = {}
        uncounted: list[int] = []
        for page in self.opened.drain():
            for xid, read in page:
                if read.reservation is not None:
                    together.setdefault(read.reservation, []).append(xid)
                elif not read.is_counted:
                    uncounted.append(xid)
            pause()
        for reservation in list(together):
            live = together.pop(reservation)
            xids = reservation.xids
            if len(live) < len(xids):
                xids = tuple(filter(frozenset(live).__contains__, xids))
            yield reserved_note(reservation.nonce, reservation.terms, xids, last_xid)
        for at in range(0, len(uncounted), _NOTED_AT_ONCE):
            yield held_back_note(uncounted[at : at + _NOTED_AT_ONCE], last_xid)
            pause()


NOTHING_RESERVED: Final = ReservedSnapshot(ReadTable(), {}, {}, {})
"""A queue that has no reserved reads and no tags."""


def items_size(reads: Sequence[OpenRead]) -> int:
    """Return the memory that the items of reads take."""
    size = OVERHEAD * len(reads)
    for read in reads:  # compiled, a tenth of the time of `sum`
        size += len(read.record)
    return size


def are_same(xids: Sequence[int], others: Sequence[int]) -> bool:
    """Whether these are the same xids, in the same order."""
    if len(xids) != len(others):
        return False
    return xids is others or xids == others or tuple(xids) == tuple(others)


def reserved_note(nonce: int, terms: ReserveTerms, xids: Sequence[int], last_xid: int) -> bytes:
    """Return the note that `xids` are reserved."""
    owner, tag = terms.owner.encode(), terms.tag.encode()
    payload = b"".join(
        (
            _TERMS.pack(nonce, terms.lease, terms.grace),
            bytes((len(owner),)),
            owner,
            bytes((len(tag),)),
            tag,
            _encode_reads(xids),
        )
    )
    return encode(Note(RESERVED, payload), last_xid)


def unreserved_note(xids: Sequence[int], last_xid: int) -> bytes:
    """Return the note that `xids` are not reserved any more, but stay open."""
    return encode(Note(UNRESERVED, _encode_reads(xids)), last_xid)


def held_back_note(xids: Sequence[int], last_xid: int) -> bytes:
    """Return the note that `xids` are not reserved any more, and were no deliveries."""
    return encode(Note(HELD_BACK, _encode_reads(xids)), last_xid)


def done_note(tag: str, count: int, last_xid: int) -> bytes:
    """Return the note that `tag` is done, with `count` reads."""
    return encode(Note(DONE, _U32.pack(count) + tag.encode()), last_xid)


def retired_note(name: str, epoch: int, last_xid: int, retired_at: int = 0) -> bytes:
    """Return the note that the epochs of `name` up to `epoch` were retired at a time (ms)."""
    return encode(Note(RETIRED, _U64.pack(epoch) + f"{name}:{retired_at}".encode()), last_xid)


def describe(note: Note) -> str | None:
    """Return what a note says, as text; None if it is not about reserved reads."""
    try:
        if note.kind == RESERVED:
            nonce, terms, at = _decode_terms(note.payload)
            whose = f" for {terms.owner}" if terms.owner else ""
            step = f" as {terms.tag}" if terms.tag else ""
            return (
                f"reads {_runs_text(note.payload, at)} are reserved{whose}{step}, "
                f"{terms.lease} ms, {nonce:016x}"
            )
        if note.kind == UNRESERVED:
            return f"reads {_runs_text(note.payload, 0)} are not reserved any more"
        if note.kind == HELD_BACK:
            return f"reads {_runs_text(note.payload, 0)} are held back, and were no deliveries"
        if note.kind == DONE:
            count = _U32.unpack_from(note.payload)[0]
            return f"tag {note.payload[_U32.size :].decode()} is done, {count} reads"
        if note.kind == RETIRED:
            name, epoch, _ = _decode_retired(note.payload)
            return f"tags of {name} up to {epoch} are retired"
    except (StructError, ValueError, IndexError):
        return f"a note of kind {note.kind} that makes no sense"
    return None


def _note_bytes(terms: ReserveTerms) -> int:
    return _RESERVATION_BYTES + len(terms.owner) + len(terms.tag)


def _tags_up_to(tags: Iterable[str], name: str, epoch: int) -> list[str]:
    """Return the tags of `name` with an epoch up to `epoch`; there may be many."""
    begin = f"{name}:"
    at = len(begin)
    return [
        tag for tag in tags if tag.startswith(begin) and int(tag[at : tag.index(":", at)]) <= epoch
    ]


def _encode_reads(xids: Sequence[int]) -> bytes:
    if is_run(xids):  # most are
        return _RUN.pack(first_xid(xids), len(xids))
    return b"".join([_RUN.pack(first, count) for first, count in _runs(xids)])


def _runs(xids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the number of each run of consecutive xids."""
    first = count = 0
    for xid in xids:
        if count and xid == first + count:
            count += 1
            continue
        if count:
            yield first, count
        first, count = xid, 1
    if count:
        yield first, count


def _decode_reads(payload: bytes, at: int) -> list[int]:
    """Return the xids in `payload` from `at` on. Raises ValueError, StructError."""
    found: list[int] = []
    for first, count in _RUN.iter_unpack(payload[at:]):
        if count > _MOST_READS - len(found):
            raise ValueError("too many reads")
        found += range(first, first + count)
    return found


def _decode_terms(payload: bytes) -> tuple[int, ReserveTerms, int]:
    """Return the nonce, the terms and where the reads begin. Raises as `_decode_reads`."""
    nonce, lease, grace = _TERMS.unpack_from(payload)
    owner_at = _TERMS.size + 1
    tag_at = owner_at + payload[owner_at - 1] + 1
    end = tag_at + payload[tag_at - 1]
    owner, tag = payload[owner_at : tag_at - 1].decode(), payload[tag_at:end].decode()
    if tag:
        parse_tag(tag)
    return nonce, ReserveTerms(lease, grace, owner, tag), end


def _decode_retired(payload: bytes) -> tuple[str, int, int]:
    """Return a name, its last retired epoch and when that was (ms). Raises as `_decode_reads`."""
    name, _, retired_at = payload[_U64.size :].decode().partition(":")
    return name, _U64.unpack_from(payload)[0], int(retired_at or 0)


def _runs_text(payload: bytes, at: int) -> str:
    runs = _RUN.iter_unpack(payload[at:])
    return ", ".join(
        f"{first} to {first + count - 1}" if count > 1 else f"{first}" for first, count in runs
    )
