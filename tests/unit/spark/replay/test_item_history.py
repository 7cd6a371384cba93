"""Fates and their bounds: the same wherever a queue's journal is cut into files and chunks."""

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kestrelmq.format.records import (
    Add,
    AddX,
    ConfirmRemove,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    Unremove,
)
from kestrelmq.journal import life
from kestrelmq.spark.replay import item_history
from kestrelmq.spark.replay.item_history import add_times, item_events, items, trace_tasks
from kestrelmq.spark.replay.read_plans import replay_in_order
from kestrelmq.spark.storage import scanning
from kestrelmq.spark.storage.spool import list_files
from tests.spark.spools import NOW, write

ItemEvent = tuple[int, int, int | None, int | None]


def trace_spool(spool: Path) -> tuple[list[ItemEvent], list[tuple[int, int, int]]]:
    """Return the events of the only queue of a spool, in order, and its items."""
    files = list_files(str(spool))
    replayed = replay_in_order(files)
    traced = trace_tasks(files, replayed.starts, [add_times(file) for file in files])
    happened: list[ItemEvent] = []
    added: list[tuple[int, int, int]] = []
    for task in traced:
        for batch in item_events(task):
            happened += zip(*(batch.column(n).to_pylist() for n in range(2, 6)), strict=True)
        for batch in items(task, with_data=False, rows=10):
            names = ("ordinal", "add_time", "size")
            added += zip(*(batch.column(name).to_pylist() for name in names), strict=True)
    return happened, added


def cut(spool: Path, records: Sequence[Record], places: Sequence[int]) -> Path:
    """Write a queue's journal, cut into files before these records."""
    spool.mkdir()
    for number, (begin, end) in enumerate(pairwise([0, *places, len(records)])):
        write(spool / f"q.{number + 1}", records[begin:end])
    return spool


def operations(rng: random.Random, count: int) -> list[Record]:
    """Return records in an order that a server may write: what is closed was open."""
    records: list[Record] = []
    open_reads: list[int] = []
    waiting = xid = 0
    explicit = rng.random() < 0.5
    for number in range(count):
        at = NOW + number
        choice = rng.random()
        if choice < 0.3 or not waiting:
            records.append(AddX(at, 0, b"x") if rng.random() < 0.8 else Add(0, b"old"))
            waiting += 1
        elif choice < 0.45:
            records.append(Remove())
            waiting -= 1
        elif choice < 0.75:
            xid += 1
            records.append(RemoveTentativeXid(xid) if explicit else RemoveTentative())
            open_reads.append(xid)
            waiting -= 1
        elif open_reads:
            closed = open_reads.pop(rng.randrange(len(open_reads)))
            if explicit and rng.random() < 0.4:
                records.append(Continue(closed, at, 0, b"next"))
                waiting += 1
            elif rng.random() < 0.5:
                records.append(ConfirmRemove(closed))
            else:
                records.append(Unremove(closed))
                waiting += 1
    return records


@pytest.mark.parametrize("seed", range(40))
def test_cuts_change_no_fate_and_no_bound(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random operations, in one file and in any number of files and chunks."""
    rng = random.Random(seed)
    records = operations(rng, rng.randrange(5, 120))
    whole = trace_spool(cut(tmp_path / "whole", records, []))
    if seed % 2:
        monkeypatch.setattr(scanning, "CHUNK", 70)

    for number in range(4):
        places = sorted(rng.choices(range(len(records) + 1), k=rng.randrange(1, 12)))
        assert trace_spool(cut(tmp_path / str(number), records, places)) == whole


def test_bounds_are_the_nearest_add_times(tmp_path: Path) -> None:
    """An ADD has no time and hides none; a CONTINUE says when it was."""
    records: list[Record] = [
        Add(0, b"0"),
        Remove(),
        AddX(NOW, 0, b"1"),
        Add(0, b"2"),
        Remove(),
        RemoveTentativeXid(7),
        AddX(NOW + 10, 0, b"3"),
        Continue(7, NOW + 20, 0, b"4"),
        Remove(),
    ]

    for number, places in enumerate([[], [1, 4, 5, 7, 8], range(1, 9)]):
        happened, _ = trace_spool(cut(tmp_path / str(number), records, places))
        assert happened == [
            (0, life.REMOVE, None, NOW),
            (1, life.REMOVE, NOW, NOW + 10),
            (2, life.READ, NOW, NOW + 10),
            (2, life.CONFIRM, NOW + 20, NOW + 20),
            (3, life.REMOVE, NOW + 20, None),
        ]


def test_files_without_adds_pass_on_the_times_around_them(tmp_path: Path) -> None:
    """Only files of removes between two adds."""
    records: list[Record] = [AddX(NOW, 0, b""), AddX(NOW + 1, 0, b""), Remove(), Remove()]
    spool = cut(tmp_path / "s", [*records, AddX(NOW + 9, 0, b"")], [2, 3, 4])
    files = list_files(str(spool))

    starts = replay_in_order(files).starts
    traced = trace_tasks(files, starts, [add_times(file) for file in files])

    assert [(one.before, one.after) for one in traced] == [
        (0, NOW + 9),
        (NOW + 1, NOW + 9),
        (NOW + 1, NOW + 9),
        (NOW + 1, 0),
    ]
    assert [add_times(file) for file in files][1:3] == [item_history.AddTimes()] * 2
