"""Long replies: made in slices, as fast as their client reads, while others are served."""

import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.server.clients import connected_clients
from kestrelmq.server.long_reply import SLICE, in_slices
from kestrelmq.server.replies import OUTPUT_LIMIT
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

QUEUES: Final = 2000


def configured(path: Path, **settings: Any) -> ServerConfig:
    """Return settings for queues that are made quickly."""
    return ServerConfig(queue_path=path, default=QueueConfig(keep_journal=False), **settings)


def run(path: Path, scenario: Callable[[Turning], Coroutine[Any, Any, None]], **more: Any) -> None:
    """Run `scenario` with a server's loop that has many queues."""
    with Turning(path, configured(path, **more)) as turning:
        for number in range(QUEUES):
            turning.collection.obtain(f"queue-{number:05d}")
        turning.run(scenario(turning))


def due(turning: Turning, client: socket.socket) -> int:
    """Return how many bytes of replies the server holds for a client."""
    connection = turning.connections[client.fileno()]
    return sum(map(len, connection.replies.parts)) + len(connection._unsent)


LISTINGS: Final = {
    "stats": b"queue_queue-%05d_items ",
    "dump_stats": b"queue 'queue-%05d' {",
    "dump_config": b"queue 'queue-%05d' {",
}


@pytest.mark.parametrize("command", LISTINGS)
def test_a_listing_has_every_queue_once_and_in_order(tmp_path: Path, command: str) -> None:
    """However many slices it is made in; and what follows it is answered after it."""

    async def scenario(turning: Turning) -> None:
        client = turning.connect("memcache")
        await turning.send(client, f"{command}\r\nversion\r\n".encode())
        reply = b""
        while b"VERSION" not in reply:
            reply += await turning.receive(client, b"\r\n")
        listing, _, version = reply.partition(b"\r\nEND\r\n")
        assert version.startswith(b"VERSION ")
        places = [listing.find(LISTINGS[command] % number) for number in range(QUEUES)]
        assert places[0] >= 0
        assert places == sorted(set(places))
        assert b"END\r\n" not in listing
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("command", LISTINGS)
def test_others_are_served_while_a_listing_is_made(tmp_path: Path, command: str) -> None:
    """However many of them were asked for, by however many clients."""

    async def scenario(turning: Turning) -> None:
        greedy = [turning.connect("memcache") for _ in range(5)]
        for client in greedy:
            await turning.send(client, f"{command}\r\n".encode() * 100)
        before = turning.turns.turn_count
        other = turning.connect("memcache")
        await turning.send(other, b"version\r\n")
        assert (await turning.receive(other, b"\r\n")).startswith(b"VERSION ")
        assert turning.turns.turn_count - before < 30
        for client in (*greedy, other):
            client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("command", LISTINGS)
def test_a_client_that_reads_nothing_costs_little(tmp_path: Path, command: str) -> None:
    """No slice is made before the one before it is sent."""

    async def scenario(turning: Turning) -> None:
        client = turning.connect("memcache")
        await turning.send(client, f"{command}\r\n".encode() * 1000)
        most = 0
        for _ in range(200):
            await turning.turn()
            most = max(most, due(turning, client))
        assert 0 < most < 2 * SLICE
        client.close()

    run(tmp_path, scenario)


def test_many_clients_are_listed_in_slices(tmp_path: Path) -> None:
    """Each once and in order; one that reads nothing costs little, and others are served."""

    async def scenario(turning: Turning) -> None:
        others = [turning.connect("memcache") for _ in range(300)]
        greedy = turning.connect("memcache")
        await turning.send(greedy, b"clients\r\n" * 500)
        most = 0
        for _ in range(100):
            await turning.turn()
            most = max(most, due(turning, greedy))
        assert 0 < most < 2 * SLICE
        await turning.send(others[0], b"clients\r\n")
        reply = await turning.receive(others[0], b"END\r\n")
        ids = [int(line.split()[1].removeprefix(b"id=")) for line in reply.splitlines()[:-1]]
        assert ids == [client.fileno() for client in (*others, greedy)]
        for client in (*others, greedy):
            client.close()

    run(tmp_path, scenario)


def test_clients_that_go_while_they_are_listed(tmp_path: Path) -> None:
    """They are left out."""

    async def scenario(turning: Turning) -> None:
        stays, goes = turning.connect("memcache"), turning.connect("memcache")
        listing = connected_clients(turning.context)
        assert next(listing).id == stays.fileno()
        await turning.hang_up(goes)
        assert list(listing) == []
        stays.close()

    run(tmp_path, scenario)


def test_a_turn_has_one_share_for_all_that_is_slow(tmp_path: Path) -> None:
    """When it is over, the slow wait for the next turn, and take their turns."""

    async def scenario(turning: Turning) -> None:
        turning.turns.slow_share = 0.0  # over after the first piece
        clients = [turning.connect("memcache") for _ in range(3)]
        for client in clients:
            client.send(b"dump_stats queue-00001 queue-00002\r\nstatus\r\nversion\r\n")
        for client in clients:
            reply = b""
            while b"VERSION" not in reply:
                reply += await turning.receive(client, b"\r\n")
            assert reply.count(b"queue '") == 2
            assert b"END\r\nUP\r\nVERSION" in reply.replace(b"Up", b"UP")
            client.close()

    run(tmp_path, scenario)


def test_a_half_closed_client_gets_its_whole_listing(tmp_path: Path) -> None:
    """As it expects that sends its requests from a file."""

    async def scenario(turning: Turning) -> None:
        client = turning.connect("memcache")
        client.send(b"stats\r\nstats\r\n")
        client.shutdown(socket.SHUT_WR)
        reply = bytearray()
        while True:
            try:
                received = client.recv(1 << 20)
            except BlockingIOError:
                await turning.turn()
                continue
            if not received:
                break
            reply += received
        assert reply.count(b"STAT uptime ") == 2
        assert reply.endswith(b"\r\nEND\r\n")
        client.close()

    run(tmp_path, scenario)


def test_queues_that_come_and_go_while_they_are_listed(tmp_path: Path) -> None:
    """One that is gone is left out, and no counter of the server falls."""

    async def scenario(turning: Turning) -> None:
        collection = turning.collection
        for queue in collection.queues.values():
            queue.add(b"x")
            queue.line.remove()
        work = turning.context.server_stats()
        next(work)
        for name in list(collection.queues)[::2]:
            collection.delete(name)
        collection.obtain("new")
        stats = dict(await in_slices(work))
        assert (stats["get_hits"], stats["total_items"]) == (QUEUES, QUEUES)
        client = turning.connect("memcache")
        await turning.send(client, b"dump_stats\r\n")
        collection.delete("queue-01999")
        reply = await turning.receive(client, b"END\r\n")
        assert reply.count(b"queue '") in {QUEUES // 2, QUEUES // 2 + 1}
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("protocol", ["memcache", "text"])
def test_a_monitor_stops_while_its_client_does_not_read(tmp_path: Path, protocol: str) -> None:
    """What it has to read is bounded, whether the items were there before or come one by one."""
    item = b"x" * (OUTPUT_LIMIT // 4)
    add = b"set work 0 0 %d\r\n%b\r\n" % (len(item), item)
    request = {"memcache": b"monitor work 3600\r\n", "text": b"monitor work 3600000\n"}[protocol]

    async def scenario(turning: Turning) -> None:
        adder, client = turning.connect("memcache"), turning.connect(protocol)
        for _ in range(20):
            await turning.send(adder, add)
            await turning.receive(adder, b"STORED\r\n")
        await turning.send(client, request)
        for _ in range(40):
            await turning.send(adder, add)
            await turning.receive(adder, b"STORED\r\n")
            assert due(turning, client) < OUTPUT_LIMIT + 3 * len(item)
        received = 0
        while received < 60 * len(item):
            received += len(await turning.receive_some(client))
        await turning.send(adder, b"set work 0 0 4\r\nlast\r\n")
        await turning.receive(
            client, {"memcache": b"last\r\nEND\r\n", "text": b":last\n"}[protocol]
        )
        client.close()
        adder.close()

    run(tmp_path, scenario, max_monitor_transactions=1000)


def test_a_large_item_that_was_waited_for_does_not_end_the_reply(tmp_path: Path) -> None:
    """The keys after it are served when the client has read it."""
    item = bytes(OUTPUT_LIMIT + 1)

    async def scenario(turning: Turning) -> None:
        adder, client = turning.connect("memcache"), turning.connect("memcache")
        await turning.send(client, b"get work/t=3600000 other\r\n")
        await turning.send(adder, b"set work 0 0 %d\r\n%b\r\n" % (len(item), item))
        await turning.receive(client, b"END\r\n")
        client.close()
        adder.close()

    run(tmp_path, scenario)
