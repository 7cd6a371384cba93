"""A table by xid in which no operation takes long, however many entries it has.

A dict grows by copying all of its entries: with 700,000 of them that takes 35 ms, and meanwhile
nobody is served. So this table has pages, which are dicts for 4,096 xids each. Xids are given in
order, so pages fill up, and empty, one after the other. The memory of an empty page is freed.

Many reads are opened together, under consecutive xids, and end together. So the entries that are
set for a range of xids stay a list, a run of the page, until one of them is asked for or changed by
itself; then that run becomes entries of the dict. To set a run and to take it out again costs
next to nothing for each entry.

A copy shares the pages, and each table copies a page when it first changes it. So a copy takes a
moment, and a thread may read it at leisure while the other table is in use. Reading it with `drain`
frees it page by page, because it may be the last to have its pages.

Any other number that grows will do instead of an xid.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, Generic, TypeVar

from kestrelmq.format.records import first_xid
from kestrelmq.journal.shared_empty import NOTHING

_PAGE_BITS: Final = 12
_NO_PAGE: Final = 1 << 40
"""The number of no page, because no xid is so large."""
_SHORTEST_RUN: Final = 16
"""A page has so few runs that they are copied in a moment."""
_NONE_SHARED: Final[set[int]] = set()
"""As `NOTHING`, which is no pages, and the content of no page: no numbers of pages."""

Entry = TypeVar("Entry")
_Ends = tuple[Any, Any]
"""The smallest and the largest of some xids."""


class ReadTable(Generic[Entry]):
    """Entries by xid; used like a dict. It has the order of its pages, and of the entries in them.

    Entries must not be None.
    """

    __slots__ = ("_count", "_number", "_page", "_pages", "_runs", "_shared")

    def __init__(self, entries: Iterable[tuple[int, Entry]] = ()) -> None:
        """Start with these xids and entries."""
        self._pages: dict[int, dict[int, Entry]] = NOTHING
        # The runs of each page that has some, by first xid, in order; its dict has older entries.
        self._runs: dict[int, dict[int, list[Entry]]] = NOTHING
        # The numbers of pages that another table has, too.
        self._shared: set[int] = _NONE_SHARED
        self._count = 0
        # The page that was changed last, and its number. No other one without runs is empty.
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
        page = self._page_with(xid >> _PAGE_BITS, (xid, xid))
        return page is not None and xid in page

    def __getitem__(self, xid: int) -> Entry:
        """Return the entry for `xid`. Raises KeyError if there is none."""
        page = self._page_with(xid >> _PAGE_BITS, (xid, xid))
        if page is None:
            raise KeyError(xid)
        return page[xid]

    def get(self, xid: int) -> Entry | None:
        """Return the entry for `xid`; None if there is none."""
        number = xid >> _PAGE_BITS
        if self._runs and number in self._runs:
            run = self._runs[number].get(xid)
            if run is not None:  # it stays a run if only its first entry is asked for
                return run[0]
        page = self._page_with(number, (xid, xid))
        return None if page is None else page.get(xid)

    def __setitem__(self, xid: int, entry: Entry) -> None:
        """Set the entry for `xid`."""
        page = self._to_change(xid >> _PAGE_BITS, (xid, xid))
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
        page = self._page_with(number, (xid, xid))
        if page is None or xid not in page:
            return None
        self._count -= 1
        return self._to_change(number, (xid, xid)).pop(xid)

    # --- several entries: faster than one after the other ---
    # The xids are Any here: compiled, each int would be made anew.

    def get_all(self, xids: Sequence[int]) -> list[Entry]:
        """Return the entries for `xids`. Raises KeyError if one is missing."""
        found: list[Entry] = []
        for number, some in _by_page(xids):
            run = self._run(number, some)
            if run is not None:
                found += run
                continue
            page: dict[Any, Entry] | None = self._page_with(number, _ends(some))
            if page is None:
                raise KeyError(some[0])
            found += [page[xid] for xid in some]
        return found

    def set_all(self, xids: Sequence[int], entries: list[Entry]) -> None:
        """Set the entries for `xids`, one for each; the list is not changed afterwards."""
        at = 0
        # Where it passes from one page to the next, even a short piece of a run is one.
        is_run = type(xids) is range and len(xids) >= _SHORTEST_RUN
        for number, some in _by_page(xids):
            entries_here = entries
            if len(some) < len(entries):
                entries_here = entries[at : at + len(some)]
                at += len(some)
            if is_run and self._is_free_behind_runs(number, some):
                self._add_run(number, some, entries_here)
                continue
            page = self._to_change(number, _ends(some))
            before = len(page)
            page.update(zip(some, entries_here, strict=True))
            self._count += len(page) - before

    def pop_all(self, xids: Sequence[int]) -> list[Entry | None]:
        """Drop the entries for `xids` and return them, with None for each that is missing."""
        found: list[Entry | None] = []
        for number, some in _by_page(xids):
            run = self._run(number, some)
            if run is not None:
                found += run
                self._drop_run(number, first_xid(some))
            elif number in self._pages:
                page = self._to_change(number, _ends(some))
                before = len(page)
                found += map(page.pop, some, repeat(None))
                self._count += len(page) - before
            else:
                found += [None] * len(some)
        return found

    def has_any(self, xids: Sequence[int]) -> bool:
        """Whether there is an entry for any of `xids`."""
        for number, some in _by_page(xids):
            page = self._page_with(number, _ends(some))
            if page and not page.keys().isdisjoint(some):
                return True
        return False

    # --- runs ---

    def _run(self, number: int, xids: Sequence[Any]) -> list[Entry] | None:
        """Return the entries for `xids`, of page `number`, if they are just those of a run."""
        if not self._runs or number not in self._runs or type(xids) is not range:
            return None
        run = self._runs[number].get(xids.start)
        return run if run is not None and len(run) == len(xids) else None

    def _is_free_behind_runs(self, number: int, xids: Sequence[Any]) -> bool:
        """Whether page `number` has no entries for `xids`, which are behind all of its runs."""
        page = self._pages.get(number)
        is_free = not page or page.keys().isdisjoint(xids)
        return is_free and self._is_behind_runs(number, first_xid(xids))

    def _is_behind_runs(self, number: int, xid: Any) -> bool:
        """Whether `xid`, of page `number`, is behind all runs of that page."""
        if not self._runs or number not in self._runs:
            return True
        runs = self._runs[number]
        last = next(reversed(runs))
        return bool(xid >= last + len(runs[last]))

    def _add_run(self, number: int, xids: Sequence[Any], entries: list[Entry]) -> None:
        if number not in self._pages:
            self._own_pages()[number] = {}
        if self._runs is NOTHING:
            self._runs = {}
        self._runs.setdefault(number, {})[first_xid(xids)] = entries
        self._count += len(entries)

    def _drop_run(self, number: int, first: Any) -> None:
        runs = self._runs[number]
        self._count -= len(runs.pop(first))
        if runs:
            return
        del self._runs[number]
        if not self._pages[number] and number != self._number:
            del self._pages[number]
            self._shared.discard(number)

    # --- the first and the last ---

    def oldest(self) -> list[int]:
        """Return the xids of the first page in their order; all others are larger."""
        self._drop_empty()
        return sorted(self._page_of(min(self._pages)) or ()) if self._pages else []

    def youngest(self) -> list[int]:
        """Return the xids of the last page in their order; all others are smaller."""
        self._drop_empty()
        return sorted(self._page_of(max(self._pages)) or ()) if self._pages else []

    # --- pages ---

    def _page_of(self, number: int) -> dict[int, Entry] | None:
        """Return the dict of a page, to be read, with all entries of the page; None if none."""
        first = number << _PAGE_BITS
        return self._page_with(number, (first, first + (1 << _PAGE_BITS) - 1))

    def _page_with(self, number: int, ends: _Ends) -> dict[int, Entry] | None:
        """Return a page as `_page_of` does, but perhaps only the xids between `ends`."""
        if self._runs and number in self._runs and self._runs_with(number, ends):
            return self._to_change(number, ends)
        return self._page if number == self._number else self._pages.get(number)

    def _runs_with(self, number: int, ends: _Ends) -> list[int]:
        """Return the first xids of the runs of a page that have any xids between `ends`."""
        first, last = ends
        if first == last and first in self._pages[number]:
            return []
        runs = self._runs[number]
        return [begin for begin in runs if begin <= last and begin + len(runs[begin]) > first]

    def _to_change(self, number: int, ends: _Ends) -> dict[int, Entry]:
        """Return the dict of a page, which no other table has from now on.

        It has all entries of the xids between `ends`.
        """
        if number != self._number:
            self._drop_empty()
            page = self._pages.get(number)
            if page is None:
                page = self._own_pages()[number] = {}
            elif self._shared and number in self._shared:
                page = self._pages[number] = page.copy()
                self._shared.discard(number)
            self._number, self._page = number, page
        if self._runs and number in self._runs:
            runs = self._runs[number]
            for begin in self._runs_with(number, ends):
                run = runs.pop(begin)
                self._page.update(zip(range(begin, begin + len(run)), run, strict=True))
            if not runs:
                del self._runs[number]
        return self._page

    def _own_pages(self) -> dict[int, dict[int, Entry]]:
        """Return the pages, to be changed."""
        if self._pages is NOTHING:
            # Not an assertion that -O removes: all queues would have the entry.
            if self is NO_READS:
                raise TypeError("all queues share this table; see own_table")
            self._pages = {}
        return self._pages

    def _drop_empty(self) -> None:
        """Have no page that was changed last, and free its memory if it is empty."""
        if self._number != _NO_PAGE:
            if not self._page and self._number not in self._runs:
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
        other._runs = {number: runs.copy() for number, runs in self._runs.items()}
        self._shared, other._shared = set(self._pages), set(self._pages)
        return other

    def take_pages(self) -> list[dict[int, Any]]:
        """Drop all entries; return dicts that have them all, perhaps millions, to be freed."""
        pages: list[dict[int, Any]] = [*self._pages.values(), *self._runs.values()]
        self._pages, self._runs, self._shared, self._count = NOTHING, NOTHING, _NONE_SHARED, 0
        self._number, self._page = _NO_PAGE, NOTHING
        return pages

    def clear(self) -> None:
        """Drop all entries, and give back all memory."""
        self.take_pages()

    def drain(self) -> Iterator[list[tuple[int, Entry]]]:
        """Yield all entries, a page at a time, and drop those that were yielded."""
        pages, runs = self._pages, self._runs
        self.take_pages()
        for number in list(pages):
            found = list(pages.pop(number).items())
            for first, run in runs.pop(number, NOTHING).items():
                found += zip(range(first, first + len(run)), run, strict=True)
            yield found

    def _each_page(self) -> Iterator[dict[int, Entry]]:
        """Yield the dicts of all pages, with all entries. The table may change meanwhile."""
        for number in list(self._pages):
            page = self._page_of(number)
            if page is not None:
                yield page

    def __iter__(self) -> Iterator[int]:
        """Yield the xids. The table may change meanwhile."""
        for page in self._each_page():
            yield from list(page)

    def items(self) -> Iterator[tuple[int, Entry]]:
        """Yield xids and entries. The table may change meanwhile."""
        for page in self._each_page():
            yield from list(page.items())

    def values(self) -> Iterator[Entry]:
        """Yield the entries. The table may change meanwhile."""
        for page in self._each_page():
            yield from list(page.values())

    def backwards(self) -> Iterator[Entry]:
        """Yield the entries, the last first. The table may change meanwhile."""
        for page in reversed(list(self._each_page())):
            yield from reversed(list(page.values()))


NO_READS: Final[ReadTable[Any]] = ReadTable()
"""An empty table that all queues share, see `empty`; nothing can be put into it."""


def own_table(table: ReadTable[Entry]) -> ReadTable[Entry]:
    """Return `table`, or a new one instead of `NO_READS`."""
    return ReadTable() if table is NO_READS else table


def _ends(xids: Sequence[Any]) -> _Ends:
    """Return the smallest and the largest of some xids."""
    if type(xids) is range:
        return xids.start, xids.stop - 1
    return min(xids), max(xids)


def _by_page(xids: Sequence[Any]) -> list[tuple[int, Sequence[Any]]]:
    """Return `xids` in order, in runs of one page each, with the number of that page."""
    if not xids:
        return []
    smallest, largest = _ends(xids)
    number = smallest >> _PAGE_BITS
    if largest >> _PAGE_BITS == number:
        return [(number, xids)]
    runs: list[tuple[int, Sequence[Any]]] = []
    first, number = 0, xids[0] >> _PAGE_BITS
    for at, xid in enumerate(xids):
        if xid >> _PAGE_BITS != number:
            runs.append((number, xids[first:at]))
            first, number = at, xid >> _PAGE_BITS
    runs.append((number, xids[first:] if first else xids))
    return runs
