"""A journal as text: what a person, or a program, reads about each record."""

import json
from pathlib import Path

import pytest

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.describing import describe_records
from kestrelmq.format.notes import deliveries_note
from kestrelmq.format.records import (
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
    item,
)
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.journal.producers import marked
from kestrelmq.journal.reserved_reads import retired_note
from kestrelmq.tools.dump import added_data, as_json, describe, entries
from kestrelmq.tools.journal_files import select
from tests.support.journal_bytes import encode, journal

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000
TIME = "2023-11-14T22:13:20.000Z"
LATER = "2023-11-14T22:13:21.500Z"
EVERY_KIND: list[tuple[Record, str]] = [
    (Add(0, b"data"), "ADD 4 bytes"),
    (Add(NOW // 1000, b"data"), f"ADD 4 bytes, expires at {TIME}"),
    (Remove(), "REMOVE"),
    (AddX(NOW, 0, b"data"), f"ADDX 4 bytes at {TIME}"),
    (AddX(NOW, NOW + 1500, b""), f"ADDX 0 bytes at {TIME}, expires at {LATER}"),
    (RemoveTentative(), "REMOVE_TENTATIVE"),
    (SaveXid(-3), "SAVE_XID -3"),
    (Unremove(4), "UNREMOVE 4"),
    (ConfirmRemove(5), "CONFIRM_REMOVE 5"),
    (AddXid(6, NOW, NOW + 1500, b"data"), f"ADD_XID 6, 4 bytes at {TIME}, expires at {LATER}"),
    (Continue(7, NOW, 0, b"data"), f"CONTINUE 7, 4 bytes at {TIME}"),
    (RemoveTentativeXid(8), "REMOVE_TENTATIVE_XID 8"),
]


@pytest.mark.parametrize(("record", "told"), EVERY_KIND)
def test_a_record_is_one_line(tmp_path: Path, record: Record, told: str) -> None:
    """It has the kind, the xid, the size and the times; the data never, read or not."""
    (tmp_path / "jobs").write_bytes(encode(record))
    (selected,) = select([tmp_path])
    for with_data in (True, False):
        (entry,) = entries(selected, with_data=with_data)
        assert describe(entry) == told
    assert list(describe_records(encode(record) * 2)) == [told, told]


def test_what_follows_a_state_dump_is_marked(tmp_path: Path) -> None:
    """Replay ends there: the STATE_DUMP itself counts, the records behind it do not."""
    contents = journal("first", StateDump(9, 2), Remove(), StateDump(1, 0), SaveXid(1))
    (tmp_path / "jobs").write_bytes(contents)
    (selected,) = select([tmp_path])
    found = list(entries(selected))
    assert [describe(entry) for entry in found] == [
        f"ADDX 5 bytes at {TIME}",
        "STATE_DUMP 9, 2 open reads",
        "REMOVE (not replayed)",
        "STATE_DUMP 1, 0 open reads (not replayed)",
        "SAVE_XID 1 (not replayed)",
    ]
    assert [json.loads(as_json("jobs", entry)).get("is_replayed") for entry in found] == [
        None,
        None,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (deliveries_note(3, 9), "the next item was delivered 3 times"),
        (
            marked(item(0, 0, b""), PutMark(b"p", 5), 1, 9),
            "the next item is number 5 of producer p",
        ),
        (retired_note("sink", 7, 9), "tags of sink up to 7 are retired"),
    ],
)
def test_what_a_note_says_stands_at_its_last_word(
    tmp_path: Path, written: bytes, told: str
) -> None:
    """The SAVE_XIDs before it are part of it, the one behind it is not; in JSON, too."""
    (tmp_path / "jobs").write_bytes(written)
    found = list(entries(select([tmp_path])[0]))
    *parts, last, after = [describe(entry).partition(" (")[2] for entry in found]
    assert set(parts) == {"part of a note)"}
    assert (last, after) == (f"{told})", "")
    notes = [json.loads(as_json("jobs", entry)).get("note") for entry in found]
    assert notes == [*["part of a note"] * len(parts), told, None]


@pytest.mark.parametrize("add_time", [-(2**63), 2**63 - 1])
def test_a_time_that_no_calendar_has_is_told_as_its_number(tmp_path: Path, add_time: int) -> None:
    """A record may hold any 64-bit time; it is no reason to stop."""
    (tmp_path / "jobs").write_bytes(encode(AddX(add_time, 0, b"data")))
    (entry,) = entries(select([tmp_path])[0])
    assert describe(entry) == f"ADDX 4 bytes at {add_time} ms"


def test_a_line_of_json_has_all_of_a_record(tmp_path: Path) -> None:
    """Text is readable there, and other data is lost neither."""
    (tmp_path / "jobs.7").write_bytes(journal(AddXid(6, NOW, 5, "größer".encode()), SaveXid(2)))
    (tmp_path / "jobs").write_bytes(journal(Add(9, b"\xff\x00")))
    lines = [as_json("jobs", entry) for entry in entries(select([tmp_path])[0])]
    assert "größer" in lines[0]
    assert [json.loads(line) for line in lines] == [
        {
            "queue": "jobs",
            "file": "jobs.7",
            "position": 0,
            "operation": "AddXid",
            "xid": 6,
            "add_time": NOW,
            "expiry": 5,
            "data": "größer",
        },
        {"queue": "jobs", "file": "jobs.7", "position": 33, "operation": "SaveXid", "xid": 2},
        {
            "queue": "jobs",
            "file": "jobs",
            "position": 0,
            "operation": "Add",
            "expiry_seconds": 9,
            "data_base64": "/wA=",
        },
    ]


def test_the_data_of_a_record_is_that_of_the_item_it_adds() -> None:
    """Four kinds of records add one; the others have none, not even an empty one."""
    found = [added_data(record) for record, _ in EVERY_KIND]
    assert found == [b"data", b"data", None, b"data", b"", *[None] * 4, b"data", b"data", None]


def test_a_torn_end_is_left_out_and_damage_is_told(tmp_path: Path) -> None:
    """The one is what a crash leaves; before the other comes all that can be read."""
    (tmp_path / "jobs").write_bytes(journal("whole") + b"\x02\x15")
    assert len(list(entries(select([tmp_path])[0]))) == 1
    (tmp_path / "jobs").write_bytes(journal("whole") + b"\xff" + journal("behind"))
    found = entries(select([tmp_path])[0])
    assert added_data(next(found).record) == b"whole"
    with pytest.raises(DamagedJournal, match="jobs: damaged at byte 26: unknown opcode 255"):
        next(found)
