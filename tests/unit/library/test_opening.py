"""How the library opens a queue whose files were written with other settings."""

from pathlib import Path

import pytest

from kestrelmq import AsyncPersistentQueue, PersistentQueue, QueueConfig
from kestrelmq.journal.dump import describe_records
from kestrelmq.journal.writer import Dialect

pytestmark = pytest.mark.compiled

OPENED = {"documented": "REMOVE_TENTATIVE", "kestrel-2": "REMOVE_TENTATIVE_XID"}


def written_with(path: Path, dialect: Dialect) -> QueueConfig:
    """Write a queue in which a read is still open; return settings with the other dialect."""
    with PersistentQueue("work", path, QueueConfig(journal_dialect=dialect)) as queue:
        for data in (b"first", b"second"):
            queue.add(data)
        assert queue.remove(transaction=True)
    return QueueConfig(journal_dialect="kestrel-2" if dialect == "documented" else "documented")


def opened_by(path: Path) -> list[str]:
    """Return the kinds of records by which the queue's current file opens reads."""
    words = [told.split()[0] for told in describe_records((path / "work").read_bytes())]
    return [word for word in words if word.startswith("REMOVE_TENTATIVE")]


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_another_dialect(
    tmp_path: Path, dialect: Dialect, caplog: pytest.LogCaptureFixture
) -> None:
    """The next file has the new dialect, from the first read on; nothing is logged as an error."""
    config = written_with(tmp_path, dialect)
    with PersistentQueue("work", tmp_path, config) as queue:
        first = queue.remove(transaction=True)
        assert first is not None
        assert queue.confirm_remove(first.xid)
    assert opened_by(tmp_path) == [OPENED[config.journal_dialect]]
    assert not caplog.records
    with PersistentQueue("work", tmp_path, config) as queue:
        assert [item.data for item in iter(queue.remove, None)] == [b"second"]


async def test_another_dialect_for_asyncio(tmp_path: Path) -> None:
    """The same for a queue of asyncio."""
    config = written_with(tmp_path, "documented")
    async with AsyncPersistentQueue("work", tmp_path, config) as queue:
        assert await queue.remove(transaction=True)
    assert opened_by(tmp_path) == [OPENED["kestrel-2"]]
