"""A table by xid in which no operation takes long, however many entries it has.

A dict grows by copying all of its entries: with 700,000 of them that takes 35 ms, and meanwhile
nobody is served. So this table has pages, which are dicts for 4,096 xids each. Xids are given in
order, so pages fill up, and empty, one after the other. The memory of an empty page is freed.

A copy shares the pages, and each table copies a page when it first changes it. So a copy takes a
moment, and a thread may read it at leisure while the other table is in use. Reading it with `drain`
frees it page by page, because it may be the last to have its pages.

Any other number that grows will do instead of an xid.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

from kestrelmq.journal.empty import NOTHING

_PAGE_BITS: Final = 12
_NO_PAGE: Final = 1 << 40
"""The number of no page, because no xid is so large."""
_NONE_SHARED: Final[set[int]] = set()
"""As `NOTHING`, which is no pages, and the content of no page: no numbers of pages."""

Entry = TypeVar("Entry")


class ReadTable(Generic[Entry]):
    """Entries by xid; used like a dict. It has the order of its pages, and of the entries in them.

    Entries must not be None.
    """

    __slots__ = ("_count", "_number", "_page", "_pages", "_shared")

    def __init__(self, entries: Iterable[tuple[int, Entry]] = ()) -> None:
        """Start with these xids and entries."""
        self._pages: dict[int, dict[int, Entry]] = NOTHING
        # The numbers of pages that another table has, too.
        self._shared: set[int] = _NONE_SHARED
        self._count = 0
        # The page that was changed last, and its number. Only this one may be empty.
        self._number = _NO_PAGE
        self._page: dict[int, Entry] = NOTHING
        for xid, entry in entries:
            self[xid] = entry

    def __len__(self) -> int:
        return self._count

    def __contains__(self, xid: object) -> bool:
        """Whether there is an entry for `xid`."""
        if not isinstance(xid, int):
            return False
        number = xid >> _PAGE_BITS
        if number == self._number:
            return xid in self._page
        page = self._pages.get(number)
        return page is not None and xid in page

    def __getitem__(self, xid: int) -> Entry:
        """Return the entry for `xid`. Raises KeyError if there is none."""
        return self._pages[xid >> _PAGE_BITS][xid]

    def get(self, xid: int) -> Entry | None:
        """Return the entry for `xid`; None if there is none."""
        number = xid >> _PAGE_BITS
        if number == self._number:
            return self._page.get(xid)
        page = self._pages.get(number)
        return None if page is None else page.get(xid)

    def __setitem__(self, xid: int, entry: Entry) -> None:
        """Set the entry for `xid`."""
        page = self._page if xid >> _PAGE_BITS == self._number else self._to_change(xid)
        before = len(page)
        page[xid] = entry
        self._count += len(page) - before

    def __delitem__(self, xid: int) -> None:
        """Drop the entry for `xid`. Raises KeyError if there is none."""
        if self.pop(xid) is None:
            raise KeyError(xid)

    def pop(self, xid: int) -> Entry | None:
        """Drop the entry for `xid` and return it; None if there is none."""
        number = xid >> _PAGE_BITS
        if number != self._number:
            page = self._pages.get(number)
            if page is None or xid not in page:
                return None
            self._to_change(xid)
        entry = self._page.pop(xid, None)
        if entry is not None:
            self._count -= 1
        return entry

    # --- several entries: faster than one after the other ---
    # The xids are Any here: compiled, each int would be made anew.

    def get_all(self, xids: Sequence[int]) -> list[Entry]:
        """Return the entries for `xids`. Raises KeyError if one is missing."""
        found: list[Entry] = []
        for number, some in _by_page(xids):
            page: dict[Any, Entry] = self._pages[number]
            found += [page[xid] for xid in some]
        return found

    def set_all(self, xids: Sequence[int], entries: Iterable[Entry]) -> None:
        """Set the entries for `xids`, one for each."""
        source = iter(entries)
        for _, some in _by_page(xids):
            page = self._to_change(some[0])
            before = len(page)
            page.update(zip(some, source, strict=False))
            self._count += len(page) - before

    def set_same(self, xids: Sequence[int], entry: Entry) -> None:
        """Set the same entry for all `xids`."""
        for _, some in _by_page(xids):
            page = self._to_change(some[0])
            before = len(page)
            for xid in some:
                page[xid] = entry
            self._count += len(page) - before

    def pop_all(self, xids: Sequence[int]) -> list[Entry | None]:
        """Drop the entries for `xids` and return them, with None for each that is missing."""
        found: list[Entry | None] = []
        for number, some in _by_page(xids):
            if number in self._pages:
                page = self._to_change(some[0])
                before = len(page)
                found += map(page.pop, some, repeat(None))
                self._count += len(page) - before
            else:
                found += [None] * len(some)
        return found

    def has_any(self, xids: Sequence[int]) -> bool:
        """Whether there is an entry for any of `xids`."""
        for number, some in _by_page(xids):
            page = self._pages.get(number)
            if page and not page.keys().isdisjoint(some):
                return True
        return False

    # --- the first and the last ---

    def oldest(self) -> list[int]:
        """Return the xids of the first page in their order; all others are larger."""
        self._drop_empty()
        return sorted(self._pages[min(self._pages)]) if self._pages else []

    def youngest(self) -> list[int]:
        """Return the xids of the last page in their order; all others are smaller."""
        self._drop_empty()
        return sorted(self._pages[max(self._pages)]) if self._pages else []

    # --- pages ---

    def _to_change(self, xid: int) -> dict[int, Entry]:
        """Return the page of `xid`, which no other table has from now on."""
        number = xid >> _PAGE_BITS
        if number == self._number:
            return self._page
        self._drop_empty()
        page = self._pages.get(number)
        if page is None:
            if self._pages is NOTHING:
                # Not an assertion that -O removes: all queues would have the entry.
                if self is NO_READS:
                    raise TypeError("all queues share this table; see own_table")
                self._pages = {}
            page = self._pages[number] = {}
        elif self._shared and number in self._shared:
            page = self._pages[number] = page.copy()
            self._shared.discard(number)
        self._number, self._page = number, page
        return page

    def _drop_empty(self) -> None:
        """Have no page that was changed last, and free its memory if it is empty."""
        if self._number != _NO_PAGE:
            if not self._page:
                del self._pages[self._number]
            self._number, self._page = _NO_PAGE, NOTHING

    # --- all entries ---

    def copy(self) -> "ReadTable[Entry]":
        """Return a table of the same entries; another thread may use it."""
        self._drop_empty()
        other: ReadTable[Entry] = ReadTable()
        if not self._count:
            return other
        other._pages, other._count = self._pages.copy(), self._count
        self._shared, other._shared = set(self._pages), set(self._pages)
        return other

    def take_pages(self) -> list[dict[int, Entry]]:
        """Drop all entries; return the pages, which may have millions of entries to free."""
        pages = list(self._pages.values())
        self._pages, self._shared, self._count = NOTHING, _NONE_SHARED, 0
        self._number, self._page = _NO_PAGE, NOTHING
        return pages

    def clear(self) -> None:
        """Drop all entries, and give back all memory."""
        self.take_pages()

    def drain(self) -> Iterator[list[tuple[int, Entry]]]:
        """Yield all entries, a page at a time, and drop those that were yielded."""
        pages = self.take_pages()
        pages.reverse()
        while pages:
            yield list(pages.pop().items())

    def __iter__(self) -> Iterator[int]:
        """Yield the xids. The table may change meanwhile."""
        for page in list(self._pages.values()):
            yield from list(page)

    def items(self) -> Iterator[tuple[int, Entry]]:
        """Yield xids and entries. The table may change meanwhile."""
        for page in list(self._pages.values()):
            yield from list(page.items())

    def values(self) -> Iterator[Entry]:
        """Yield the entries. The table may change meanwhile."""
        for page in list(self._pages.values()):
            yield from list(page.values())

    def backwards(self) -> Iterator[Entry]:
        """Yield the entries, the last first. The table may change meanwhile."""
        for page in reversed(list(self._pages.values())):
            yield from reversed(list(page.values()))


NO_READS: Final[ReadTable[Any]] = ReadTable()
"""An empty table that all queues share, see `empty`; nothing can be put into it."""


def own_table(table: ReadTable[Entry]) -> ReadTable[Entry]:
    """Return `table`, or a new one instead of `NO_READS`."""
    return ReadTable() if table is NO_READS else table


def _by_page(xids: Sequence[Any]) -> list[tuple[int, Sequence[Any]]]:
    """Return `xids` in order, in runs of one page each, with the number of that page."""
    if not xids:
        return []
    ordered = sorted(xids)  # most are; that takes a moment
    number = ordered[0] >> _PAGE_BITS
    if ordered[-1] >> _PAGE_BITS == number:
        return [(number, xids)]
    runs: list[tuple[int, Sequence[Any]]] = []
    first, number = 0, xids[0] >> _PAGE_BITS
    for at, xid in enumerate(xids):
        if xid >> _PAGE_BITS != number:
            runs.append((number, xids[first:at]))
            first, number = at, xid >> _PAGE_BITS
    runs.append((number, xids[first:] if first else xids))
    return runs
