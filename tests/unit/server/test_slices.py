"""Expired items and open reads of which there are many: nobody waits until all are done with."""

import asyncio
import socket
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.format.records import item_data, item_deliveries
from kestrelmq.protocol.memcache import Request
from kestrelmq.protocol.reserving import Reserve
from kestrelmq.queue.queue import Queue
from kestrelmq.server.requests.reads import HeldReadsReturn
from kestrelmq.server.requests.reserving import AwaitedRequest
from tests.support.crashing_directory import CrashingDirectory
from tests.support.local_queues import LocalQueues, queue_settings
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_get
from tests.unit.server.test_large_replies import NAME, thrift_call

COUNT: Final = 2600
"""Expired items: more than five slices."""
HELD: Final = 12_000
"""Open reads: twelve slices."""
READS: Final = {
    "memcache": (b"get work\r\n", b"VALUE work 0 4\r\nlive\r\nEND\r\n"),
    "memcache, open": (b"get work/open\r\n", b"VALUE work 0 4\r\nlive\r\nEND\r\n"),
    "memcache, several": (
        b"get work other\r\n",
        b"VALUE work 0 4\r\nlive\r\nVALUE other 0 1\r\nx\r\nEND\r\n",
    ),
    "memcache, monitor": (b"monitor work 0 1\r\n", b"VALUE work 0 4\r\nlive\r\nEND\r\nEND\r\n"),
    "memcache, reserve": (b"reserve work 1 lease=9999\r\n", b"\r\nlive\r\nEND\r\n"),
    "text": (b"get work\n", b":live\n"),
    "text, monitor": (b"monitor work 0 1\n", b":live\n*\n"),
    "thrift": (thrift_get(b"work", 1, 0), b"\0\0\0\x04live"),
}
SLOW: Final = {
    "memcache, malformed": b"get work/zz\r\n",
    "memcache, client kill": b"client kill 999\r\n",
    "memcache, reserve": b"reserve a,b,c 1 lease=9999\r\n",
    "thrift, set_status": thrift_call(b"set_status", b"\x08\0\x01\0\0\0\x03"),
    "thrift, delete_queue": thrift_call(b"delete_queue", b"\x0b\0\x01\0\0\0\x01q"),
}


def fill(path: Path, count: int = COUNT) -> None:
    """Fill the queue with items that expired long ago, and one that has not."""
    queues = LocalQueues(queue_settings(path))
    expiry = queues.clock.now() + 1000
    queues.add(*(b"%d" % number for number in range(count)), name="work", expiry=expiry)
    queues.add(b"live", name="work")
    queues.close()


def run(path: Path, scenario: Coroutine[Any, Any, None], turning: Turning) -> None:
    """Run `scenario`, and check that the queue's journal says what it left."""
    with turning:
        turning.run(scenario)
        left = [
            item_data(record) for record in turning.collection.obtain("work").backlog.browse(HELD)
        ]
    with Turning(path) as again:
        queue = again.collection.obtain("work")
        assert [item_data(record) for record in queue.backlog.browse(HELD)] == left


async def answered_meanwhile(turning: Turning, other: socket.socket, condition: Any) -> int:
    """Return how many requests of another client are answered until something is so."""
    count = 0
    while not condition():
        await turning.send(other, b"version\r\n")
        await turning.receive(other, b"\r\n")
        count += 1
    return count


@pytest.mark.parametrize("kind", READS)
def test_a_read_behind_many_expired_items(tmp_path: Path, kind: str) -> None:
    """It gets the first that is not; others are served meanwhile."""
    request, reply = READS[kind]
    fill(tmp_path)
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # over after the first piece

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        turning.collection.obtain("other").add(b"x")
        client = turning.connect(kind.partition(",")[0])
        other = turning.connect("memcache")
        await turning.send(client, request)
        assert COUNT > len(queue) > 1
        assert await answered_meanwhile(turning, other, lambda: len(queue) < 1) > 1
        received = bytearray()
        while reply not in received:
            received += await turning.receive_some(client)
        assert queue.counts.expired_items == COUNT
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


def test_a_thrift_peek_behind_many_expired_items(tmp_path: Path) -> None:
    """It shows the first that is not, and leaves it; others are served meanwhile."""
    fill(tmp_path)
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # over after the first piece

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        client, other = turning.connect("thrift"), turning.connect("memcache")
        await turning.send(client, thrift_call(b"peek", NAME))
        assert COUNT > len(queue) > 1
        assert await answered_meanwhile(turning, other, lambda: len(queue) < 2) > 1
        received = bytearray()
        while b"\0\0\0\x04live" not in received:
            received += await turning.receive_some(client)
        assert queue.counts.expired_items == COUNT
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


@pytest.mark.parametrize("kind", SLOW)
def test_many_slow_requests(tmp_path: Path, kind: str) -> None:
    """Others are served between those of one client, however many it sends at once."""
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # over after the first piece
    request, count = SLOW[kind], 20

    async def scenario() -> None:
        client, other = turning.connect(kind.partition(",")[0]), turning.connect("memcache")
        connection = turning.connections[client.fileno()]
        await turning.send(client, request * count)
        assert await answered_meanwhile(turning, other, lambda: connection.reply_count == count) > 1
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    with turning:
        turning.run(scenario())


@pytest.mark.parametrize("queue", [b"work", b"?/"])
def test_a_text_put_of_many_short_items(tmp_path: Path, queue: bytes) -> None:
    """Others are served while its lines are read, also if it was refused."""
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # over after the first piece

    async def scenario() -> None:
        client, other = turning.connect("text"), turning.connect("memcache")
        connection = turning.connections[client.fileno()]
        await turning.send(client, b"put %b:\n" % queue + b"x\n" * 20_000)
        assert await answered_meanwhile(turning, other, lambda: not connection.paused) > 1
        await turning.send(client, b"\nversion\n")
        received = await turning.receive(client, b"\n")
        assert received.startswith(b"+20000\n" if queue == b"work" else b"-")
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    with turning:
        turning.run(scenario())


def test_a_task_behind_many_expired_items(tmp_path: Path) -> None:
    """It reserves the first that is not; others are served meanwhile."""
    fill(tmp_path)
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # over after the first piece

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        other = turning.connect("memcache")
        awaited = AwaitedRequest(turning.context)
        task = asyncio.create_task(awaited.reserve(Reserve(("work",), 1, 9999)))
        assert await answered_meanwhile(turning, other, task.done) > 1
        awaited.sent()
        assert (queue.counts.expired_items, queue.reads.held) == (COUNT, 1)
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


@pytest.mark.parametrize("target", [None, "expired"])
@pytest.mark.parametrize("limit", [None, 700])
def test_a_sweep_of_many_expired_items(
    tmp_path: Path, target: str | None, limit: int | None
) -> None:
    """It yields in between; a limit holds for all pieces together."""
    settings = QueueConfig(expire_to_queue=target, max_expire_sweep=limit)
    config = ServerConfig(queue_path=tmp_path, queues={"work": settings})
    fill(tmp_path)
    turning = Turning(tmp_path, config)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        await turning.turn()
        lengths = []
        for _ in turning.collection.sweeping():
            lengths.append(len(queue))
            await turning.turn()
        most = COUNT if limit is None else limit
        assert len(queue) == COUNT + 1 - most
        assert len(set(lengths)) >= most // 500
        if target is not None:
            moved = turning.collection.obtain(target).backlog.browse(COUNT)
            assert [item_data(record) for record in moved] == [b"%d" % at for at in range(most)]

    run(tmp_path, scenario(), turning)


def test_an_add_drops_some_expired_items(tmp_path: Path) -> None:
    """As many as it takes for the item to have room, and no more than it has time for."""
    settings = queue_settings(tmp_path, max_items=3000)
    queues = LocalQueues(settings)
    expiry = queues.clock.now() + 1000
    queues.add(*(b"old" for _ in range(3000)), name="work", expiry=expiry)
    queues.clock.advance(2)
    queue = queues.queue("work")
    assert queue.add(b"x")
    assert len(queue) == 2501
    assert queue.add(b"x")
    assert len(queue) == 2002
    queues.commit()
    queues.close()


@pytest.mark.parametrize("name", [b" work", b""])
def test_expired_items_are_dropped_on_request(tmp_path: Path, name: bytes) -> None:
    """All of them, of one queue or of all, and the client is told how many."""
    fill(tmp_path)
    turning = Turning(tmp_path)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        client = turning.connect("memcache")
        command = b"flush_expired" if name else b"flush_all_expired"
        await turning.send(client, command + name + b"\r\n")
        assert await turning.receive(client, b"\r\n") == b"%d\r\n" % COUNT
        assert len(queue) == 1
        client.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


async def hold(turning: Turning, protocol: str) -> tuple[Queue, socket.socket]:
    """Return a queue, and a client that has open reads of all of its items."""
    queue = turning.collection.obtain("work")
    for number in range(HELD):
        queue.add(b"%05d" % number)
    client = turning.connect(protocol)
    end = b"\r\n" if protocol == "memcache" else b"\n"
    await turning.send(client, b"monitor work 0 %d" % HELD + end)
    await turning.receive(client, b"END\r\nEND\r\n" if protocol == "memcache" else b"*\n")
    assert queue.reads.held == HELD
    return queue, client


def many_reads(path: Path) -> Turning:
    """Return a server that allows a client many open reads."""
    return Turning(path, ServerConfig(queue_path=path, max_monitor_transactions=2 * HELD))


@pytest.mark.parametrize(
    ("protocol", "more", "all_of_them"),
    [
        ("memcache", (b"confirm work %d\r\n", b"ERROR\r\n"), b"END\r\n"),
        ("text", (b"confirm work %d\n", b"-Not that many transactions open.\n"), b"+%d\n" % HELD),
    ],
)
def test_many_reads_are_confirmed(
    tmp_path: Path,
    protocol: str,
    more: tuple[bytes, bytes],
    all_of_them: bytes,
) -> None:
    """None if they are fewer; otherwise all, while others are served."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0
    request, refusal = more

    async def scenario() -> None:
        queue, client = await hold(turning, protocol)
        other = turning.connect("memcache")
        await turning.send(client, request % (HELD + 1))
        assert await turning.receive(client, refusal) == refusal
        assert queue.reads.held == HELD
        await turning.send(client, request % HELD)
        assert 0 < queue.reads.held < HELD
        assert await answered_meanwhile(turning, other, lambda: not queue.reads.held) > 1
        assert await turning.receive(client, all_of_them) == all_of_them
        assert (len(queue), queue.reads.held) == (0, 0)
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


@pytest.mark.parametrize("protocol", ["memcache", "text"])
@pytest.mark.parametrize("is_confirming", [False, True])
def test_a_client_with_many_reads_leaves(
    tmp_path: Path, protocol: str, *, is_confirming: bool
) -> None:
    """All that it had goes back in order, while others are served; what it confirmed stays so."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await hold(turning, protocol)
        other = turning.connect("memcache")
        if is_confirming:
            end = b"\r\n" if protocol == "memcache" else b"\n"
            await turning.send(client, b"confirm work %d" % HELD + end)
        left = queue.reads.held
        assert (left == HELD) is not is_confirming
        turning.connections[client.fileno()].close()
        client.close()
        assert 0 < len(queue) < left
        assert await answered_meanwhile(turning, other, lambda: not queue.reads.held) >= 1
        found = [item_data(record) for record in queue.backlog.browse(HELD)]
        assert found == [b"%05d" % number for number in range(HELD - left, HELD)]
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


async def leave(turning: Turning, client: socket.socket) -> None:
    """Let the server find that a client has left, in the middle of a turn."""
    turning.connections[client.fileno()].close()
    client.close()


async def begin_return(turning: Turning, queue: Queue, client: socket.socket, end: str) -> None:
    """Let the client's reads be given back, the first of them at once."""
    match end:
        case "the client leaves":
            await leave(turning, client)
        case "the owner releases":
            await turning.send(client, b"release work owner=me\r\n")
        case _:
            while not len(queue):  # first it looks at all deadlines
                queue.check_deadlines()
    assert 0 < len(queue) < HELD


@pytest.mark.parametrize("end", ["the client leaves", "time is up", "the owner releases"])
@pytest.mark.parametrize("is_waiting", [False, True])
def test_readers_get_the_oldest_while_reads_come_back(
    tmp_path: Path, end: str, *, is_waiting: bool
) -> None:
    """Readers get the oldest, which comes back last, whether they waited before or not."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await (reserve(turning) if "owner" in end else hold(turning, "memcache"))
        if end == "time is up":
            for read in queue.reads.open.values():
                queue.reads.set_deadline(read, 0)
        reader, monitor = turning.connect("memcache"), turning.connect("text")
        if not is_waiting:
            await begin_return(turning, queue, client, end)
        await turning.send(reader, b"get work/t=600000\r\n")
        await turning.send(monitor, b"monitor work 600000 2\n")
        if is_waiting:
            await turning.until(lambda: queue.waiters.readers == 2)
            await begin_return(turning, queue, client, end)
        assert await turning.receive(reader, b"END\r\n") == b"VALUE work 0 5\r\n00000\r\nEND\r\n"
        assert await turning.receive(monitor, b"*\n") == b":00001\n:00002\n*\n"
        assert queue.returns.is_returning
        peek = turning.connect("memcache")
        await turning.send(peek, b"get work/peek\r\n")
        assert await turning.receive(peek, b"END\r\n") == b"VALUE work 0 5\r\n00003\r\nEND\r\n"
        if end == "the owner releases":
            assert await turning.receive(client, b"\r\n") == b"RELEASED %d\r\n" % HELD
        if end == "time is up":
            await turning.until(lambda: queue.check_deadlines() is None)
        await turning.until(lambda: not queue.returns.is_returning)
        found = [item_data(record) for record in queue.backlog.browse(HELD)]
        assert found == [b"%05d" % number for number in range(3, HELD)]
        for one in (client, reader, monitor, peek):
            one.close()
        await turning.until(lambda: not turning.connections and not queue.returns.is_returning)

    run(tmp_path, scenario(), turning)


def test_readers_are_served_while_ended_reads_come_back(tmp_path: Path) -> None:
    """What is left of them is in the queue already, and is read as ever."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await hold(turning, "memcache")
        queue.returns.give_back(list(queue.reads.open))
        await leave(turning, client)
        assert queue.returns.is_returning
        reader = turning.connect("memcache")
        await turning.send(reader, b"get work/peek\r\nget work\r\n")
        item = b"VALUE work 0 5\r\n00000\r\nEND\r\n"
        assert await turning.receive(reader, item + item) == item + item
        reader.close()
        await turning.until(lambda: not turning.connections and not queue.returns.is_returning)
        assert len(queue) == HELD - 1
        assert item_data(queue.backlog.browse(1)[0]) == b"00001"

    with turning:
        turning.run(scenario())


def test_a_reserve_is_served_while_dead_items_leave(tmp_path: Path) -> None:
    """Whoever waits at both queues gets the first that arrives in one of them."""
    settings = QueueConfig(max_deliveries=1, dead_letter_queue="dead")
    config = ServerConfig(
        queue_path=tmp_path, max_monitor_transactions=2 * HELD, queues={"work": settings}
    )
    turning = Turning(tmp_path, config)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await hold(turning, "memcache")
        reader = turning.connect("memcache")
        await turning.send(reader, b"reserve work,dead 1 lease=600000 t=600000\r\n")
        dead = turning.collection.obtain("dead")
        await turning.until(lambda: dead.waiters.readers == 1)
        await leave(turning, client)
        assert b"ITEM dead " in await turning.receive(reader, b"END\r\n")
        await turning.until(lambda: not queue.returns.is_returning)
        assert (len(dead), dead.reads.held) == (HELD - 1, 1)
        assert (len(queue), queue.reads.held) == (0, 0)
        await turning.hang_up(reader)

    with turning:
        turning.run(scenario())


async def reserve(turning: Turning) -> tuple[Queue, socket.socket]:
    """Return a queue, and a client whose owner has reserved all of its items."""
    queue = turning.collection.obtain("work")
    for number in range(HELD):
        queue.add(b"%05d" % number)
    client = turning.connect("memcache")
    while len(queue):
        await turning.send(client, b"reserve work 1000 lease=600000 owner=me\r\n")
        await turning.receive(client, b"END\r\n")
    return queue, client


def test_an_owner_leaves_while_its_reads_are_released(tmp_path: Path) -> None:
    """Those that were not released yet stay reserved, and nobody waits for them."""
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await reserve(turning)
        reader = turning.connect("memcache")
        await turning.send(reader, b"get other/t=600000\r\n")
        await turning.send(client, b"release work owner=me\r\n")
        released = len(queue)
        assert 0 < released < HELD
        await leave(turning, client)
        await turning.turn()
        assert (len(queue), queue.reads.held) == (released, HELD - released)
        other = turning.connect("memcache")
        await turning.send(other, b"get work\r\n")
        await turning.receive(other, b"END\r\n")
        assert len(queue) == released - 1
        await turning.hang_up(other)
        await turning.hang_up(reader)

    with turning:
        turning.run(scenario())


def test_an_owner_releases_on_a_full_disk(tmp_path: Path) -> None:
    """It is told, and has all its reads."""
    disk = CrashingDirectory.within(tmp_path)
    turning = Turning(disk.path, directory=disk)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await reserve(turning)
        disk.break_steps("append")
        await turning.send(client, b"release work owner=me\r\n")
        assert (await turning.receive(client, b"\r\n")).startswith(b"SERVER_ERROR ")
        assert (len(queue), queue.reads.held) == (0, HELD)
        disk.mend()
        await turning.send(client, b"release work owner=me\r\n")
        assert await turning.receive(client, b"\r\n") == b"RELEASED %d\r\n" % HELD
        found = [item_data(record) for record in queue.backlog.browse(HELD)]
        assert found == [b"%05d" % number for number in range(HELD)]
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


def test_readers_get_the_oldest_while_an_administrator_gives_reads_back(tmp_path: Path) -> None:
    """They get the oldest; if the administrator leaves, the others stay with their readers."""
    turning = many_reads(tmp_path)

    async def scenario() -> None:
        queue, client = await hold(turning, "memcache")
        reads = deque((queue, read) for read in queue.reads.open.values())
        returning = HeldReadsReturn(queue, reads, why="it was given back")
        work = queue.returns.in_pieces(returning)
        next(work)
        assert 0 < len(queue) < HELD
        record = queue.line.remove()
        assert record is not None
        assert bytes(record[21:]) == b"00000"
        work.close()
        assert returning.count == len(queue) + 1
        assert (len(queue) + queue.reads.held, queue.returns.is_returning) == (HELD - 1, False)
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


def test_a_queue_is_deleted_while_reads_are_given_back(tmp_path: Path) -> None:
    """Nothing comes back, and an owner who releases them is answered."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await reserve(turning)
        await turning.send(client, b"release work owner=me\r\n")
        assert 0 < len(queue) < HELD
        assert turning.collection.delete("work")
        assert (await turning.receive(client, b"\r\n")).startswith(b"RELEASED ")
        queue, reader = await hold(turning, "memcache")
        await leave(turning, reader)
        assert 0 < len(queue) < HELD
        assert turning.collection.delete("work")
        await turning.turn()
        assert len(turning.collection.obtain("work")) == 0
        assert not turning.turns.resuming
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())


def test_a_server_stops_while_reads_are_given_back(tmp_path: Path) -> None:
    """The next start gives back the rest."""
    turning = many_reads(tmp_path)
    turning.turns.slow_share = -1.0

    async def scenario() -> None:
        queue, client = await hold(turning, "memcache")
        turning.connections[client.fileno()].close()
        client.close()
        await turning.turn()
        assert queue.reads.held

    with turning:
        turning.run(scenario())
    with Turning(tmp_path) as again:
        found = again.collection.obtain("work").backlog.browse(HELD)
        assert [item_data(record) for record in found] == [b"%05d" % at for at in range(HELD)]


def test_work_that_fails_ends(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is logged, and the loop goes on."""
    turning = Turning(tmp_path)

    async def scenario() -> None:
        def work() -> Any:
            yield
            raise ValueError("broken")

        turning.context.finish_in_slices(work())
        client = turning.connect("memcache")
        await turning.send(client, b"version\r\n")
        await turning.receive(client, b"\r\n")
        client.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)
    assert "work that was put off failed" in caplog.text


def test_an_item_that_cannot_be_sent_ends_a_read(tmp_path: Path) -> None:
    """It and those behind it stay, as if they had not been touched."""
    turning = Turning(tmp_path)

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        for data in (b"a", b"b\nc", b"d"):
            queue.add(data)
        client = turning.connect("text")
        await turning.send(client, b"monitor work 0 3\n")
        reply = await turning.receive(client, b"carry\n")
        assert reply.startswith(b":a\n-")
        assert [item_data(record) for record in queue.backlog.browse(9)] == [b"b\nc", b"d"]
        assert [item_deliveries(record) for record in queue.backlog.browse(9)] == [0, 0]
        client.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)


def test_reads_opened_together_end_by_themselves(tmp_path: Path) -> None:
    """Each when the queue's time for open reads is up; what is confirmed until then is gone."""
    queues = LocalQueues(queue_settings(tmp_path, open_transaction_timeout=5))
    queues.add(b"a", b"", b"c")
    queue = queues.queue()
    opened = queue.line.open_next(9, 1 << 20)
    assert [(xid, bytes(record[21:])) for xid, record in opened] == [(1, b"a"), (2, b""), (3, b"c")]
    assert queue.line.open_next(9, 1 << 20) == []
    queue.reads.confirm(2)
    queues.commit()
    queues.advance(6)
    assert queues.items() == [b"a", b"c"]
    assert not queue.reads.open
    queues.close()


def test_a_long_line_that_waits_for_its_turn(tmp_path: Path) -> None:
    """It is parsed once, however many turns serve others before."""
    turning = Turning(tmp_path)
    turning.turns.slow_share = -1.0  # each turn does one piece
    reads = b" ".join([b"%d-0123456789abcdef" % xid for xid in range(1, 201)])
    parsed: list[bytes] = []
    parse_long = turning.parser.parse_long

    def counting(line: bytes) -> Request:
        parsed.append(line)
        return parse_long(line)

    turning.parser.parse_long = counting

    async def scenario() -> None:
        turning.collection.obtain("work").add(b"x")
        clients = [turning.connect("memcache") for _ in range(10)]
        for client in clients:
            client.sendall(b"finish work %b\r\n" % reads)  # all come in the same turn
        for client in clients:
            assert await turning.receive(client, b"\r\n") == b"FINISHED 0\r\n"
        assert parsed == [b"finish work %b\r" % reads] * len(clients)
        for client in clients:
            client.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario(), turning)
