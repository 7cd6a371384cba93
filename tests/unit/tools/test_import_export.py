"""Export and import: what is in queues, as rows, lines and Parquet files, and back."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.errors import JournalError
from kestrelmq.format.notes import delayed_notes, joined_note
from kestrelmq.format.records import (
    AddX,
    ConfirmRemove,
    Remove,
    RemoveTentative,
    RemoveTentativeXid,
    SaveXid,
    item,
)
from kestrelmq.tools.export_rows import ExportRow, from_json, json_pieces, live_rows, to_json
from kestrelmq.tools.import_export import import_rows, read_parquet, rows, write_parquet
from kestrelmq.tools.journal_files import select
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import journal
from tests.support.limits import largest_file
from tests.support.local_queues import items_on_disk
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled

NOW = 1_700_000_000_000


def row(data: bytes, queue: str = "jobs", expiry: int = 0) -> ExportRow:
    """Return a row to be imported."""
    return ExportRow(queue, 0, data, NOW, expiry)


def exported(path: Path) -> list[ExportRow]:
    """Return all rows of the queues in `path`."""
    return [one for selected in select([path]) for one in rows(selected)]


def contents(path: Path) -> dict[str, bytes]:
    """Return every file and what is in it."""
    return {file.name: file.read_bytes() for file in path.iterdir()}


# --- rows ---


def test_the_items_of_open_reads_come_first(tmp_path: Path) -> None:
    """As a server would give them back: in the order in which they were added."""
    (tmp_path / "jobs.5").write_bytes(
        journal(*(AddX(NOW + n, n, b"%d" % n) for n in range(6)), Remove(), SaveXid(40))
    )
    (tmp_path / "jobs").write_bytes(
        journal(RemoveTentative(), RemoveTentative(), RemoveTentative(), ConfirmRemove(42))
    )
    assert exported(tmp_path) == [
        ExportRow("jobs", position, b"%d" % n, NOW + n, n)
        for position, n in enumerate((1, 3, 4, 5))
    ]


def test_what_memory_does_not_hold_is_read_back(tmp_path: Path) -> None:
    """A queue that is longer than what is loaded at once is exported whole, in order."""
    sizes = [0, 3 << 20, 1, *([900_000] * 9), 5]
    (tmp_path / "jobs.5").write_bytes(
        journal(*(AddX(NOW, 0, bytes([n]) * size) for n, size in enumerate(sizes)))
    )
    (tmp_path / "jobs").write_bytes(journal(RemoveTentativeXid(7), Remove(), "last"))
    found = exported(tmp_path)
    assert [len(one.data) for one in found] == [0, *sizes[2:], 4]
    assert [one.data[:1] for one in found[1:-1]] == [bytes([n]) for n in range(2, len(sizes))]
    assert [one.position for one in found] == list(range(len(found)))
    assert open_below(tmp_path) == []


def test_a_file_that_is_cut_short_meanwhile_is_an_error(tmp_path: Path) -> None:
    """An export never ends early without a word."""
    (tmp_path / "jobs").write_bytes(journal("head", *("x" * (3 << 20) for _ in range(4))))
    found = rows(select([tmp_path])[0])
    assert next(found).data == b"head"
    (tmp_path / "jobs").write_bytes(journal("head"))
    with pytest.raises(JournalError, match="jobs: fewer items on disk than were counted"):
        list(found)


def test_delayed_items_that_joined_a_long_queue_are_items_of_it(tmp_path: Path) -> None:
    """They are found behind what memory does not hold; no file is open any more then."""
    large, due = "x" * (3 << 20), [NOW + 1, NOW + 2]
    delayed = [item(time, 0, b"%d" % number) for number, time in enumerate(due)]
    (tmp_path / "jobs").write_bytes(
        delayed_notes(2, delayed[1], 0)
        + delayed_notes(1, delayed[0], 0)
        + journal(*[large] * 8, *[Remove()] * 3)
        + joined_note(1, 0)
        + delayed[0]
    )
    assert [(one.data[:1], one.due) for one in exported(tmp_path)] == [
        *[(b"x", 0)] * 5,
        (b"0", 0),
        (b"1", due[1]),
    ]
    assert open_below(tmp_path) == []


# --- lines of JSON ---


def _letter_line(**fields: object) -> str:
    letter = {"origin": "work", "died": NOW, "why": "it is bad", "deliveries": 3} | fields
    return json.dumps({"queue": "jobs", "data": "x", "dead_letter": letter})


@pytest.mark.parametrize("times", [1, 100_001])
@pytest.mark.parametrize("data", [b"", "größer\n".encode(), b"\xff\x00"])
def test_a_line_of_json_says_the_row(data: bytes, times: int) -> None:
    """Whatever the data is, the line is one line, and gives the same row; one piece is short."""
    data *= times
    where = {"queue": "jobs", "position": 3}
    pieces = list(json_pieces(where, memoryview(data), (NOW, NOW + 5)))
    assert "".join(pieces) == to_json(ExportRow("jobs", 3, data, NOW, NOW + 5))
    assert max(map(len, pieces)) < 500_000
    one = ExportRow("jobs", 3, data, NOW, NOW + 5)
    line = to_json(one)
    assert "\n" not in line
    assert from_json(line, 3, 0) == one
    assert from_json(line.encode(), 3, 0) == one
    assert ("data_base64" in json.loads(line)) == (data[:1] == b"\xff")


def test_a_dead_letter_stays_one(tmp_path: Path) -> None:
    """In the lines of an export, and in the journal of an import."""
    dead = {"origin": "work", "died": NOW, "why": "it is bad", "deliveries": 3}
    one = ExportRow("jobs", 1, b"x", NOW, 0, dead_letter=dead)
    assert json.loads(to_json(one))["dead_letter"] == dead
    assert from_json(to_json(one), 1, 0) == one
    import_rows(DiskDirectory(tmp_path), [one, row(b"other")], FakeClock(NOW))
    assert [found.dead_letter for found in exported(tmp_path)] == [dead, None]


def test_times_may_be_left_out() -> None:
    """Such an item is added now, and never expires."""
    assert from_json('{"queue": "jobs", "data": "x"}', 1, NOW) == ExportRow("jobs", 1, b"x", NOW, 0)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("no JSON", "no JSON: Expecting value at column 1"),
        (b"\x80", "no UTF-8: invalid start byte at byte 0"),
        ("[1]", "it is no JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"data": "x"}', "it names no queue"),
        ('{"queue": "jobs"}', "it has neither data nor data_base64"),
        ('{"queue": "jobs", "data": 5}', "data is not text"),
        ('{"queue": "jobs", "data_base64": 5}', "data_base64 is not text"),
        ('{"queue": "jobs", "data_base64": "/w"}', "padding"),
        ('{"queue": "jobs", "data_base64": "/wA=!"}', "Excess data"),
        ('{"queue": "jobs", "data": "\\ud800"}', "data cannot be UTF-8: surrogates not allowed"),
        ('{"queue": 5, "data": "x"}', "the queue name is not a string"),
        ('{"queue": "../evil", "data": "x"}', "queue name"),
        ('{"queue": "jobs", "data": "x", "add_time": 1.5}', "whole milliseconds"),
        ('{"queue": "jobs", "data": "x", "expiry": null}', "whole milliseconds"),
        ('{"queue": "jobs", "data": "x", "expiry": true}', "whole milliseconds, not true"),
        ('{"queue": "jobs", "data": "x", "dead_letter": 1}', "dead_letter has an origin"),
        ('{"queue": "jobs", "data": "x", "dead_letter": {"origin": "a"}}', "has an origin"),
        (_letter_line(origin="a/b"), "queue name"),
        (_letter_line(died=-1), "not below 0"),
        ('{"queue": "jobs", "data": "x", "add_time": -1}', "milliseconds since 1970"),
        ('{"queue": "jobs", "data": "x", "expiry": 9223372036854775808}', "milliseconds since"),
    ],
)
def test_a_line_that_is_no_row_is_named(line: str | bytes, reason: str) -> None:
    """The error says which line it is and what is wrong with it."""
    with pytest.raises(JournalError, match="line 17: not a row of an export") as caught:
        from_json(line, 17, NOW)
    assert reason in str(caught.value)


# --- importing ---


def test_rows_that_a_running_queue_gets() -> None:
    """Empty lines are none; what has expired is left out, and what is due has no delay."""
    lines: list[str | bytes] = [
        "\n",
        '{"queue": "jobs", "data": "expired", "expiry": 1000}\n',
        " \n",
        '{"queue": "jobs", "data": "late", "expiry": 1001, "due": 1001}\n',
        b"",
        b'{"queue": "jobs", "data": "due", "due": 1000}',
    ]
    found = [(row.position, row.data, row.due) for row in live_rows(lines, None, lambda: 1000, 7)]
    assert found == [(10, b"late", 1001), (12, b"due", 0)]
    with pytest.raises(JournalError, match="line 2: not a row"):
        list(live_rows(["\n", "x"], None, lambda: 1000))


def test_an_import_makes_queues(tmp_path: Path) -> None:
    """Each has its items, in order, with their times; how many they are is told."""
    source = [row(b"1", "a"), row(b"2", "b", expiry=NOW + 9), row(b"3", "a")]
    assert import_rows(DiskDirectory(tmp_path), source, FakeClock(NOW)) == {"a": 2, "b": 1}
    assert exported(tmp_path) == [
        ExportRow("a", 0, b"1", NOW, 0),
        ExportRow("a", 1, b"3", NOW, 0),
        ExportRow("b", 0, b"2", NOW, NOW + 9),
    ]
    assert sorted(contents(tmp_path)) == ["a", "b"]


def test_an_import_of_more_queues_than_descriptors(tmp_path: Path) -> None:
    """Few of their files are open at a time; each gets its items in order."""
    most, queues, large = 4, [f"queue{number}" for number in range(20)], bytes(1 << 20)
    opened = 0

    def source() -> Iterator[ExportRow]:
        nonlocal opened
        for position, data in enumerate((b"first", large, b"last"), 1):
            for queue in queues:
                yield ExportRow(queue, position, data, 1, 0)
                opened = max(opened, len(open_below(tmp_path)))

    counts = import_rows(DiskDirectory(tmp_path, most), source(), FakeClock())
    assert counts == dict.fromkeys(queues, 3)
    assert 0 < opened <= most
    for queue in queues:
        assert items_on_disk(tmp_path, queue) == [b"first", large, b"last"]


def test_a_queue_that_is_there_must_be_asked_for(tmp_path: Path) -> None:
    """Otherwise no queue gets anything, and no temporary stays."""
    (tmp_path / "jobs").write_bytes(journal("old"))
    before = contents(tmp_path)
    with pytest.raises(JournalError, match="queue jobs is there already"):
        import_rows(DiskDirectory(tmp_path), [row(b"x", "a"), row(b"y")], FakeClock(NOW))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("size", [10, 5 << 20])
def test_an_import_may_be_appended(tmp_path: Path, size: int) -> None:
    """It comes after the items that are there, however many; a file of the future is no harm."""
    old = [AddX(NOW, 0, b"%d" % n + bytes(size)) for n in range(5)]
    (tmp_path / f"jobs.{NOW + 5}").write_bytes(journal(*old[:2]))
    (tmp_path / "jobs").write_bytes(journal(*old[2:], Remove(), Remove()))
    counts = import_rows(DiskDirectory(tmp_path), [row(b"new")], FakeClock(NOW), append=True)
    assert counts == {"jobs": 1}
    assert open_below(tmp_path) == []
    assert items_on_disk(tmp_path) == [*(one.data for one in old[2:]), b"new"]


def test_the_file_before_is_safe_before_another_follows(tmp_path: Path) -> None:
    """A killed server leaves what it did not sync; only the last file may lose its end."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "jobs").write_bytes(journal("old"))
    directory = CrashingDirectory.within(tmp_path)
    points: list[str] = []

    def note(point: str) -> bool:
        points.append(point)
        return False

    directory.fail = note
    import_rows(directory, [row(b"new")], FakeClock(NOW), append=True)
    assert points.index("sync jobs") < points.index("rename jobs")


def test_an_import_may_be_appended_to_rotated_files_alone(tmp_path: Path) -> None:
    """A crash leaves a queue without a current file."""
    (tmp_path / "jobs.5").write_bytes(journal("old"))
    import_rows(DiskDirectory(tmp_path), [row(b"new")], FakeClock(NOW), append=True)
    assert items_on_disk(tmp_path) == [b"old", b"new"]


def test_what_a_crash_left_of_a_queue_is_no_queue(tmp_path: Path) -> None:
    """An import into it needs no `append`."""
    (tmp_path / "jobs~~next-5").write_bytes(b"left")
    import_rows(DiskDirectory(tmp_path), [row(b"new")], FakeClock(NOW))
    assert items_on_disk(tmp_path) == [b"new"]


def test_an_import_behind_a_torn_end(tmp_path: Path) -> None:
    """What a crash cut short is set aside: no other file may follow it."""
    (tmp_path / "jobs").write_bytes(journal("old") + b"\x02\x10")
    import_rows(DiskDirectory(tmp_path), [row(b"new")], FakeClock(NOW), append=True)
    assert items_on_disk(tmp_path) == [b"old", b"new"]


def test_a_damaged_queue_keeps_all_from_being_imported(tmp_path: Path) -> None:
    """Also into the sound one that comes first; no file is changed, and no temporary stays."""
    (tmp_path / "a").write_bytes(journal("old"))
    (tmp_path / "jobs").write_bytes(b"\xff" * 9)
    before = contents(tmp_path)
    with pytest.raises(JournalError, match="jobs: damaged at byte 0"):
        import_rows(
            DiskDirectory(tmp_path), [row(b"x", "a"), row(b"y")], FakeClock(NOW), append=True
        )
    assert contents(tmp_path) == before


def test_a_source_that_fails_imports_nothing(tmp_path: Path) -> None:
    """What was written of it is removed."""

    def source() -> Iterator[ExportRow]:
        yield row(b"1")
        raise JournalError("line 2: not a row")

    with pytest.raises(JournalError, match="line 2"):
        import_rows(DiskDirectory(tmp_path), source(), FakeClock(NOW))
    assert contents(tmp_path) == {}


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    """The system says only that there is no room."""
    with largest_file(10_000), pytest.raises(OSError, match="File too large") as raised:
        import_rows(DiskDirectory(tmp_path), [row(b"x" * 20_000)], FakeClock(NOW))
    assert Path(raised.value.filename).parent == tmp_path
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("loss", list(CrashLoss))
def test_a_crash_leaves_each_queue_with_all_or_none(tmp_path: Path, loss: CrashLoss) -> None:
    """At whichever step it comes; and what was there before stays."""
    source = [row(b"1"), row(b"2"), row(b"3", "new")]
    crashes = 0
    while True:
        root = tmp_path / str(crashes)
        (root / "queues").mkdir(parents=True)
        (root / "queues" / "jobs").write_bytes(journal("old"))
        directory = CrashingDirectory.within(root)
        directory.crash_at = crashes + 1
        try:
            import_rows(directory, source, FakeClock(NOW), append=True)
            break
        except SimulatedCrash:
            crashes += 1
        directory.survive(loss, root / "after")
        assert items_on_disk(root / "after") in ([b"old"], [b"old", b"1", b"2"])
        assert items_on_disk(root / "after", "new") in ([], [b"3"])
    assert crashes > 10
    directory.survive(loss, tmp_path / "after")
    assert items_on_disk(tmp_path / "after") == [b"old", b"1", b"2"]
    assert items_on_disk(tmp_path / "after", "new") == [b"3"]


def test_an_import_that_fails_leaves_each_queue_with_all_or_none(tmp_path: Path) -> None:
    """At whichever step it does; and no temporary."""
    failed = 0
    is_done = False
    while not is_done:
        root = tmp_path / str(failed)
        (root / "queues").mkdir(parents=True)
        (root / "queues" / "jobs").write_bytes(journal("old"))
        directory = CrashingDirectory.within(root)
        points: list[str] = []

        def fails(point: str, points: list[str] = points, at: int = failed) -> bool:
            points.append(point)
            return len(points) == at + 1

        directory.fail = fails
        try:
            import_rows(directory, [row(b"1"), row(b"2", "new")], FakeClock(NOW), append=True)
            is_done = True
        except OSError:
            failed += 1
        assert not list((root / "queues").glob("*~~*"))
        assert items_on_disk(root / "queues") in ([b"old"], [b"old", b"1"])
        assert items_on_disk(root / "queues", "new") in ([], [b"2"])
    assert failed > 8


# --- Parquet ---


def test_a_parquet_file_has_every_row(tmp_path: Path) -> None:
    """Bytes, times and order survive, also when there are more rows than are written at once."""
    pytest.importorskip("pyarrow")
    source = [ExportRow("jobs", n, b"\xff%d" % n, NOW + n, n % 3) for n in range(5000)]
    file = tmp_path / "items.parquet"
    assert write_parquet(source, file) == len(source)
    assert [(one.data, one.add_time, one.expiry) for one in read_parquet(file, 0)] == [
        (one.data, one.add_time, one.expiry) for one in source
    ]
    assert [one.position for one in read_parquet(file, 0)] == list(range(1, 5001))


def written(tmp_path: Path, columns: dict[str, list[object]]) -> Path:
    """Return a Parquet file that somebody else wrote."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "items.parquet"
    parquet.write_table(pyarrow.table(columns), file)
    return file


def test_a_parquet_file_of_others_needs_two_columns(tmp_path: Path) -> None:
    """Data may be text; a time that is left out is now, and an expiry never."""
    file = written(tmp_path, {"queue": ["a", "b"], "data": ["größer", "x"]})
    assert list(read_parquet(file, NOW)) == [
        ExportRow("a", 1, "größer".encode(), NOW, 0),
        ExportRow("b", 2, b"x", NOW, 0),
    ]
    columns: dict[str, list[object]] = {"queue": ["a", "a"], "data": [b"1", b"2"]}
    file = written(tmp_path, columns | {"add_time": [None, 0], "expiry": [7, None]})
    assert list(read_parquet(file, NOW)) == [
        ExportRow("a", 1, b"1", NOW, 7),
        ExportRow("a", 2, b"2", 0, 0),
    ]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"queue": ["a"]}, "row 1: memoryview"),
        ({"data": ["x"]}, "row 1: it names no queue"),
        ({"queue": ["a", "a"], "data": ["x", None]}, "row 2: memoryview"),
        ({"queue": ["../evil"], "data": ["x"]}, "row 1: "),
        ({"queue": ["a"], "data": ["x"], "add_time": ["now"]}, "row 1: times must be whole"),
    ],
)
def test_a_row_of_parquet_that_is_unusable_is_named(
    tmp_path: Path, columns: dict[str, list[object]], reason: str
) -> None:
    """The error says which file, which row, and what is wrong with it."""
    file = written(tmp_path, columns)
    with pytest.raises(JournalError) as caught:
        list(read_parquet(file, NOW))
    assert str(caught.value).startswith(f"{file}: {reason}")


def test_a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    """It is no crash of the library that reads it."""
    pytest.importorskip("pyarrow")
    (tmp_path / "items.parquet").write_text("text")
    with pytest.raises(JournalError, match=r"items\.parquet: "):
        list(read_parquet(tmp_path / "items.parquet", NOW))


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is told, when something is read or written."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    told = r"pip install kestrelmq\[parquet\]"
    with pytest.raises(JournalError, match=told):
        write_parquet([], tmp_path / "items.parquet")
    with pytest.raises(JournalError, match=told):
        list(read_parquet(tmp_path / "items.parquet", NOW))
