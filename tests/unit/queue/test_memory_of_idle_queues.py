"""What very many queues take that are hardly used."""

import sys
import tracemalloc
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.format.records import item
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.loading_queues import LoadingQueues
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled

QUEUES: Final = 200
MOST: Final = 6200 if sys.version_info >= (3, 13) else 5600
"""Bytes that a queue of a short item may take: about 5,100 with Python 3.11, fewer compiled; 5,700
with Python 3.13, whose objects are larger.
"""


def test_an_idle_queue_takes_little(tmp_path: Path) -> None:
    """It has no containers of its own for what it never held."""
    for number in range(QUEUES):
        (tmp_path / f"queue{number}").write_bytes(item(FakeClock().now(), 0, bytes(64)))
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock())
    first, *others = collection.take_path()
    collection.add_loaded(first.queue, collection.load(first))
    tracemalloc.start()
    for files in others:
        collection.add_loaded(files.queue, collection.load(files))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    collection.close()
    assert taken / len(others) < MOST


def test_queues_that_were_loaded_take_nothing() -> None:
    """The names of those that were still to be loaded are forgotten, with their tables."""
    tracemalloc.start()
    loading = LoadingQueues()
    names = [f"queue{number}" for number in range(1000)]
    before, _ = tracemalloc.get_traced_memory()
    loading.expect(names)
    for name in names:
        loading.loaded(name)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not loading
    assert after - before < 2000
