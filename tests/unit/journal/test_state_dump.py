"""A STATE_DUMP in the current file, behind which nothing counts that would be appended."""

from pathlib import Path
from typing import Literal

import pytest

from kestrelmq import PersistentQueue, QueueConfig
from kestrelmq.config import ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.names import group_files
from kestrelmq.format.records import AddX, Continue, Remove, StateDump, item, item_data
from kestrelmq.journal.loading import load_queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.tools.export_rows import ExportRow
from kestrelmq.tools.import_export import import_rows
from tests.support.crashing_directory import CrashingDirectory, CrashLoss
from tests.support.fake_clock import FakeClock
from tests.support.journal_bytes import encode
from tests.support.real_directory import SimulatedCrash

pytestmark = pytest.mark.compiled

Dialect = Literal["documented", "kestrel-2"]
NOW = 1_700_000_000_000
DUMP = encode(StateDump(5, 16))
TORN_CONTINUE = encode(Continue(101, NOW, 0, b"torn"))[:9]
REMOVE = encode(Remove())
LONG = b"A" * 65520
"""Five removes, and the header of an item this long, are an add time."""


def added(*items: bytes) -> bytes:
    """Return the records that add `items`."""
    return b"".join(item(NOW, 0, one) for one in items)


def config(dialect: Dialect, memory: int) -> QueueConfig:
    """Return settings."""
    return QueueConfig(journal_dialect=dialect, max_memory_size=memory)


@pytest.mark.parametrize("memory", [2, 1 << 20])
@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("tail", [DUMP, TORN_CONTINUE])
def test_in_a_library_queue(tmp_path: Path, tail: bytes, dialect: Dialect, memory: int) -> None:
    """What is appended is never taken for the rest of it; also when items are read behind."""
    (tmp_path / "q").write_bytes(added(*[b"x"] * 5, b"y") + tail)
    settings = config(dialect, memory)
    with PersistentQueue("q", tmp_path, settings) as queue:
        for _ in range(5):
            queue.remove()
        assert queue.add(LONG)
        assert queue.add(b"last")
    with PersistentQueue("q", tmp_path, settings) as queue:
        found = [one.data for one in iter(queue.remove, None)]
    assert found == [b"y", LONG, b"last"]


@pytest.mark.parametrize("memory", [2, 1 << 20])
@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("tail", [DUMP, TORN_CONTINUE])
def test_in_a_server(tmp_path: Path, tail: bytes, dialect: Dialect, memory: int) -> None:
    """The same for the queues of a server."""
    (tmp_path / "q").write_bytes(added(*[b"x"] * 5, b"y") + tail)
    settings = ServerConfig(queue_path=tmp_path, default=config(dialect, memory))
    found: list[bytes] = []
    for is_again in (False, True):
        collection = QueueCollection(settings, FakeClock(NOW))
        collection.open()
        queue = collection.obtain("q")
        if is_again:
            found = [item_data(one) for one in iter(queue.line.remove, None)]
        else:
            for _ in range(5):
                queue.line.remove()
            queue.add(LONG)
            queue.add(b"last")
        assert not collection.commits.commit()
        collection.close()
    assert found == [b"y", LONG, b"last"]


@pytest.mark.parametrize(
    ("tail", "rotates"),
    [
        (DUMP, True),
        (encode(StateDump(5, 1000)) + REMOVE * 7, True),
        (DUMP + encode(AddX(NOW, 0, b"cut" * 9))[:-1], True),
        (TORN_CONTINUE, True),
        (encode(StateDump(5, 0)), True),
        (encode(StateDump(5, 15)), True),
        (DUMP + REMOVE * 8, True),
        (DUMP + added(b"b"), True),
        (DUMP + b"no record", True),
        (encode(Continue(101, NOW, 0, b"whole")), False),
    ],
)
def test_a_file_with_a_state_dump_is_rotated(tmp_path: Path, tail: bytes, *, rotates: bool) -> None:
    """A file in which a STATE_DUMP ends what is replayed, whatever follows it; once."""
    (tmp_path / "q.7").write_bytes(added(b"first") + DUMP)
    (tmp_path / "q").write_bytes(added(b"second") + tail)
    directory = DiskDirectory(tmp_path)
    expected = ["q.7", f"q.{NOW}"] if rotates else ["q.7"]
    for _ in range(2):
        found = load_queue(
            directory, group_files(directory.names()).queues["q"], None, FakeClock(NOW)
        )
        found.journal.open()
        found.journal.close()
        assert list(found.journal.sizes) == expected
        sizes = [(tmp_path / name).stat().st_size for name in (*expected, "q")]
        assert found.journal.size == sum(sizes)


def test_an_empty_file_is_not_rotated(tmp_path: Path) -> None:
    """Nothing stands in it, whatever the file before it ends with."""
    (tmp_path / "q.7").write_bytes(DUMP)
    (tmp_path / "q").write_bytes(b"")
    directory = DiskDirectory(tmp_path)
    found = load_queue(directory, group_files(directory.names()).queues["q"], None, FakeClock(NOW))
    assert list(found.journal.sizes) == ["q.7"]


def test_import_behind_it(tmp_path: Path) -> None:
    """What is imported comes behind the file, which loading rotated."""
    (tmp_path / "q").write_bytes(added(b"first") + DUMP)
    directory = DiskDirectory(tmp_path)
    import_rows(directory, [ExportRow("q", 0, b"second", NOW, 0)], FakeClock(NOW), append=True)
    with PersistentQueue("q", tmp_path) as queue:
        assert [one.data for one in iter(queue.remove, None)] == [b"first", b"second"]


@pytest.mark.parametrize("loss", list(CrashLoss))
@pytest.mark.parametrize("step", [1, 2, 3])
def test_crash_while_it_is_rotated(tmp_path: Path, step: int, loss: CrashLoss) -> None:
    """The queue is whole, also with a rotated file and no current one."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "q").write_bytes(added(b"first") + DUMP)
    directory = CrashingDirectory.within(tmp_path)
    directory.crash_at = step
    with pytest.raises(SimulatedCrash):
        load_queue(directory, group_files(directory.names()).queues["q"], None, FakeClock(NOW))
    directory.survive(loss, tmp_path / "after")
    with PersistentQueue("q", tmp_path / "after") as queue:
        assert [one.data for one in iter(queue.remove, None)] == [b"first"]
