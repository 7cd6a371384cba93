"""Parts of a bulk write: written by tasks, and brought into the order of `sequence`."""

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from kestrelmq.errors import JournalError
from kestrelmq.format.records import item_data
from kestrelmq.format.scanning import scan
from kestrelmq.spark.sinks import journal_parts
from kestrelmq.spark.sinks.encoding import encode
from kestrelmq.spark.sinks.journal_parts import JournalPart, PartWriter, in_order, merge_parts


def written(directory: Path, task: int, rows: list[tuple[int, str]]) -> JournalPart:
    """Write the rows of one task: sequence numbers and data."""
    sequences, data = zip(*rows, strict=True)
    batch = pa.RecordBatch.from_pydict(
        {"queue": ["q"] * len(rows), "data": list(data), "sequence": list(sequences)}
    )
    writer = PartWriter(directory, str(task))
    for encoded in encode(batch, now=1):
        writer.write(encoded)
    (part,) = writer.finish()
    return part


def data_of(part: JournalPart) -> str:
    """Return the data of a part's items, joined."""
    records = part.path.read_bytes()
    starts: list[int] = []
    scan(records, 0, len(records), starts)
    bounds = [*starts, len(records)]
    items = [records[low:high] for low, high in pairwise(bounds)]
    return b"".join(map(item_data, items)).decode()


@pytest.mark.parametrize(
    ("tasks", "expected"),
    [
        ([[(1, "a"), (2, "b")], [(3, "c")]], ["ab", "c"]),
        ([[(3, "c")], [(1, "a"), (2, "b")]], ["ab", "c"]),
        ([[(2, "b"), (1, "a")], [(3, "c")]], ["ab", "c"]),
        ([[(1, "a"), (3, "c")], [(2, "b")]], ["abc"]),
        ([[(1, "a"), (2, "b")], [(2, "c")]], ["ab", "c"]),
        ([[(2, "b")], [(-1, "a"), (2, "c")]], ["abc"]),
        ([[(5, "a")], [(5, "b")], [(5, "c")]], ["a", "b", "c"]),
    ],
)
def test_parts_come_in_the_order_of_their_sequence_numbers(
    tmp_path: Path, tasks: list[list[tuple[int, str]]], expected: list[str]
) -> None:
    """Parts that overlap are merged; among equal numbers, the order is that of the tasks."""
    parts = [written(tmp_path, task, rows) for task, rows in enumerate(tasks)]

    ordered = in_order(parts) or [merge_parts(parts, tmp_path / "merged")]

    assert [data_of(part) for part in ordered] == expected


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[(1, "a"), (2, "b")], [(3, "c")], [(3, "d")]], ["ab", "c", "d"]),
        ([[(3, "c")], [(1, "a"), (2, "b")]], ["ab", "c"]),
        ([[(1, "a")], [(3, "c"), (2, "b")]], ["abc"]),
        ([[(1, "a"), (3, "c")], [(2, "b")]], ["abc"]),
    ],
)
def test_a_task_begins_another_part_when_one_is_large(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: list[list[tuple[int, str]]],
    expected: list[str],
) -> None:
    """The driver gets parts in order: those that are not, or overlap, are merged."""
    monkeypatch.setattr(journal_parts, "_PART_BYTES", 20)
    writer = PartWriter(tmp_path, "0")
    for some in rows:
        sequences, data = zip(*some, strict=True)
        columns = {"queue": ["q"] * len(some), "data": list(data), "sequence": list(sequences)}
        for encoded in encode(pa.RecordBatch.from_pydict(columns), now=1):
            writer.write(encoded)
    assert [data_of(part) for part in writer.finish()] == expected


def test_a_part_is_not_written_through_a_link(tmp_path: Path) -> None:
    """Nor is a directory made that is gone: the write was ended."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"kept")
    directory = tmp_path / "write"
    directory.mkdir()
    (directory / "1-0").symlink_to(precious)

    with pytest.raises(OSError, match="symbolic link"):
        written(directory, 1, [(1, "x")])
    with pytest.raises(JournalError, match="gone"):
        written(tmp_path / "absent", 1, [(1, "x")])

    assert precious.read_bytes() == b"kept"
    assert not (tmp_path / "absent").exists()
