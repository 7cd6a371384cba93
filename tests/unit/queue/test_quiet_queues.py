"""Periodic work is for the queues that may need it: a hundred thousand idle ones cost nothing."""

import gc
import weakref
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.idempotent_producers import PutMark
from kestrelmq.queue.queue import Queue
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.durability import sync_now
from tests.support.crashing_directory import CrashingDirectory
from tests.support.fake_clock import FakeClock
from tests.support.held_worker import HeldWorker

NAMES = ("a", "b", "c")


class Looks:
    """A collection of three queues with an item each, and which of them periodic work looks at.

    Attributes:
        collection: the queues.
        directory: their disk.
        clock: the time.
    """

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock()
        self.directory = CrashingDirectory.within(path)
        self._config = ServerConfig(queue_path=path)
        self.collection = QueueCollection(self._config, self.clock, self.directory)
        self._looked: list[str] = []
        tick, sweeping, looked = Queue.tick, Queue.sweeping, self._looked

        def noted_tick(queue: Queue) -> None:
            looked.append(queue.name)
            tick(queue)

        def noted_sweeping(queue: Queue) -> Generator[None, None, None]:
            looked.append(f"swept {queue.name}")
            return sweeping(queue)

        monkeypatch.setattr(Queue, "tick", noted_tick)
        monkeypatch.setattr(Queue, "sweeping", noted_sweeping)

    def put(self, name: str, expires_in: int = 0) -> None:
        """Add an item that expires after so many milliseconds; 0 is never."""
        expiry = self.clock.now() + expires_in if expires_in else 0
        assert self.collection.add(name, b"x", expiry)
        self.collection.commits.commit()

    def configure(self, **settings: object) -> None:
        """Put other settings of the queue `a` in force."""
        queues = {"a": QueueConfig.model_validate(settings)}
        assert not self.collection.reload(self._config.model_copy(update={"queues": queues}))

    def looks(self) -> list[str]:
        """Let a second go by; return what was looked at, and swept, in it."""
        self._looked.clear()
        self.clock.advance(1)
        self.collection.sweep()
        self.collection.check_deadlines()
        self.collection.tick()
        self.collection.commits.commit()
        return sorted(self._looked)


@contextmanager
def looks_at(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Looks]:
    """Begin with three queues that have nothing to do."""
    looks = Looks(path, monkeypatch)
    looks.collection.open()
    for name in NAMES:
        looks.put(name)
    assert looks.looks() == [*NAMES]
    assert looks.looks() == []
    try:
        yield looks
    finally:
        looks.directory.mend()
        looks.collection.close()


def test_a_change_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes it; and so is what was loaded."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.put("b")
        assert queues.looks() == ["b"]
        queues.collection.queues["c"].line.remove()  # not committed yet
        assert queues.looks() == ["c"]
        assert queues.looks() == ["c"]  # it could do nothing before the commit
        assert queues.looks() == []
    again = Looks(tmp_path, monkeypatch)
    again.collection.open()
    assert again.looks() == [*NAMES]
    assert again.looks() == []
    again.collection.close()


def test_a_queue_with_nothing_to_come_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not noted for a time that never comes."""
    with looks_at(tmp_path, monkeypatch) as queues:
        assert not queues.collection._resting
        queues.collection.queues["a"].line.remove()
        queues.put("a", expires_in=3500)
        queues.looks()
        assert queues.collection._resting


def test_what_expires_is_swept_until_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are not."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.collection.queues["a"].line.remove()
        queues.put("a", expires_in=3500)
        assert queues.looks() == ["a", "swept a"]
        assert queues.looks() == []
        assert queues.looks() == []
        assert len(queues.collection.queues["a"]) == 1
        assert queues.looks() == ["a", "swept a"]
        assert not len(queues.collection.queues["a"])
        queues.looks()
        assert queues.looks() == []


@pytest.mark.parametrize("what", ["append", "sync"])
def test_a_queue_that_fails_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Every second, until its disk works."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queue = queues.collection.queues["b"]
        queues.directory.fail = lambda point: point.startswith(what)
        if what == "append":
            queue.add(b"y")
            assert queues.collection.commits.commit()
        else:
            assert sync_now(queue)
        for _ in range(3):
            assert queues.looks() == ["b"]
            assert queue.core.failure is not None or queue.upkeep_waits
        queues.directory.mend()
        for _ in range(70):  # a failed step of the upkeep waits for a minute
            queues.looks()
        assert queue.core.failure is None
        assert queues.looks() == []


def test_work_in_another_thread_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal that is being rewritten is looked at until its worker is done."""
    worker = HeldWorker()
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.collection.commits.worker = worker
        queue = queues.collection.obtain("d")
        queue.configure(QueueConfig(default_journal_size=100))
        for _ in range(20):
            queue.add(b"x" * 50)
            queue.line.remove()
            queues.collection.commits.commit()
        assert len(worker) == 1
        for _ in range(3):
            assert queues.looks() == ["d"]
        while queues.looks():
            while worker.step():
                continue
        assert not len(worker)


def test_what_depends_on_time_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty queue that is to be deleted, producers to be forgotten, items that are delayed."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.configure(max_queue_age="10s")
        queues.collection.queues["a"].line.remove()
        queues.collection.commits.commit()
        for _ in range(15):
            queues.looks()
        assert "a" not in queues.collection.queues
        queues.configure(producer_ttl="2s")
        queues.collection.obtain("a").add(b"x", mark=PutMark(b"p", 1))
        queues.collection.commits.commit()
        for _ in range(15):
            queues.looks()
        assert not len(queues.collection.queues["a"].backlog.producers)
        queues.collection.queues["b"].add(b"x", due=queues.clock.now() + 1500)
        queues.collection.commits.commit()
        assert "b" in queues.looks()
        queues.looks()
        assert len(queues.collection.queues["b"]) == 2


@pytest.mark.parametrize("what", ["expires", "is delayed", "has a mark", "gets old"])
def test_what_is_not_due_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """For an hour nobody looks at the queue; then what was due happens within a second."""
    hour = 3_600_000
    with looks_at(tmp_path, monkeypatch) as queues:
        now, queue = queues.clock.now(), queues.collection.queues["a"]
        queue.line.remove()
        match what:
            case "expires":
                queue.add(b"x", now + hour)
            case "is delayed":
                queue.add(b"x", due=now + hour)
            case "has a mark":
                queues.configure(producer_ttl="1h")
                queue.add(b"x", mark=PutMark(b"p", 1))
            case _:
                queues.configure(max_queue_age="1h")
        queues.collection.commits.commit()
        while queues.looks():
            continue
        assert queues.clock.now() - now < 10_000
        queues.clock.advance(hour / 1000 - 30)
        assert queues.looks() == []
        queues.clock.advance(30)
        queues.looks()
        happened = {
            "expires": not len(queue),
            "is delayed": len(queue) == 1 and not queue.delayed_items,
            "has a mark": not len(queue.backlog.producers),
            "gets old": "a" not in queues.collection.queues,
        }
        assert happened[what]


def test_a_clock_that_is_set_back_delays_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What expires at a time of the wall clock is looked at when the clock shows it, not before."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.collection.queues["a"].line.remove()
        queues.put("a", expires_in=10_000)
        queues.looks()
        queues.clock.step(-60_000)
        for _ in range(3):
            assert queues.looks() == []
        queues.clock.step(120_000)
        assert queues.looks() == ["a", "swept a"]
        assert not len(queues.collection.queues["a"])


def test_a_deleted_queue_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it changed just before."""
    with looks_at(tmp_path, monkeypatch) as queues:
        queues.put("a")
        queues.collection.delete("a")
        assert queues.looks() == []


def test_without_periodic_work_nothing_is_remembered(tmp_path: Path) -> None:
    """A library that never sweeps frees the queues that it deletes, as many as there ever were."""
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    collection.add("jobs", b"x")
    gone = weakref.ref(queue.backlog)
    del queue
    collection.delete("jobs")
    collection.commits.commit()
    gc.collect()
    assert gone() is None
    collection.close()
