"""A queue's age: how long the last item that was read had waited."""

from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.testing.clock import FakeClock


@pytest.mark.parametrize("read", ["remove", "open", "open and confirm", "confirm another"])
def test_age_is_of_the_last_item_that_was_read(tmp_path: Path, read: str) -> None:
    """However it was read; to finish an earlier read changes nothing."""
    clock = FakeClock()
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), clock)
    collection.open()
    queue = collection.obtain("jobs")
    for _ in range(3):
        queue.add(b"x")
        clock.advance(1)
    assert not collection.commits.commit()
    assert queue.age == 0
    if read == "remove":
        queue.remove()
    else:
        opened = queue.open_read()
        assert opened is not None
        if read == "confirm another":
            assert not collection.commits.commit()
            clock.advance(1)
        if read != "open":
            queue.confirm(opened[0])
    assert not collection.commits.commit()
    assert queue.age == 3000
    collection.close()
