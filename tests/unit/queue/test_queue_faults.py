"""What reloads, failures and expiry must not do to a queue, found by random runs."""

from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.format.records import REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID
from kestrelmq.format.scanning import scan
from kestrelmq.queues.stats import damaged_queues, stats_of
from kestrelmq.scheduling.worker import run_to_end
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues, items_on_disk
from tests.support.open_reads import open_read

pytestmark = pytest.mark.compiled

LIMITS = QueueConfig(max_memory_size=20_000, default_journal_size=10_000, max_journal_size=100_000)


class Fixture(LocalQueues):
    """A queue `jobs` on a directory that can be made to fail."""

    def __init__(
        self, path: Path, dialect: str = "documented", worker: HeldWorker | None = None
    ) -> None:
        self.disk = CrashingDirectory.within(path)
        super().__init__(self.settings(dialect), self.disk, worker=worker)

    def settings(self, dialect: str) -> ServerConfig:
        """Return settings with a dialect."""
        limits = LIMITS.model_copy(update={"journal_dialect": dialect})
        return ServerConfig(queue_path=self.disk.path, default=limits)

    def switch(self, dialect: str) -> None:
        """Start again with a dialect."""
        self.config = self.settings(dialect)
        self.restart()

    def confirm_head(self) -> None:
        """Take the head off, in two steps."""
        assert self.queue().reads.confirm(self.open_read())
        self.commit()


def test_a_file_never_mixes_dialects(tmp_path: Path) -> None:
    """A start with the other one begins a new file, also after a rotation."""
    fixture = Fixture(tmp_path)
    for _ in range(12):
        fixture.add(b"x" * 5000)
    assert fixture.queue().journal.rotations
    fixture.open_read()
    fixture.switch("kestrel-2")
    fixture.open_read()
    fixture.close()
    for file in fixture.disk.path.glob("jobs*"):
        data, starts = file.read_bytes(), list[int]()
        scan(data, 0, len(data), starts)
        opcodes = {data[at] for at in starts}
        assert not {REMOVE_TENTATIVE, REMOVE_TENTATIVE_XID} <= opcodes


def test_what_is_confirmed_after_a_change_of_dialect_does_not_come_back(tmp_path: Path) -> None:
    """The files of kestrel-2 need not tell the last xid."""
    fixture = Fixture(tmp_path, "kestrel-2")
    for _ in range(10):
        fixture.add(b"x")
        fixture.confirm_head()
    fixture.churn(100)
    fixture.switch("documented")
    fixture.add(b"done")
    fixture.confirm_head()
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == []


def test_an_item_that_is_given_back_expires(tmp_path: Path) -> None:
    """Though the queue was empty meanwhile."""
    fixture = Fixture(tmp_path)
    fixture.add(b"old", expiry=fixture.clock.now() + 1000)
    xid = fixture.open_read()
    assert fixture.queue().line.remove() is None
    fixture.clock.step(5000)
    fixture.queue().returns.give_back([xid])
    fixture.commit()
    assert fixture.queue().line.remove() is None
    fixture.close()


def test_an_item_that_is_taken_back_expires(tmp_path: Path) -> None:
    """When its removal could not be written."""
    fixture = Fixture(tmp_path)
    fixture.add(b"old", expiry=fixture.clock.now() + 1000)
    fixture.disk.break_steps("append")
    fixture.clock.step(5000)
    assert fixture.queue().line.remove() is None
    assert fixture.collection.commits.commit()
    fixture.disk.mend()
    assert fixture.queue().line.remove() is None
    fixture.close()


def test_a_read_that_could_not_be_given_back_keeps_its_xid(tmp_path: Path) -> None:
    """And is given back under that xid later, in a journal that opens it with ADD_XID."""
    fixture = Fixture(tmp_path)
    fixture.add(b"done")
    xid = fixture.open_read()
    fixture.churn(100)
    fixture.add(b"x")
    fixture.confirm_head()
    fixture.disk.break_steps("append")
    fixture.queue().returns.give_back([xid])
    assert fixture.collection.commits.commit()
    fixture.disk.mend()
    fixture.queue().returns.give_back([xid])
    fixture.commit()
    fixture.confirm_head()
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == []


def test_a_read_that_could_not_be_opened_never_was(tmp_path: Path) -> None:
    """Its item is at the head, and the next read has its xid."""
    fixture = Fixture(tmp_path)
    fixture.add(b"x", b"y")
    fixture.disk.break_steps("append")
    opened = open_read(fixture.queue())
    assert opened is not None
    assert fixture.collection.commits.commit()
    fixture.disk.mend()
    assert (fixture.items(), fixture.queue().reads.held) == ([b"x", b"y"], 0)
    assert fixture.open_read() == opened[0]
    fixture.close()


def test_a_read_that_could_not_be_confirmed_is_open_again(tmp_path: Path) -> None:
    """Its reader may confirm it once more, and only then is the item gone."""
    fixture = Fixture(tmp_path)
    fixture.add(b"x")
    xid = fixture.open_read()
    fixture.disk.break_steps("append")
    assert fixture.queue().reads.confirm(xid)
    assert fixture.collection.commits.commit()
    fixture.disk.mend()
    assert fixture.queue().reads.held == 1
    assert fixture.queue().reads.confirm(xid)
    fixture.commit()
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == []


def test_what_follows_a_failed_write_in_the_same_turn_is_not_done(tmp_path: Path) -> None:
    """All its replies are errors, though the disk works again by then."""
    fixture = Fixture(tmp_path)
    queue = fixture.queue()
    fixture.disk.break_steps("append")
    queue.add(b"refused")
    with pytest.raises(JournalError):
        queue.core.write_now()
    fixture.disk.mend()
    queue.add(b"refused, too")
    assert list(fixture.collection.commits.commit()) == [queue]
    fixture.add(b"taken")
    assert fixture.items() == [b"taken"]
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == [b"taken"]


def test_what_was_written_is_not_refused_for_a_bug_in_the_upkeep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journal has it, so a client that was told otherwise would send it again."""

    def fail(point: str) -> bool:
        if point.startswith("append"):
            return False
        raise ValueError(point)

    fixture = Fixture(tmp_path)
    fixture.queue()
    fixture.disk.fail = fail
    fixture.add(b"x" * 30_000)
    assert caplog.messages == ["the upkeep of queue jobs failed"]
    fixture.disk.mend()
    fixture.add(b"y")
    assert fixture.queue().journal.rotations == 1
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == [b"x" * 30_000, b"y"]


def test_no_journal_is_written_anew_in_the_middle_of_a_turn(tmp_path: Path) -> None:
    """What is to be written yet would be in it twice."""
    fixture = Fixture(tmp_path)
    fixture.add(b"old")
    fixture.disk.break_steps("sync jobs")
    with pytest.raises(OSError, match="sync jobs"):
        fixture.queue().sync()
    fixture.disk.mend()
    fixture.queue().add(b"new")
    fixture.collection.tick()
    fixture.commit()
    fixture.collection.tick()
    assert fixture.queue().journal.rewrites == 1
    fixture.close()
    assert items_on_disk(tmp_path / "queues") == [b"old", b"new"]


def test_the_statistics_show_what_is_damaged(tmp_path: Path) -> None:
    """The queue has no other statistic."""
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "bad").write_bytes(b"no journal")
    fixture = Fixture(tmp_path)
    found = [(name, str(text)) for name, text in stats_of(fixture.collection, "bad")]
    assert run_to_end(damaged_queues(fixture.collection)) == {"bad": found[0][1]}
    fixture.close()
    assert [name for name, _ in found] == ["failure"]
    assert "queue bad cannot be loaded" in found[0][1]


def test_a_failure_that_lasts_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though each try, one a second, fails with a temporary file of another name."""
    fixture = Fixture(tmp_path)
    fixture.add(b"x")
    fixture.disk.break_steps()
    fixture.queue().add(b"refused")
    assert fixture.collection.commits.commit()
    failure = str(fixture.queue().core.failure)
    for _ in range(3):
        fixture.clock.advance(1)
        fixture.collection.tick()
    assert caplog.messages == [failure] == [str(fixture.queue().core.failure)]
    fixture.disk.mend()
    fixture.clock.advance(1)
    fixture.collection.tick()
    assert fixture.queue().core.failure is None
    fixture.close()


def test_what_a_crash_left_of_a_queue_that_never_was_goes(tmp_path: Path) -> None:
    """A temporary of a queue that has no other file."""
    (tmp_path / "queues").mkdir()
    file = tmp_path / "queues" / "jobs~~next-12"
    file.write_bytes(b"")
    fixture = Fixture(tmp_path)
    fixture.close()
    assert not file.exists()
