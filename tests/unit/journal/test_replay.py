"""Replay: the fold of journal records over (queue, open reads, last xid)."""

from pathlib import Path

import pytest

from kestrelmq.format.records import (
    MAX_XID,
    MIN_XID,
    REMOVE,
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    item_data,
    item_expiry,
)
from kestrelmq.journal.reader import JournalReader
from kestrelmq.journal.replay import Replay, apply
from kestrelmq.journal.walk import Walk, find_records
from tests.support.journal_bytes import encode, journal
from tests.support.open_reads import data_by_xid

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
State = tuple[str, dict[int, str], int]
"""Data of the items in the queue, that of open reads by xid, and the last xid."""


def add(text: str) -> AddX:
    """Return a record that adds an item."""
    return AddX(NOW, 0, text.encode())


def feed(state: Replay, journal: bytes, files: tuple[str, ...] = ("",)) -> None:
    """Fold a whole journal file in."""
    walk = Walk(journal, find_records, last=False)
    for batch in walk.batches():
        state.feed_batch(journal, batch, files)
    walk.checked_end("")


def render(state: Replay) -> State:
    """Return a state that reads well."""
    return (
        " ".join(item_data(item).decode() for item in state.memory),
        {xid: data.decode() for xid, data in data_by_xid(state.open).items()},
        state.last_xid,
    )


def replay(*records: Record) -> State:
    """Return what the records leave."""
    state = Replay()
    feed(state, journal(*records))
    assert state.memory_bytes == sum(len(item_data(item)) for item in state.memory)
    return render(state)


def test_empty() -> None:
    """A journal begins with an empty queue."""
    assert replay() == ("", {}, 0)


def test_fifo() -> None:
    """Items leave in the order in which they came."""
    assert replay(add("a"), add("b"), add("c"), Remove()) == ("b c", {}, 0)


def test_starling_items() -> None:
    """The oldest form of an item is still read; its expiry is in seconds."""
    state = Replay()
    feed(state, encode(Add(9, b"old")) + encode(Add(0, b"older")))
    assert [item_data(item) for item in state.memory] == [b"old", b"older"]
    assert [item_expiry(item) for item in state.memory] == [9000, 0]


def test_reliable_read_confirmed() -> None:
    """A confirmed item is gone; the xid counts on."""
    assert replay(add("a"), RemoveTentative(), ConfirmRemove(1), add("b"), RemoveTentative()) == (
        "",
        {2: "b"},
        2,
    )


def test_reliable_read_given_back() -> None:
    """An item that was given back is the head again, and gets a new xid."""
    records: list[Record] = [add("a"), add("b"), RemoveTentative(), Unremove(1)]
    assert replay(*records) == ("a b", {}, 1)
    assert replay(*records, RemoveTentative()) == ("b", {2: "a"}, 2)


def test_given_back_in_other_order() -> None:
    """The read that is given back last is at the head."""
    opened: list[Record] = [add("a"), add("b"), add("c"), RemoveTentative(), RemoveTentative()]
    assert replay(*opened, Unremove(1), Unremove(2)) == ("b a c", {}, 2)
    assert replay(*opened, Unremove(2), Unremove(1)) == ("a b c", {}, 2)


def test_records_without_effect() -> None:
    """Removes from an empty queue, and xids that are not open, change nothing."""
    assert replay(Remove(), RemoveTentative(), Unremove(1), ConfirmRemove(1)) == ("", {}, 0)
    assert replay(add("a"), Unremove(5), ConfirmRemove(5), StateDump(4, 4)) == ("a", {}, 0)


def test_named_item_keeps_its_xid() -> None:
    """ADD_XID and REMOVE_TENTATIVE bring an open read back under its xid; the counter stays."""
    assert replay(
        SaveXid(20),
        AddXid(7, NOW, 0, b"x"),
        RemoveTentative(),
        AddXid(20, NOW, 0, b"y"),
        RemoveTentative(),
        add("a"),
        RemoveTentative(),
    ) == ("", {7: "x", 20: "y", 21: "a"}, 21)


def test_named_item_whose_xid_is_taken() -> None:
    """An xid is never open twice; the second item gets the next free one."""
    assert replay(
        SaveXid(6),
        AddXid(7, NOW, 0, b"x"),
        RemoveTentative(),
        AddXid(7, NOW, 0, b"y"),
        RemoveTentative(),
    ) == ("", {7: "x", 8: "y"}, 8)


def test_named_item_behind_others() -> None:
    """ADD_XID adds at the end: the tentative remove after it takes the head, whatever that is."""
    assert replay(add("a"), AddXid(9, NOW, 0, b"x"), RemoveTentative()) == ("x", {1: "a"}, 1)


def test_xid_skips_what_is_open() -> None:
    """The next available xid is not one that is open."""
    assert replay(
        AddXid(2, NOW, 0, b"x"),
        RemoveTentative(),
        add("a"),
        add("b"),
        RemoveTentative(),
        RemoveTentative(),
    ) == ("", {2: "x", 1: "a", 3: "b"}, 3)


@pytest.mark.parametrize(
    ("last", "first", "second"),
    [(MAX_XID - 1, MAX_XID, MIN_XID), (MAX_XID, MIN_XID, MIN_XID + 1), (-2, -1, 1)],
)
def test_wraparound(last: int, first: int, second: int) -> None:
    """Xids wrap within i32 and are never 0."""
    assert replay(SaveXid(last), add("a"), add("b"), RemoveTentative(), RemoveTentative()) == (
        "",
        {first: "a", second: "b"},
        second,
    )


def test_explicit_xid() -> None:
    """Kestrel 2.x says the xid; later implicit ones would count from it."""
    opened: list[Record] = [add("a"), add("b"), RemoveTentativeXid(50)]
    assert replay(*opened) == ("b", {50: "a"}, 50)
    assert replay(*opened, Unremove(50)) == ("a b", {}, 50)
    assert replay(*opened, ConfirmRemove(50)) == ("b", {}, 50)


def test_explicit_xid_that_is_open_takes_nothing() -> None:
    """The original's packer writes files that open an xid twice; the second time counts not."""
    opened: list[Record] = [add("a"), add("b"), RemoveTentativeXid(5), RemoveTentativeXid(5)]
    assert replay(*opened) == ("b", {5: "a"}, 5)
    assert replay(*opened, Unremove(5)) == ("a b", {}, 5)
    assert replay(*opened, ConfirmRemove(5), RemoveTentativeXid(5)) == ("", {5: "b"}, 5)


def test_continue() -> None:
    """Kestrel 2.x adds an item and confirms an xid in one step."""
    opened: list[Record] = [add("a"), RemoveTentativeXid(5)]
    assert replay(*opened, Continue(5, NOW, 0, b"next")) == ("next", {}, 5)
    assert replay(*opened, Continue(6, NOW, 0, b"next")) == ("next", {5: "a"}, 5)


def test_opcode_8_of_both_dialects() -> None:
    """A STATE_DUMP ends its file, whatever its numbers; replay goes on with the next file."""
    for count in (0, 3, 15, 16, 1000, 2**31 - 1, -1):
        state = Replay()
        dump = encode(add("a")) + encode(StateDump(5, count))
        for number, behind in enumerate((b"", encode(add("left out")), encode(Remove()))):
            feed(state, dump + behind, (f"q.{number}",))
        feed(state, encode(add("b")), ("q",))
        assert render(state) == ("a a a b", {}, 0)


def test_rewritten_journal() -> None:
    """The operations at the start of a packed file rebuild the state."""
    assert replay(
        SaveXid(100),
        AddXid(98, NOW, 0, b"open1"),
        RemoveTentative(),
        AddXid(100, NOW, 0, b"open2"),
        RemoveTentative(),
        add("a"),
        add("b"),
        ConfirmRemove(98),
        Unremove(100),
        Remove(),
    ) == ("a b", {}, 100)


def test_flushed_queue_with_open_reads() -> None:
    """Removes never touch what is open."""
    assert replay(add("a"), add("b"), RemoveTentative(), Remove(), Remove()) == ("", {1: "a"}, 1)


# --- with a limit on memory ---


def limited(path: Path, limit: int, *files: list[Record]) -> Replay:
    """Replay files from disk with at most `limit` bytes of data in memory."""
    state = Replay(limit, lambda file, at: JournalReader(path, file, at))
    names = tuple(f"q.{number}" for number in range(len(files)))
    for number, records in enumerate(files):
        whole = journal(*records)
        (path / names[number]).write_bytes(whole)
        feed(state, whole, names[: number + 1])
        assert state.memory_bytes <= limit or len(state.memory) == 1
    return state


def test_memory_holds_the_head(tmp_path: Path) -> None:
    """What does not fit is counted, and not held."""
    state = limited(tmp_path, 3, [add(text) for text in "abcde"])
    assert render(state) == ("a b c", {}, 0)
    assert (state.items, state.size, state.behind_items, state.behind_bytes) == (5, 5, 2, 2)
    assert state.behind is not None
    state.behind.close()


def test_items_behind_come_in_order(tmp_path: Path) -> None:
    """Items of an earlier file are read back when the removes of a later one reach them."""
    state = limited(
        tmp_path,
        2,
        [add("a"), add("b"), add("c"), RemoveTentative()],
        [add("d"), AddXid(9, NOW, 0, b"e"), Unremove(1), Remove(), Remove(), Remove()],
        [RemoveTentative(), RemoveTentative(), add("f"), Remove()],
    )
    assert render(state) == ("", {2: "d", 9: "e"}, 2)
    assert (state.items, state.size, state.behind) == (0, 0, None)


def test_large_item_is_held_alone(tmp_path: Path) -> None:
    """Memory holds one item whatever its size."""
    state = limited(tmp_path, 2, [add("large"), add("x"), Remove()])
    assert state.items == 1
    assert state.behind is not None
    state.behind.close()


def test_everything_behind_is_read_back(tmp_path: Path) -> None:
    """A journal that fills and drains again leaves nothing behind."""
    texts = [f"{number:04}" for number in range(500)]
    state = limited(tmp_path, 100, [add(text) for text in texts], [Remove()] * 499)
    assert render(state)[0] == "0499" or state.behind is not None
    assert (state.items, state.size) == (1, 4)
    if state.behind is not None:
        state.behind.close()


def test_limit_without_a_reader() -> None:
    """Items cannot be left behind when nothing could read them back."""
    state = Replay(1)
    with pytest.raises(ValueError, match="reader"):
        feed(state, encode(add("a")) + encode(add("b")))


def test_a_remove_folded_by_the_common_rules_takes_the_head() -> None:
    """Spark folds with the same ones; from an empty queue a remove takes nothing."""
    content = journal("a", "b")
    state = Replay()
    state.feed(content, [0, 22], len(content))
    apply(state, REMOVE, 0)
    assert [item_data(one) for one in state.memory] == [b"b"]
    assert (state.items, state.size) == (1, 1)
    for _ in range(2):
        apply(state, REMOVE, 0)
    assert (state.items, state.size, len(state.open)) == (0, 0, 0)
