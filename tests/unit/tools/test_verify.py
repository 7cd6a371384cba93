"""What a check of a journal tells about it."""

from pathlib import Path

import pytest

from kestrelmq.format.records import (
    ADD,
    ADDX,
    REMOVE,
    REMOVE_TENTATIVE,
    STATE_DUMP,
    Add,
    AddX,
    Remove,
    RemoveTentative,
    StateDump,
)
from kestrelmq.format.salvage import LostRange
from kestrelmq.tools.journal_files import select
from kestrelmq.tools.verify import LEFT_OUT, verify
from tests.support.descriptors import open_below
from tests.support.journal_bytes import journal

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000


def test_all_that_is_in_a_queue_is_counted(tmp_path: Path) -> None:
    """Runs of records of one kind, of one size or not, and single ones; and every byte."""
    added = [AddX(NOW, 0, b"x" * size) for size in [*[5] * 100, *range(50), 7]]
    rotated = journal(*added, *[Add(0, b"data")] * 30)
    current = journal(Remove(), RemoveTentative(), Remove())
    (tmp_path / "jobs.5").write_bytes(rotated)
    (tmp_path / "jobs").write_bytes(current)
    seen: list[int] = []
    report = verify(select([tmp_path])[0], seen.append)
    assert report.operations == {ADD: 30, REMOVE: 2, ADDX: 151, REMOVE_TENTATIVE: 1}
    assert (report.items, report.open_reads) == (151 + 30 - 3, 1)
    assert report.item_bytes == sum(len(one.data) for one in added) - 3 * 5 + 30 * 4
    assert report.size == sum(seen) == len(rotated) + len(current)
    assert report.is_sound


def test_a_queue_that_is_longer_than_memory_is_checked_whole(tmp_path: Path) -> None:
    """What is read back from its files meanwhile is closed again."""
    added = [AddX(NOW, 0, bytes([n]) * (5 << 20)) for n in range(5)]
    (tmp_path / "jobs").write_bytes(journal(*added, Remove(), Remove()))
    report = verify(select([tmp_path])[0])
    assert (report.items, report.item_bytes) == (3, 3 * (5 << 20))
    assert open_below(tmp_path) == []


def test_bytes_outside_the_queue_are_reported(tmp_path: Path) -> None:
    """What a STATE_DUMP ends, what is damaged, and what a crash cut short."""
    first, second = journal("a", StateDump(3, 0)), journal("b")
    (tmp_path / "jobs.5").write_bytes(first + b"\x01\x01")
    (tmp_path / "jobs.6").write_bytes(b"\xff\xff" + second)
    (tmp_path / "jobs").write_bytes(journal("c") + b"\x02\x15")
    report = verify(select([tmp_path])[0])
    assert report.left_out == (LostRange("jobs.5", len(first), len(first) + 2, LEFT_OUT),)
    assert report.damaged == (LostRange("jobs.6", 0, 2, "unknown opcode 255"),)
    assert report.torn == LostRange("jobs", 22, 24, "a record is cut short")
    assert str(report.torn) == "jobs: bytes 22 to 24 (a record is cut short)"
    assert (report.items, report.operations[STATE_DUMP]) == (3, 1)
    assert not report.is_sound
