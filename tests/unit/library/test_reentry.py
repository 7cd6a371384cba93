"""What a program does while a queue is in the middle of an operation: in a handler of its own."""

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from kestrelmq import PersistentQueue, QueueCollection, QueueConfig, QueueUnavailable
from kestrelmq.library import BlockingQueue
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.compiled


@contextmanager
def handling(signal_number: int, handler: Callable[..., object]) -> Iterator[None]:
    """Handle a signal by a function."""
    before = signal.signal(signal_number, handler)
    try:
        yield
    finally:
        signal.signal(signal_number, before)


@pytest.mark.parametrize("step", ["write", "fsync"])
def test_a_signal_handler_cannot_use_the_queue_that_it_interrupts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """It would wait for ever: it is told so, and what it interrupted goes on."""
    told: list[str] = []
    do = getattr(os, step)

    def interrupted(*arguments: object) -> object:
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)
        return do(*arguments)

    def add(*_: object) -> None:
        with pytest.raises(QueueUnavailable) as raised:
            queue.add(b"y")
        told.append(str(raised.value))

    with PersistentQueue("work", tmp_path, QueueConfig(sync_journal=0)) as queue:
        with handling(signal.SIGUSR1, add):
            monkeypatch.setattr(os, step, interrupted)
            assert queue.add(b"x")
        assert len(told) == 1
        assert "cannot use a queue whose operation it interrupts" in told[0]
        assert [item.data for item in queue.browse()] == [b"x"]


class Storing(logging.Handler):
    """Stores what is logged: by this thread, and by another one that it waits for."""

    def __init__(self, queue: BlockingQueue) -> None:
        super().__init__()
        self._queue = queue

    def emit(self, record: logging.LogRecord) -> None:
        """Store a record."""
        other = Thread(target=self._queue.add, args=("other", 60), daemon=True)
        other.start()
        other.join(PATIENCE)
        assert not other.is_alive()
        self._queue.add(record.getMessage())


@pytest.mark.parametrize("several", [False, True])
def test_a_log_handler_may_store_records_in_the_queue(tmp_path: Path, *, several: bool) -> None:
    """Nothing is logged while an operation keeps threads from the queue."""
    config = QueueConfig(max_item_size=100)
    one, all_queues = PersistentQueue("work", tmp_path, config), QueueCollection(tmp_path, config)
    with all_queues if several else one:
        queue = all_queues.queue("work") if several else one
        log, storing = logging.getLogger("kestrelmq"), Storing(queue)
        log.addHandler(storing)
        try:
            assert not queue.add(bytes(101))
        finally:
            log.removeHandler(storing)
        stored = [item.data for item in queue.browse()]
        assert stored == [b"other", b"queue work refused requests: too_large 1"]
