"""Items that are held during a block, without a server: by threads and by tasks."""
# ruff: noqa: PT012 # the whole block is what raises

import asyncio
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kestrelmq import AsyncPersistentQueue, PersistentQueue, QueueCollection, QueueConfig
from kestrelmq.errors import LeaseEnded, TagRefused
from kestrelmq.library import HeldItem, Item
from tests.support.patience import PATIENCE

pytestmark = pytest.mark.compiled


@contextmanager
def filled(path: Path, **settings: Any) -> Iterator[PersistentQueue]:
    """Return a queue with the items a, b and c."""
    with PersistentQueue("work", path, QueueConfig(**settings)) as queue:
        for data in (b"a", b"b", b"c"):
            queue.add(data)
        yield queue


def left(queue: PersistentQueue) -> list[bytes]:
    """Return what waits, and remove it."""
    return [item.data for item in queue.consume(idle_timeout=0)]


def test_an_item_is_confirmed_at_the_end_or_goes_back(tmp_path: Path) -> None:
    """With the count of its deliveries; without an item, the block gets None."""
    with filled(tmp_path) as queue:
        with queue.reserve() as held:
            assert held is not None
            assert (held.data, held.deliveries, held.item.data) == (b"a", 0, b"a")
        with pytest.raises(KeyError), queue.reserve() as held:
            raise KeyError
        with queue.reserve() as held:
            assert held is not None
            assert (held.data, held.deliveries) == (b"b", 1)
        assert left(queue) == [b"c"]
        with queue.reserve(0.01) as held:
            assert held is None


def test_an_item_is_released_as_asked(tmp_path: Path) -> None:
    """Now, or after a delay; counted as a delivery, or not."""
    with filled(tmp_path) as queue:
        with queue.reserve() as held:
            assert held is not None
            held.release(delay=0.3)
            assert held.is_over
        with queue.reserve() as held:
            assert held is not None
            assert held.data == b"b"
            held.release(counted=False)
            with pytest.raises(ValueError, match="before"):
                held.finish()
        assert [item.data for item in queue.consume(max_items=2)] == [b"b", b"c"]
        with queue.reserve(PATIENCE) as held:
            assert held is not None
            assert (held.data, held.deliveries) == (b"a", 1)
            assert held.extend(PATIENCE)
            held.finish()
            assert not held.extend(PATIENCE)
        assert left(queue) == []


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"delay": -1}, "from 0 to"),
        ({"delay": float("nan")}, "from 0 to"),
        ({"dead": True}, "no dead_letter_queue"),
    ],
)
def test_what_cannot_be_released_so_is_still_held(
    tmp_path: Path, how: dict[str, Any], why: str
) -> None:
    """By its read; in a block, the item goes back."""
    with filled(tmp_path) as queue:
        item = queue.remove(transaction=True)
        assert item is not None
        with pytest.raises(ValueError, match=why):
            queue.release(item.xid, **how)
        assert queue.confirm_remove(item.xid)
        assert not queue.release(item.xid)
        assert not queue.extend(item.xid, 5)


def test_an_item_that_was_taken_away_is_an_error(tmp_path: Path) -> None:
    """Its time was up, so others may have it."""
    with filled(tmp_path, open_transaction_timeout=0.1) as queue:
        with pytest.raises(LeaseEnded), queue.reserve() as held:
            assert held is not None
            again = None
            while again is None or again.data != b"a":
                again = queue.wait_remove(PATIENCE)
        queue.add(b"d")
        with pytest.raises(LeaseEnded), queue.reserve() as held:
            assert held is not None
            assert queue.unremove(held.item.xid)
            held.release()


def pack(queue: PersistentQueue | AsyncPersistentQueue) -> None:
    """Write the journal anew, as happens now and then by itself."""
    upkeep = queue._queue()._upkeep
    assert upkeep is not None
    upkeep._rewrite()


def test_an_item_is_not_taken_from_its_next_reader(tmp_path: Path) -> None:
    """Nor if the journal was packed while it was held, which then says its xid."""
    with filled(tmp_path) as queue:
        held: HeldItem | None
        for _ in range(2):
            again = None
            with pytest.raises(LeaseEnded), queue.reserve() as held:
                assert held is not None
                pack(queue)
                assert queue.unremove(held.item.xid)
                again = queue.remove(transaction=True)
                assert not held.extend(PATIENCE)
                if held.deliveries:
                    held.release()
            assert held is not None
            assert again is not None
            assert again.data == b"a"
            assert queue.unremove(again.xid)


def test_an_item_is_not_taken_from_the_next_task_that_has_it(tmp_path: Path) -> None:
    """As for threads."""

    async def scenario() -> None:
        async with AsyncPersistentQueue("work", tmp_path) as queue:
            await queue.add(b"a")
            for _ in range(2):
                again = None
                with pytest.raises(LeaseEnded):
                    async with queue.reserve() as held:
                        assert held is not None
                        pack(queue)
                        assert await queue.unremove(held.item.xid)
                        again = await queue.remove(transaction=True)
                        assert not await held.extend(PATIENCE)
                        if held.deliveries:
                            await held.release()
                assert again is not None
                assert await queue.unremove(again.xid)

    asyncio.run(scenario())


def test_a_consumer_that_stops_early_gives_its_item_back(tmp_path: Path) -> None:
    """A break and an error leave the item in the queue; max_items confirms the last."""
    with filled(tmp_path) as queue:
        assert [item.data for item in queue.consume(max_items=1)] == [b"a"]
        for item in queue.consume():
            assert item.data == b"b"
            break
        consumer = queue.consume()
        assert next(consumer).data == b"b"
        with pytest.raises(KeyError):
            consumer.throw(KeyError())
        assert left(queue) == [b"b", b"c"]


def test_a_dead_letter_goes_where_the_collection_has_a_queue(tmp_path: Path) -> None:
    """With all that is known of it."""
    config = QueueConfig(max_deliveries=5, dead_letter_queue="dead")
    with QueueCollection(tmp_path, queues={"work": config}) as queues:
        work, dead = queues.queue("work"), queues.queue("dead")
        work.add(b"bad")
        with work.reserve() as held:
            assert isinstance(held, HeldItem)
            held.release(dead=True)
        with dead.reserve(PATIENCE) as held:
            assert held is not None
            assert (held.data, held.deliveries) == (b"bad", 1)
        assert work.peek() is None


def test_the_next_start_gives_it_back(tmp_path: Path) -> None:
    """What a program held when it ended is at the head."""
    with filled(tmp_path) as queue:
        block = queue.reserve()
        held = block.__enter__()  # as when the program ends within the block
        assert held is not None
    with PersistentQueue("work", tmp_path) as queue:
        assert left(queue) == [b"a", b"b", b"c"]


async def test_tasks_hold_items(tmp_path: Path) -> None:
    """The same with await; a cancelled task gives its item back."""
    async with AsyncPersistentQueue("work", tmp_path) as queue:
        for data in (b"a", b"b"):
            await queue.add(data)
        async with queue.reserve() as held:
            assert held is not None
            assert held.data == b"a"
            await held.release(delay=0.05)
        holds = asyncio.Event()

        async def work() -> None:
            async with queue.reserve() as held:
                assert held is not None
                assert await held.extend(PATIENCE)
                holds.set()
                await asyncio.sleep(PATIENCE)

        task = asyncio.create_task(work())
        await holds.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        items = [item async for item in queue.consume(idle_timeout=PATIENCE, max_items=2)]
        found = [(item.data, item.deliveries) for item in items]
        assert sorted(found) == [(b"a", 1), (b"b", 1)]
        await queue.add(b"c")
        async with aclosing(queue.consume()) as consumer:
            async for item in consumer:
                assert item.data == b"c"
                break
        async with queue.reserve() as held:
            assert held is not None
            await held.finish()
        async with queue.reserve() as held:
            assert held is None


def data_of(items: list[Item] | None) -> list[bytes]:
    """Return the data of reserved items."""
    assert items is not None
    return [item.data for item in items]


def test_a_step_is_repeated_after_a_restart(tmp_path: Path) -> None:
    """It gets the same items until they are finished, and then none."""
    with filled(tmp_path) as queue:
        first = queue.reserve_many(2, PATIENCE, tag="sink:7:0")
        assert data_of(first) == [b"a", b"b"]
        assert data_of(queue.reserve_many(1, PATIENCE)) == [b"c"]
    with PersistentQueue("work", tmp_path) as queue:
        assert queue.reserve_many(9, PATIENCE, 0.01) == []
        assert queue.reserve_many(9, PATIENCE, tag="sink:7:0") == first
        assert queue.finish("sink:7:0") == 2
    with PersistentQueue("work", tmp_path) as queue:
        assert (queue.finish("sink:7:0"), queue.finish("sink:7:1")) == (2, 0)
        assert queue.reserve_many(9, PATIENCE, tag="sink:7:0") is None
        assert queue.retire("sink", 7) == 1
        for call in (queue.finish, lambda tag: queue.reserve_many(1, PATIENCE, tag=tag)):
            with pytest.raises(TagRefused, match="retired"):
                call("sink:7:0")


def test_a_step_that_has_nothing_takes_nothing(tmp_path: Path) -> None:
    """With `again`; a lease of 0 has no end."""
    with filled(tmp_path) as queue:
        assert queue.reserve_many(2, 0, None, tag="sink:1:0", again=True) == []
        first = queue.reserve_many(2, 0, tag="sink:1:0")
        assert queue.reserve_many(2, 0, tag="sink:1:0", again=True) == first
        assert queue.finish("sink:1:0") == 2
        assert queue.reserve_many(2, 0, tag="sink:1:0", again=True) is None
        with pytest.raises(ValueError, match="again needs a tag"):
            queue.reserve_many(2, 0, again=True)
        assert left(queue) == [b"c"]


def test_reserved_items_are_ended_one_by_one(tmp_path: Path) -> None:
    """By their xids, or by their lease, which may be extended."""
    with filled(tmp_path, open_transaction_timeout=0.001) as queue:
        a, b, c = queue.reserve_many(9, PATIENCE) or []
        assert (queue.confirm_remove(a.xid), queue.release(b.xid, counted=False)) == (True, True)
        assert queue.extend(c.xid, 0.001)
        found = queue.wait_remove(PATIENCE), queue.wait_remove(PATIENCE)
        assert {item.data: item.deliveries for item in found if item} == {b"b": 0, b"c": 1}
        assert not queue.confirm_remove(c.xid)
        queue.add(b"d")
        (d,) = queue.reserve_many(9, 0.001) or []
        again = queue.reserve_many(9, PATIENCE, PATIENCE) or []
        assert [(item.data, item.deliveries) for item in again] == [(d.data, 1)]


def test_what_cannot_be_reserved(tmp_path: Path) -> None:
    """An error says why, and nothing is reserved."""
    with filled(tmp_path) as queue:
        for number, lease in ((0, 1.0), (1001, 1.0), (1, 0.0001), (1, float("nan")), (1, 1e30)):
            with pytest.raises(ValueError, match=r"1 to 1000 items|a lease is"):
                queue.reserve_many(number, lease)
        for tag in ("sink", "sink:x:0", "si nk:7:0", f"sink:7:{'x' * 200}"):
            for call in (queue.finish, lambda tag: queue.reserve_many(1, 1, tag=tag)):
                with pytest.raises(TagRefused, match="a tag"):
                    call(tag)
        for name, epoch in (("a:b", 7), ("", 7), ("sink", -1)):
            with pytest.raises(TagRefused, match="a tag is"):
                queue.retire(name, epoch)
        assert len(queue) == 3


def test_tasks_reserve_items(tmp_path: Path) -> None:
    """As threads do; a task may wait for them."""

    async def use() -> None:
        async with AsyncPersistentQueue("work", tmp_path) as queue:
            waiting = asyncio.ensure_future(
                queue.reserve_many(9, PATIENCE, PATIENCE, tag="sink:7:0")
            )
            await asyncio.sleep(0)
            await queue.add(b"a")
            assert data_of(await waiting) == [b"a"]
            assert await queue.finish("sink:7:0") == 1
            assert await queue.reserve_many(9, PATIENCE, tag="sink:7:0") is None
            assert await queue.retire("sink", 7) == 1
            assert await queue.reserve_many(9, PATIENCE, 0.01) == []

    asyncio.run(use())


def test_a_collection_reserves_items(tmp_path: Path) -> None:
    """To finish what is not there creates no queue."""
    with QueueCollection(tmp_path) as queues:
        queues.add("work", b"a")
        assert data_of(queues.queue("work").reserve_many(1, PATIENCE, tag="sink:7:0")) == [b"a"]
        assert queues.queue("work").finish("sink:7:0") == 1
        assert (queues.queue("none").finish("sink:7:0"), queues.names()) == (0, ["work"])
