"""Scenarios that change a queue's files, and the states of a model that they go through."""

from collections import deque
from dataclasses import dataclass

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker
from tests.support.open_reads import open_read
from tests.support.real_directory import SimulatedCrash
from tests.support.recording_directory import RecordingDirectory

State = tuple[bytes, ...] | None
"""The items of a queue, delayed ones first, then open reads; None: there is no queue."""


@dataclass(frozen=True, slots=True)
class Promise:
    """What may be found after a crash, by the places of states in `Run.states`.

    Attributes:
        safe: that of the newest state that no loss of power may take back.
        committed: that of the newest state whose commit returned.
        noted: that of the newest state there may be.
    """

    safe: int
    committed: int
    noted: int


class Run:
    """A queue and its model, through one scenario.

    Attributes:
        states: what the model held after each commit, the one under way included.
        ended: how deletions that were begun ended.
    """

    def __init__(
        self, directory: RecordingDirectory, config: QueueConfig, *, synced: bool = False
    ) -> None:
        """`synced`: every commit is followed by a sync, as with `sync_journal = "0ms"`."""
        self.clock = FakeClock()
        self.config = config
        self.directory = directory
        self.states: list[State] = [None]
        self.waiting: deque[bytes] = deque()
        self.open: dict[int, bytes] = {}
        # When each is due (ms), and the item; in order.
        self.delayed: list[tuple[int, bytes]] = []
        self.added = 0
        self.ended: list[JournalError | None] = []
        self._synced = synced
        self._safe = self._committed = 0
        self.start()

    def start(self) -> None:
        """Start a server."""
        settings = ServerConfig(queue_path=self.directory.path, default=self.config)
        self.collection = QueueCollection(settings, self.clock, self.directory)
        self.collection.open()

    def kill(self) -> None:
        """End the server's process at once; what it wrote is with the system, unsynced."""
        self.collection._lock.release()
        self.directory.abandon()
        # The reads that were open go back to the head.
        self.waiting.extendleft(self.open[xid] for xid in sorted(self.open, reverse=True))
        self.open.clear()

    def start_again(self) -> None:
        """Start after a crash; the model goes on with what is there."""
        self.start()
        found = [state for state in self.states[self._committed :] if state is not None]
        (state,) = [state for state in found if len(state) == len(self.queue)]
        self.states.append(state)
        self.waiting = deque(state)
        self.answered()

    @property
    def queue(self) -> Queue:
        """The queue, made when it is first asked for."""
        if self.states[-1] is None:
            self.states.append(())
            self._mark()
        return self.collection.obtain("jobs")

    def _mark(self) -> None:
        self.directory.mark(Promise(self._safe, self._committed, len(self.states) - 1))

    def note(self) -> None:
        """Note the state that is about to be written."""
        reads = (self.open[xid] for xid in sorted(self.open))
        self.states.append((*self._delayed_items(), *reads, *self.waiting))
        self._mark()

    def _delayed_items(self) -> list[bytes]:
        return [as_delayed(data) for _, data in self.delayed]

    def commit(self) -> None:
        """Note the state that is about to be written, and write it."""
        self.note()
        self.write()

    def write(self) -> None:
        """Write what was done."""
        assert not self.collection.commits.commit()
        self.answered()
        if self._synced:
            self.sync()

    def answered(self, *, safe: bool = False) -> None:
        """What was noted was answered; `safe`: and is to survive a loss of power."""
        self._committed = len(self.states) - 1
        if safe:
            self._safe = self._committed
        self._mark()

    def add(self, size: int = 10) -> None:
        """Add an item of some size."""
        data = b"%d " % self.added + b"x" * size
        self.added += 1
        self.queue.add(data)
        self.waiting.append(data)
        self.commit()

    def add_in_round(self) -> None:
        """Add an item that is to be written in a round, as if it were large; begin that."""
        data = b"%d large" % self.added
        self.added += 1
        self.queue.add(data)
        self.queue.changes.is_large = True
        self.waiting.append(data)
        self.note()
        assert not self.collection.commits.commit()
        assert self.queue.core.is_writing

    def add_behind(self) -> None:
        """Add an item, and remove the head, while a round is under way."""
        data = b"%d behind" % self.added
        self.added += 1
        self.queue.add(data)
        self.waiting.append(data)
        self.note()
        self.queue.line.remove()
        self.waiting.popleft()
        self.note()
        assert not self.collection.commits.commit()

    def end_round(self, worker: HeldWorker) -> None:
        """Let `worker` write, and then what was behind be written."""
        assert worker.step()
        assert not self.queue.core.is_writing
        self.write()

    def remove(self) -> None:
        """Take the head off."""
        self.queue.line.remove()
        self.waiting.popleft()
        self.commit()

    def open_read(self) -> int:
        """Open a read of the head; return its xid."""
        opened = open_read(self.queue)
        assert opened is not None
        self.open[opened[0]] = self.waiting.popleft()
        self.commit()
        return opened[0]

    def confirm(self, xid: int) -> None:
        """Finish an open read."""
        self.queue.reads.confirm(xid)
        del self.open[xid]
        self.commit()

    def unremove(self, xid: int) -> None:
        """Give an open read back."""
        self.queue.returns.give_back([xid])
        self.waiting.appendleft(self.open.pop(xid))
        self.commit()

    def sync(self) -> None:
        """Force everything to disk."""
        self.queue.sync()
        self.answered(safe=True)

    def delay(self, seconds: int) -> None:
        """Add an item that is due so many seconds from now."""
        data = b"%d late" % self.added
        self.added += 1
        due = self.clock.now() + 1000 * seconds
        self.queue.add(data, due=due)
        self.delayed.append((due, data))
        self.delayed.sort(key=lambda one: one[0])
        self.commit()

    def pass_time(self, seconds: int) -> None:
        """Let time pass, and the items join that are due."""
        self.clock.advance(seconds)
        now = self.clock.now()
        self.waiting += [data for due, data in self.delayed if due <= now]
        self.delayed = [one for one in self.delayed if one[0] > now]
        self.note()
        self.collection.check_deadlines()
        self.write()

    def flush(self) -> None:
        """Drop all items, the delayed ones, too."""
        self.waiting.clear()
        self.delayed.clear()
        self.note()
        self.queue.flush()
        self.write()

    def tick(self, seconds: int) -> None:
        """Let time pass, and the upkeep do what is due."""
        self.clock.advance(seconds)
        self.collection.tick()

    def restart(self) -> None:
        """Kill the server, and start it again; nothing was under way."""
        self.kill()
        self.start()
        self.note()
        self.answered()

    def delete(self) -> None:
        """Delete the queue."""
        self.waiting.clear()
        self.open.clear()
        self.delayed.clear()
        self.states += [(), None]
        self._mark()
        self.collection.delete("jobs")
        self.answered(safe=True)

    def begin_delete(self) -> None:
        """Begin to delete the queue, which a worker does."""
        self.states += [(), None]
        self._mark()
        self.collection.deletions.begin(self.collection.queues["jobs"], self.ended.append)

    def add_to_doomed(self) -> None:
        """Add an item while the queue is being deleted: it may be found, or be gone with it."""
        data = b"%d doomed" % self.added
        self.added += 1
        self.collection.queues["jobs"].add(data)
        self.waiting.append(data)
        self.note()
        assert not self.collection.commits.commit()

    def gone(self) -> None:
        """The queue is gone, and its files mean nothing, though they are there."""
        assert "jobs" not in self.collection.queues
        self.waiting.clear()
        self.open.clear()
        self._safe = self._committed = len(self.states)
        self.states += [None, ()]
        self._mark()


def as_delayed(data: bytes) -> bytes:
    """Return how a state shows a delayed item."""
    return b"delayed " + data


def delayed(run: Run) -> None:
    """Has delayed items that join, in a journal that is rewritten, until it is deleted."""
    run.add()
    for seconds in (3, 1, 2, 1):
        run.delay(seconds)
    run.sync()
    run.pass_time(1)
    held = run.open_read()
    run.remove()
    run.delay(1)
    run.pass_time(1)
    run.confirm(held)
    run.restart()
    run.sync()
    for number in range(6):
        run.delay(2)
        run.pass_time(1)
        run.remove()
        if number == 3:
            run.sync()
    run.restart()
    run.pass_time(5)
    run.delay(1)
    run.flush()
    run.delay(1)
    run.delay(9)
    run.pass_time(1)
    run.delete()
    run.delay(2)
    run.sync()
    run.pass_time(2)


def delayed_beside_a_worker(run: Run) -> None:
    """Has delayed items that join, and others that wait, while its journal is rewritten."""
    worker = HeldWorker()
    run.collection.commits.worker = worker
    run.add()
    for number in range(8):
        run.delay(1)
        run.pass_time(1)
        run.add(15)
        while run.waiting:
            run.remove()
        if number == 6:
            run.sync()
        run.delay(20 - number)
        if number % 4 == 3:
            worker.step()
    while worker.step():
        run.pass_time(1)
    run.restart()
    run.pass_time(5)


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


def in_rounds(run: Run) -> None:
    """Has items written in rounds, in memory and behind, and others behind those."""
    worker = HeldWorker()
    run.collection.commits.writer = worker
    for number in range(8):
        run.add()
        run.add_in_round()
        if number % 2:
            run.add_behind()
        run.end_round(worker)
        if number == 4:
            run.sync()
    held = run.open_read()
    for number in range(10):
        run.remove()
        if number % 3 == 0:
            run.add_in_round()
            run.end_round(worker)
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


def deleted_beside_a_worker(run: Run) -> None:
    """Is deleted by a worker, takes items meanwhile, and is begun again before its files go."""
    worker = HeldWorker()
    run.collection.deletions.worker = worker
    for _ in range(2):
        for _ in range(8):
            run.add(15)
        run.open_read()
        run.begin_delete()
        run.add_to_doomed()
        assert worker.step()
        run.gone()
        for _ in range(8):
            run.add(15)
        assert worker.step()
    assert run.ended == [None, None]
    run.sync()


def behind_beside_a_worker(run: Run) -> None:
    """As `read_behind`, while a worker packs: its steps come between those of the queue."""
    worker = HeldWorker()
    run.collection.commits.worker = worker
    for number in range(30):
        run.add(15)
        if number % 2:
            run.remove()
        if number % 5 == 0:
            worker.step()
    while run.waiting:
        run.remove()
        worker.step()
    run.add()


def kept(run: Run) -> None:
    """Keeps replaced files for a while, beside the packs of several, and is deleted with some."""
    worker = HeldWorker()
    run.collection.commits.worker = worker
    for number in range(40):
        run.add(15)
        if number > 4:
            run.remove()
        if number == 20:
            run.sync()
        if number % 3 == 0:
            run.tick(1)
        worker.step()
    for _ in range(4):
        run.tick(2)
        worker.step()
    for _ in range(20):
        run.add(15)
        run.remove()
        worker.step()
    run.delete()
    run.add()


def killed_in_between(run: Run) -> None:
    """Is killed at moments of a rotation, comes up again and goes on with what is not synced."""
    for later in (2, 3, 4, 5, 6):
        run.directory.crash_at = len(run.directory.operations) + 5 * later
        try:
            while True:
                run.add(15)
        except SimulatedCrash:
            run.kill()
        run.start_again()
        run.add(15)
        run.add(15)
    run.delete()
    run.add()


def new_dialects(run: Run) -> None:
    """Is started with one dialect, then with the other, with reads open."""
    for dialect in ("kestrel-2", "documented") * 2:
        for _ in range(3):
            run.add()
        run.open_read()
        run.config = run.config.model_copy(update={"journal_dialect": dialect})
        run.restart()
        run.open_read()
        run.remove()


TINY = QueueConfig(
    max_memory_size=100,
    default_journal_size=200,
    max_journal_size=100_000,
    min_journal_compact_delay=0,
)
SCENARIOS = {
    "empty again": (empty_again, TINY, 50_000),
    "delayed": (delayed, TINY.model_copy(update={"max_memory_size": 10_000}), 50_000),
    "delayed, rewritten from files": (
        delayed,
        TINY.model_copy(update={"max_memory_size": 10_000}),
        0,
    ),
    "delayed beside a worker": (
        delayed_beside_a_worker,
        TINY.model_copy(update={"max_memory_size": 10_000}),
        50_000,
    ),
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
    "in rounds": (in_rounds, TINY, 50_000),
    "deleted": (deleted, TINY, 50_000),
    "deleted beside a worker": (deleted_beside_a_worker, TINY, 50_000),
    "behind beside a worker": (
        behind_beside_a_worker,
        TINY.model_copy(update={"default_journal_size": 10_000}),
        50_000,
    ),
    "kept": (
        kept,
        TINY.model_copy(update={"default_journal_size": 10_000, "keep_replaced_journals": 4}),
        50_000,
    ),
    "kept, rewritten": (
        kept,
        TINY.model_copy(
            update={"max_journal_size": 900, "max_memory_size": 150, "keep_replaced_journals": 4}
        ),
        0,
    ),
    "killed in between": (killed_in_between, TINY, 50_000),
    "new dialects": (new_dialects, TINY.model_copy(update={"max_memory_size": 10_000}), 50_000),
}


def kestrel_2(config: QueueConfig) -> QueueConfig:
    """Return the settings with the other dialect."""
    return config.model_copy(update={"journal_dialect": "kestrel-2"})
