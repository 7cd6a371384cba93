"""`reserve` in the server's loop: what a client that goes away leaves, and replies that fail."""

import socket
from pathlib import Path

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.errors import QueueUnavailable
from kestrelmq.format.records import item_add_time, item_data, item_deliveries, item_expiry
from kestrelmq.queue.paused import Paused
from kestrelmq.queue.reserving import RESERVED_MEMORY
from tests.support.crashing_directory import CrashingDirectory
from tests.support.held_worker import HeldWorker
from tests.support.local_queues import LocalQueues
from tests.support.open_reads import open_read
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

BIG = 3_000_000
"""More than a socket takes at once."""


def waiting(turning: Turning, name: str = "work") -> list[tuple[bytes, int]]:
    """Return the items that wait in a queue, each with how often it was handed out."""
    queue = turning.collection.obtain(name)
    return [(item_data(one)[:1], item_deliveries(one)) for one in queue.backlog.browse(10)]


async def ask(turning: Turning, client: socket.socket, request: bytes, end: bytes) -> bytes:
    """Send a request; return its reply."""
    await turning.send(client, request)
    return await turning.receive(client, end)


async def put(turning: Turning, *items: bytes, name: bytes = b"work") -> None:
    """Add items, from a connection of their own."""
    client = turning.connect("memcache")
    for data in items:
        request = b"set %b 0 0 %d\r\n%b\r\n" % (name, len(data), data)
        await ask(turning, client, request, b"STORED\r\n")
    await turning.hang_up(client)


def test_what_was_not_sent_is_released(tmp_path: Path) -> None:
    """The client goes while it reads; what came before that reply is its own."""

    async def scenario() -> None:
        await put(turning, b"a", b"b" * BIG, b"c")
        client = turning.connect("memcache")
        await ask(turning, client, b"reserve work 1 lease=9999\r\n", b"END\r\n")
        await turning.send(client, b"reserve work 2 lease=9999\r\n")
        await turning.until(lambda: turning.collection.obtain("work").reads.held == 2)
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert waiting(turning) == [(b"b", 0), (b"c", 0)]
        assert turning.collection.obtain("work").reads.held == 1


def test_a_batch_of_different_items(tmp_path: Path) -> None:
    """Each line has the item's own numbers, and all of the reads are finished at once."""
    name = b"100%d"
    items = [b"a", b"b", b"", b"\r\nEND\r\n", b"c" * 9, b"d" * 9]

    async def scenario() -> None:
        queue = turning.collection.obtain(name.decode())
        for _ in range(997):
            queue.add(b"early")
        client = turning.connect("memcache")
        # The xids behind these have three digits, and then four.
        await ask(turning, client, b"reserve %b 997 lease=9999 tag=a:1:x\r\n" % name, b"END\r\n")
        await ask(turning, client, b"finish %b tag=a:1:x\r\n" % name, b"FINISHED 997\r\n")
        for data in items:
            queue.add(data, 10**13 if data == b"b" else 0)
        opened = open_read(queue)
        assert opened is not None
        assert queue.returns.give_back([opened[0]])
        reserve = b"reserve %b 1000 lease=9999\r\n" % name
        reply = await ask(turning, client, reserve, b"d\r\nEND\r\n")
        (reservation,) = queue.reads.reserved.reservations()
        xids, records = queue.reserved.reads_of(reservation)
        assert list(map(item_data, records)) == items
        assert tuple(xids) == (999, 1000, 1001, 1002, 1003, 1004)
        reads = [b"%d-%016x" % (xid, reservation.nonce) for xid in xids]
        expected = b"".join(
            b"ITEM %b %b %d %d %d %d\r\n%b\r\n"
            % (
                name,
                read,
                item_deliveries(record) + 1,
                item_add_time(record),
                item_expiry(record),
                len(item_data(record)),
                item_data(record),
            )
            for read, record in zip(reads, records, strict=True)
        )
        assert reply == expected + b"END\r\n"
        finish = b"finish %b %b\r\n" % (name, b" ".join(reads))
        assert await ask(turning, client, finish, b"\r\n") == b"FINISHED 6\r\n"
        assert await ask(turning, client, finish, b"\r\n") == b"FINISHED 0\r\n"
        assert await ask(turning, client, reserve, b"END\r\n") == b"END\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_a_repetition_that_was_not_sent_changes_nothing(tmp_path: Path) -> None:
    """The tag is open, as it was before."""

    async def scenario() -> None:
        await put(turning, b"b" * BIG)
        client = turning.connect("memcache")
        reserve = b"reserve work 1 lease=9999 tag=a:1:x\r\n"
        first = await ask(turning, client, reserve, b"END\r\n")
        await turning.send(client, reserve)
        await turning.until(lambda: turning.connections[client.fileno()].paused > 0)
        await turning.hang_up(client)
        client = turning.connect("memcache")
        assert await ask(turning, client, reserve, b"END\r\n") == first
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert turning.collection.obtain("work").reads.held == 1


def test_a_queue_that_is_named_twice_is_asked_once(tmp_path: Path) -> None:
    """Each item is answered once, also when the tag is open already."""

    async def scenario() -> None:
        await put(turning, b"item")
        client = turning.connect("memcache")
        request = b"reserve work,work 9 lease=9999 tag=a:1:x\r\n"
        for _ in range(2):
            assert (await ask(turning, client, request, b"END\r\n")).count(b"item") == 1
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_what_waits_for_a_sync_was_not_sent(tmp_path: Path) -> None:
    """Though an earlier reply of the same connection was, after an earlier sync."""
    settings = {"slow": QueueConfig.model_validate({"sync_journal": "0ms"})}
    config = ServerConfig(queue_path=tmp_path, queues=settings)
    syncs = HeldWorker()

    async def scenario() -> None:
        turning.turns._sync_thread = syncs
        client = turning.connect("memcache")
        for data in (b"a", b"b"):
            await turning.send(client, b"set slow 0 0 1\r\n%b\r\n" % data)
            await turning.turn()
        await turning.send(client, b"reserve slow 1 lease=9999\r\n")
        await turning.turn()
        assert turning.collection.obtain("slow").reads.held == 1
        assert syncs.step()
        assert await turning.receive(client, b"\r\n") == b"STORED\r\n"
        for _ in range(5):
            await turning.turn()
        await turning.hang_up(client)
        while syncs.step():
            await turning.turn()

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert waiting(turning, "slow") == [(b"a", 0), (b"b", 0)]


def test_a_reply_that_a_failed_sync_replaced(tmp_path: Path) -> None:
    """The client got an error, so it does not know the items: they are not kept from others."""
    disk = CrashingDirectory.within(tmp_path)
    settings = {"slow": QueueConfig.model_validate({"sync_journal": "0ms"})}
    config = ServerConfig(queue_path=disk.path, queues=settings)

    async def scenario() -> None:
        await put(turning, b"a", name=b"slow")
        client = turning.connect("memcache")
        disk.break_steps("sync")
        reply = await ask(turning, client, b"reserve slow 1 lease=9999\r\n", b"\r\n")
        assert reply.startswith(b"SERVER_ERROR ")
        await turning.until(lambda: len(turning.collection.obtain("slow")) == 1)
        disk.mend()
        await turning.hang_up(client)

    with Turning(disk.path, config, directory=disk) as turning:
        turning.run(scenario())
        assert waiting(turning, "slow") == [(b"a", 0)]


def test_a_write_that_fails(tmp_path: Path) -> None:
    """The reserve is answered with an error; the next one gets the item."""
    disk = CrashingDirectory.within(tmp_path)

    async def scenario() -> None:
        await put(turning, b"a")
        client = turning.connect("memcache")
        disk.break_steps("append")
        reply = await ask(turning, client, b"reserve work 1 lease=9999\r\n", b"\r\n")
        assert reply.startswith(b"SERVER_ERROR ")
        disk.mend()
        assert await ask(turning, client, b"reserve work 1 lease=9999\r\n", b"END\r\n")
        await turning.hang_up(client)

    with Turning(disk.path, directory=disk) as turning:
        turning.run(scenario())
        assert turning.collection.obtain("work").reads.held == 1


def test_the_next_command_ends_a_wait(tmp_path: Path) -> None:
    """Whether it came with the reserve or later; nothing is taken for it then."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        reserve = b"reserve work,other 9 lease=9999 t=600000\r\n"
        reply = await ask(turning, client, reserve + b"status\r\n", b"UP\r\n")
        assert reply == b"END\r\nUP\r\n"
        await turning.send(client, reserve)
        queue = turning.collection.obtain("other")
        await turning.until(lambda: queue.waiters.readers == 1)
        assert await ask(turning, client, b"status\r\n", b"UP\r\n") == b"END\r\nUP\r\n"
        assert queue.waiters.readers == 0
        await put(turning, b"a")
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert waiting(turning) == [(b"a", 0)]


def test_a_command_that_came_before_the_wait_ends_it(tmp_path: Path) -> None:
    """The wait begins in a later turn, because it takes more than one to create so many queues."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        names = b",".join(b"new-%d" % number for number in range(100))
        reserve = b"reserve %b 9 lease=9999 t=600000\r\n" % names
        reply = await ask(turning, client, reserve + b"status\r\n", b"UP\r\n")
        assert reply == b"END\r\nUP\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_a_wait_ends_when_its_queue_is_deleted(tmp_path: Path) -> None:
    """With no item, whichever of the queues it is; and it leaves the lines of the others."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        await turning.send(client, b"reserve work,other 9 lease=9999 t=600000\r\n")
        queue = turning.collection.obtain("work")
        await turning.until(lambda: queue.waiters.readers == 1)
        turning.collection.delete("other")
        assert await turning.receive(client, b"\r\n") == b"END\r\n"
        assert queue.waiters.readers == 0
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_a_wait_at_two_queues_is_answered_once(tmp_path: Path) -> None:
    """Though looking at the head of the one moves a dead item to the other, which is served."""
    jobs = QueueConfig(max_deliveries=1, dead_letter_queue="dead")
    config = ServerConfig(queue_path=tmp_path, queues={"jobs": jobs})
    before = LocalQueues(config)
    before.add(b"bad", b"good")
    before.open_read()
    before.close()

    async def scenario() -> None:
        collection = turning.collection
        collection.pause("jobs", Paused.READS)
        client = turning.connect("memcache")
        await turning.send(client, b"reserve jobs,dead 1 lease=9999 t=600000\r\n")
        await turning.until(lambda: collection.obtain("dead").waiters.readers == 1)
        collection.resume("jobs", Paused.READS)
        assert (await turning.receive(client, b"END\r\n")).count(b"\r\nbad\r\n") == 1
        assert collection.obtain("jobs").waiters.readers == 0
        assert await ask(turning, client, b"status\r\n", b"\r\n") == b"UP\r\n"
        await put(turning, b"more", name=b"jobs")
        assert await ask(turning, client, b"status\r\n", b"\r\n") == b"UP\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert waiting(turning, "jobs") == [(b"g", 0), (b"m", 0)]


def test_a_queue_whose_reserved_items_fill_its_memory_is_passed_over(tmp_path: Path) -> None:
    """It has no item for now; those behind it are asked, and only then is it an error."""
    end = b"END\r\n"

    async def scenario() -> None:
        await put(turning, b"r" * RESERVED_MEMORY, name=b"high")
        holder, client = turning.connect("memcache"), turning.connect("memcache")
        await ask(turning, holder, b"reserve high 1 lease=9999\r\n", b"END\r\n")
        await put(turning, b"1", b"2", name=b"low")
        request = b"reserve high,low 1 lease=9999 t=9999\r\n"
        assert b"low" in await ask(turning, client, request, end)
        await put(turning, b"h", name=b"high")
        assert b"low" in await ask(turning, client, request, end)
        refused = await ask(turning, client, request, b"\n")
        assert refused.startswith(b"SERVER_ERROR the reserved items")
        await turning.hang_up(client)
        await turning.hang_up(holder)

    config = ServerConfig(queue_path=tmp_path, default=QueueConfig(max_memory_size=0))
    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert waiting(turning, "high") == [(b"h", 0)]


def test_an_owner_with_many_reads_is_released_in_slices(tmp_path: Path) -> None:
    """The reply comes when all are released."""

    async def scenario() -> None:
        await put(turning, *(b"%04d" % number for number in range(2500)))
        client = turning.connect("memcache")
        for _ in range(3):
            await ask(turning, client, b"reserve work 1000 lease=9999 owner=w\r\n", b"END\r\n")
        assert turning.collection.obtain("work").reads.held == 2500
        reply = await ask(turning, client, b"release work owner=w uncounted\r\n", b"\r\n")
        assert reply == b"RELEASED 2500\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert len(turning.collection.obtain("work")) == 2500


def test_a_connection_names_only_so_many_owners(tmp_path: Path) -> None:
    """The same one again is no other; too many are an error, and nothing else."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        for number in (*range(100), 7):
            reply = await ask(turning, client, b"extend owner=w%d 9\r\n" % number, b"\r\n")
            assert reply == b"EXTENDED 0\r\n"
        for request in (b"extend owner=more 9\r\n", b"reserve work 1 lease=9 owner=more\r\n"):
            reply = await ask(turning, client, request, b"\r\n")
            assert reply == b"SERVER_ERROR a connection may name 100 owners\r\n"
        await turning.hang_up(client)

    with Turning(tmp_path) as turning:
        turning.run(scenario())
        assert not turning.collection.owners._states


@pytest.mark.parametrize(
    ("request_", "refusal"),
    [
        (b"reserve fresh 1 lease=9 tag=a:b:c", b"CLIENT_ERROR a tag is NAME:EPOCH:PART"),
        (b"finish fresh tag=a:1", b"CLIENT_ERROR a tag is NAME:EPOCH:PART"),
        (b"reserve fresh,work 1 lease=9 tag=old:1:x", b"CLIENT_ERROR the epoch of tag"),
        (b"reserve fresh,guarded 1 lease=9", b"CLIENT_ERROR this client may not read"),
        (b"reserve fresh,damaged 1 lease=9", b"SERVER_ERROR it is damaged"),
    ],
)
def test_a_refused_request_creates_no_queue(
    tmp_path: Path, request_: bytes, refusal: bytes
) -> None:
    """Whichever of its queues is the reason."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        await ask(turning, client, b"retire work old 1\r\n", b"RETIRED 0\r\n")
        turning.collection.damaged["damaged"] = QueueUnavailable("it is damaged")
        reply = await ask(turning, client, request_ + b"\r\n", b"\n")
        await turning.hang_up(client)
        assert reply.startswith(refusal)

    guarded = QueueConfig(allowed_client_ids_for_dequeue=("someone",))
    config = ServerConfig(queue_path=tmp_path, queues={"guarded": guarded})
    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert list(turning.collection.queues) == ["work"]


def test_a_queue_that_cannot_be_used_concerns_those_behind_it(tmp_path: Path) -> None:
    """Queues are asked in order; but a tag may be open in any of them, so all must be usable."""

    async def scenario() -> None:
        await put(turning, b"1", b"2")
        await put(turning, b"3", name=b"late")
        turning.collection.damaged["damaged"] = QueueUnavailable("it is damaged")
        client = turning.connect("memcache")
        for queues, has_items in (
            (b"work,damaged 1 lease=9999", True),
            (b"empty,work,damaged,guarded 1 lease=9999", False),
            (b"work,damaged 1 lease=9999 tag=a:1:x", False),
            (b"damaged,work 1 lease=9999", False),
            (b"empty,work,damaged,late 9 lease=9999", True),
            (b"work,damaged,late 9 lease=9999 t=9999", False),
        ):
            end = b"END\r\n" if has_items else b"\n"
            reply = await ask(turning, client, b"reserve %b\r\n" % queues, end)
            refusal = b"CLIENT_ERROR" if b"guarded" in queues else b"SERVER_ERROR"
            assert reply.split()[0] == (b"ITEM" if has_items else refusal)
        await turning.hang_up(client)

    guarded = QueueConfig(allowed_client_ids_for_dequeue=("someone",))
    config = ServerConfig(queue_path=tmp_path, queues={"guarded": guarded})
    with Turning(tmp_path, config) as turning:
        turning.run(scenario())
        assert set(turning.collection.queues) == {"work", "late"}
        assert waiting(turning, "late") == [(b"3", 0)]
