"""What reloads, failures and expiry must not do to a queue, found by random runs."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.engine.stats import stats_of
from kestrelmq.journal.records import REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID, item_data
from kestrelmq.journal.scanning import scan
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.crashing import CrashingDirectory
from kestrelmq.testing.worker import HeldWorker

pytestmark = pytest.mark.compiled

LIMITS = QueueConfig(max_memory_size=20_000, default_journal_size=10_000, max_journal_size=100_000)


class Fixture:
    """A queue on a directory that can be made to fail, at a time that can be set."""

    def __init__(self, path: Path, dialect: str = "documented", *, held: bool = False) -> None:
        self.path = path / "queues"
        for name in ("queues", "links"):
            (path / name).mkdir(exist_ok=True)
        self.clock = FakeClock()
        self.directory = CrashingDirectory(self.path, path / "links")
        self.collection = QueueCollection(self.settings(dialect), self.clock, self.directory)
        self.worker = HeldWorker()
        if held:
            self.collection.commits.worker = self.worker
        self.collection.open()

    def settings(self, dialect: str) -> ServerConfig:
        """Return settings with a dialect."""
        limits = LIMITS.model_copy(update={"journal_dialect": dialect})
        return ServerConfig(queue_path=self.path, default=limits)

    @property
    def queue(self) -> Queue:
        """The queue."""
        return self.collection.obtain("jobs")

    def reload(self, dialect: str) -> None:
        """Put a dialect in force."""
        self.collection.reload(self.settings(dialect))

    def commit(self) -> None:
        """Commit, which must succeed."""
        assert not self.collection.commits.commit()

    def add(self, data: bytes, expiry: int = 0) -> None:
        """Add an item."""
        self.queue.add(data, expiry)
        self.commit()

    def open_read(self) -> int:
        """Open a read; return its xid."""
        opened = self.queue.open_read()
        assert opened is not None
        self.commit()
        return opened[0]

    def take(self) -> None:
        """Take the head off, in two steps."""
        assert self.queue.confirm(self.open_read())
        self.commit()

    def churn(self) -> None:
        """Let so much pass that the journal begins anew."""
        for _ in range(100):
            self.queue.add(b"x" * 100)
            self.queue.remove()
            self.commit()

    def break_disk(self, beginning: str = "") -> None:
        """Let steps that begin so fail."""
        self.directory.fail = lambda point: point.startswith(beginning)

    def mend_disk(self) -> None:
        """Let all succeed."""
        self.directory.fail = lambda _point: False


def left(path: Path) -> list[bytes]:
    """Return what a restart finds."""
    collection = QueueCollection(ServerConfig(queue_path=path / "queues"), FakeClock())
    collection.open()
    try:
        return [item_data(record) for record in collection.obtain("jobs").browse(100)]
    finally:
        collection.close()


def test_a_file_never_mixes_dialects(tmp_path: Path) -> None:
    """A reload to the other one begins a new file, also after a rotation."""
    fixture = Fixture(tmp_path)
    for _ in range(12):
        fixture.add(b"x" * 5000)
    assert fixture.queue.journal.rotations
    fixture.open_read()
    fixture.reload("kestrel-2")
    fixture.open_read()
    fixture.collection.close()
    for file in fixture.path.glob("jobs*"):
        data, starts = file.read_bytes(), list[int]()
        scan(data, 0, len(data), starts)
        opcodes = {data[at] for at in starts}
        assert not {REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID} <= opcodes


def test_what_is_confirmed_after_a_change_of_dialect_does_not_come_back(tmp_path: Path) -> None:
    """The files of kestrel-2 need not tell the last xid; the new file does."""
    fixture = Fixture(tmp_path, "kestrel-2")
    for _ in range(10):
        fixture.add(b"x")
        fixture.take()
    fixture.churn()
    fixture.reload("documented")
    fixture.add(b"done")
    fixture.take()
    fixture.collection.close()
    assert left(tmp_path) == []


def test_a_replacement_that_runs_is_not_begun_again(tmp_path: Path) -> None:
    """When something else fails meanwhile, and is tried again."""
    fixture = Fixture(tmp_path, held=True)
    fixture.churn()
    fixture.add(b"live")
    fixture.open_read()
    assert len(fixture.worker) == 1
    fixture.reload("documented")
    fixture.break_disk()
    fixture.reload("kestrel-2")
    fixture.mend_disk()
    fixture.clock.advance(2)
    fixture.collection.tick()
    while fixture.worker:
        fixture.worker.step()
    on_disk = sum(file.stat().st_size for file in fixture.path.glob("jobs*"))
    assert fixture.queue.journal.size == on_disk
    fixture.collection.close()
    assert left(tmp_path) == [b"live"]


def test_an_item_that_is_given_back_expires(tmp_path: Path) -> None:
    """Though the queue was empty meanwhile."""
    fixture = Fixture(tmp_path)
    fixture.add(b"old", fixture.clock.now() + 1000)
    xid = fixture.open_read()
    assert fixture.queue.remove() is None
    fixture.clock.step(5000)
    fixture.queue.unremove(xid)
    fixture.commit()
    assert fixture.queue.remove() is None
    fixture.collection.close()


def test_an_item_that_is_taken_back_expires(tmp_path: Path) -> None:
    """When its removal could not be written."""
    fixture = Fixture(tmp_path)
    fixture.add(b"old", fixture.clock.now() + 1000)
    fixture.break_disk("append")
    fixture.clock.step(5000)
    assert fixture.queue.remove() is None
    assert fixture.collection.commits.commit()
    fixture.mend_disk()
    assert fixture.queue.remove() is None
    fixture.collection.close()


def test_a_read_that_could_not_be_given_back_keeps_its_xid(tmp_path: Path) -> None:
    """The journal opens it with ADD_XID, and so it has that xid when it is opened again."""
    fixture = Fixture(tmp_path)
    fixture.add(b"done")
    xid = fixture.open_read()
    fixture.churn()
    fixture.add(b"x")
    fixture.take()
    fixture.break_disk("append")
    fixture.queue.unremove(xid)
    assert fixture.collection.commits.commit()
    fixture.mend_disk()
    fixture.queue.unremove(xid)
    fixture.commit()
    fixture.take()
    fixture.collection.close()
    assert left(tmp_path) == []


def test_the_statistics_show_what_is_damaged(tmp_path: Path) -> None:
    """The queue has no other statistic."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "bad").write_bytes(b"no journal")
    fixture = Fixture(tmp_path)
    found = [(name, str(text)) for name, text in stats_of(fixture.collection, "bad")]
    fixture.collection.close()
    assert [name for name, _ in found] == ["failure"]
    assert "queue bad cannot be loaded" in found[0][1]


@pytest.mark.parametrize("name", ["jobs~~next-12", "jobs~~ahead-3"])
def test_what_a_crash_left_of_a_queue_that_never_was_goes(tmp_path: Path, name: str) -> None:
    """A temporary of a queue that has no other file."""
    (tmp_path / "queues").mkdir()
    file = tmp_path / "queues" / name
    file.write_bytes(b"")
    fixture = Fixture(tmp_path)
    fixture.collection.close()
    assert not file.exists()
