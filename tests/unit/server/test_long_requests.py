"""Requests that take several turns: nobody waits for them, and what they answer is true."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import pytest

from kestrelmq import server
from kestrelmq.clock import Pause
from kestrelmq.config import QueueConfig, ServerConfig
from kestrelmq.disk.directories import AppendFile, Directory, DiskDirectory
from kestrelmq.disk.opening import FoundFile
from kestrelmq.format.records import item_data
from kestrelmq.server.requests.put import SLICE_ITEMS
from tests.support.patience import PATIENCE
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_get, thrift_put

COUNT: Final = 4 * SLICE_ITEMS + 7
ITEMS: Final = [b"%d" % number for number in range(COUNT)]
PUTS: Final = {
    "text": b"put work:\n" + b"\n".join(ITEMS) + b"\n\n",
    "thrift": thrift_put(b"work", *ITEMS),
}


class Disk:
    """How the disk of a test behaves.

    Attributes:
        room: bytes that it still takes; None is any number.
        synced: set when a sync may end.
        fails: whether a sync fails.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.synced = threading.Event()
        self.synced.set()
        self.fails = False


class OddFile:
    """A file on such a disk."""

    def __init__(self, file: AppendFile, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def append(self, data: bytes) -> None:
        """Append what there is room for."""
        if self._disk.room is not None:
            if len(data) > self._disk.room:
                raise OSError(28, "No space left on device")
            self._disk.room -= len(data)
        self._file.append(data)

    def append_all(self, records: Sequence[bytes], pause: Pause) -> None:  # noqa: ARG002
        """Do what `append` does with all of these."""
        self.append(b"".join(records))

    def sync(self) -> None:
        """Sync when the test lets it."""
        assert self._disk.synced.wait(PATIENCE)
        if self._disk.fails:
            raise OSError(5, "Input/output error")
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class OddDirectory:
    """A queue path on such a disk; not a kind of the other, for that may be compiled."""

    def __init__(self, path: Path) -> None:
        self._directory = DiskDirectory(path)
        self.disk = Disk()

    def append_to(self, name: str, found: FoundFile | None = None) -> OddFile:
        """Open a file."""
        return OddFile(self._directory.append_to(name, found), self.disk)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._directory, name)


Scenario = Callable[[Turning, OddDirectory], Coroutine[Any, Any, None]]


def run(path: Path, scenario: Scenario, **settings: Any) -> None:
    """Run `scenario` with a server's loop on an odd disk."""
    directory = OddDirectory(path)
    config = ServerConfig(
        queue_path=path, max_monitor_transactions=100_000, default=QueueConfig(**settings)
    )
    with Turning(path, config, directory=cast(Directory, directory)) as turning:
        turning.collection.obtain("work")
        turning.run(scenario(turning, directory))


async def answer(turning: Turning, client: socket.socket, protocol: str) -> int | str:
    """Return what a `put` is answered with: the count, or the error."""
    if protocol == "text":
        reply = (await turning.receive(client, b"\n")).decode().partition("\n")[0]
        return int(reply[1:]) if reply.startswith("+") else reply[1:]
    received = b""
    while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
        received += await turning.receive_some(client)
    if received[7] == 3:
        return received.decode(errors="replace")
    count: int = struct.unpack_from(">i", received, 22)[0]
    return count


async def send(client: socket.socket, turning: Turning, request: bytes) -> None:
    """Send a request without waiting for the server."""
    left = memoryview(request)
    while left:
        try:
            left = left[client.send(left) :]
        except BlockingIOError:
            await turning.turn()


def waiting(turning: Turning) -> list[bytes]:
    """Return what is in the queue."""
    return [
        item_data(record) for record in turning.collection.queues["work"].backlog.browse(COUNT + 1)
    ]


@pytest.mark.compiled
@pytest.mark.parametrize("protocol", PUTS)
def test_others_are_served_while_many_items_are_added(tmp_path: Path, protocol: str) -> None:
    """A slice in each turn; then all are counted, in their order, and what follows is served."""

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        client, other = turning.connect(protocol), turning.connect("memcache")
        await turning.send(client, PUTS[protocol] * 2)
        lengths = set()
        while len(turning.collection.queues["work"]) < 2 * COUNT:
            await turning.send(other, b"version\r\n")
            await turning.receive(other, b"\r\n")
            lengths.add(len(turning.collection.queues["work"]))
        assert len(lengths) > 2
        assert turning.turns.turn_count > 2 * COUNT // SLICE_ITEMS
        assert await answer(turning, client, protocol) == COUNT
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)
        assert [
            item_data(record)
            for record in turning.collection.queues["work"].backlog.browse(3 * COUNT)
        ] == (ITEMS * 2)

    run(tmp_path, scenario)


@pytest.mark.parametrize("protocol", PUTS)
@pytest.mark.parametrize("sync", [None, 0])
def test_the_disk_fills_up_during_a_put(tmp_path: Path, protocol: str, sync: float | None) -> None:
    """What was written is counted and stays; the rest is not there."""

    async def scenario(turning: Turning, directory: OddDirectory) -> None:
        client = turning.connect(protocol)
        directory.disk.room = 60 * SLICE_ITEMS  # two slices, for an item takes 22 to 25 bytes
        await send(client, turning, PUTS[protocol])
        assert await answer(turning, client, protocol) == 2 * SLICE_ITEMS
        assert waiting(turning) == ITEMS[: 2 * SLICE_ITEMS]
        directory.disk.room = None
        await send(client, turning, PUTS[protocol])
        assert await answer(turning, client, protocol) == COUNT
        assert len(turning.collection.queues["work"]) == 2 * SLICE_ITEMS + COUNT
        client.close()

    run(tmp_path, scenario, sync_journal=sync)
    with Turning(tmp_path) as turning:
        assert waiting(turning)[: 2 * SLICE_ITEMS] == ITEMS[: 2 * SLICE_ITEMS]
        assert len(turning.collection.queues["work"]) == 2 * SLICE_ITEMS + COUNT


@pytest.mark.parametrize("protocol", PUTS)
def test_the_disk_is_full_when_a_put_begins(tmp_path: Path, protocol: str) -> None:
    """The answer is the error, and nothing was added."""

    async def scenario(turning: Turning, directory: OddDirectory) -> None:
        client = turning.connect(protocol)
        directory.disk.room = 1000
        await send(client, turning, PUTS[protocol])
        assert "No space left" in str(await answer(turning, client, protocol))
        assert waiting(turning) == []
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("protocol", PUTS)
@pytest.mark.parametrize("fails", [False, True])
def test_a_put_is_answered_when_all_of_it_is_synced(
    tmp_path: Path, protocol: str, *, fails: bool
) -> None:
    """Its first slice as well as its last; if a sync fails, the answer is the error."""

    async def scenario(turning: Turning, directory: OddDirectory) -> None:
        client = turning.connect(protocol)
        directory.disk.synced.clear()
        await send(client, turning, PUTS[protocol])
        await turning.until(lambda: len(turning.collection.queues["work"]) == COUNT)
        for _ in range(10):
            await turning.turn()
        with pytest.raises(BlockingIOError):
            client.recv(1)
        directory.disk.fails = fails
        directory.disk.synced.set()
        answered = await answer(turning, client, protocol)
        if fails:
            assert re.search("Input/output error|sync failed", str(answered))
        else:
            assert answered == COUNT
        client.close()

    run(tmp_path, scenario, sync_journal=0)


@pytest.mark.compiled
@pytest.mark.parametrize("protocol", PUTS)
def test_a_client_leaves_while_its_items_are_added(tmp_path: Path, protocol: str) -> None:
    """Some of them are there, from the first on; nothing else stays behind."""

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        client = turning.connect(protocol)
        queue = turning.collection.queues["work"]
        await send(client, turning, PUTS[protocol])
        await turning.until(lambda: len(queue) > 0)
        for connection in list(turning.connections.values()):
            connection.close()
        client.close()
        for _ in range(10):
            await turning.turn()
        found = waiting(turning)
        assert found == ITEMS[: len(found)]

    run(tmp_path, scenario)


@pytest.mark.parametrize("auto_abort", [0, 60_000])
def test_a_client_leaves_while_its_thrift_get_is_answered(tmp_path: Path, auto_abort: int) -> None:
    """In whatever turn that is, all of the items go back, in their order."""

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        turning.turns.slow_share = 0.0  # others are served after the first items
        queue = turning.collection.queues["work"]
        for item in ITEMS:
            queue.add(item)
        interrupted = 0
        for steps in range(40):
            client = turning.connect("thrift")
            await turning.send(client, thrift_get(b"work", COUNT, 0, auto_abort))
            for _ in range(steps):
                await turning.turn()
            (connection,) = turning.connections.values()
            if connection.pending is None:
                break  # answered
            interrupted += 1
            connection.close()
            client.close()
            await turning.turn()
            assert waiting(turning) == ITEMS
        assert interrupted > 1

    run(tmp_path, scenario)


@pytest.mark.compiled
def test_a_thrift_get_of_many_items(tmp_path: Path) -> None:
    """It has them all, once, while others are served."""

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        queue = turning.collection.queues["work"]
        for item in ITEMS:
            queue.add(item)
        client = turning.connect("thrift")
        await turning.send(client, thrift_get(b"work", COUNT, 0))
        received = await turning.receive(client, b"\n\0\2" + bytes(8) + b"\0\0")
        at = received.index(struct.pack(">bi", 12, COUNT)) + 5
        found = []
        for _ in range(COUNT):
            size = struct.unpack_from(">i", received, at + 3)[0]
            found.append(received[at + 7 : at + 7 + size])
            at += 7 + size + 12
        assert found == ITEMS
        assert len(queue) == len(queue.reads.open) == 0
        client.close()

    run(tmp_path, scenario)


LONG: Final = {
    "a listing": ("memcache", b"dump_stats\r\n", b"version\r\n", b"VERSION "),
    "a monitor": ("memcache", b"monitor work 0\r\n", b"version\r\n", b"VERSION "),
    "a get": ("memcache", b"get" + b" work/peek" * 600 + b"\r\n", b"version\r\n", b"VERSION "),
    "a text monitor": ("text", b"monitor work 0\n", b"peek none\n", b"*\n"),
}
"""By name: the protocol, a long request, a short one, and how its answer begins."""


@pytest.mark.compiled
@pytest.mark.parametrize("kind", LONG)
def test_no_request_overtakes_a_long_one(tmp_path: Path, kind: str) -> None:
    """Those that arrive between its turns, one after the other, are answered after it."""
    protocol, long_request, request, answer = LONG[kind]

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        turning.turns.slow_share = 0.0
        queue = turning.collection.queues["work"]
        for number in range(600):
            queue.add(b"x" * 3000)
            turning.collection.obtain(f"queue-{number}")
        client = turning.connect(protocol)
        await turning.send(client, long_request)
        received, asked = bytearray(), 0
        while asked < 300 or received.count(answer) < asked:
            if asked < 300:
                asked += client.send(request) == len(request)
            received += await turning.receive_some(client)
        first = received.index(answer)
        assert (b"x" * 3000 in received[:first]) == (kind != "a listing")
        assert b"x" * 3000 not in received[first:]
        assert b"queue 'queue-" not in received[first:]
        client.close()

    run(tmp_path, scenario)


@pytest.mark.parametrize("protocol", PUTS)
def test_many_children_make_the_slices_smaller(tmp_path: Path, protocol: str) -> None:
    """What each turn adds is counted with the copies that fanout children get."""

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        children = 50
        for number in range(children):
            turning.collection.obtain(f"work+{number}")
        client = turning.connect(protocol)
        before = turning.turns.turn_count
        await turning.send(client, PUTS[protocol])
        assert await answer(turning, client, protocol) == COUNT
        assert turning.turns.turn_count - before > children * COUNT // SLICE_ITEMS
        client.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario)


NEW: Final = {
    "set": ("memcache", [b"set new-%d 0 0 1\r\nx\r\n" % number for number in range(100)]),
    "get": ("memcache", [b"get new-%d\r\n" % number for number in range(100)]),
    "reserve": (
        "memcache",
        [b"reserve %b 1 lease=9\r\n" % b",".join(b"new-%d" % at for at in range(100))],
    ),
    "text put": ("text", [b"put new-%d:\nx\n\n" % number for number in range(100)]),
    "text get": ("text", [b"get new-%d\n" % number for number in range(100)]),
    "thrift put": ("thrift", [thrift_put(b"new-%d" % number, b"x") for number in range(100)]),
    "thrift get": ("thrift", [thrift_get(b"new-%d" % number, 1, 0) for number in range(100)]),
}
"""By name: the protocol, and requests that create a hundred queues."""


@pytest.mark.parametrize("kind", NEW)
def test_others_are_served_while_queues_are_created(tmp_path: Path, kind: str) -> None:
    """A client that names queues that nobody has named before gets a few of them in each turn."""
    protocol, requests = NEW[kind]

    async def scenario(turning: Turning, _directory: OddDirectory) -> None:
        turning.turns.slow_share = -1.0  # over after the first piece
        client, other = turning.connect(protocol), turning.connect("memcache")
        queues = turning.collection.queues
        before = len(queues)
        await turning.send(client, b"".join(requests))
        await turning.send(other, b"version\r\n")
        await turning.receive(other, b"\r\n")
        assert len(queues) - before < 50
        await turning.until(lambda: len(queues) - before == 100)
        client.close()
        other.close()
        await turning.until(lambda: not turning.connections)

    run(tmp_path, scenario)


ONE_PLACE: Final = {
    "changes why a connection is paused": (r"\.paused\s*([|&]?=)[^=]", "connection.py"),
    "changes which request goes on": (r"\.pending\s*=[^=]", "connection.py"),
    "waits for an item of one queue": (r"\bWaiter\(self\._mode", "reads.py"),
    "waits for an item of several queues": (r"\bWaiter\((?!self\._mode)", "reserving.py"),
    "decides how much a client may have to read": (r"produced\s*[+>]", "connection.py"),
    "copies a large item": (r"\bitem_in_pieces\(", "put.py"),
}


@pytest.mark.parametrize("what", ONE_PLACE)
def test_each_rule_stands_in_one_module(what: str) -> None:
    """Who needs it calls that module."""
    rule, home = ONE_PLACE[what]
    sources = Path(server.__file__).parent.rglob("*.py")
    assert [path.name for path in sources if re.search(rule, path.read_text())] == [home]


def test_many_that_declare_at_once_do_so_in_several_turns(tmp_path: Path) -> None:
    """Each creates a file, so others are served in between."""
    count = 20
    turning = Turning(tmp_path)
    turning.turns.slow_share = 0.0

    async def scenario() -> None:
        clients = [turning.connect("memcache") for _ in range(count)]
        for number, client in enumerate(clients):
            client.send(b"declare q%d max_items=1\r\n" % number)
        made = [0]
        while made[-1] < count:
            await turning.turn()
            made.append(len(turning.collection.queues))
        assert max(after - before for before, after in pairwise(made)) < count // 2
        for client in clients:
            assert await turning.receive(client, b"\r\n") == b"END\r\n"
            client.close()

    with turning:
        turning.run(scenario())
