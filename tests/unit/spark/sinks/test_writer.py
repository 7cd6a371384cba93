"""The driver's half of a write of journals: whose turn it is, and what a server start does."""

from pathlib import Path
from threading import Event, Thread

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.disk.locks import QueuePathLock
from kestrelmq.disk.write_directories import WRITE_MARK, remove_all
from kestrelmq.errors import JournalError, QueuePathLocked
from kestrelmq.spark.sinks.encoding import encode
from kestrelmq.spark.sinks.journal import JournalWriter, PartsWritten
from kestrelmq.spark.sinks.journal_parts import PartWriter
from tests.spark.spools import load

SCHEMA = StructType([StructField(name, StringType()) for name in ("queue", "data")])


def begun(spool: Path, *, overwrite: bool = False) -> tuple[JournalWriter, PartsWritten]:
    """Begin a write and do its only task's work."""
    writer = JournalWriter(str(spool), SCHEMA, overwrite=overwrite)
    (directory,) = spool.glob(f"{WRITE_MARK}*")
    parts = PartWriter(directory, "task")
    for encoded in encode(pa.RecordBatch.from_pydict({"queue": ["q"], "data": ["x"]}), 1):
        parts.write(encoded)
    return writer, PartsWritten(0, parts.finish())


def test_a_commit_waits_for_another_writes(tmp_path: Path) -> None:
    """Writes to one queue path do not make each other fail."""
    writer, written = begun(tmp_path)
    lock = QueuePathLock(tmp_path)
    lock.acquire()
    started = Event()

    def release() -> None:
        started.wait()
        lock.release()

    other = Thread(target=release)
    other.start()
    started.set()
    writer.commit([written])
    other.join()

    assert [item.data for item in load(tmp_path)["q"]] == [b"x"]


def test_a_commit_does_not_wait_for_a_server(tmp_path: Path) -> None:
    """A server that started removed the parts, and keeps the queue path."""
    writer, written = begun(tmp_path)
    lock = QueuePathLock(tmp_path)
    lock.acquire()
    remove_all(tmp_path)

    with pytest.raises(QueuePathLocked):
        writer.commit([written])
    lock.release()
    with pytest.raises(
        JournalError, match="is gone or not whole, perhaps because a server was started"
    ):
        writer.commit([written])
    assert load(tmp_path) == {}


def test_a_part_that_is_cut_short_changes_no_queue(tmp_path: Path) -> None:
    """All parts are looked at before the first queue is changed."""
    writer, written = begun(tmp_path)
    whole = written.parts[0]
    whole.path.write_bytes(whole.path.read_bytes()[:-1])

    with pytest.raises(JournalError, match="not whole"):
        writer.commit([written])
    writer.abort([written])

    assert [entry.name for entry in tmp_path.iterdir()] == ["~~lock"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_commit_lists_the_queue_path_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, overwrite: bool
) -> None:
    """There may be very many queues, and nothing else changes while the commit has the lock."""
    writer, written = begun(tmp_path, overwrite=overwrite)
    names, listed = DiskDirectory.names, []

    def counted(directory: DiskDirectory) -> list[str]:
        listed.append(directory.path)
        return names(directory)

    monkeypatch.setattr(DiskDirectory, "names", counted)
    writer.commit([written])

    assert listed == [tmp_path]
