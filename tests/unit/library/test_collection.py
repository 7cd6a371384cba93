"""`QueueCollection`: fanouts, aliases and moving expired items, without a server."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrelmq import (
    ConfigError,
    InvalidQueueName,
    JournalError,
    PersistentQueue,
    QueueCollection,
    QueueConfig,
    QueuePathLocked,
    QueueUnavailable,
)
from kestrelmq.library import BlockingQueue, FoundItems
from tests.support.fake_clock import FakeClock

pytestmark = pytest.mark.compiled


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that stands still."""
    return FakeClock()


@pytest.fixture
def queues(tmp_path: Path, clock: FakeClock) -> Iterator[QueueCollection]:
    """Run a collection with an alias and a queue that passes expired items on."""
    collection = QueueCollection(
        tmp_path,
        QueueConfig(max_items=3),
        {"slow": QueueConfig(expire_to_queue="late"), "late": QueueConfig(max_age=60)},
        {"both": ["a", "b"]},
        sweep_period=None,
        clock=clock,
    )
    with collection:
        yield collection


def drain(queue: BlockingQueue) -> list[bytes]:
    """Take everything out of a queue."""
    taken = []
    while (item := queue.remove()) is not None:
        taken.append(item.data)
    return taken


def test_fanout(queues: QueueCollection) -> None:
    """What is added to a master reaches its children; a deleted child gets no more."""
    queues.add("orders", b"early")
    audit = queues.queue("orders+audit")
    assert audit.peek() is None
    queues.add("orders", b"1")
    audit.add(b"own")
    assert queues.names() == ["orders", "orders+audit"]
    assert drain(audit) == [b"1", b"own"]
    assert queues.delete("orders+audit")
    queues.queue("orders").add(b"2")
    assert drain(queues.queue("orders")) == [b"early", b"1", b"2"]
    assert queues.names() == ["orders"]
    assert not queues.delete("orders+audit")


def test_alias(queues: QueueCollection) -> None:
    """An alias adds to every destination; it cannot be read."""
    assert queues.add("both", b"x")
    assert (drain(queues.queue("a")), drain(queues.queue("b"))) == ([b"x"], [b"x"])
    for _ in range(3):
        queues.add("a", b"y")
    assert not queues.add("both", b"z")
    assert drain(queues.queue("b")) == [b"z"]
    assert queues.flush("both") == 0
    assert queues.flush("a") == 3
    with pytest.raises(InvalidQueueName, match="alias"):
        queues.queue("both")


def test_expired_items_move(queues: QueueCollection, clock: FakeClock) -> None:
    """`sweep` moves what expired, without its expiry but with the new queue's `max_age`."""
    queues.add("slow", b"x", expiry=5)
    queues.sweep()
    assert queues.queue("late").peek() is None
    clock.advance(5)
    queues.sweep()
    moved = queues.queue("late").peek()
    assert moved is not None
    assert (moved.data, moved.expiry) == (b"x", clock.now() + 60_000)


def test_sweep_happens_by_itself(tmp_path: Path) -> None:
    """A thread that waits for the queue of expired items gets one without anybody calling."""
    settings = {"slow": QueueConfig(expire_to_queue="late")}
    with QueueCollection(tmp_path, queues=settings, sweep_period=0.01) as queues:
        queues.add("slow", b"x", expiry=0.02)
        item = queues.queue("late").wait_remove(20)
        assert item is not None
        assert item.data == b"x"


def test_queues_outlive_the_collection(tmp_path: Path) -> None:
    """Everything is loaded again; a single `PersistentQueue` reads the same files."""
    with QueueCollection(tmp_path, QueueConfig(sync_journal=60)) as queues:
        queues.add("a+b", b"1")
        queues.add("a", b"2")
    with QueueCollection(tmp_path) as queues:
        assert queues.names() == ["a", "a+b"]
        closed = [queues.is_closed]
    assert [*closed, queues.is_closed] == [False, True]
    with PersistentQueue("a+b", tmp_path) as queue:
        assert drain(queue) == [b"1", b"2"]


def test_path_has_one_user(tmp_path: Path) -> None:
    """A collection has its path alone, as a server has."""
    with QueueCollection(tmp_path):
        with pytest.raises(QueuePathLocked):
            QueueCollection(tmp_path).setup()
        with pytest.raises(QueuePathLocked, match="in use by a server"):
            PersistentQueue("work", tmp_path).setup()
    with PersistentQueue("work", tmp_path), pytest.raises(QueuePathLocked):
        QueueCollection(tmp_path).setup()


def test_damaged_queue_is_set_apart(tmp_path: Path) -> None:
    """The others work; the damaged one says why it does not, and its file is left alone."""
    (tmp_path / "bad").write_bytes(b"\xff" * 9)
    with QueueCollection(tmp_path) as queues:
        assert queues.add("good", b"x")
        assert list(queues.damaged()) == ["bad"]
        with pytest.raises(QueueUnavailable, match="damaged at byte 0"):
            queues.queue("bad").remove()
    assert (tmp_path / "bad").read_bytes() == b"\xff" * 9


def test_use_when_closed(tmp_path: Path) -> None:
    """Before `setup` and after `close` every operation is refused."""
    queues = QueueCollection(tmp_path)
    with pytest.raises(QueueUnavailable):
        queues.add("a", b"x")
    with queues:
        queue = queues.queue("a")
        queue.add(b"x")
    with pytest.raises(QueueUnavailable):
        queue.remove()
    with pytest.raises(QueueUnavailable):
        queues.names()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"aliases": {"a": ["a"]}}, "QueueCollection: alias 'a' leads back to itself"),
        ({"aliases": {"a": []}}, "QueueCollection: aliases.a.destination_queues: found"),
        ({"aliases": {"a": "bc"}}, "QueueCollection: aliases.a.destination_queues: found"),
        ({"queues": {"a/b": QueueConfig()}}, "a queue name must not contain '/'"),
        ({"queues": {"a": {"max_item": 5}}}, "did you mean max_items"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, arguments: dict[str, Any], says: str) -> None:
    """Names and aliases that make no sense are refused before anything is opened, in words."""
    with pytest.raises(ConfigError) as caught:
        QueueCollection(tmp_path, **arguments)
    assert says in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_endless_sweep_period(tmp_path: Path) -> None:
    """It is longer than a thread can sleep, and is as good as never."""
    with QueueCollection(tmp_path, sweep_period=math.inf) as queues:
        assert queues.add("a", b"x")


@pytest.mark.parametrize("period", [0, -1, math.nan])
def test_a_bad_sweep_period_is_refused(tmp_path: Path, period: float) -> None:
    """The thread that sweeps would never sleep."""
    with pytest.raises(ValueError, match="above 0"):
        QueueCollection(tmp_path, sweep_period=period)


@pytest.mark.parametrize("name", ["", "a/b", "../../etc/passwd", "a~b", "+", "a\x00b"])
def test_a_bad_name_is_refused(queues: QueueCollection, tmp_path: Path, name: str) -> None:
    """A name that no queue can have is refused and leaves no file."""
    for use in (queues.queue, queues.flush, queues.delete):
        with pytest.raises(InvalidQueueName):
            use(name)
    with pytest.raises(InvalidQueueName):
        queues.add(name, b"x")
    assert [file.name for file in tmp_path.iterdir()] == ["~~lock"]


def test_a_queue_is_paused_until_it_is_resumed(tmp_path: Path) -> None:
    """Also by another collection on the same path."""
    with QueueCollection(tmp_path) as queues:
        queues.add("jobs", b"x")
        assert queues.pause("jobs")
        assert not queues.pause("none", "reads")
        with pytest.raises(QueueUnavailable, match="paused for writes"):
            queues.add("jobs", b"y")
        with pytest.raises(ValueError, match="allowed: reads, writes, all"):
            queues.pause("jobs", "some")
    with QueueCollection(tmp_path) as queues:
        assert queues.queue("jobs").remove() is None
        assert queues.resume("jobs", "reads")
        item = queues.queue("jobs").remove()
        assert (item and item.data) == b"x"
    with QueueCollection(tmp_path) as queues:
        (tmp_path / "~~queues~~new").mkdir()
        with pytest.raises(JournalError, match="could not be saved"):
            queues.resume("jobs")
        assert queues.add("jobs", b"y")


def test_a_queue_is_declared_until_it_is_deleted(tmp_path: Path) -> None:
    """What the collection was given for exactly this queue wins."""
    with QueueCollection(tmp_path) as queues:
        queues.declare("jobs", QueueConfig(max_items=1))
        with pytest.raises(ConfigError, match="may not declare max_size"):
            queues.declare("jobs", QueueConfig(max_size=1))
    with QueueCollection(tmp_path) as queues:
        assert [queues.add("jobs", b"x") for _ in range(2)] == [True, False]
    with QueueCollection(tmp_path, queues={"jobs": QueueConfig(max_items=2)}) as queues:
        assert [queues.add("jobs", b"x") for _ in range(2)] == [True, False]
        queues.delete("jobs")
    with QueueCollection(tmp_path) as queues:
        assert [queues.add("jobs", b"x") for _ in range(3)] == [True] * 3


@pytest.mark.parametrize(
    ("operation", "answer"),
    [
        (len, 0),
        (lambda queue: queue.bytes, 0),
        (lambda queue: queue.journal_size, 0),
        (lambda queue: queue.flush(), 0),
        (lambda queue: queue.confirm_remove(1), False),
        (lambda queue: queue.unremove(1), False),
        (lambda queue: queue.release(1), False),
        (lambda queue: queue.extend(1, 1), False),
        (lambda queue: queue.browse(), []),
        (lambda queue: queue.search("x"), FoundItems([], None)),
        (lambda queue: list(queue.export()), []),
        (lambda queue: queue.import_items([]), 0),
    ],
)
def test_only_adds_and_reads_create_a_queue(
    queues: QueueCollection, tmp_path: Path, operation: Callable[[BlockingQueue], Any], answer: Any
) -> None:
    """Nothing else, as in a server."""
    assert operation(queues.queue("new")) == answer
    assert (queues.names(), (tmp_path / "new").exists()) == ([], False)
    assert queues.queue("new").peek() is None
    assert queues.names() == ["new"]
    assert operation(queues.queue("new")) == answer
