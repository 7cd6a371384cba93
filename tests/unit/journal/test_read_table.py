"""A table by xid is a dict to its user, but no operation takes long however large it is."""

import random
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrelmq.format.records import MAX_XID, MIN_XID
from kestrelmq.journal.read_table import NO_READS, ReadTable, own_table

pytestmark = pytest.mark.compiled

XIDS = st.one_of(
    st.integers(0, 9), st.integers(4090, 4100), st.integers(-5, 5), st.integers(MIN_XID, MAX_XID)
)


def set_same(table: ReadTable[str], xids: Sequence[int], entry: str) -> None:
    """Set the same entry for all `xids`."""
    table.set_all(xids, [entry] * len(xids))


def contents(table: ReadTable[str]) -> dict[int, str]:
    """Return what is in a table, read in every way."""
    found = dict(table.items())
    assert list(table) == list(found)
    assert list(table.values()) == list(found.values())
    assert list(table.backwards()) == list(reversed(found.values()))
    assert len(table) == len(found)
    assert all(xid in table and table[xid] == table.get(xid) == found[xid] for xid in found)
    assert table.get_all(list(found)) == list(found.values())
    oldest, youngest = table.oldest(), table.youngest()
    assert oldest == sorted(found)[: len(oldest)]
    assert youngest == sorted(found)[len(found) - len(youngest) :]
    assert bool(oldest) == bool(youngest) == bool(found)
    return found


@given(seed=st.integers(), xids=st.lists(XIDS, min_size=1, max_size=20, unique=True))
def test_a_table_is_like_a_dict(seed: int, xids: list[int]) -> None:
    """And so are its copies, whichever of them changes."""
    chance = random.Random(seed)
    tables: list[tuple[ReadTable[str], dict[int, str]]] = [(ReadTable(), {})]
    runs: list[range] = [range(1, 17)]
    for number in range(60):
        table, model = chance.choice(tables)
        xid = chance.choice(xids)
        some: Sequence[int] = chance.sample(xids, chance.randint(0, len(xids)))
        if chance.randrange(2):
            begun = [run for run in runs if chance.randrange(2)]
            first = chance.choice([*[run.stop for run in runs], xid])
            some = begun[0] if begun else range(first, first + chance.choice([1, 16, 40, 200]))
            runs = [*runs[-3:], some]
        match chance.randrange(9):
            case 0 | 1:
                table[xid] = model[xid] = str(number)
            case 2:
                table.set_all(some, [f"{number}:{one}" for one in some])
                model.update({one: f"{number}:{one}" for one in some})
            case 3:
                assert table.pop(xid) == model.pop(xid, None)
            case 8 if all(one in model for one in some):
                assert table.get_all(some) == [model[one] for one in some]
            case 4:
                assert table.pop_all(some) == [model.pop(one, None) for one in some]
            case 5:
                tables.append((table.copy(), model.copy()))
            case 6:
                set_same(table, some, str(number))
                model.update(dict.fromkeys(some, str(number)))
            case _:
                assert table.has_any(some) == any(one in model for one in some)
                assert (xid in table, table.get(xid)) == (xid in model, model.get(xid))
        # To read a table in every way may change how it is kept, so that is not always done.
        for table, model in tables if chance.randrange(4) == 0 else ():
            assert contents(table) == model
    for table, model in tables:
        pages = list(table.drain())
        assert dict(entry for page in pages for entry in page) == model
        assert contents(table) == {}


def test_a_missing_entry_is_an_error() -> None:
    """It is an error to read it or to drop it, as in a dict."""
    table = ReadTable([(1, "a")])
    for xid in (2, 5000):
        with pytest.raises(KeyError):
            table[xid]
        with pytest.raises(KeyError):
            del table[xid]
        with pytest.raises(KeyError):
            table.get_all([1, xid])
    del table[1]
    assert "1" not in table
    assert contents(table) == {}


def test_a_table_grows_by_pages() -> None:
    """So no step copies more than a page, and the memory of those that are empty is freed."""
    table: ReadTable[str] = ReadTable()
    for first in range(1, 100_000, 1000):
        table.set_all(list(range(first, first + 1000)), ["x"] * 1000)
    assert len(table) == 100_000
    assert max(map(len, table._pages.values())) <= 4096
    copy = table.copy()
    assert all(
        one is two for one, two in zip(copy._pages.values(), table._pages.values(), strict=True)
    )
    del table[50_000]
    changed = [one is not copy._pages[number] for number, one in table._pages.items()]
    assert sum(changed) == 1
    for xid in range(1, 100_001):
        table.pop(xid)
    assert sum(map(sys.getsizeof, table._pages.values())) < 300_000
    table.clear()
    assert (len(table._pages), len(copy)) == (0, 100_000)


@pytest.mark.parametrize(
    "put",
    [
        lambda table: table.__setitem__(1, "x"),
        lambda table: table.set_all([1, 2], ["x", "y"]),
        lambda table: set_same(table, [1, 2], "x"),
    ],
)
def test_the_table_that_all_queues_share_takes_nothing(
    put: Callable[[ReadTable[str]], None],
) -> None:
    """Who has it must take one of its own first; all else can be done with it."""
    with pytest.raises(TypeError, match="all queues share this table"):
        put(NO_READS)
    assert (NO_READS.pop(1), NO_READS.pop_all([1, 2])) == (None, [None, None])
    NO_READS.clear()
    copy = NO_READS.copy()
    copy[1] = "x"
    assert contents(NO_READS) == {}
    own = own_table(NO_READS)
    put(own)
    assert 1 in own
    assert own_table(own) is own


def test_a_run_stays_a_list_until_one_of_its_entries_is_asked_for() -> None:
    """So what many reads have in common costs next to nothing for each."""
    table: ReadTable[str] = ReadTable()
    for first in (1, 101):
        set_same(table, range(first, first + 100), "x")
    assert (list(table._runs[0]), table._pages[0]) == ([1, 101], {})
    assert (table.get(101), table.has_any(range(201, 301))) == ("x", False)
    assert table.pop_all(range(1, 101)) == ["x"] * 100
    assert list(table._runs[0]) == [101]
    assert table.get(150) == table.pop(150) == "x"
    assert (table._runs, len(table._pages[0]), len(table)) == ({}, 99, 99)
    set_same(table, range(201, 301), "y")
    assert table.pop_all(range(201, 301)) == ["y"] * 100
    assert len(table) == len(contents(table)) == 99


def test_other_runs_of_its_page_stay_lists() -> None:
    """Many readers have runs of one page; if one ends single reads, the others' cost no more."""
    table: ReadTable[str] = ReadTable()
    for first in range(0, 500, 100):
        set_same(table, range(first, first + 100), "x")
    for changed, left in ((250, [0, 100, 300, 400]), (420, [0, 100, 300])):
        assert table.pop(changed) == "x"
        assert list(table._runs[0]) == left
    assert table.pop_all(range(260, 300)) == ["x"] * 40
    assert (260 in table, 299 in table, table.get(255)) == (False, False, "x")
    set_same(table, range(500, 600), "y")
    assert list(table._runs[0]) == [0, 100, 300, 500]
    assert contents(table) == {
        **{xid: "x" for xid in range(500) if xid not in {250, 420, *range(260, 300)}},
        **dict.fromkeys(range(500, 600), "y"),
    }


@pytest.mark.parametrize("first", [4040, 4090, 4095])
def test_a_run_may_pass_to_the_next_page(first: int) -> None:
    """Its pieces stay lists, even short ones."""
    table: ReadTable[str] = ReadTable()
    for at in (first, first + 100):
        set_same(table, range(at, at + 100), "x")
    assert {number: list(runs) for number, runs in table._runs.items()} == {
        0: [first],
        1: [4096, first + 100],
    }
    assert list(table._pages.values()) == [{}, {}]
    assert table.pop_all(range(first, first + 100)) == ["x"] * 100
    assert (list(table._runs), len(table)) == ([1], 100)
    assert contents(table) == dict.fromkeys(range(first + 100, first + 200), "x")


def test_pages_of_runs_are_freed_with_their_last_run() -> None:
    """And copies keep theirs."""
    table: ReadTable[str] = ReadTable()
    for first in range(0, 10_000, 100):
        set_same(table, range(first, first + 100), "x")
    copy = table.copy()
    for first in range(0, 10_000, 100):
        assert None not in table.pop_all(range(first, first + 100))
    assert (table._runs, len(table)) == ({}, 0)
    table[5] = "y"
    assert list(table._pages) == [0]
    assert contents(table) == {5: "y"}
    assert contents(copy) == dict.fromkeys(range(10_000), "x")


def test_a_table_may_change_while_it_is_read() -> None:
    """Pages that are gone by then are left out."""
    table: ReadTable[str] = ReadTable()
    set_same(table, range(10_000), "x")
    found = iter(table)
    assert next(found) == 0
    table.pop_all(range(5000, 10_000))
    table[20_000] = "y"
    assert list(found) == list(range(1, 5000))
