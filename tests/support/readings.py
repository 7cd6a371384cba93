"""What other readers of the journal format make of a queue's files: a plain model of bytes.

It shares no code with the product. Readers of the documented dialect disagree about one thing: the
first REMOVE_TENTATIVE that takes an item which was added with ADD_XID opens it under that xid, or
under the next one, as any other.
"""

import struct
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field

_PLAIN = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
"""Lengths of records without data, by opcode."""


@dataclass
class Reading:
    """A queue as one kind of reader sees it.

    Attributes:
        keeps_xid: whether an item that was added with ADD_XID is opened under that xid. If so, a
            record that ends a read may also name it as the other kind does, whose server wrote it.
        queue: what waits: data, add time, expiry and the xid of its ADD_XID.
        open: the same for open reads, by xid.
        last: the last-used xid.
        others: the xids that the other kind gives to open reads of ADD_XID, by xid.
        other_last: the last-used xid of the other kind.
    """

    keeps_xid: bool
    queue: list[tuple[bytes, int, int, int | None]] = field(default_factory=list)
    open: dict[int, tuple[bytes, int, int, int | None]] = field(default_factory=dict)
    last: int = 0
    others: dict[int, int] = field(default_factory=dict)
    other_last: int = 0

    def file(self, raw: bytes) -> None:
        """Replay a whole file."""
        for opcode, xid, item in _records(raw):
            if opcode in {0, 2, 7, 8} and item is not None:
                self.queue.append((*item, xid if opcode == 7 else None))
            if opcode == 1 and self.queue:
                del self.queue[0]
            if opcode == 4:
                self.last = self.other_last = xid
            if opcode in {5, 6, 8}:
                ended = self._end(xid)
                if opcode == 5 and ended is not None:
                    self.queue.insert(0, (*ended[:3], None))
            if opcode == 9 and xid in self.open:
                continue
            if opcode in {3, 9} and self.queue:
                self._reserve(opcode, xid)

    def _end(self, xid: int) -> tuple[bytes, int, int, int | None] | None:
        if xid not in self.open and xid in self.others.values():
            (xid,) = [here for here, other in self.others.items() if other == xid]
            self.last = self.other_last
        self.others.pop(xid, None)
        return self.open.pop(xid, None)

    def _reserve(self, opcode: int, xid: int) -> None:
        head = self.queue.pop(0)
        named = head[3]
        if opcode == 9:
            self.last = self.other_last = xid
        else:
            self.other_last = _next(
                self.other_last, {self.others.get(here, here) for here in self.open}
            )
            if self.keeps_xid and named is not None and named not in self.open:
                xid = named
                self.others[xid] = self.other_last
            else:
                xid = self.last = _next(self.last, self.open)
        self.open[xid] = head

    @property
    def contents(self) -> list[bytes]:
        """Data of the items that wait."""
        return [data for data, *_ in self.queue]

    @property
    def loaded(self) -> list[tuple[bytes, int, int]]:
        """Items of a queue that is loaded so: open reads are given back, ascending by xid."""
        given_back = [item for _, item in sorted(self.open.items())]
        return [item[:3] for item in (*given_back, *self.queue)]

    @property
    def reads(self) -> dict[int, bytes]:
        """Data of the open reads by xid."""
        return {xid: item[0] for xid, item in self.open.items()}


def _next(last: int, taken: Container[int]) -> int:
    xid = last
    while True:
        xid = xid + 1 if xid != 2**31 - 1 else -(2**31)
        if xid != 0 and xid not in taken:
            return xid


def opcodes(raw: bytes) -> set[int]:
    """Return the opcodes of the records of a whole file."""
    return {opcode for opcode, _, _ in _records(raw)}


def _records(raw: bytes) -> Iterator[tuple[int, int, tuple[bytes, int, int] | None]]:
    """Yield the opcode, xid (or 0) and item of each record of a file that is whole."""
    at = 0
    while at < len(raw):
        opcode = raw[at]
        if opcode in _PLAIN:
            xid = struct.unpack_from("<i", raw, at + 1)[0] if _PLAIN[opcode] == 5 else 0
            yield opcode, xid, None
            at += _PLAIN[opcode]
            continue
        xid, begin = 0, at + 5
        if opcode in {7, 8}:
            (xid,) = struct.unpack_from("<i", raw, at + 1)
            begin = at + 9
        (size,) = struct.unpack_from("<i", raw, begin - 4)
        end = begin + size
        if opcode == 8 and not _is_continue(raw, begin, size):
            return  # a STATE_DUMP: replay goes on with the next file
        if opcode == 0:
            (seconds,) = struct.unpack_from("<i", raw, begin)
            yield 0, 0, (raw[begin + 4 : end], 0, seconds * 1000)
        else:
            added, expiry = struct.unpack_from("<qq", raw, begin)
            yield opcode, xid, (raw[begin + 16 : end], added, expiry)
        assert end <= len(raw)
        at = end


def _is_continue(raw: bytes, begin: int, size: int) -> bool:
    if size < 16 or begin + size > len(raw):
        return False
    added: int = struct.unpack_from("<q", raw, begin)[0]
    return 946_684_800_000 <= added < 4_133_980_800_000


def replayed(files: Mapping[str, bytes], queue: str, *, keeps_xid: bool) -> Reading:
    """Return what the files of a queue path, by name, make of one queue."""
    rotated: dict[int, bytes] = {}
    packed = -1
    for name in sorted(files, key=len):  # packs last: they stand for what is no later
        stem, _, stamp = name.removesuffix(".pack").partition(".")
        if stem == queue and stamp.isdigit():
            if name.endswith(".pack"):
                packed = max(packed, int(stamp))
                rotated[int(stamp)] = files[name]
            else:
                rotated.setdefault(int(stamp), files[name])
    reading = Reading(keeps_xid)
    for time, raw in sorted(rotated.items()):
        if time >= packed:
            reading.file(raw)
    reading.file(files.get(queue, b""))
    return reading
