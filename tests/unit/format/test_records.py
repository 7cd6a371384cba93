"""The journal's codec: every opcode against bytes that were written by hand from the format."""

import struct
from dataclasses import fields

import pytest

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import (
    MAX_XID,
    MIN_XID,
    Add,
    AddX,
    AddXid,
    ConfirmRemove,
    Continue,
    NotedItem,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    StateDump,
    Unremove,
    add_xid,
    added_item,
    confirm_remove,
    confirm_removes,
    is_run,
    item,
    item_add_time,
    item_data,
    item_expiry,
    next_xid,
    record_of,
    record_xid,
    remove_tentative_xid,
    save_xid,
    unremove,
)
from kestrelmq.format.scanning import data_size, decode_whole, scan
from tests.support.journal_bytes import decode, encode

pytestmark = pytest.mark.compiled

ADD_TIME = 1_700_000_000_000  # 0x18bcfe56800
EXPIRY = 1_700_000_060_000  # 0x18bcfe65260
TIMES = bytes.fromhex("0068e5cf8b010000 6052e6cf8b010000")

GOLDEN: list[tuple[Record, str]] = [
    (Add(0, b""), "00 04000000 00000000"),
    (Add(1_700_000_000, b"a"), "00 05000000 00f15365 61"),
    (Remove(), "01"),
    (AddX(ADD_TIME, EXPIRY, b"hello"), "02 15000000 0068e5cf8b010000 6052e6cf8b010000 68656c6c6f"),
    (AddX(ADD_TIME, 0, b""), "02 10000000 0068e5cf8b010000 0000000000000000"),
    (RemoveTentative(), "03"),
    (SaveXid(1), "04 01000000"),
    (SaveXid(-1), "04 ffffffff"),
    (Unremove(258), "05 02010000"),
    (ConfirmRemove(MAX_XID), "06 ffffff7f"),
    (ConfirmRemove(MIN_XID), "06 00000080"),
    (AddXid(7, ADD_TIME, EXPIRY, b"\x00\xff"), "07 07000000 12000000" + TIMES.hex() + "00ff"),
    (StateDump(5, 3), "08 05000000 03000000"),
    (Continue(5, ADD_TIME, EXPIRY, b"xyz"), "08 05000000 13000000" + TIMES.hex() + "78797a"),
    (RemoveTentativeXid(-2), "09 feffffff"),
]
IDS = [type(record).__name__ for record, _ in GOLDEN]

YEAR_2000 = 946_684_800_000
YEAR_2101 = 4_133_980_800_000


def continue_bytes(add_time: int, data: bytes = b"x") -> bytes:
    """Return what Kestrel 2.x writes to add an item and confirm xid 9 in one step."""
    return struct.pack("<Biiqq", 8, 9, 16 + len(data), add_time, 0) + data


def test_hand_written_times() -> None:
    """The times in the table are what the numbers beside them say."""
    assert struct.unpack("<qq", TIMES) == (ADD_TIME, EXPIRY)


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=IDS)
def test_encode(record: Record, text: str) -> None:
    """Every record becomes the bytes of the format."""
    assert encode(record) == bytes.fromhex(text)


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=IDS)
@pytest.mark.parametrize("before", [b"", b"\x01", b"\x00" * 40])
@pytest.mark.parametrize("after", [b"", b"\x01", b"\xff" * 40])
def test_decode(record: Record, text: str, before: bytes, after: bytes) -> None:
    """Every record is read back, wherever it stands and whatever surrounds it."""
    raw = bytes.fromhex(text)
    buffer = before + raw + after
    assert decode(buffer, len(before), len(buffer)) == (record, len(before) + len(raw))
    assert decode(memoryview(buffer), len(before), len(buffer)) is not None


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=IDS)
def test_every_cut(record: Record, text: str) -> None:
    """A record that the end of the bytes cuts is "not whole yet", never something else."""
    raw = bytes.fromhex(text)
    for cut in range(len(raw)):
        if isinstance(record, Continue) and cut >= 9:
            continue  # the format cannot tell it from a STATE_DUMP; see below
        assert decode(raw[:cut], 0, cut) is None
        starts: list[int] = []
        assert scan(b"\x01" + raw[:cut], 0, 1 + cut, starts) == 1
        assert starts == [0]


@pytest.mark.parametrize("cut", range(9 + 16 + 3))
def test_cut_continue_in_a_chunk(cut: int) -> None:
    """A CONTINUE that reaches into the next chunk is waited for, not taken for a STATE_DUMP."""
    raw = b"\x01" + continue_bytes(ADD_TIME, b"abc")
    starts: list[int] = []
    assert scan(raw, 0, 1 + cut, starts, more=True) == 1
    assert starts == [0]


def test_scan_finds_every_start() -> None:
    """The scan cuts a journal of all records at the right places, up to a STATE_DUMP."""
    records = [(record, text) for record, text in GOLDEN if not isinstance(record, StateDump)]
    pieces = [bytes.fromhex(text) for _, text in records]
    journal = b"".join(pieces)
    expected = [sum(map(len, pieces[:index])) for index in range(len(pieces))]
    for behind in (b"", encode(StateDump(5, 3)), encode(StateDump(5, 16)) + journal):
        starts: list[int] = []
        whole = journal + behind
        assert scan(whole, 0, len(whole), starts) == len(journal)
        assert starts == expected
        decoded = [decode(whole, start, len(whole)) for start in starts]
        assert [one and one[0] for one in decoded] == [record for record, _ in records]


@pytest.mark.parametrize(("record", "text"), GOLDEN, ids=IDS)
def test_decode_without_data(record: Record, text: str) -> None:
    """The data may be left where it is; how much there is of it is told all the same."""
    raw = b"\x01" + bytes.fromhex(text)
    data = getattr(record, "data", b"")
    assert decode_whole(raw, 1, len(raw)) == record
    assert data_size(raw, 1, len(raw)) == len(data)
    bare = decode_whole(raw, 1, len(raw), with_data=False)
    assert type(bare) is type(record)
    for name in (one.name for one in fields(record)):
        assert getattr(bare, name) == (b"" if name == "data" else getattr(record, name))


def test_scan_of_nothing() -> None:
    """No bytes hold no record."""
    starts: list[int] = []
    assert scan(b"", 0, 0, starts) == 0
    assert starts == []


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (bytes([opcode]) + b"\x20" * 40, f"unknown opcode {opcode}")
        for opcode in (10, 11, 32, 127, 128, 255)
    ]
    + [
        (struct.pack("<Bi", 0, 3) + bytes(40), "size 3 of opcode 0 is less than 4"),
        (struct.pack("<Bi", 0, -1) + bytes(40), "size -1 of opcode 0 is less than 4"),
        (struct.pack("<Bi", 2, 15) + bytes(40), "size 15 of opcode 2 is less than 16"),
        (struct.pack("<Bi", 2, -(2**31)) + bytes(40), "size -2147483648 of opcode 2"),
        (struct.pack("<Bii", 7, 1, 15) + bytes(40), "size 15 of opcode 7 is less than 16"),
        (struct.pack("<Bii", 7, 1, -5) + bytes(40), "size -5 of opcode 7 is less than 16"),
    ],
)
def test_damage(raw: bytes, reason: str) -> None:
    """Bytes that are no record are reported with their place; what came before is kept."""
    with pytest.raises(DamagedJournal, match=reason):
        decode(raw, 0, len(raw))
    starts: list[int] = []
    with pytest.raises(DamagedJournal, match=reason) as caught:
        scan(b"\x01\x03" + raw, 0, len(raw) + 2, starts)
    assert caught.value.position == 2
    assert starts == [0, 1]


def test_huge_size_is_a_cut_record() -> None:
    """A length is believed only as far as there are bytes; nothing is allocated for it."""
    raw = struct.pack("<Biqq", 2, 2**31 - 1, ADD_TIME, 0) + b"abc"
    assert decode(raw, 0, len(raw)) is None


@pytest.mark.parametrize(
    ("raw", "is_continue"),
    [
        (continue_bytes(ADD_TIME), True),
        (continue_bytes(ADD_TIME, b""), True),
        (continue_bytes(YEAR_2000), True),
        (continue_bytes(YEAR_2000 - 1), False),
        (continue_bytes(YEAR_2101 - 1), True),
        (continue_bytes(YEAR_2101), False),
        (continue_bytes(0), False),
        (continue_bytes(-1), False),
        (struct.pack("<Bii", 8, 9, 15) + struct.pack("<qq", ADD_TIME, 0), False),
        (struct.pack("<Bii", 8, 9, 17) + struct.pack("<qq", ADD_TIME, 0), False),
        (struct.pack("<Bii", 8, 9, -16) + struct.pack("<qq", ADD_TIME, 0), False),
        (struct.pack("<Bii", 8, 9, 2**31 - 1) + struct.pack("<qq", ADD_TIME, 0), False),
    ],
)
def test_opcode_8(raw: bytes, *, is_continue: bool) -> None:
    """It is CONTINUE when its size is 16 or more, is there, and holds a plausible add time."""
    decoded = decode(raw, 0, len(raw))
    assert decoded is not None
    record, end = decoded
    if is_continue:
        assert record == Continue(9, struct.unpack_from("<q", raw, 9)[0], 0, raw[25:])
        assert end == len(raw)
    else:
        assert record == StateDump(9, struct.unpack_from("<i", raw, 5)[0])
        assert end == 9


def test_numbers_that_do_not_fit() -> None:
    """An xid beyond i32 is refused, not wrapped."""
    with pytest.raises(struct.error):
        save_xid(2**31)


def test_items() -> None:
    """An item in memory is its ADDX record."""
    record = item(ADD_TIME, EXPIRY, b"hello")
    assert record == encode(AddX(ADD_TIME, EXPIRY, b"hello"))
    assert (item_data(record), item_add_time(record), item_expiry(record)) == (
        b"hello",
        ADD_TIME,
        EXPIRY,
    )


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (Add(2, b"a"), item(0, 2000, b"a")),
        (Add(0, b""), item(0, 0, b"")),
        (AddX(1, 2, b"a"), item(1, 2, b"a")),
        (AddXid(5, 1, 2, b"a"), item(1, 2, b"a")),
        (Continue(5, ADD_TIME, 2, b"a"), item(ADD_TIME, 2, b"a")),
        (StateDump(1, 2), None),
        (Remove(), None),
        (SaveXid(3), None),
    ],
)
def test_added_item(record: Record, expected: bytes | None) -> None:
    """Whatever adds an item yields its ADDX form; a Starling expiry counts in seconds."""
    raw = encode(record)
    added = added_item(b"\x01" + raw, 1, 1 + len(raw))
    assert isinstance(added, NotedItem) == isinstance(record, AddXid)
    if isinstance(added, NotedItem):
        assert added == NotedItem(added.record, xid=5)
        assert add_xid(5, added.record) == raw
    assert (None if added is None else record_of(added)) == expected


def test_records_with_an_xid() -> None:
    """The shortcuts write what the records say."""
    assert save_xid(3) == encode(SaveXid(3))
    assert unremove(3) == encode(Unremove(3))
    assert confirm_remove(-3) == encode(ConfirmRemove(-3))
    assert remove_tentative_xid(3) == encode(RemoveTentativeXid(3))
    assert record_xid(b"\x01" + save_xid(-77), 1) == -77


@pytest.mark.parametrize(
    "xids",
    [
        [],
        [7],
        [*range(-3, 4)],
        [*range(250, 800)],
        [*range(MIN_XID, MIN_XID + 9)],
        [*range(MAX_XID - 8, MAX_XID + 1)],
        [5, 7],
        [5, 7, 6, 8],
        [9, 8],
    ],
)
def test_many_reads_are_confirmed(xids: list[int]) -> None:
    """As one by one, in order, whether they are consecutive or not."""
    assert confirm_removes(xids) == b"".join(map(confirm_remove, xids))
    is_ordered = bool(xids) and xids == list(range(xids[0], xids[0] + len(xids)))
    assert is_run(xids) == is_run(tuple(xids)) == is_ordered


@pytest.mark.parametrize(
    ("last", "taken", "expected"),
    [
        (0, [], 1),
        (-1, [], 1),
        (-1, [1], 2),
        (5, [6, 7, 9], 8),
        (MAX_XID, [], MIN_XID),
        (MAX_XID, [MIN_XID], MIN_XID + 1),
        (MAX_XID - 1, [MAX_XID, MIN_XID], MIN_XID + 1),
        (-2, [-1], 1),
    ],
)
def test_next_xid(last: int, taken: list[int], expected: int) -> None:
    """Xids count up, skip 0 and what is open, and wrap within i32."""
    assert next_xid(last, dict.fromkeys(taken, b"")) == expected
