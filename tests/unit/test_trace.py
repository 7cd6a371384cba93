"""`enable_trace`: what changes a queue is in the log, once it is in the journal."""

import logging
from pathlib import Path

import pytest

from kestrelmq import PersistentQueue, QueueConfig
from kestrelmq.errors import JournalError
from tests.support.limits import largest_file


def test_what_changes_a_queue_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A line for each record, without the data; a queue that is not traced logs nothing."""
    caplog.set_level(logging.INFO, "kestrelmq.engine.queue")
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
    caplog.set_level(logging.INFO, "kestrelmq.engine.queue")
    with PersistentQueue("work", tmp_path, QueueConfig(enable_trace=True)) as queue:
        with largest_file(10), pytest.raises(JournalError):
            queue.add(b"x" * 1000)
        assert "ADDX" not in caplog.text
