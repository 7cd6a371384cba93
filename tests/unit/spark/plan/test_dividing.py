"""A large journal file is read by several tasks, and gives the same rows as in one."""

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructType

from kestrelmq.errors import DamagedJournal
from kestrelmq.format.records import (
    AddX,
    Continue,
    Record,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    StateDump,
    encode,
)
from kestrelmq.spark.plan import scanning
from kestrelmq.spark.plan.dividing import divided
from kestrelmq.spark.plan.spool import list_files
from kestrelmq.spark.sources import journal_source
from kestrelmq.spark.sources.journal_options import JournalReadOptions, Mode
from kestrelmq.spark.sources.journal_rows import JOURNAL_SCHEMA
from kestrelmq.spark.sources.journal_source import JournalPartition, JournalSourceReader
from tests.spark.spools import NOW, random_records, write

WHOLE = 1 << 20
CUT_CONTINUE = encode(Continue(7, NOW, 0, b"next"))
TAILS = {
    "nothing": b"",
    "torn": encode(AddX(NOW, 0, b"torn"))[:-1],
    "zeros": bytes(4096),
    "damage": b"\x63 is no opcode" + encode(AddX(NOW, 0, b"lost")),
    "a STATE_DUMP": encode(StateDump(5, 1)) + encode(AddX(NOW, 0, b"again")) * 9,
    "a CONTINUE without a time": CUT_CONTINUE[:12],
    "a CONTINUE without data": CUT_CONTINUE[:-1],
}


def rows_of(path: Path, mode: Mode, least: int) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the rows of a path, and how many files or parts of files each task reads."""
    options = JournalReadOptions(str(path), mode=mode, partition_bytes=least)
    reader = JournalSourceReader(options, StructType(JOURNAL_SCHEMA.fields))
    tasks = reader.partitions()
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    return rows, [len(task.files) for task in tasks if isinstance(task, JournalPartition)]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("name", ["q", "q.5"])
def test_parts_give_the_rows_of_the_file(
    tmp_path: Path, name: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the file ends in, current or rotated, and wherever it is divided."""
    rng = random.Random(name + tail)
    monkeypatch.setattr(scanning, "CHUNK", 3000)
    adds: list[Record] = [AddX(NOW, 0, bytes(300))] * 20
    opened: Record = RemoveTentativeXid(3) if "CONTINUE" in tail else RemoveTentative()
    records = random_records(rng, 300, dialect="kestrel-2")
    records = [one for one in records if not isinstance(one, RemoveTentativeXid)]
    write(tmp_path / name, [*adds, *records, opened, Remove()], tail=TAILS[tail])

    expected, whole_tasks = rows_of(tmp_path, "permissive", WHOLE)
    assert whole_tasks == [1]
    for least in (1500, 9000):
        found, tasks = rows_of(tmp_path, "permissive", least)
        assert found == expected
        assert len(tasks) > 1
    dropped = [row for row in expected if row["operation"] != "DAMAGED"]
    assert rows_of(tmp_path, "dropmalformed", 4000)[0] == dropped
    if tail == "damage":
        with pytest.raises(DamagedJournal, match=rf"{name}: damaged at byte \d+: unknown opcode"):
            rows_of(tmp_path, "failfast", 4000)


def test_parts_begin_where_records_begin(tmp_path: Path) -> None:
    """They follow one another without a gap; a small file is one part."""
    write(tmp_path / "q", [AddX(NOW, 0, bytes(79))] * 100)
    (file,) = list_files(str(tmp_path))

    parts = divided(file, 950)

    assert [(part.begin, part.size) for part in parts] == [
        (begin, begin + 1000) for begin in range(0, 10_000, 1000)
    ]
    assert divided(file, file.size) == [file]


def test_files_are_not_divided_when_there_are_enough_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is looked through then; a record longer than a part is in one part."""
    monkeypatch.setattr(journal_source, "ENOUGH_TASKS", 2)
    write(tmp_path / "a", [AddX(NOW, 0, bytes(500_000)), *[Remove()] * 9])
    assert rows_of(tmp_path, "failfast", 100_000)[1] == [1, 1]

    write(tmp_path / "b", [AddX(NOW, 0, bytes(500_000)), *[Remove()] * 9])
    assert rows_of(tmp_path, "failfast", 100_000)[1] == [1, 1]
