"""Requests about reserved reads that a task makes, in the server's loop."""

import asyncio
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import JournalError, QueueUnavailable
from kestrelmq.format.records import item_data, item_deliveries
from kestrelmq.protocol.reserving import ExtendOwner, Release, Reserve
from kestrelmq.server.requests.reserving import AwaitedRequest
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

LEASE = 600_000
SYNCED = {"slow": QueueConfig.model_validate({"sync_journal": "0ms"})}


def waiting(turning: Turning, name: str = "work") -> list[tuple[bytes, int]]:
    """Return the items that wait in a queue, each with how often it was handed out."""
    queue = turning.collection.obtain(name)
    return [(item_data(one), item_deliveries(one)) for one in queue.backlog.browse(9)]


def add(turning: Turning, *items: bytes, name: str = "work") -> None:
    """Add items."""
    for item in items:
        turning.collection.add(name, item)


def test_what_is_reserved_is_written_first(tmp_path: Path) -> None:
    """And after a sync, where the settings say so; until the task says so, it is not sent."""
    syncs = HeldWorker()

    async def scenario() -> None:
        turning.turns._sync_thread = syncs
        add(turning, b"a", b"b", name="slow")
        await turning.turn()
        assert syncs.step()
        awaited = AwaitedRequest(turning.context)
        task = asyncio.create_task(awaited.reserve(Reserve(("slow",), 1, LEASE)))
        await turning.until(lambda: turning.collection.obtain("slow").reads.held == 1)
        for _ in range(5):
            await turning.turn()
        assert not task.done()
        while not task.done():
            syncs.step()
            await turning.turn()
            await asyncio.sleep(0)
        assert task.result()
        awaited.sent()
        awaited.cancel()
        other = AwaitedRequest(turning.context)
        task = asyncio.create_task(other.reserve(Reserve(("slow",), 1, LEASE)))
        await turning.until(lambda: turning.collection.obtain("slow").reads.held == 2)
        task.cancel()
        await turning.until(task.done)
        while syncs.step():
            await turning.turn()

    config = ServerConfig(queue_path=tmp_path, queues=SYNCED)
    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert turning.collection.obtain("slow").reads.held == 1
        assert waiting(turning, "slow") == [(b"b", 0)]


@pytest.mark.parametrize(("step", "name"), [("sync", "slow"), ("append", "work")])
def test_what_could_not_be_written_is_released(tmp_path: Path, step: str, name: str) -> None:
    """The task gets the error; the next one gets the item, and the journal says the same."""
    disk = CrashingDirectory.within(tmp_path)
    config = ServerConfig(queue_path=disk.path, queues=SYNCED)

    async def scenario() -> None:
        add(turning, b"a", name=name)
        await turning.turn()
        disk.break_steps(step)
        with pytest.raises(JournalError):
            await AwaitedRequest(turning.context).reserve(Reserve((name,), 1, LEASE))
        await turning.until(lambda: len(turning.collection.obtain(name)) == 1)
        disk.mend()

    with Turning(disk.path, config, directory=disk) as turning:
        turning.run(scenario())
        assert waiting(turning, name) == [(b"a", 0)]


def test_a_release_that_could_not_be_written(tmp_path: Path) -> None:
    """The task gets the error, though it takes several turns; what was not released is reserved."""
    disk = CrashingDirectory.within(tmp_path)

    async def scenario() -> None:
        add(turning, *(b"%d" % number for number in range(500)))
        awaited = AwaitedRequest(turning.context)
        await awaited.reserve(Reserve(("work",), 500, LEASE, owner="w"))
        awaited.sent()
        disk.break_steps("append")
        with pytest.raises(JournalError):
            await AwaitedRequest(turning.context).end_reads(Release("work", (), owner="w"))
        disk.mend()
        released = await AwaitedRequest(turning.context).end_reads(
            Release("work", (), owner="w", uncounted=True)
        )
        assert released == 500

    with Turning(disk.path, directory=disk) as turning:
        turning.run(scenario())
        assert len(turning.collection.obtain("work")) == 500


def test_a_task_that_is_cancelled_leaves_the_line(tmp_path: Path) -> None:
    """It takes nothing, whether the task is cancelled or the client is gone."""

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        awaited = AwaitedRequest(turning.context)
        task = asyncio.create_task(awaited.reserve(Reserve(("work",), 1, LEASE, LEASE)))
        await turning.until(lambda: queue.waiters.readers == 1)
        awaited.cancel()
        assert queue.waiters.readers == 0
        with pytest.raises(ConnectionError):
            await task
        task = asyncio.create_task(
            AwaitedRequest(turning.context).reserve(Reserve(("work",), 1, LEASE, LEASE))
        )
        await turning.until(lambda: queue.waiters.readers == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.waiters.readers == 0
        add(turning, b"a")

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert waiting(turning) == [(b"a", 0)]


def test_a_task_that_is_gone_when_an_item_comes_gives_it_back(tmp_path: Path) -> None:
    """The item was reserved already, but the task has not seen it: it goes back."""

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        awaited = AwaitedRequest(turning.context)
        task = asyncio.create_task(awaited.reserve(Reserve(("work",), 1, LEASE, LEASE)))
        await turning.until(lambda: queue.waiters.readers == 1)
        add(turning, b"a")
        assert queue.reads.held == 1
        awaited.cancel()
        assert queue.reads.held == 0
        await task
        awaited.sent()

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert waiting(turning) == [(b"a", 0)]


def test_a_queue_that_its_settings_close(tmp_path: Path) -> None:
    """Who waits gets the reason."""

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        awaited = AwaitedRequest(turning.context)
        task = asyncio.create_task(awaited.reserve(Reserve(("work", "x"), 1, LEASE, LEASE)))
        await turning.until(lambda: queue.waiters.readers == 1)
        queue.configure(QueueConfig(allowed_client_ids_for_dequeue=("someone",)))
        with pytest.raises(QueueUnavailable, match="who may read work has changed"):
            await task
        assert turning.collection.obtain("x").waiters.readers == 0

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_a_task_is_no_connection_of_an_owner(tmp_path: Path) -> None:
    """So it names as many as it likes, and none is kept."""

    async def scenario() -> None:
        for number in range(300):
            request = ExtendOwner(f"w{number}", 9)
            assert await AwaitedRequest(turning.context).end_reads(request) == 0
        assert not turning.collection.owners._states

    with Turning(tmp_path) as turning:
        turning.run(scenario())
