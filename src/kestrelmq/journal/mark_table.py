"""A table of the last marks of very many producers, in little memory and without long steps.

A producer takes about 45 bytes besides those of its name; in an OrderedDict it would take 270. An
entry is a number from 1 on, and each of its fields is in an array:

    sequences     u64  the number of the producer's last item
    times         u32  when that item was added (epoch seconds)
    hashes        u32  of the name
    names              the names of 4 entries in one `bytes`, with a zero byte between two of them
    older, newer  u32  the entries whose marks were set before and after, in order of the second
                       in which that was; 0 comes behind the ends
    chained       u32  the next entry of the same bucket; 0 for none
    chains        u32  not of the entry: the first entry of the bucket with this number; 0 for none

Entries have no gaps: when one is dropped, the last one takes its number. There are as many buckets
as numbers of entries, 0 included. So each new entry comes with a bucket, which takes its share from
a single other one (linear hashing). So adding and dropping take the same time in a large table as
in a small one, and a copy is quick, because it copies a few arrays.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_NAME_END: Final = b"\0"
_PAGE_BITS: Final = 2
_IN_PAGE: Final = 3
"""The bits of an entry's number that say which name of its page it has."""
_HASH_BITS: Final = 0xFFFF_FFFF
_MOST_FOUND: Final = 16
"""Most entries that are kept at hand; each takes 250 bytes."""
assert array("I").itemsize == 4  # noqa: S101 # a u32


@dataclass(slots=True, init=False)
class LastMark:
    """The last mark of a producer: the number, and when its item was added (epoch seconds).

    It is not changed, but not frozen; see `marks.PutMark`.
    """

    sequence: int
    added: int

    def __init__(self, sequence: int, added: int) -> None:
        self.sequence = sequence
        self.added = added


class _Found:
    """An entry that was found, and its mark."""

    __slots__ = ("entry", "mark")

    def __init__(self, entry: int, mark: LastMark) -> None:
        self.entry = entry
        self.mark = mark


def can_be_held(producer: bytes) -> bool:
    """Whether the table can have a producer of this name: it has no zero byte, and is not empty."""
    return bool(producer) and _NAME_END not in producer


class MarkTable:
    """The last marks of producers by name, in order of the second in which they were set."""

    def __init__(self) -> None:
        """Start with none."""
        self._sequences = array("Q", (0,))
        self._times = array("I", (0,))
        self._hashes = array("I", (0,))
        self._names = [b""]
        self._older = array("I", (0,))
        self._newer = array("I", (0,))
        self._chained = array("I", (0,))
        self._chains = array("I", (0,))
        # The least 2**n - 1 that is not below the number of any bucket.
        self._mask = 0
        # Some that were found, by name: a few producers add most of the items.
        self._found: dict[bytes, _Found] = {}

    def __len__(self) -> int:
        """How many producers there are."""
        return len(self._times) - 1

    def __iter__(self) -> Iterator[tuple[bytes, LastMark]]:
        """Yield all, the one that was set first before the others."""
        entry = self._newer[0]
        while entry:
            yield self._name(entry), self._mark(entry)
            entry = self._newer[entry]

    def get(self, producer: bytes) -> LastMark | None:
        """Return the last mark of a producer; None if it has none."""
        found = self._find(producer)
        return None if found is None else found.mark

    def oldest(self) -> tuple[bytes, LastMark]:
        """Return the producer whose mark was set first, and that; there must be one."""
        entry = self._newer[0]
        return self._name(entry), self._mark(entry)

    def set(self, producer: bytes, sequence: int, added: int) -> LastMark | None:
        """Set the last mark of a producer, for which `can_be_held`; return the one before it."""
        found = self._find(producer)
        if found is None:
            self._append(producer, sequence, added)
            return None
        entry, before = found.entry, found.mark
        found.mark = LastMark(sequence, added)
        self._sequences[entry] = sequence
        if added != before.added:
            self._times[entry] = added
            self._unlink(entry)
            self._link_newest(entry)
        return before

    def drop(self, producer: bytes) -> LastMark | None:
        """Forget a producer; return its last mark, or None if it has none."""
        found = self._find(producer)
        if found is None:
            return None
        entry = found.entry
        self._unlink(entry)
        self._unchain(entry)
        last = len(self)
        if entry != last:
            self._renumber(last, entry)
        self._remove_last()
        return found.mark

    def copy(self) -> "MarkTable":
        """Return a table of the same producers; another thread may use it."""
        other = MarkTable()
        other._sequences = self._sequences[:]
        other._times = self._times[:]
        other._hashes = self._hashes[:]
        other._names = self._names[:]
        other._older = self._older[:]
        other._newer = self._newer[:]
        other._chained = self._chained[:]
        other._chains = self._chains[:]
        other._mask = self._mask
        return other

    # --- entries ---

    def _mark(self, entry: int) -> LastMark:
        return LastMark(self._sequences[entry], self._times[entry])

    def _name(self, entry: int) -> bytes:
        return self._names[entry >> _PAGE_BITS].split(_NAME_END)[entry & _IN_PAGE]

    def _find(self, producer: bytes) -> _Found | None:
        """Return the entry of a producer; None if there is none."""
        found = self._found.get(producer)
        if found is not None:
            return found
        code = hash(producer) & _HASH_BITS
        entry = self._chains[self._bucket(code)]
        while entry:
            if self._hashes[entry] == code and self._name(entry) == producer:
                if len(self._found) >= _MOST_FOUND:
                    self._found.clear()
                found = self._found[producer] = _Found(entry, self._mark(entry))
                return found
            entry = self._chained[entry]
        return None

    def _append(self, producer: bytes, sequence: int, added: int) -> None:
        self._add_bucket()
        entry = len(self._times)
        code = hash(producer) & _HASH_BITS
        self._sequences.append(sequence)
        self._times.append(added)
        self._hashes.append(code)
        if entry & _IN_PAGE:
            self._names[-1] = b"%b%b%b" % (self._names[-1], _NAME_END, producer)
        else:
            self._names.append(producer)
        self._older.append(0)
        self._newer.append(0)
        self._chained.append(0)
        self._chain(entry)
        self._link_newest(entry)

    def _renumber(self, entry: int, number: int) -> None:
        """Move an entry to a number that is free."""
        self._unchain(entry)
        self._sequences[number] = self._sequences[entry]
        self._times[number] = self._times[entry]
        self._hashes[number] = self._hashes[entry]
        page = number >> _PAGE_BITS
        names = self._names[page].split(_NAME_END)
        names[number & _IN_PAGE] = self._name(entry)
        self._names[page] = _NAME_END.join(names)
        older, newer = self._older[entry], self._newer[entry]
        self._older[number], self._newer[number] = older, newer
        self._newer[older] = self._older[newer] = number
        self._chain(number)

    def _remove_last(self) -> None:
        """Remove the last entry, which is neither linked nor chained any more."""
        entry = len(self)
        if entry & _IN_PAGE:
            self._names[-1] = self._names[-1].rpartition(_NAME_END)[0]
        else:
            self._names.pop()
        for numbers in (self._times, self._hashes, self._older, self._newer, self._chained):
            numbers.pop()
        self._sequences.pop()
        self._remove_bucket()
        self._found.clear()

    # --- the order in which they were set ---

    def _link_newest(self, entry: int) -> None:
        newest = self._older[0]
        self._older[entry], self._newer[entry] = newest, 0
        self._newer[newest] = self._older[0] = entry

    def _unlink(self, entry: int) -> None:
        older, newer = self._older[entry], self._newer[entry]
        self._newer[older], self._older[newer] = newer, older

    # --- buckets ---

    def _bucket(self, code: int) -> int:
        """Return the bucket of the names with this hash."""
        bucket = code & self._mask
        return bucket if bucket < len(self._chains) else code & self._mask >> 1

    def _chain(self, entry: int) -> None:
        """Put an entry into its bucket."""
        bucket = self._bucket(self._hashes[entry])
        self._chained[entry] = self._chains[bucket]
        self._chains[bucket] = entry

    def _unchain(self, entry: int) -> None:
        """Take an entry out of its bucket."""
        bucket = self._bucket(self._hashes[entry])
        before = self._chains[bucket]
        if before == entry:
            self._chains[bucket] = self._chained[entry]
            return
        while self._chained[before] != entry:
            before = self._chained[before]
        self._chained[before] = self._chained[entry]

    def _add_bucket(self) -> None:
        """Add a bucket, with its share of the one that had its entries until now."""
        number = len(self._chains)
        if number > self._mask:
            self._mask = self._mask << 1 | 1
        split = number & self._mask >> 1
        entry = self._chains[split]
        self._chains[split] = 0
        self._chains.append(0)
        self._chain_all(entry)

    def _remove_bucket(self) -> None:
        """Remove the last bucket, and put its entries into the one that had them before."""
        entry = self._chains.pop()
        if len(self._chains) - 1 <= self._mask >> 1:
            self._mask >>= 1
        self._chain_all(entry)

    def _chain_all(self, entry: int) -> None:
        """Put an entry, and those that were chained to it, into their buckets."""
        while entry:
            after = self._chained[entry]
            self._chain(entry)
            entry = after
