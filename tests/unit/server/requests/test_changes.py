"""Changes of whole queues: others are served meanwhile, and what follows the request waits."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import DiskDirectory
from kestrelmq.format.records import YEAR_2101
from kestrelmq.journal.writer import FileJournal
from kestrelmq.server.long_reply import in_slices
from kestrelmq.server.requests import changes
from tests.support.held_worker import HeldWorker
from tests.support.turning import Turning

QUEUES = 20
FLUSH_ALL_QUEUES = b"\x80\x01\x00\x01\x00\x00\x00\x10flush_all_queues\x00\x00\x00\x07\x00"
"""A thrift call without arguments: version and kind, name, sequence number, and its end."""


class WatchedDirectory(DiskDirectory):
    """A queue path that notes which threads force its names to disk.

    Attributes:
        threads: their names, in the order of the syncs.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.threads: list[str] = []

    def sync(self) -> None:
        """Note who does it, and do it."""
        self.threads.append(threading.current_thread().name)
        super().sync()


@pytest.fixture(name="turning")
def many_queues(tmp_path: Path) -> Iterator[Turning]:
    """A server with some queues, each with an item, whose files a thread removes."""
    directory = WatchedDirectory(tmp_path)
    with Turning(tmp_path, directory=directory) as loop:
        for number in range(QUEUES):
            loop.collection.add(f"jobs{number}", b"x")
        assert not loop.collection.commits.commit()
        directory.threads.clear()
        yield loop


@pytest.fixture
def short_shares(turning: Turning) -> None:
    """Let one slow thing be done in each turn, and no more."""
    turning.turns.slow_share = -1.0


FLUSHES = [
    ("memcache", b"flush_all\r\n", b"Flushed all queues.\r\n"),
    ("text", b"flush_all\n", b"+0\n"),
    ("thrift", len(FLUSH_ALL_QUEUES).to_bytes(4) + FLUSH_ALL_QUEUES, b"\0"),
]


@pytest.mark.usefixtures("short_shares")
@pytest.mark.parametrize(("protocol", "request_", "end"), FLUSHES)
def test_others_are_served_while_all_queues_are_flushed(
    turning: Turning, protocol: str, request_: bytes, end: bytes
) -> None:
    """In whatever protocol it is asked for."""
    seen: list[int] = []

    def left() -> int:
        return sum(map(len, turning.collection.queues.values()))

    async def scenario() -> None:
        slow, quick = turning.connect(protocol), turning.connect("memcache")
        await turning.send(slow, request_)
        while left():
            await turning.send(quick, b"version\r\n")
            await turning.receive(quick, b"\r\n")
            seen.append(left())
        await turning.receive(slow, end)
        await turning.hang_up(slow)
        await turning.hang_up(quick)

    turning.run(scenario())
    assert len(set(seen)) > QUEUES / 4


@pytest.mark.parametrize("request_", [b"flush late\r\n", b"flush_all\r\n"])
def test_a_flush_is_on_disk_when_it_is_answered(tmp_path: Path, request_: bytes) -> None:
    """If the settings ask for that, the delayed items as well as the others."""
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(sync_journal=0))
    with Turning(tmp_path, config) as turning:
        turning.collection.add("late", b"waits")
        turning.collection.add("late", b"is late", due=YEAR_2101)
        assert not turning.collection.commits.commit()
        journal = turning.collection.obtain("late").journal
        journal.sync()

        async def scenario() -> None:
            client = turning.connect("memcache")
            await turning.send(client, request_)
            await turning.receive(client, b"\r\n")
            await turning.hang_up(client)

        turning.run(scenario())
        assert isinstance(journal, FileJournal)
        assert journal.unsynced == 0


def test_the_loop_waits_for_no_disk_when_a_queue_is_deleted(
    turning: Turning, tmp_path: Path
) -> None:
    """A thread does, and the reply comes after it."""
    directory = turning.collection._directory
    assert isinstance(directory, WatchedDirectory)

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"delete jobs0\r\n")
        await turning.receive(client, b"DELETED\r\n")
        assert not (tmp_path / "jobs0").exists()
        await turning.hang_up(client)

    turning.run(scenario())
    assert len(directory.threads) == 4
    assert threading.current_thread().name not in directory.threads


@pytest.mark.parametrize(
    ("protocol", "requests", "replies"),
    [
        (
            "memcache",
            b"delete jobs1\r\nget jobs1\r\nset jobs1 0 0 1\r\ny\r\nget jobs1\r\n",
            b"DELETED\r\nEND\r\nSTORED\r\nVALUE jobs1 0 1\r\ny\r\nEND\r\n",
        ),
        ("text", b"delete jobs1\nput jobs1:\ny\n\npeek jobs1\n", b"+0\n+1\n:y\n"),
    ],
)
def test_what_follows_a_delete_waits_for_it(
    turning: Turning, protocol: str, requests: bytes, replies: bytes
) -> None:
    """It finds a new queue of that name."""

    async def scenario() -> None:
        client = turning.connect(protocol)
        await turning.send(client, requests)
        assert await turning.receive(client, replies) == replies
        await turning.hang_up(client)

    turning.run(scenario())


@pytest.mark.usefixtures("short_shares")
def test_a_change_goes_on_when_its_client_is_gone(turning: Turning) -> None:
    """It was asked for."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"flush_all\r\n")
        await turning.hang_up(client)
        await turning.until(lambda: not any(map(len, turning.collection.queues.values())))

    turning.run(scenario())
    assert not turning.connections


def test_a_delete_goes_on_when_its_client_is_gone(tmp_path: Path) -> None:
    """And nobody is told."""
    worker = HeldWorker()

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"set jobs 0 0 1\r\nx\r\n")
        await turning.receive(client, b"STORED\r\n")
        await turning.send(client, b"delete jobs\r\n")
        await turning.until(lambda: len(worker) > 0)
        client.close()
        while worker.step():
            await turning.turn()
        await turning.until(lambda: not turning.connections)

    with Turning(tmp_path, writer=worker) as turning:
        turning.run(scenario())
        assert not turning.collection.queues


@pytest.mark.usefixtures("short_shares")
def test_others_are_served_while_settings_are_put_in_force(turning: Turning) -> None:
    """One queue after the other has them, and new ones have them at once."""
    config = ServerConfig(
        queue_path=turning.context.config.queue_path, default=QueueConfig(max_items=3)
    )
    seen: list[int] = []

    async def look() -> None:
        while len(set(seen)) < 3:
            queues = turning.collection.queues.values()
            seen.append(sum(queue.config.max_items == 3 for queue in queues))
            await turning.turn()

    async def scenario() -> None:
        task = asyncio.create_task(look())
        assert await in_slices(turning.collection.reloading(config), turning.turns) == []
        await task

    turning.run(scenario())
    assert {queue.config.max_items for queue in turning.collection.queues.values()} == {3}


def test_a_reply_of_the_admin_api_waits_for_a_round_that_others_share(tmp_path: Path) -> None:
    """What was changed by many requests in one turn takes one sync of each queue, or two."""
    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(sync_journal=0))

    async def add() -> None:
        turning.collection.add("jobs", b"x")
        await changes.wait_until_durable(turning.context, turning.collection.queues["jobs"])

    async def scenario() -> None:
        await asyncio.gather(*(add() for _ in range(50)))

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert 1 <= turning.collection.queues["jobs"].journal.syncs <= 3
