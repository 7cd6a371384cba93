"""A crash at every step of everything that changes files, and what comes up afterwards.

A scenario is run again and again, and crashes one step later each time. After each crash the
queue is loaded from what is left, and compared with the states that the model went through.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.engine import upkeep
from kestrelmq.engine.collection import QueueCollection
from kestrelmq.engine.queue import Queue
from kestrelmq.journal.files import Directory, DiskDirectory
from kestrelmq.journal.records import item, item_data
from kestrelmq.testing.clock import FakeClock
from kestrelmq.testing.crashing import CrashingDirectory, Loss, SimulatedCrash

State = tuple[bytes, ...]


class Run:
    """A queue and its model, through one scenario.

    Attributes:
        states: what the model held after each commit, the one under way included.
        safe: index of the newest state that no loss of power may take back.
        committed: index of the newest state whose commit returned.
    """

    def __init__(self, directory: Directory, config: QueueConfig) -> None:
        self.clock = FakeClock()
        settings = ServerConfig(queue_path=directory.path, default=config)
        self.collection = QueueCollection(settings, self.clock, directory)
        self.states: list[State] = [()]
        self.safe = self.committed = 0
        self.waiting: deque[bytes] = deque()
        self.open: dict[int, bytes] = {}
        self.added = 0
        self.collection.open()

    @property
    def queue(self) -> Queue:
        """The queue, made when it is first asked for."""
        return self.collection.obtain("jobs")

    def note(self) -> None:
        """Note the state that is about to be written."""
        reads = (self.open[xid] for xid in sorted(self.open))
        self.states.append((*reads, *self.waiting))

    def commit(self) -> None:
        """Note the state that is about to be written, and write it."""
        self.note()
        self.write()

    def write(self) -> None:
        """Write what was done."""
        assert not self.collection.commits.commit()
        self.committed = len(self.states) - 1

    def add(self, size: int = 10) -> None:
        """Add an item of some size."""
        data = b"%d " % self.added + b"x" * size
        self.added += 1
        self.queue.add(data)
        self.waiting.append(data)
        self.commit()

    def add_begun(self) -> None:
        """Add an item that is written before."""
        data = b"%d large" % self.added
        self.added += 1
        record = item(self.clock.now(), 0, data)
        file = self.queue.new_file()
        self.queue.begin(file, record, lambda: None)
        self.waiting.append(data)
        self.note()
        self.queue.add_begun(record, file)
        self.write()

    def remove(self) -> None:
        """Take the head off."""
        self.queue.remove()
        self.waiting.popleft()
        self.commit()

    def open_read(self) -> int:
        """Open a read of the head; return its xid."""
        opened = self.queue.open_read()
        assert opened is not None
        self.open[opened[0]] = self.waiting.popleft()
        self.commit()
        return opened[0]

    def confirm(self, xid: int) -> None:
        """Finish an open read."""
        self.queue.confirm(xid)
        del self.open[xid]
        self.commit()

    def unremove(self, xid: int) -> None:
        """Give an open read back."""
        self.queue.unremove(xid)
        self.waiting.appendleft(self.open.pop(xid))
        self.commit()

    def sync(self) -> None:
        """Force everything to disk."""
        self.queue.sync()
        self.safe = self.committed

    def delete(self) -> None:
        """Delete the queue."""
        self.waiting.clear()
        self.open.clear()
        self.states.append(())
        self.collection.delete("jobs")
        self.safe = self.committed = len(self.states) - 1


def empty_again(run: Run) -> None:
    """Goes empty time and again, with reads open, until the journal begins anew."""
    run.add()
    held = run.open_read()
    for number in range(12):
        run.add()
        if number % 5 == 0:
            run.sync()
        run.remove()
    run.unremove(held)
    second = run.open_read()
    run.add()
    run.confirm(second)
    run.remove()


def rewritten(run: Run) -> None:
    """Holds a few items while many pass, until the journal is rewritten."""
    for _ in range(2):
        run.add()
    held = run.open_read()
    for number in range(70):
        run.add()
        run.remove()
        if number == 7:
            run.sync()
    run.unremove(held)
    run.remove()
    run.remove()


def read_behind(run: Run) -> None:
    """Grows beyond memory over several files, is drained with reads given back, and packs."""
    for number in range(24):
        run.add(15)
        if number == 10:
            run.sync()
    held = [run.open_read() for _ in range(3)]
    run.unremove(held[1])
    for number in range(14):
        run.remove()
        if number % 4 == 0:
            run.add(15)
    run.sync()
    run.unremove(held[2])
    again = run.open_read()
    for _ in range(6):
        run.remove()
    run.confirm(again)
    run.confirm(held[0])
    while run.waiting:
        run.remove()


def written_ahead(run: Run) -> None:
    """Has items written before they are added, in memory and behind, among others."""
    for number in range(8):
        run.add()
        run.add_begun()
        if number == 4:
            run.sync()
    held = run.open_read()
    for number in range(10):
        run.remove()
        if number % 3 == 0:
            run.add_begun()
    run.unremove(held)
    run.sync()
    while run.waiting:
        run.remove()


def deleted(run: Run) -> None:
    """Is deleted, with several files, and begun again."""
    for _ in range(10):
        run.add(15)
    run.open_read()
    run.delete()
    run.add()
    run.sync()
    run.add()


TINY = QueueConfig(
    max_memory_size=100,
    default_journal_size=200,
    max_journal_size=100_000,
    min_journal_compact_delay=0,
)
SCENARIOS = {
    "empty again": (empty_again, TINY, 50_000),
    "rewritten": (rewritten, TINY.model_copy(update={"max_memory_size": 10_000}), 50_000),
    "rewritten from files": (rewritten, TINY.model_copy(update={"max_memory_size": 10_000}), 0),
    "read behind": (
        read_behind,
        TINY.model_copy(update={"default_journal_size": 10_000}),
        50_000,
    ),
    "read behind, rewritten": (
        read_behind,
        TINY.model_copy(update={"max_journal_size": 900, "max_memory_size": 150}),
        50_000,
    ),
    "written ahead": (written_ahead, TINY, 50_000),
    "deleted": (deleted, TINY, 50_000),
}


def kestrel_2(config: QueueConfig) -> QueueConfig:
    """Return the settings with the other dialect."""
    return config.model_copy(update={"journal_dialect": "kestrel-2"})


def contents(directory: Path) -> State:
    """Load the queue; what comes up must be usable, and come up the same again."""
    config = ServerConfig(queue_path=directory)
    found = []
    for attempt in range(2):
        collection = QueueCollection(config, FakeClock(), DiskDirectory(directory))
        collection.open()
        try:
            assert not collection.damaged
            queue = collection.obtain("jobs")
            found.append(tuple(map(item_data, queue.browse(1000))))
            assert len(queue) == len(found[-1])
            if attempt == 0:
                queue.add(b"one more")
        finally:
            collection.close()
    assert found[1] == (*found[0], b"one more")
    leftover = [name for name in DiskDirectory(directory).names() if name.endswith(".pack")]
    assert not leftover
    return found[0]


def crash(
    tmp_path: Path, scenario: Callable[[Run], None], config: QueueConfig, at: int
) -> tuple[CrashingDirectory, Run | None]:
    """Run a scenario that crashes at a step; the run is None if it was just coming up."""
    for name in ("queues", "links"):
        rmtree(tmp_path / name, ignore_errors=True)
        (tmp_path / name).mkdir()
    directory = CrashingDirectory(tmp_path / "queues", tmp_path / "links")
    directory.crash_at = at
    run = None
    try:
        run = Run(directory, config)
        scenario(run)
    except SimulatedCrash:
        pass
    finally:
        if run is not None:
            run.collection._lock.release()
        if directory.crashed is not None:
            directory.abandon()
    return directory, run


@pytest.mark.parametrize("dialect", ["documented", "kestrel-2"])
@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_or_repeated_wherever_it_crashes(
    tmp_path: Path, name: str, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill keeps the last commit; lost power keeps a state no older than the last sync."""
    scenario, config, at_hand = SCENARIOS[name]
    if dialect == "kestrel-2":
        config = kestrel_2(config)
    monkeypatch.setattr(upkeep, "AT_HAND", at_hand)
    at = 0
    while True:
        at += 1
        directory, run = crash(tmp_path, scenario, config, at)
        if directory.crashed is None:
            break
        if run is None:
            continue
        for loss in Loss:
            left = tmp_path / "left"
            directory.survive(loss, left)
            oldest = run.committed if loss is Loss.KILLED else run.safe
            allowed = set(run.states[oldest:])
            assert contents(left) in allowed, f"step {at}, {directory.crashed}, {loss}"
            rmtree(left)
    assert at > 50


def test_scenarios_do_what_they_are_for(tmp_path: Path) -> None:
    """Without a crash, each scenario reaches the steps it is there for."""
    wanted = {
        "empty again": ["rotations"],
        "rewritten": ["rewrites"],
        "rewritten from files": ["rewrites"],
        "read behind": ["rotations", "packs", "rewrites"],
        "read behind, rewritten": ["rewrites"],
        "written ahead": ["rotations", "packs"],
    }
    for name, counters in wanted.items():
        scenario, config, _ = SCENARIOS[name]
        _, run = crash(tmp_path, scenario, config, 10**9)
        assert run is not None
        queue = run.queue
        assert queue._upkeep is not None
        found = {"packs": queue._upkeep.packs, "rotations": queue.journal.rotations}
        found["rewrites"] = queue.journal.rewrites
        assert all(found[counter] for counter in counters), (name, found)
        assert len(run.states) > 20


def test_loading_may_crash_too(tmp_path: Path) -> None:
    """What a crash left is loaded with crashes at every step, and comes up right in the end."""
    scenario, config, _ = SCENARIOS["read behind"]
    crashes = 0
    for first in range(40, 240, 2):
        directory, run = crash(tmp_path, scenario, config, first)
        if run is None or directory.crashed is None:
            continue
        (tmp_path / "left").mkdir()
        rmtree(tmp_path / "left")
        directory.survive(Loss.KILLED, tmp_path / "left")
        allowed = set(run.states[run.committed :])
        for second in range(1, 12):
            for name in ("again", "links2", "left2"):
                rmtree(tmp_path / name, ignore_errors=True)
            (tmp_path / "links2").mkdir()
            copy_tree(tmp_path / "left", tmp_path / "again")
            loading = CrashingDirectory(tmp_path / "again", tmp_path / "links2")
            loading.crash_at = second
            collection = QueueCollection(
                ServerConfig(queue_path=tmp_path / "again"), FakeClock(), loading
            )
            try:
                collection.open()
            except SimulatedCrash:
                crashes += 1
                for loss in Loss:
                    loading.survive(loss, tmp_path / "left2")
                    assert contents(tmp_path / "left2") in allowed, (first, second, loss)
                    rmtree(tmp_path / "left2")
            finally:
                loading.abandon()
                collection._lock.release()
        rmtree(tmp_path / "left")
    assert crashes > 60


def copy_tree(source: Path, target: Path) -> None:
    """Copy the files of one directory to a new one."""
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
