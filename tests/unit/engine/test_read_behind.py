"""Items that memory has no room for: they are read back in their turn, or an error says why not."""

from pathlib import Path

import pytest

from kestrelmq.errors import QueueUnavailable
from kestrelmq.testing.queues import LocalQueues, items_on_disk, queue_settings

pytestmark = pytest.mark.compiled


def test_what_was_added_in_a_turn_can_be_taken_in_it(tmp_path: Path) -> None:
    """Though it is nowhere but in what is to be written: that is written first."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100))
    queue = spool.queue()
    items = [b"%d" % number * 60 for number in range(5)]
    for data in items:
        queue.add(data)
    assert queue.read_behind
    taken = [queue.remove() for _ in items]
    assert [record and record[-60:] for record in taken] == items
    assert queue.remove() is None
    spool.commit()
    spool.close()
    assert items_on_disk(tmp_path) == []


def test_what_memory_holds_is_served_though_the_rest_cannot_be_read(tmp_path: Path) -> None:
    """The error is that of whoever wants the first item that is not there."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=1000))
    items = [b"%02d" % number * 50 for number in range(30)]
    spool.add(*items)
    held = spool.queue().memory_items
    assert 5 < held < 30
    files = [file for file in tmp_path.iterdir() if file.name.startswith("jobs")]
    for file in files:
        file.rename(tmp_path / f"~~{file.name}")
    assert [spool.take() for _ in range(held)] == items[:held]
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match=r"queue jobs cannot be read: .*No such file"):
            spool.take()
    assert len(spool.queue()) == 30 - held
    for file in files:
        (tmp_path / f"~~{file.name}").rename(file)
    assert spool.drain() == items[held:]
    spool.close()


def test_damage_that_came_after_the_start_is_found(tmp_path: Path) -> None:
    """Whoever wants the first damaged item is told the file and the place."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=1000))
    items = [b"%02d" % number * 50 for number in range(30)]
    spool.add(*items)
    spool.restart()
    held = spool.queue().memory_items
    for file in tmp_path.glob("jobs*"):
        file.write_bytes(b"\x77" * file.stat().st_size)
    assert [spool.take() for _ in range(held)] == items[:held]
    with pytest.raises(QueueUnavailable, match=rf"{tmp_path}/jobs\S*: damaged at byte \d+"):
        spool.take()
    spool.close()
