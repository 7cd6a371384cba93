"""What a queue refuses: each limit holds by itself, also on the short way that an add may take."""

from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import Item, item_data, item_expiry
from kestrelmq.queue.limits import QueueLimits
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.waiters import ReadMode, Waiter
from kestrelmq.queues.collection import QueueCollection
from tests.support.fake_clock import FakeClock
from tests.support.local_queues import LocalQueues, queue_settings

pytestmark = pytest.mark.compiled

SETTINGS: Final[dict[str, dict[str, object]]] = {
    "max_items": {"max_items": 2},
    "max_size": {"max_size": 4},
    "max_item_size": {"max_item_size": 1},
    "max_age": {"max_age": 5},
    "fanout_only": {"fanout_only": True},
    "memory_only": {"keep_journal": False, "max_memory_size": 4},
}
"""Settings that are nothing but the limit of that name."""
PAUSED: Final = {"reads_paused": Paused.READS, "writes_paused": Paused.WRITES}
"""What is paused for the limit of that name; `test_paused_queues` has what each of them does."""


def stored(path: Path, settings: dict[str, object]) -> list[tuple[bytes, bool]]:
    """Add `a1` to `a3`; return what is there, and whether it expires."""
    config = QueueConfig.model_validate(settings)
    clock = FakeClock()
    collection = QueueCollection(ServerConfig(queue_path=path, default=config), clock)
    collection.open()
    queue = collection.obtain("jobs")
    for data in (b"a1", b"a2", b"a3"):
        queue.add(data)
    assert not collection.commits.commit()
    found = [(item_data(record), item_expiry(record) > 0) for record in queue.backlog.browse(9)]
    collection.close()
    return found


def test_every_limit_is_tested_here() -> None:
    """A new one needs a case below."""
    assert {*SETTINGS, *PAUSED} == {field.name for field in fields(QueueLimits)}


@pytest.mark.parametrize("limit", PAUSED)
def test_what_is_paused_is_a_limit_by_itself(limit: str) -> None:
    """So the queue looks at it."""
    limits = QueueLimits.of(QueueConfig(), PAUSED[limit], memory_only=False)
    assert limits == QueueLimits(**{limit: True})


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max_items", [(b"a1", False), (b"a2", False)]),
        ("max_size", [(b"a1", False), (b"a2", False)]),
        ("max_item_size", []),
        ("max_age", [(b"a1", True), (b"a2", True), (b"a3", True)]),
        ("fanout_only", []),
        ("memory_only", [(b"a1", False), (b"a2", False)]),
    ],
)
def test_a_limit_holds_though_it_is_the_only_one(
    tmp_path: Path, limit: str, expected: list[tuple[bytes, bool]]
) -> None:
    """None of them needs another one to be looked at."""
    assert stored(tmp_path, SETTINGS[limit]) == expected


def test_the_newest_item_is_taken_though_it_alone_is_too_much(tmp_path: Path) -> None:
    """Where older ones are dropped for it, all of them are, also those on disk only."""
    spool = LocalQueues(
        queue_settings(tmp_path, max_size=6, max_memory_size=4, discard_old_when_full=True)
    )
    spool.add(b"a1", b"a2", b"a3")
    assert spool.queue().backlog.read_behind
    spool.add(b"7 bytes")
    assert (spool.items(), spool.queue().adding.discarded) == ([b"7 bytes"], 3)
    spool.close()


@pytest.mark.parametrize(
    ("settings", "newest", "left"),
    [
        ({"max_items": 3}, b"n", [b"x", b"x", b"n"]),
        ({"max_size": 3}, b"n", [b"x", b"x", b"n"]),
        ({"max_size": 3}, b"too large", [b"too large"]),
    ],
)
def test_very_many_old_items_are_dropped_a_part_at_a_time(
    tmp_path: Path, settings: dict[str, object], newest: bytes, left: list[bytes]
) -> None:
    """The add that needs their room is not held up by all of them, and a sweep drops the rest."""
    spool = LocalQueues(queue_settings(tmp_path))
    spool.add(*[b"x"] * 5000)
    spool.reload(queue_settings(tmp_path, discard_old_when_full=True, **settings))
    spool.add(newest)
    assert len(spool.queue()) == 3001
    spool.collection.sweep()
    spool.commit()
    assert spool.queue().adding.discarded == 5001 - len(left)
    assert not spool.queue().has_background_work
    for _ in range(2):
        assert spool.items() == left
        spool.restart()
    spool.close()


def test_memory_never_holds_more_than_it_may(tmp_path: Path) -> None:
    """However many old items have to go, if there is no journal to leave them in."""
    spool = LocalQueues(
        queue_settings(
            tmp_path, keep_journal=False, max_memory_size=5000, discard_old_when_full=True
        )
    )
    spool.add(*[b"x"] * 5000, bytes(4999))
    assert spool.items() == [b"x", bytes(4999)]
    spool.close()


def test_a_queue_without_limits_takes_everything(tmp_path: Path) -> None:
    """By default."""
    assert stored(tmp_path, {}) == [(b"a1", False), (b"a2", False), (b"a3", False)]


def test_readers_that_wait_when_others_may_read_are_refused(tmp_path: Path) -> None:
    """They were asked who they are before. Those of a queue whose readers stay wait on."""
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock())
    collection.open()
    queue, other = collection.obtain("jobs"), collection.obtain("other")
    errors: list[str] = []
    taken: list[Item | None] = []

    def serve(record: Item | None, _xid: int) -> None:
        taken.append(record)

    for one in (queue, queue, other):
        one.waiters.add(Waiter(ReadMode.REMOVE, serve, lambda error: errors.append(str(error))))
    queue.configure(QueueConfig(allowed_client_ids_for_dequeue=["a"]))
    other.configure(QueueConfig(max_items=5))
    assert errors == ["who may read jobs has changed"] * 2
    assert (queue.waiters.readers, other.waiters.readers, taken) == (0, 1, [])
    assert queue.refusals.forbidden == 2
    collection.close()


def test_a_reader_that_is_cancelled_while_another_is_refused(tmp_path: Path) -> None:
    """It is not refused, too."""
    collection = QueueCollection(ServerConfig(queue_path=tmp_path), FakeClock())
    collection.open()
    queue = collection.obtain("jobs")
    errors: list[str] = []
    second = Waiter(ReadMode.REMOVE, lambda *_: None, lambda error: errors.append(str(error)))

    def fail(error: Exception) -> None:
        errors.append(str(error))
        queue.waiters.cancel(second)

    queue.waiters.add(Waiter(ReadMode.REMOVE, lambda *_: None, fail))
    queue.waiters.add(second)
    queue.configure(QueueConfig(allowed_client_ids_for_dequeue=["a"]))
    assert len(errors) == 1
    assert queue.refusals.forbidden == 1
    collection.close()
