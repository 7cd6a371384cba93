"""`enable_trace`: what changes a queue is in the log, once it is in the journal."""

import logging
from pathlib import Path

import pytest

from kestrelmq import PersistentQueue, QueueConfig
from kestrelmq.config import ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.describing import describe_records
from kestrelmq.format.records import REMOVE_TENTATIVE_RECORD, item, save_xid
from kestrelmq.queue.adding import Put
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.worker import LARGE_ITEM
from tests.support.fake_clock import FakeClock
from tests.support.limits import largest_file
from tests.support.local_queues import LocalQueues, queue_settings


def test_what_changes_a_queue_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each record, without the data; a queue that is not traced logs nothing."""
    caplog.set_level(logging.INFO, "kestrelmq.queue")
    for name, is_traced in (("quiet", False), ("work", True)):
        with PersistentQueue(name, tmp_path, QueueConfig(enable_trace=is_traced)) as queue:
            queue.add(b"secret")
            item = queue.remove(transaction=True)
            assert item is not None
            queue.unremove(item.xid)
            queue.remove()
    words = [record.getMessage().split()[:4] for record in caplog.records]
    assert words == [
        ["queue", "work:", "ADDX", "6"],
        ["queue", "work:", "REMOVE_TENTATIVE"],
        ["queue", "work:", "UNREMOVE", "1"],
        ["queue", "work:", "REMOVE"],
    ]
    assert "secret" not in caplog.text


def test_what_could_not_be_written_is_not_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was taken back."""
    caplog.set_level(logging.INFO, "kestrelmq.queue")
    with PersistentQueue("work", tmp_path, QueueConfig(enable_trace=True)) as queue:
        with largest_file(10), pytest.raises(JournalError):
            queue.add(b"x" * 1000)
        assert "ADDX" not in caplog.text


def test_a_log_that_fails_leaves_the_queue_as_its_journal(tmp_path: Path) -> None:
    """What was written is not written again, and the queue goes on."""

    def fail(record: logging.LogRecord) -> bool:
        if "ADDX" in record.getMessage():
            raise ValueError("no log")
        return True

    queues = LocalQueues(queue_settings(tmp_path, enable_trace=True))
    log = logging.getLogger("kestrelmq.queue.core")
    log.setLevel(logging.INFO)
    log.addFilter(fail)
    try:
        queues.collection.add("jobs", b"first")
        queues.collection.commits.commit()
    finally:
        log.removeFilter(fail)
        log.setLevel(logging.NOTSET)
    queues.add(b"second")
    queues.restart()
    assert queues.items() == [b"first", b"second"]
    queues.close()


def test_each_record_of_an_operation_is_told() -> None:
    """Some reads need several."""
    records = save_xid(3) + REMOVE_TENTATIVE_RECORD + save_xid(5)
    assert list(describe_records(records)) == ["SAVE_XID 3", "REMOVE_TENTATIVE", "SAVE_XID 5"]


def test_what_is_written_in_its_own_way_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A large item, which is written in a round; a flush is one line, not one an item."""
    caplog.set_level(logging.INFO, "kestrelmq.queue")
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(enable_trace=True))
    collection = QueueCollection(config, FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    queue.accept(Put(item(1000, 0, bytes(LARGE_ITEM))))
    assert not collection.commits.commit()
    queue.add(b"")
    assert queue.flush() == 2
    collection.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"queue jobs: ADDX {LARGE_ITEM} bytes at 1970-01-01T00:00:01.000Z",
        *[line for line in told if "ADDX 0 bytes" in line],
        "queue jobs: REMOVE, 2 times",
    ]
    assert len(told) == 3
