"""Delayed items: durable at once, in the queue when they are due."""

import random
from pathlib import Path

import pytest

from kestrelmq.clock import SystemClock
from kestrelmq.config import ServerConfig
from kestrelmq.disk.directories import Directory, DiskDirectory
from kestrelmq.format.records import Item, item_add_time, item_data, item_expiry
from kestrelmq.journal.open_read import ReserveTerms
from kestrelmq.journal.packing import pack
from kestrelmq.journal.writer import Dialect
from kestrelmq.queue.adding import JOINED_AT_ONCE
from kestrelmq.queue.queue import Queue
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.scheduling.worker import LARGE_ITEM
from kestrelmq.tools.export_rows import from_json, to_json
from kestrelmq.tools.import_export import import_rows, rows
from kestrelmq.tools.journal_files import select
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.open_reads import data_by_xid

pytestmark = pytest.mark.compiled

SECOND = 1000
YEAR = 365 * 24 * 60 * 60 * SECOND


class Spool(LocalQueues):
    """Queues whose items can be delayed."""

    def __init__(
        self,
        path: Path,
        directory: Directory | None = None,
        worker: HeldWorker | None = None,
        **settings: object,
    ) -> None:
        self.path = path
        super().__init__(queue_settings(path, **settings), directory, worker=worker)

    def delay(self, data: bytes, seconds: float, name: str = "jobs", *, expires: float = 0) -> bool:
        """Add an item that is due, and expires, so many seconds from now; and commit."""
        now = self.clock.now()
        expiry = now + round(expires * SECOND) if expires else 0
        added = self.collection.add(name, data, expiry, due=now + round(seconds * SECOND))
        self.commit()
        return added

    def files(self) -> set[str]:
        """Return the names of the files."""
        return {file.name for file in self.path.iterdir()}


def breakable(path: Path) -> CrashingDirectory:
    """Return a queue path in `path` that can be made to fail."""
    for name in ("queues", "links"):
        (path / name).mkdir()
    return CrashingDirectory(path / "queues", path / "links")


def rewrite(queue: Queue) -> None:
    """Rewrite the journal of a queue now."""
    queue.core.write_now()
    assert queue._upkeep is not None
    queue._upkeep._rewrite()


def test_an_item_joins_when_it_is_due(tmp_path: Path) -> None:
    """Not earlier, and then behind those that wait; its add time is when it was due."""
    spool = Spool(tmp_path)
    assert spool.delay(b"later", 5)
    spool.add(b"first", b"second")
    due = spool.clock.now() + 5 * SECOND
    spool.advance(4.9)
    assert spool.items() == [b"first", b"second"]
    assert spool.queue().delayed == 1
    spool.advance(0.2)
    assert spool.items() == [b"first", b"second", b"later"]
    assert spool.queue().delayed == 0
    assert item_add_time(spool.queue().backlog.browse(3)[2]) == due
    spool.close()


@pytest.mark.parametrize("delay", [5, 3600])
def test_it_is_looked_at_when_it_is_due(tmp_path: Path, delay: float) -> None:
    """Not before, however long that is: there may be a hundred thousand queues that have one."""
    spool = Spool(tmp_path)
    spool.delay(b"later", delay)
    spool.advance(0.5)
    assert spool.queue().next_deadline == spool.clock.monotonic() + delay - 0.5
    spool.close()


def test_all_items_in_memory_are_counted(tmp_path: Path) -> None:
    """With many of them, no collection looks at all objects."""
    spool = Spool(tmp_path, retry_delay=60)
    spool.add(b"waits", b"open", b"retried")
    xids = [spool.open_read() for _ in range(2)]
    spool.queue().returns.give_back([xids[0]])
    spool.delay(b"late", 5)
    assert spool.queue().held_items == 4
    spool.close()


def test_items_join_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    """Those that are due at the same time in the order in which they came."""
    spool = Spool(tmp_path)
    for data, seconds in ((b"c", 3), (b"a", 1), (b"d", 3), (b"b", 2), (b"e", 3)):
        spool.delay(data, seconds)
    spool.advance(5)
    assert spool.drain() == [b"a", b"b", b"c", b"d", b"e"]
    spool.close()


def test_a_long_delay_holds_up_no_short_one(tmp_path: Path) -> None:
    """There is no upper limit."""
    spool = Spool(tmp_path)
    spool.delay(b"far", 1000 * YEAR / SECOND)
    spool.delay(b"near", 1)
    spool.advance(1)
    assert spool.drain() == [b"near"]
    spool.kill()
    assert spool.queue().delayed == 1
    spool.close()


@pytest.mark.parametrize("times", [1, 2])
def test_a_due_time_survives_a_restart(tmp_path: Path, times: int) -> None:
    """And a kill; what was due meanwhile joins in order."""
    spool = Spool(tmp_path)
    for data, seconds in ((b"b", 5), (b"a", 3), (b"far", 100)):
        spool.delay(data, seconds)
    for _ in range(times):
        spool.kill()
        assert spool.queue().delayed == 3
    spool.restart()
    spool.advance(2)
    assert spool.items() == []
    spool.advance(4)
    assert spool.drain() == [b"a", b"b"]
    assert spool.queue().delayed == 1
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_an_item_that_joined_does_not_come_twice(
    tmp_path: Path, dialect: str, *, rewritten: bool
) -> None:
    """Also after a crash, whoever read it since."""
    spool = Spool(tmp_path, journal_dialect=dialect)
    spool.delay(b"a", 1)
    spool.delay(b"b", 1)
    spool.delay(b"later", 100)
    spool.advance(1)
    assert spool.take() == b"a"
    if rewritten:
        rewrite(spool.queue())
    for _ in range(2):
        spool.kill()
        assert spool.items() == [b"b"]
        assert spool.queue().delayed == 1
    spool.close()


def test_waiting_readers_get_what_is_due(tmp_path: Path) -> None:
    """In the order in which they wait."""
    spool = Spool(tmp_path)
    served: list[Item | None] = []
    queue = spool.queue()
    for _ in range(2):
        queue.waiters.add(Waiter(ReadMode.REMOVE, lambda record, _: served.append(record), print))
    for data in (b"a", b"b", b"c"):
        spool.delay(data, 1)
    spool.advance(1)
    assert [item_data(record or b"") for record in served] == [b"a", b"b"]
    assert spool.items() == [b"c"]
    spool.close()


def test_very_many_are_due_at_once(tmp_path: Path) -> None:
    """They join a few at a time, so that others are served in between."""
    spool = Spool(tmp_path)
    now = spool.clock.now()
    for number in range(2000):
        assert spool.queue().add(b"%d" % number, due=now + SECOND)
    spool.commit()
    spool.clock.advance(1)
    work = spool.collection.checking_deadlines()
    next(work)
    assert 0 < len(spool.queue()) < 1000
    spool.collection.check_deadlines()
    assert spool.items() == [b"%d" % number for number in range(2000)]
    assert not spool.collection.commits.needs_timer
    spool.close()


def test_expiry_and_max_age_count_from_the_due_time(tmp_path: Path) -> None:
    """An item does not expire before."""
    spool = Spool(tmp_path, max_age=10)
    spool.delay(b"a", 100)
    spool.delay(b"b", 100, expires=105)
    spool.advance(101)
    assert spool.items() == [b"a", b"b"]
    first, second = spool.queue().backlog.browse(2)
    assert item_expiry(first) == item_add_time(first) + 10 * SECOND
    assert item_expiry(second) == item_add_time(second) + 5 * SECOND
    spool.advance(10)
    assert spool.take() is None
    spool.close()


def test_delayed_items_count_towards_the_limits(tmp_path: Path) -> None:
    """Theirs and those of other items; when one is due, it is let in."""
    spool = Spool(tmp_path, max_items=2)
    spool.add(b"a")
    assert spool.delay(b"b", 1)
    assert not spool.delay(b"c", 1)
    assert not spool.collection.add("jobs", b"d")
    spool.advance(1)
    assert spool.items() == [b"a", b"b"]
    spool.close()


def test_delayed_bytes_count_towards_max_size(tmp_path: Path) -> None:
    """Also over a restart."""
    spool = Spool(tmp_path, max_size=100)
    assert spool.delay(bytes(100), 1)
    for _ in range(2):
        assert not spool.delay(b"c", 1)
        assert not spool.collection.add("jobs", b"d")
        spool.restart()
    spool.close()


def test_an_item_may_be_too_large(tmp_path: Path) -> None:
    """Delayed or not."""
    spool = Spool(tmp_path, max_item_size=10)
    assert not spool.delay(bytes(11), 1)
    assert spool.delay(bytes(10), 1)
    spool.close()


def test_old_items_make_room_and_then_those_that_are_due_first(tmp_path: Path) -> None:
    """With `discard_old_when_full`; whatever is added, also over a restart."""
    spool = Spool(tmp_path, max_items=2, discard_old_when_full=True)
    spool.add(b"a", b"b")
    assert spool.delay(b"c", 2)
    assert spool.items() == [b"b"]
    assert spool.delay(b"d", 1)
    assert spool.items() == []
    assert spool.delay(b"e", 3)
    spool.add(b"f")
    assert spool.queue().adding.discarded == 4
    for _ in range(2):
        assert (spool.items(), spool.queue().delayed) == ([b"f"], 1)
        spool.restart()
    spool.advance(3)
    assert spool.drain() == [b"f", b"e"]
    spool.close()


def test_a_delayed_item_that_cannot_be_dropped_stays(tmp_path: Path) -> None:
    """Then the item that it was to make room for is not added."""
    directory = breakable(tmp_path)
    spool = Spool(tmp_path, directory, max_items=1, discard_old_when_full=True)
    assert spool.delay(b"a", 1)
    directory.break_steps("append")
    spool.collection.add("jobs", b"b")
    assert spool.collection.commits.commit()
    directory.mend()
    spool.advance(1)
    assert spool.drain() == [b"a"]
    spool.close()


def test_they_take_no_more_memory_than_waiting_items(tmp_path: Path) -> None:
    """Beyond `max_memory_size`, which one item may exceed, they are refused."""
    spool = Spool(tmp_path, max_memory_size=1000)
    assert spool.delay(bytes(2000), 1)
    assert not spool.delay(b"", 1)
    spool.advance(1)
    spool.advance(1)
    assert spool.delay(b"", 1)
    spool.close()


LARGE = b"x" * LARGE_ITEM


def test_a_large_item_that_expires_joins_and_expires(tmp_path: Path) -> None:
    """As any other; a reader that waits gets what comes in time."""
    spool = Spool(tmp_path)
    spool.delay(LARGE, 1, expires=2)
    spool.advance(1)
    assert len(spool.queue()) == 1
    spool.advance(2)
    assert spool.queue().line.peek() is None
    got: list[Item | None] = []
    spool.queue().waiters.add(Waiter(ReadMode.REMOVE, lambda one, _: got.append(one), _unexpected))
    spool.delay(LARGE, 1)
    spool.advance(1)
    assert [item_data(one) for one in got if one is not None] == [LARGE]
    spool.close()


def _unexpected(error: Exception) -> None:
    raise AssertionError(error)


def test_a_large_item_that_cannot_be_written_is_tried_again(tmp_path: Path) -> None:
    """A second later, as any other."""
    directory = breakable(tmp_path)
    spool = Spool(tmp_path / "queues", directory)
    spool.delay(LARGE, 1)
    directory.break_steps("append")
    spool.clock.advance(1)
    spool.collection.check_deadlines()
    assert spool.collection.commits.commit()
    assert (spool.items(), spool.queue().delayed_items) == ([], 1)
    assert spool.queue().core.failure is not None
    directory.mend()
    spool.advance(2)
    assert (spool.items(), spool.queue().delayed_items) == ([LARGE], 0)
    spool.close()


def test_a_large_item_joins_without_a_journal(tmp_path: Path) -> None:
    """As any other."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.delay(LARGE, 1)
    spool.delay(LARGE, 2)
    spool.advance(1)
    spool.advance(2)
    assert spool.queue().core.failure is None
    assert spool.items() == [LARGE, LARGE]
    spool.close()


def test_an_item_joins_behind_those_on_disk(tmp_path: Path) -> None:
    """The queue reads behind."""
    spool = Spool(tmp_path, max_memory_size=200)
    assert spool.delay(b"x" * 50, 1)
    spool.add(*(b"%03d" % number * 30 for number in range(10)))
    assert spool.queue().backlog.read_behind
    spool.advance(1)
    spool.add(b"last")
    spool.kill()
    *_, late, last = spool.drain()
    assert (late, last) == (b"x" * 50, b"last")
    assert not spool.queue().delayed
    spool.close()


def test_each_fanout_child_has_its_own(tmp_path: Path) -> None:
    """A master that only fans out keeps none."""
    config = queue_settings(tmp_path).model_copy(
        update={"queues": {"jobs": queue_settings(tmp_path, fanout_only=True).default}}
    )
    spool = Spool(tmp_path)
    spool.close()
    spool.config = ServerConfig.model_validate(config.model_dump(exclude_unset=True))
    spool.open()
    for child in ("jobs+a", "jobs+b"):
        spool.queue(child)
    assert spool.delay(b"x", 1)
    assert [spool.queue(name).delayed for name in ("jobs", "jobs+a", "jobs+b")] == [0, 1, 1]
    spool.advance(1)
    assert [spool.items(name) for name in ("jobs", "jobs+a", "jobs+b")] == [[], [b"x"], [b"x"]]
    spool.close()


def test_an_alias_delays_at_each_destination(tmp_path: Path) -> None:
    """And so do the queues behind it."""
    spool = Spool(tmp_path)
    spool.close()
    spool.config = ServerConfig.model_validate(
        {"queue_path": tmp_path, "aliases": {"all": {"destination_queues": ["one", "two"]}}}
    )
    spool.open()
    assert spool.delay(b"x", 1, "all")
    spool.advance(1)
    assert (spool.items("one"), spool.items("two")) == ([b"x"], [b"x"])
    spool.close()


def test_a_flush_drops_delayed_items(tmp_path: Path) -> None:
    """For good."""
    spool = Spool(tmp_path)
    spool.add(b"a")
    spool.delay(b"b", 1)
    spool.delay(b"c", 100)
    assert spool.queue().flush() == 3
    spool.commit()
    spool.delay(b"d", 1)
    spool.kill()
    spool.advance(200)
    assert spool.drain() == [b"d"]
    spool.close()


def test_a_deleted_queue_takes_its_delayed_items_along(tmp_path: Path) -> None:
    """None comes up in a new queue of that name."""
    spool = Spool(tmp_path)
    spool.delay(b"a", 1)
    spool.restart()
    assert spool.collection.delete("jobs")
    assert spool.files() == {"~~lock"}
    spool.add(b"new")
    spool.delay(b"late", 1)
    spool.kill()
    spool.advance(5)
    assert spool.drain() == [b"new", b"late"]
    spool.close()


def test_much_of_one_queue_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """Each gets a turn before the first gets another."""
    spool = Spool(tmp_path)
    others = [f"other{number}" for number in range(8)]
    for _ in range(3 * JOINED_AT_ONCE):
        spool.delay(b"x", 1)
    for name in others:
        assert spool.queue(name).add(b"y", due=spool.clock.now() + SECOND)
    spool.commit()
    spool.clock.advance(1)
    turns = spool.collection.checking_deadlines()
    while any(spool.queue(name).delayed for name in others):
        next(turns)
    assert spool.queue().delayed
    for _ in turns:
        pass
    assert not spool.queue().delayed
    spool.close()


def test_a_queue_deleted_after_items_joined_holds_up_no_other(tmp_path: Path) -> None:
    """What it had to do for those items is forgotten with it."""
    spool = Spool(tmp_path)
    spool.delay(b"a", 1)
    spool.delay(b"b", 1.5)
    spool.advance(1)
    spool.advance(0.5)
    assert spool.collection.delete("jobs")
    spool.delay(b"late", 1)
    spool.advance(5)
    assert not spool.queue().delayed
    assert spool.drain() == [b"late"]
    spool.close()


def test_a_queue_with_delayed_items_does_not_expire(tmp_path: Path) -> None:
    """With `max_queue_age`, it is not empty."""
    spool = Spool(tmp_path, max_queue_age=10)
    spool.delay(b"a", 100)
    spool.advance(50)
    spool.collection.sweep()
    assert "jobs" in spool.collection.queues
    spool.advance(50)
    assert spool.drain() == [b"a"]
    spool.collection.sweep()
    spool.advance(5)
    spool.collection.sweep()
    assert "jobs" not in spool.collection.queues
    spool.close()


def test_without_a_journal_they_are_in_memory(tmp_path: Path) -> None:
    """And gone with the process."""
    spool = Spool(tmp_path, keep_journal=False)
    spool.delay(b"a", 1)
    spool.advance(1)
    assert spool.drain() == [b"a"]
    spool.delay(b"b", 1)
    assert spool.files() == {"~~lock"}
    spool.restart()
    spool.advance(5)
    assert spool.drain() == []
    spool.close()


def test_a_failed_write_adds_nothing(tmp_path: Path) -> None:
    """The add is an error; one that is tried again is there once."""
    directory = breakable(tmp_path)
    spool = Spool(directory.path, directory)
    spool.delay(b"a", 1)
    directory.fail = lambda point: point.startswith("append")
    now = spool.clock.now()
    assert spool.collection.add("jobs", b"b", due=now + SECOND)
    failures = spool.collection.commits.commit()
    assert list(failures) == [spool.queue()]
    assert spool.queue().delayed == 1
    assert spool.queue().core.problem is not None
    directory.fail = lambda _point: False
    assert spool.delay(b"b", 1)
    spool.advance(1)
    assert spool.drain() == [b"a", b"b"]
    assert spool.queue().core.problem is None
    spool.close()


def test_a_bug_while_items_join_loses_none(tmp_path: Path) -> None:
    """They are delayed as before, and join a second later, once."""
    directory = breakable(tmp_path)
    spool = Spool(directory.path, directory)
    for data in (b"a", b"b"):
        spool.delay(data, 1)

    def show_bug(point: str) -> bool:
        if point == "append to jobs":
            raise ValueError("a bug")
        return False

    spool.clock.advance(1)
    directory.fail = show_bug
    with pytest.raises(ValueError, match="a bug"):
        spool.queue().check_deadlines()
    directory.mend()
    spool.advance(0.5)
    assert (len(spool.queue()), spool.queue().delayed) == (0, 2)
    spool.advance(0.5)
    assert spool.items() == [b"a", b"b"]
    spool.kill()
    assert spool.drain() == [b"a", b"b"]
    spool.close()


def test_an_item_that_cannot_join_is_tried_again(tmp_path: Path) -> None:
    """It is neither lost nor there twice."""
    directory = breakable(tmp_path)
    spool = Spool(directory.path, directory)
    for data in (b"a", b"b"):
        spool.delay(data, 1)
    directory.fail = lambda point: point.startswith("append")
    spool.clock.advance(1)
    spool.collection.check_deadlines()
    assert spool.collection.commits.commit()
    assert (len(spool.queue()), spool.queue().delayed) == (0, 2)
    directory.fail = lambda _point: False
    spool.advance(0.5)
    assert spool.queue().delayed == 2
    spool.advance(0.5)
    assert spool.items() == [b"a", b"b"]
    spool.kill()
    assert spool.drain() == [b"a", b"b"]
    spool.close()


@pytest.mark.parametrize("way", ["pack", "rewrite"])
def test_a_new_file_in_read_behind_has_the_delayed_items(tmp_path: Path, way: str) -> None:
    """Those that wait, and not the one that has joined and was read."""
    worker = HeldWorker()
    spool = Spool(tmp_path, worker=worker, max_memory_size=300, default_journal_size=10_000)
    spool.delay(b"late", 1)
    spool.delay(b"later", 100)
    spool.delay(b"last", 100)
    spool.advance(1)
    spool.add(*(b"%03d" % number + bytes(50) for number in range(40)))
    assert spool.take() == b"late"
    if way == "rewrite":
        rewrite(spool.queue())
    while not spool.queue().journal.rewrites:
        assert spool.take() is not None
        while worker.step():
            pass
    while worker.step():
        pass
    spool.kill()
    assert spool.queue().delayed == 2
    left = spool.drain()
    spool.advance(100)
    assert spool.drain() == [b"later", b"last"]
    assert b"late" not in left
    spool.close()


@pytest.mark.parametrize("cut", [1, 6, 40])
def test_a_torn_end_is_set_aside(tmp_path: Path, cut: int) -> None:
    """An item whose note is cut short was not stored; what follows is not mixed up with it."""
    spool = Spool(tmp_path)
    spool.delay(b"a", 1)
    spool.delay(b"b", 2)
    spool.close()
    file = tmp_path / "jobs"
    file.write_bytes(file.read_bytes()[:-cut])
    spool.open()
    assert spool.queue().delayed == 1
    spool.delay(b"c", 3)
    spool.kill()
    spool.advance(1)
    assert spool.items() == [b"a"]
    spool.kill()
    spool.advance(2)
    assert spool.drain() == [b"a", b"c"]
    spool.close()


@pytest.mark.parametrize("size", [(256 << 10) - 21, (256 << 10) - 20, 1 << 20])
@pytest.mark.parametrize("rewritten", [False, True])
def test_an_item_may_take_several_notes(tmp_path: Path, size: int, *, rewritten: bool) -> None:
    """It is whole again when it is loaded."""
    spool = Spool(tmp_path)
    data = random.Random(size).randbytes(size)
    spool.delay(data, 2)
    spool.delay(b"first", 1)
    if rewritten:
        rewrite(spool.queue())
    spool.kill()
    assert spool.queue().delayed == 2
    spool.advance(3)
    spool.kill()
    assert spool.drain() == [b"first", data]
    spool.close()


def test_the_journal_is_kept_small(tmp_path: Path) -> None:
    """What has joined and left is dead."""
    spool = Spool(
        tmp_path, default_journal_size=500, max_memory_size=2000, min_journal_compact_delay=0
    )
    for number in range(200):
        spool.delay(b"%d" % number, 1)
        spool.advance(1)
        assert spool.take() == b"%d" % number
    assert spool.queue().journal.size < 2000
    spool.restart()
    assert spool.queue().delayed == 0
    spool.close()


def test_the_clock_may_be_set(tmp_path: Path) -> None:
    """Due times are the clock's."""
    clock = FakeClock()
    spool = Spool(tmp_path)
    spool.clock = clock
    spool.restart()
    spool.delay(b"a", 3600)
    clock.step(3600 * SECOND)
    spool.collection.check_deadlines()
    assert spool.drain() == [b"a"]
    spool.close()


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
def test_tools_pack_delayed_items(tmp_path: Path, dialect: Dialect) -> None:
    """What has joined does not come twice, and what waits is due at its time."""
    spool = Spool(tmp_path)
    for data, seconds in ((b"a", 1), (b"b", 100), (b"c", 1)):
        spool.delay(data, seconds)
    spool.advance(1)
    assert spool.take() == b"a"
    spool.collection._lock.release()
    for selected in select([tmp_path]):
        pack(DiskDirectory(tmp_path), selected.all_files, dialect, SystemClock())
    spool.open()
    assert spool.items() == [b"c"]
    assert spool.queue().delayed == 1
    spool.delay(b"d", 1)
    spool.kill()
    spool.advance(100)
    assert spool.drain() == [b"c", b"d", b"b"]
    spool.close()


def test_a_new_file_says_what_is_delayed_and_what_is_reserved(tmp_path: Path) -> None:
    """Both are notes behind the open reads: the item comes once, and its read stays open."""
    spool = Spool(tmp_path)
    spool.delay(b"a", 1)
    spool.delay(b"b", 1)
    spool.delay(b"later", 100)
    spool.advance(1)
    reservation = spool.queue().reserved.reserve(ReserveTerms(10_000, tag="sink:7:0"), 5, 1, 1000)
    assert reservation is not None
    spool.commit()
    spool.collection._lock.release()
    for selected in select([tmp_path]):
        pack(DiskDirectory(tmp_path), selected.all_files, "documented", SystemClock())
    spool.open()
    queue = spool.queue()
    assert (spool.items(), queue.delayed) == ([b"b"], 1)
    reads = list(data_by_xid(queue.reads.open).items())
    assert reads == [(reservation.xids[0], b"a")]
    assert list(queue.reserved.with_tag("sink:7:0")) == list(reservation.xids)
    spool.close()


def test_delayed_items_can_be_exported_and_imported(tmp_path: Path) -> None:
    """With when they are due; those that joined are items like others."""
    spool = Spool(tmp_path / "one")
    for data, seconds in ((b"late", 100), (b"a", 1), (b"soon", 50)):
        spool.delay(data, seconds)
    spool.advance(1)
    spool.collection._lock.release()
    found = [row for selected in select([tmp_path / "one"]) for row in rows(selected)]
    assert [(row.queue, row.data, row.due > 0) for row in found] == [
        ("jobs", b"a", False),
        ("jobs", b"soon", True),
        ("jobs", b"late", True),
    ]
    found = [from_json(to_json(row), 0, 0) for row in found]
    (tmp_path / "two").mkdir()
    import_rows(DiskDirectory(tmp_path / "two"), found, SystemClock())
    import_rows(DiskDirectory(tmp_path / "two"), found, SystemClock(), append=True)
    other = Spool(tmp_path / "two")
    assert other.items() == [b"a", b"a"]
    other.clock.advance(1)
    other.advance(49)
    assert other.drain() == [b"a", b"a", b"soon", b"soon"]
    assert other.queue().delayed == 2
    other.close()
