"""A queue path that is taken away while queues are in use, and comes back."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from tests.support.local_queues import LocalQueues, items_on_disk

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """A queue `jobs` with a journal, and a queue `memory` without one."""

    def __init__(self, root: Path) -> None:
        self.path = root / "queues"
        self.away = root / "away"
        queues = {"memory": QueueConfig(keep_journal=False)}
        super().__init__(ServerConfig(queue_path=self.path, queues=queues))

    def refused(self, name: str, data: bytes) -> str | None:
        """Add an item, and commit; return what is said of the queue."""
        queue = self.queue(name)
        queue.add(data)
        failure = self.collection.commits.commit().get(queue)
        return None if failure is None else str(failure)


def test_nothing_is_acknowledged_until_the_queue_path_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And nothing is written to the directory that is in its place; the log tells both, once."""
    spool = Spool(tmp_path)
    spool.add(b"before")
    spool.path.rename(spool.away)
    spool.path.mkdir()
    lost = f"the queue path {spool.path}, or its lock, was removed or replaced"
    for _ in range(3):
        spool.collection.check_path()
        refused = spool.refused("jobs", b"lost")
        assert refused is not None
        assert lost in refused
        assert spool.refused("memory", b"x") is None
    assert caplog.messages.count(f"{lost}; nothing is acknowledged until it is back") == 1
    assert list(spool.path.iterdir()) == []
    spool.path.rmdir()
    spool.away.rename(spool.path)
    for _ in range(3):
        spool.collection.check_path()
    assert caplog.messages.count(f"the queue path {spool.path} is back") == 1
    spool.add(b"after")
    spool.close()
    assert items_on_disk(spool.path) == [b"before", b"after"]


def test_what_was_written_early_may_be_lost_with_the_queue_path(tmp_path: Path) -> None:
    """So all that was done within the turn in which that is seen is an error."""
    spool = Spool(tmp_path)
    queue, memory = spool.queue("jobs"), spool.queue("memory")
    queue.add(b"x")
    queue.core.write_now()
    memory.add(b"x")
    spool.path.rename(spool.away)
    spool.collection.check_path()
    assert list(spool.collection.commits.commit()) == [queue]
    spool.away.rename(spool.path)
    spool.close()


@pytest.mark.parametrize("watched", [False, True])
def test_a_journal_that_was_removed_takes_nothing(tmp_path: Path, *, watched: bool) -> None:
    """As soon as somebody looks, or tells of it; until the same file is back."""
    spool = Spool(tmp_path)
    spool.collection.guard.watched = watched
    spool.add(b"before")
    journal = spool.path / "jobs"
    journal.rename(spool.away)
    spool.collection.check_path({"jobs"} if watched else ())
    assert spool.refused("jobs", b"lost") is not None
    assert not journal.exists()
    spool.away.rename(journal)
    spool.add(b"after")
    spool.close()
    assert items_on_disk(spool.path) == [b"before", b"after"]
