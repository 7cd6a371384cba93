"""Queues that are still loading while others serve: what may be done meanwhile."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kestrelmq.config import AliasConfig, QueueConfig, ServerConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.names import QueueFiles
from kestrelmq.format.records import REMOVE_RECORD, item, item_data
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.queues.startup import StartUp
from kestrelmq.scheduling.worker import Done, Job, run_to_end
from tests.support.crashing_directory import CrashingDirectory
from tests.support.descriptors import open_below
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker, LateWorker

pytestmark = pytest.mark.compiled

CLOCK = FakeClock()
NOW = CLOCK.now()
LONG = [bytes(1000 + number % 7) for number in range(1000)]
"""Items of a journal that is read in several pieces; the same size each would be one piece."""


class Starting:
    """A collection whose queues are loaded one at a time, when the test says so."""

    def __init__(self, config: ServerConfig) -> None:
        self.worker = HeldWorker()
        self.done = 0
        self.collection = QueueCollection(config, CLOCK)
        self.start_up = StartUp(self.collection, self.worker, CLOCK, self._count, at_once=1)
        self.start_up.begin()

    def _count(self) -> None:
        self.done += 1

    def finish(self) -> None:
        """Load what is left."""
        while self.worker.step():
            pass

    def items(self, name: str) -> list[bytes]:
        """Return what waits in a queue."""
        return [item_data(record) for record in self.collection.queues[name].backlog.browse(100)]


def put(path: Path, name: str, *items: bytes, expiry: int = 0) -> None:
    """Write the journal of a queue."""
    (path / name).write_bytes(b"".join(item(NOW, expiry, one) for one in items))


def contents(path: Path) -> dict[str, bytes]:
    """Return the journals there are."""
    return {file.name: file.read_bytes() for file in path.iterdir() if "~~" not in file.name}


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Starting]:
    """Return a collection of a short queue, which is loaded, a fanout and a long queue."""
    put(tmp_path, "short", b"1")
    put(tmp_path, "orders", b"2" * 50)
    put(tmp_path, "orders+audit", b"3" * 50)
    put(tmp_path, "long", b"4" * 1000)
    config = ServerConfig(
        queue_path=tmp_path,
        aliases={"both": AliasConfig(destination_queues=["short", "long"])},
        queues={"short": QueueConfig(expire_to_queue="orders")},
    )
    starting = Starting(config)
    assert starting.worker.step()
    yield starting
    starting.start_up.stop()
    starting.collection.close()


def test_short_queues_come_first(starting: Starting) -> None:
    """The least family is loaded first, children before their master; then all is done."""
    assert list(starting.collection.queues) == ["short"]
    assert "short" not in starting.collection.loading
    assert "long" in starting.collection.loading
    starting.finish()
    assert list(starting.collection.queues) == ["short", "orders+audit", "orders", "long"]
    assert starting.collection.queues["orders"].children == (
        starting.collection.queues["orders+audit"],
    )
    assert (len(starting.collection.loading), starting.done) == (0, 1)


def test_a_queue_that_loads_is_not_made_anew(starting: Starting) -> None:
    """Adds, reads, flushes and deletes of it are refused; it loads as it was."""
    collection = starting.collection
    for refused in (
        lambda: collection.add("long", b"new"),
        lambda: collection.obtain("long"),
        lambda: collection.flush("long"),
        lambda: run_to_end(collection.expiring("long")),
        lambda: collection.delete("long"),
    ):
        with pytest.raises(QueueUnavailable, match=r"^queue long is still loading$"):
            refused()
    assert collection.add("other", b"new")
    starting.finish()
    assert starting.items("long") == [b"4" * 1000]


def test_flush_all_says_that_not_all_were_flushed(starting: Starting) -> None:
    """Queues that are up are flushed, and those that load are an error."""
    with pytest.raises(QueueUnavailable, match="is still loading"):
        run_to_end(starting.collection.flushing())
    assert starting.items("short") == []
    starting.finish()
    assert starting.items("long") == [b"4" * 1000]
    run_to_end(starting.collection.flushing())
    assert starting.items("long") == []


def test_a_master_waits_for_its_children(starting: Starting) -> None:
    """What is added to a master reaches every child or is refused, however much is loaded."""
    for _ in range(2):
        with pytest.raises(QueueUnavailable, match="queue orders is still loading"):
            starting.collection.add("orders", b"new")
        starting.worker.step()
    assert starting.collection.add("orders", b"new")
    assert starting.items("orders") == [b"2" * 50, b"new"]
    assert starting.items("orders+audit") == [b"3" * 50, b"new"]


def test_a_master_without_a_journal_waits_for_its_children(tmp_path: Path) -> None:
    """A master that would come into being with an add does not while a child loads."""
    put(tmp_path, "orders+audit", b"1")
    starting = Starting(ServerConfig(queue_path=tmp_path))
    with pytest.raises(QueueUnavailable, match="queue orders is still loading"):
        starting.collection.add("orders", b"new")
    starting.finish()
    assert list(starting.collection.queues) == ["orders+audit"]
    assert starting.collection.add("orders", b"new")
    assert starting.items("orders+audit") == [b"1", b"new"]
    starting.collection.close()


def test_an_alias_adds_everywhere_or_nowhere(starting: Starting) -> None:
    """While a destination loads, no other gets the item."""
    with pytest.raises(QueueUnavailable, match="queue long is still loading"):
        starting.collection.add("both", b"new")
    assert starting.items("short") == [b"1"]
    starting.finish()
    assert starting.collection.add("both", b"new")
    assert starting.items("short") == [b"1", b"new"]
    assert starting.items("long") == [b"4" * 1000, b"new"]


def test_expired_items_wait_for_where_they_go(tmp_path: Path) -> None:
    """An item whose `expire_to_queue` loads, or a fanout of that, waits, out of the way."""
    put(tmp_path, "work", b"old", expiry=NOW - 1)
    put(tmp_path, "late", b"1" * 50)
    put(tmp_path, "late+audit", b"2" * 50)
    queues = {"work": QueueConfig(expire_to_queue="late")}
    starting = Starting(ServerConfig(queue_path=tmp_path, queues=queues))
    for _ in range(2):
        starting.worker.step()
        starting.collection.sweep()
        assert starting.collection.queues["work"].line.remove() is None
        assert starting.collection.queues["work"].reads.items_aside == 1
    starting.finish()
    starting.collection.sweep()
    assert starting.items("work") == []
    assert starting.items("late") == [b"1" * 50, b"old"]
    assert starting.items("late+audit") == [b"2" * 50, b"old"]
    starting.collection.close()


def test_reload_reaches_queues_that_load(starting: Starting) -> None:
    """A queue that was loaded under old settings comes up with the new ones, but in its dialect."""
    config = starting.collection.config
    changed = config.model_copy(
        update={"default": QueueConfig(max_items=1, journal_dialect="kestrel-2")}
    )
    found = starting.collection.load(QueueFiles("long", has_current=True))
    starting.collection.reload(changed)
    starting.collection.add_loaded("long", found)
    assert not starting.collection.add("long", b"one too many")
    queue = starting.collection.queues["long"]
    assert queue.reads.dialect == queue.config.journal_dialect == "documented"


def test_a_queue_that_is_there_and_masked_is_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Once at the start and once at each reload, whether it is configured, late, up or damaged."""
    for name in ("both", "up", "late+child"):
        put(tmp_path, name, b"x")
    (tmp_path / "damaged").write_bytes(b"\xff" * 9)
    alias = AliasConfig(destination_queues=["target"])
    aliased = ServerConfig(
        queue_path=tmp_path,
        aliases=dict.fromkeys(("both", "up", "late", "damaged", "nothing"), alias),
        queues={"both": QueueConfig()},
    )
    warned = [f"aliases.{name} masks the queue of that name" for name in ("both", "up", "damaged")]
    collection = QueueCollection(aliased, CLOCK)
    queues = collection.take_path()
    assert caplog.messages == warned
    caplog.clear()
    collection.reload(aliased)
    assert caplog.messages == warned
    for queue_files in queues:
        collection.add_loaded(queue_files.queue, collection.load(queue_files))
    collection.reload(ServerConfig(queue_path=tmp_path))
    caplog.clear()
    collection.reload(aliased)
    assert caplog.messages == warned
    collection.close()


def test_a_queue_that_cannot_be_loaded_is_damaged(starting: Starting, tmp_path: Path) -> None:
    """It is treated as one that was found damaged before anybody was served."""
    damaged = (tmp_path / "long").read_bytes() + b"\xff"
    (tmp_path / "long").write_bytes(damaged)
    starting.finish()
    with pytest.raises(QueueUnavailable, match=r"cannot be loaded: .*damaged at byte 1021"):
        starting.collection.add("long", b"new")
    assert list(starting.collection.damaged) == ["long"]
    assert (tmp_path / "long").read_bytes() == damaged
    assert starting.done == 1


def test_an_error_nobody_foresaw_is_damage(
    starting: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One queue that fails for whatever reason does not keep the others from being loaded."""

    def fail(*_: object) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(starting.collection, "load", fail)
        starting.worker.step()
    starting.finish()
    assert str(starting.collection.damaged["orders+audit"]) == (
        "queue orders+audit cannot be loaded: MemoryError('no room')"
    )
    assert sorted(starting.collection.queues) == ["long", "orders", "short"]


def test_a_stop_leaves_every_journal_as_it_was(starting: Starting, tmp_path: Path) -> None:
    """Loading that was stopped has changed nothing, and nothing more is let in."""
    before = contents(tmp_path)
    starting.start_up.stop()
    starting.collection.close()
    assert list(starting.collection.queues) == ["short"]
    assert contents(tmp_path) == before
    again = QueueCollection(starting.collection.config, CLOCK)
    again.open()
    assert (sorted(again.queues), again.damaged) == (
        ["long", "orders", "orders+audit", "short"],
        {},
    )
    again.close()


def test_a_queue_path_without_queues_is_ready_at_once(tmp_path: Path) -> None:
    """There is nothing to wait for."""
    starting = Starting(ServerConfig(queue_path=tmp_path))
    assert starting.done == 1
    starting.collection.close()


class SlowClock(FakeClock):
    """A clock by which a millisecond passes between two looks."""

    def monotonic(self) -> float:
        """Return a later time than before."""
        self.advance(0.001)
        return super().monotonic()


class PausedWorker(HeldWorker):
    """Counts the pauses of its jobs."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0

    def run(self, job: Job, done: Done) -> None:
        """Keep `job` for later."""
        super().run(lambda _pause: job(self._pause), done)

    def _pause(self) -> None:
        self.pauses += 1


@pytest.mark.parametrize(
    ("gently", "busy", "pauses"),
    [(False, True, False), (True, False, False), (True, True, True)],
)
def test_loading_pauses_while_clients_are_served(
    tmp_path: Path, *, gently: bool, busy: bool, pauses: bool
) -> None:
    """Only then: otherwise everybody waits for it, or nobody does."""
    put(tmp_path, "jobs", *[bytes(1000)] * 1000)
    collection, worker, clock = (
        QueueCollection(ServerConfig(queue_path=tmp_path), CLOCK),
        PausedWorker(),
        SlowClock(),
    )
    events = itertools.count() if busy else itertools.repeat(1)
    start_up = StartUp(collection, worker, clock, lambda: None, events=lambda: next(events))
    start_up.begin()
    start_up.gently = gently
    assert worker.step()
    assert (worker.pauses > 0) == pauses
    assert len(collection.queues["jobs"]) == 1000
    collection.close()


def test_a_stop_does_not_wait_for_a_long_journal(tmp_path: Path) -> None:
    """The rest of it is not read, and it is not let in."""
    put(tmp_path, "jobs", *LONG)
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), CLOCK)
    events = itertools.count()

    class Stopping(PausedWorker):
        def _pause(self) -> None:
            super()._pause()
            start_up.stop()

    worker = Stopping()
    start_up = StartUp(collection, worker, SlowClock(), lambda: None, events=lambda: next(events))
    start_up.begin()
    start_up.gently = True
    assert worker.step()
    assert (worker.pauses, len(worker)) == (1, 0)
    assert (collection.queues, list(collection.loading)) == ({}, ["jobs"])
    collection.close()


def test_many_short_queues_are_let_in_some_at_a_time(tmp_path: Path) -> None:
    """Each time, those that are served wait only for a few."""
    for number in range(120):
        put(tmp_path, f"jobs{number}", b"x")
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), CLOCK)
    counts: list[int] = []

    class Counting(HeldWorker):
        def tell(self, call: Callable[[], None]) -> None:
            super().tell(call)
            counts.append(len(collection.queues))

    worker = Counting()
    StartUp(collection, worker, CLOCK, lambda: None).begin()
    assert worker.step()
    assert counts == [50, 100, 120]
    collection.close()


def test_a_loaded_queue_does_not_wait_for_a_long_one(tmp_path: Path) -> None:
    """It is let in while that is still being read."""
    put(tmp_path, "short", b"x")
    put(tmp_path, "long", *LONG)
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), CLOCK)
    queues: list[list[str]] = []

    class Listing(HeldWorker):
        def tell(self, call: Callable[[], None]) -> None:
            super().tell(call)
            queues.append(list(collection.queues))

    worker = Listing()
    start_up = StartUp(collection, worker, SlowClock(), lambda: None)
    start_up.begin()
    start_up.gently = True
    assert worker.step()
    assert queues == [["short"], ["short", "long"]]
    collection.close()


def test_queues_are_loaded_without_a_thread(tmp_path: Path) -> None:
    """The loop loads them, one at a time, until there is a thread for the others."""
    for name in ("a", "b", "c", "d"):
        put(tmp_path, name, b"x")
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), CLOCK)
    usable: list[list[str]] = []

    class Full(HeldWorker):
        def run(self, job: Job, done: Done) -> None:
            usable.append(sorted(collection.queues))
            if len(usable) > 2:
                super().run(job, done)
                return
            super().run(lambda _pause: None, lambda _error: done(OSError("no thread")))

    worker = Full()
    done: list[None] = []
    StartUp(collection, worker, CLOCK, lambda: done.append(None)).begin()
    while worker.step():
        pass
    assert usable == [[], ["a"], ["a", "b"]]
    assert not collection.damaged
    assert (sorted(collection.queues), len(done)) == (["a", "b", "c", "d"], 1)
    collection.close()


def test_a_queue_that_was_loaded_when_the_server_stops_is_closed(tmp_path: Path) -> None:
    """Its journal, part of which was being read back, too; whatever became of the others."""
    long = [item(NOW, 0, b"%d" % number) for number in range(9)]
    (tmp_path / "long").write_bytes(b"".join(long) + REMOVE_RECORD * 3)
    (tmp_path / "damaged").write_bytes(b"\xff" * 9)
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(max_memory_size=2))
    collection, worker = QueueCollection(config, CLOCK), LateWorker()
    start_up = StartUp(collection, worker, CLOCK, lambda: None)
    start_up.begin()
    assert "long" in open_below(tmp_path)
    start_up.stop()
    while worker.step():
        pass
    assert "long" not in open_below(tmp_path)
    collection.close()
    assert (collection.queues, collection.damaged) == ({}, {})


def test_a_journal_that_cannot_be_opened_keeps_no_file_open(tmp_path: Path) -> None:
    """Neither the one that was being read back."""
    directory = CrashingDirectory.within(tmp_path)
    records = [item(NOW, 0, b"%d" % number) for number in range(9)]
    (directory.path / "long").write_bytes(b"".join(records) + REMOVE_RECORD * 3)
    config = ServerConfig(default=QueueConfig(max_memory_size=2))
    collection = QueueCollection(config, CLOCK, directory)
    (files,) = collection.take_path()
    directory.fail = lambda point: point == "open long"
    collection.add_loaded("long", collection.load(files))
    assert "No space" in str(collection.damaged["long"])
    assert "long" not in open_below(directory.path)
    collection.close()


def test_a_queue_that_cannot_be_let_in_is_damaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the reason is; the others are let in, and the loading ends."""
    directory = CrashingDirectory.within(tmp_path)
    for name in ("a", "b", "c"):
        put(directory.path, name, b"x")

    def fail(point: str) -> bool:
        if point == "open b":
            raise ValueError("a bug")
        return False

    directory.fail = fail
    collection, worker = QueueCollection(ServerConfig(), CLOCK, directory), HeldWorker()
    done: list[None] = []
    StartUp(collection, worker, CLOCK, lambda: done.append(None)).begin()
    while worker.step():
        pass
    assert sorted(collection.queues) == ["a", "c"]
    assert str(collection.damaged["b"]) == "queue b cannot be loaded: ValueError('a bug')"
    assert caplog.messages[0] == "queue b cannot be loaded"
    assert len(done) == 1
    collection.close()
