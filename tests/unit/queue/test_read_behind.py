"""Items that memory has no room for: they are read back in their turn, or an error says why not."""

import os
from pathlib import Path

import pytest

from kestrelmq.errors import QueueUnavailable
from kestrelmq.queue.backlog import LARGE_RECORD
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues, items_on_disk, queue_settings

pytestmark = pytest.mark.compiled


def test_what_was_added_in_a_turn_can_be_taken_in_it(tmp_path: Path) -> None:
    """Though it is nowhere but in what is to be written: that is written first."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=100))
    queue = spool.queue()
    items = [b"%d" % number * 60 for number in range(5)]
    for data in items:
        queue.add(data)
    assert queue.backlog.read_behind
    taken = [queue.line.remove() for _ in items]
    assert [record and record[-60:] for record in taken] == items
    assert queue.line.remove() is None
    spool.commit()
    spool.close()
    assert items_on_disk(tmp_path) == []


def test_what_memory_holds_is_served_though_the_rest_cannot_be_read(tmp_path: Path) -> None:
    """The error is that of whoever wants the first item that is not there."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=1000))
    items = [b"%02d" % number * 50 for number in range(30)]
    spool.add(*items)
    held = spool.queue().backlog.memory_items
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
    held = spool.queue().backlog.memory_items
    for file in tmp_path.glob("jobs*"):
        file.write_bytes(b"\x77" * file.stat().st_size)
    assert [spool.take() for _ in range(held)] == items[:held]
    with pytest.raises(QueueUnavailable, match=rf"{tmp_path}/jobs\S*: damaged at byte \d+"):
        spool.take()
    spool.close()


def large_queue(path: Path) -> tuple[LocalQueues, HeldWorker, list[bytes]]:
    """Return queues of which one has three large items, of which the first is in memory.

    A thread that a test controls reads the others.
    """
    spool = LocalQueues(queue_settings(path, max_memory_size=1000))
    items = [b"%d" % number * LARGE_RECORD for number in range(3)]
    spool.add(*items)
    reader = HeldWorker()
    spool.collection.commits.writer = reader
    assert spool.queue().backlog.memory_items == 1
    return spool, reader, items


def test_a_thread_reads_a_large_head(tmp_path: Path) -> None:
    """Whoever can wait waits for it; what is at the head then is taken as ever."""
    spool, reader, items = large_queue(tmp_path)
    queue = spool.queue()
    assert (queue.line.is_settled, spool.take()) == (True, items[0])
    for data in items[1:]:
        assert not queue.backlog.memory_items
        for _ in range(2):  # however often it is asked
            assert (queue.line.is_settled, queue.line.settle()) == (False, False)
        assert len(reader) == 1
        reader.step()
        assert queue.line.settle()
        assert (queue.line.is_settled, spool.take()) == (True, data)
    assert (queue.line.is_settled, len(reader), spool.take()) == (True, 0, None)
    spool.close()


@pytest.mark.parametrize("meanwhile", ["taken", "flushed", "deleted"])
def test_what_a_thread_read_is_not_the_head_any_more(tmp_path: Path, meanwhile: str) -> None:
    """Then it is not used."""
    spool, reader, items = large_queue(tmp_path)
    queue, left = spool.queue(), items[1:]
    assert spool.take() == items[0]
    assert not queue.line.settle()
    match meanwhile:
        case "taken":
            assert spool.take() == left.pop(0)  # by one that cannot wait
        case "flushed":
            queue.flush()
            left = [b"n" * LARGE_RECORD]
            spool.add(b"first" * 300, *left)
            assert spool.take() == b"first" * 300
        case _:
            spool.collection.delete("jobs")
            left = []
    reader.step()
    for data in left:
        while not spool.queue().line.settle():
            reader.step()
        assert spool.take() == data
    assert spool.take() is None
    spool.close()


def test_a_large_head_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wants it gets the error each time, until it can be read."""
    spool, reader, items = large_queue(tmp_path)
    queue = spool.queue()
    assert spool.take() == items[0]
    pread = os.pread

    def pread_little(descriptor: int, size: int, position: int) -> bytes:
        if size > LARGE_RECORD:
            raise OSError(5, "Input/output error")
        return pread(descriptor, size, position)

    monkeypatch.setattr(os, "pread", pread_little)
    for _ in range(2):
        assert not queue.line.settle()
        reader.step()
        with pytest.raises(QueueUnavailable, match=r"queue jobs cannot be read: .*Input/output"):
            queue.line.settle()
    monkeypatch.undo()
    assert not queue.line.settle()
    reader.step()
    assert queue.line.settle()
    assert spool.take() == items[1]
    spool.close()


def test_a_file_that_another_program_cut_short(tmp_path: Path) -> None:
    """Whoever wants the item in which it ends is told the place; the queue does not seem empty."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=1000))
    items = [b"%02d" % number * 50 for number in range(50)]
    spool.add(*items)
    rotated = max(tmp_path.glob("jobs.*"))
    held = spool.queue().backlog.memory_items
    whole = rotated.read_bytes()
    os.truncate(rotated, len(whole) // 2 + 7)
    found: list[bytes | None] = []
    reason = r"damaged at byte .*: a record is cut short, and another file follows"

    def take_all() -> None:
        while not found or found[-1] is not None:
            found.append(spool.take())

    with pytest.raises(QueueUnavailable, match=reason):
        take_all()
    assert held < len(found) < 50
    rotated.write_bytes(whole)
    assert found + spool.drain() == items
    spool.close()


def test_a_file_that_another_program_emptied(tmp_path: Path) -> None:
    """What is not in it is served; then the error says that items are missing."""
    spool = LocalQueues(queue_settings(tmp_path, max_memory_size=1000))
    items = [b"%02d" % number * 50 for number in range(30)]
    spool.add(*items)
    held = spool.queue().backlog.memory_items
    for file in tmp_path.glob("jobs*"):
        os.truncate(file, 0)
    assert [spool.take() for _ in range(held)] == items[:held]
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="fewer items on disk than were counted"):
            spool.take()
    with pytest.raises(QueueUnavailable, match="fewer items on disk than were counted"):
        spool.queue().line.peek()
    spool.close()
