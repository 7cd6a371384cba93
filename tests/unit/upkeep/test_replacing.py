"""A journal that is written anew while its queue is used, and what goes wrong meanwhile."""

from pathlib import Path

import pytest

from kestrelmq.errors import JournalError
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker, LateWorker
from tests.support.local_queues import LocalQueues, items_on_disk, queue_settings

pytestmark = pytest.mark.compiled


class Spool(LocalQueues):
    """A queue `jobs` on a disk that fails when the test wants it.

    Attributes:
        disk: where it is.
        held: what works on its journal.
    """

    def __init__(self, path: Path, worker: HeldWorker, **settings: object) -> None:
        self.disk = CrashingDirectory.within(path)
        self.held = worker
        super().__init__(
            queue_settings(self.disk.path, min_journal_compact_delay=0, **settings),
            self.disk,
            worker=worker,
        )

    def fail_to_sync(self) -> None:
        """Let a sync fail, so that the journal has to be written anew."""
        self.disk.break_steps("sync jobs")
        with pytest.raises(OSError, match="sync jobs"):
            self.queue().sync()
        self.disk.mend()

    def finish(self) -> None:
        """Let time pass, and the worker end what it has to do."""
        for _ in range(3):
            while self.held.step():
                self.commit()
            self.clock.advance(100)
            self.collection.tick()

    def journals(self) -> dict[str, int]:
        """Return the sizes of the journal's files."""
        return {
            file.name: file.stat().st_size
            for file in self.disk.path.iterdir()
            if file.name != "~~lock"
        }


def test_a_sync_in_the_worker_that_fails_is_no_reason_to_stop(tmp_path: Path) -> None:
    """The queue goes on in the file that it has, and all of it is written anew in a while."""
    spool = Spool(tmp_path, HeldWorker(), max_memory_size=100_000)
    items = [b"%d" % number * 50_000 for number in range(8)]
    spool.add(*items)
    assert len(spool.held) == 1
    spool.disk.break_steps("sync jobs")
    assert spool.held.step()
    spool.disk.mend()
    spool.add(b"more")
    assert spool.journals().keys() == {"jobs"}
    spool.finish()
    spool.queue().sync()
    assert len(spool.journals()) > 1
    assert spool.queue().journal.size == sum(spool.journals().values())
    assert spool.drain() == [*items, b"more"]
    spool.close()


def test_a_sync_that_was_given_up_disturbs_nothing_that_came_later(tmp_path: Path) -> None:
    """A deletion gave it up, and failed; its end must not be taken for that of a rewrite."""
    spool = Spool(tmp_path, HeldWorker(), max_memory_size=100_000)
    items = [b"%d" % number * 50_000 for number in range(8)]
    spool.add(*items)
    spool.disk.break_steps("rename")
    with pytest.raises(JournalError):
        spool.collection.delete("jobs")
    spool.fail_to_sync()
    spool.collection.tick()
    assert len(spool.held) == 2
    spool.finish()
    assert spool.queue().journal.rewrites == 1
    assert spool.queue().journal.size == sum(spool.journals().values())
    assert not [name for name in spool.journals() if name.endswith(".pack")]
    spool.close()
    assert items_on_disk(spool.disk.path) == items


def test_a_long_file_that_cannot_be_followed_by_another_is_rotated_later(tmp_path: Path) -> None:
    """A second later, and not before: whoever keeps the time is told to come back."""
    spool = Spool(tmp_path, HeldWorker(), max_memory_size=1000)
    spool.disk.break_steps("open jobs~~next")
    spool.add(b"x" * 990)
    spool.disk.mend()
    assert spool.queue().has_background_work
    spool.collection.tick()
    assert spool.journals().keys() == {"jobs"}
    spool.clock.advance(1)
    spool.collection.tick()
    assert len(spool.journals()) == 2
    spool.close()
    assert items_on_disk(spool.disk.path) == [b"x" * 990]


def test_a_journal_that_cannot_go_on_in_a_new_file_is_written_anew_later(tmp_path: Path) -> None:
    """Until then no sync succeeds."""
    spool = Spool(tmp_path, HeldWorker())
    spool.add(b"x")
    spool.fail_to_sync()
    spool.disk.break_steps("open jobs~~next")
    spool.collection.tick()
    spool.disk.mend()
    assert (len(spool.held), spool.queue().journal.rewrites) == (0, 0)
    with pytest.raises(OSError, match="earlier sync failed"):
        spool.queue().sync()
    spool.finish()
    spool.queue().sync()
    assert spool.queue().journal.rewrites == 1
    spool.close()
    assert items_on_disk(spool.disk.path) == [b"x"]


def test_a_new_file_that_cannot_be_read_is_not_read_from(tmp_path: Path) -> None:
    """The queue goes on with the old ones, which stay until the new one can be read."""
    spool = Spool(tmp_path, LateWorker(), max_memory_size=1)
    spool.add(b"0", b"1", b"2")
    spool.finish()
    spool.fail_to_sync()
    spool.collection.tick()
    (pack,) = spool.disk.path.glob("*.pack")
    pack.rename(tmp_path / "away")
    assert spool.held.step()
    before = spool.journals()
    assert spool.take() == b"0"
    assert spool.take() == b"1"
    assert before.keys() <= spool.journals().keys()
    (tmp_path / "away").rename(pack)
    spool.finish()
    assert not [name for name in spool.journals() if name.endswith(".pack")]
    assert spool.queue().journal.size == sum(spool.journals().values())
    spool.close()
    assert items_on_disk(spool.disk.path) == [b"2"]


def test_what_comes_after_the_new_file_is_read_in_its_turn(tmp_path: Path) -> None:
    """Though all that the new file has was read back from the old ones meanwhile."""
    spool = Spool(tmp_path, LateWorker(), max_memory_size=1)
    spool.add(b"0", b"1", b"2")
    spool.finish()
    spool.fail_to_sync()
    spool.collection.tick()
    spool.add(b"3", b"4")
    assert [spool.take() for _ in range(3)] == [b"0", b"1", b"2"]
    assert spool.held.step()
    spool.finish()
    assert spool.drain() == [b"3", b"4"]
    spool.close()
    assert items_on_disk(spool.disk.path) == []
