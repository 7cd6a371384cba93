"""What clients send in part, and what they do not read, is bounded for all of them together."""

import json
import struct
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from random import Random
from typing import Final, Self

import pytest

from kestrelmq.server.context import NO_ROOM, NO_ROOM_TO_SEND
from tests.integration.test_memcache_bad_clients import linux_only, resident
from tests.support.certificates import Authority
from tests.support.fuzzing import descriptors
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import UnixWire, Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

MIB = 1 << 20
LIMIT = 64 * MIB
REFUSED = f"SERVER_ERROR {NO_ROOM}\r\n".encode()
NOT_READ = f"SERVER_ERROR {NO_ROOM_TO_SEND}\r\n".encode()
PROTOCOLS = ("memcache", "text", "thrift")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that buffers little, and keeps few items in memory."""
    config = f"max_buffered_bytes = {LIMIT}\n[default]\nmax_memory_size = '1 MiB'\n"
    with running_server(tmp_path, config=config) as running:
        yield running


def buffered(server: ServerProcess) -> int:
    """Return the server's account."""
    address = f"http://127.0.0.1:{server.ports['admin']}/stats.json"
    with urllib.request.urlopen(address, timeout=PATIENCE) as reply:
        return int(json.load(reply)["gauges"]["buffered_bytes"])


def begin_item(wire: Wire, size: int, sent: int) -> None:
    """Announce an item of `size` bytes, and send some of them."""
    wire.send(b"set jobs 0 0 %d\r\n%b" % (size, bytes(sent)))


def thrift_put(size: int) -> bytes:
    """Return a call of `put` with an item of so many bytes, as a frame."""
    call = struct.pack(">HHi3si", 0x8001, 1, 3, b"put", 7) + struct.pack(">bhi", 11, 1, 4) + b"jobs"
    call += struct.pack(">bhbii", 15, 2, 11, 1, size) + bytes(size) + b"\0"
    return struct.pack(">i", len(call)) + call


def stored(wire: Wire, size: int) -> bytes:
    """Send a whole item over memcache; return the reply."""
    return wire.ask_until(b"set jobs 0 0 %d\r\n%b\r\n" % (size, bytes(size)), b"\r\n")


@linux_only
def test_an_item_for_which_there_is_no_room_is_refused_and_dropped(server: ServerProcess) -> None:
    """Its data is read, and not buffered; the connection goes on."""
    with Wire(server) as wire:
        put(wire, "jobs", "a")
        before = resident(server)
        begin_item(wire, LIMIT + 1, 0)
        for _ in range(LIMIT // MIB):
            wire.send(bytes(MIB))
        assert resident(server) - before < LIMIT // 2
        wire.ask(b"\0\r\n", REFUSED)
        wire.ask(b"set jobs 0 0 %d noreply\r\n" % (LIMIT + 1), b"")
        wire.send(bytes(LIMIT + 1))
        wire.ask(b"\r\nget jobs\r\n", value("jobs", "a") + b"END\r\n")
        assert buffered(server) == 0


def test_unfinished_items_take_the_room_of_others(server: ServerProcess) -> None:
    """Of every protocol; small ones are taken, and all are once there is room again."""
    large = 8 * MIB
    with ExitStack() as stack:
        memcache, text, thrift = (stack.enter_context(Wire(server, name)) for name in PROTOCOLS)
        with Wire(server) as greedy:
            begin_item(greedy, LIMIT - MIB, MIB)
            until(lambda: buffered(server) == LIMIT - MIB)
            assert stored(memcache, large) == REFUSED
            text.send(b"put jobs:\n%b\nitem\n\n" % (b"x" * large))
            text.expect(f"-{NO_ROOM}\n".encode())
            thrift.send(thrift_put(large))
            thrift.until(NO_ROOM.encode())
            put(memcache, "jobs", "small")
            text.ask(b"put jobs:\nsmall\n\n", b"+1\n")
            thrift.send(thrift_put(5)[:-6] + b"small\0")
            thrift.until(struct.pack(">bhi", 8, 0, 1))
            assert buffered(server) == LIMIT - MIB
        until(lambda: buffered(server) == 0)
        assert stored(memcache, large) == b"STORED\r\n"
        text.ask(b"put jobs:\n%b\nitem\n\n" % (b"x" * large), b"+2\n")
        thrift.send(thrift_put(large))
        thrift.until(struct.pack(">bhi", 8, 0, 1))
        assert stats(memcache, "jobs")["items"] == "7"
        assert buffered(server) == 0


def test_unread_replies_take_the_room_of_others(server: ServerProcess) -> None:
    """Large items stay in their queue then; small ones are handed out."""
    size = 16 * MIB
    with Wire(server) as wire, Wire(server, "text") as text:
        for _ in range(20):
            assert stored(wire, size) == b"STORED\r\n"
        put(wire, "small", *"abc")
        with ExitStack() as stack:
            while buffered(server) < LIMIT:
                slow = stack.enter_context(Wire(server))
                slow.send(b"get jobs\r\n")
                slow.until(b"VALUE")
            left = stats(wire, "jobs")["items"]
            for request in (b"get jobs", b"get jobs/open", b"get jobs/peek", b"get jobs other"):
                wire.ask(request + b"\r\n", NOT_READ)
            for request in (b"monitor jobs 1 1", b"reserve jobs 1 lease=1000", b"browse jobs 0 1"):
                wire.ask(request + b"\r\n", NOT_READ)
            text.ask(b"get jobs\n", f"-{NO_ROOM_TO_SEND}\n".encode())
            wire.ask(b"get small\r\n", value("small", "a") + b"END\r\n")
            wire.ask(b"get small/open\r\n", value("small", "b") + b"END\r\n")
            text.ask(b"get small\n", b":c\n")
            assert stats(wire, "jobs")["items"] == left
        until(lambda: buffered(server) == 0)
        wire.ask(b"get jobs\r\n", b"VALUE jobs 0 %d\r\n" % size)
        wire.ask(b"", bytes(size) + b"\r\nEND\r\n")
        until(lambda: buffered(server) == 0)


def test_small_replies_are_bounded_for_each_connection_when_full(server: ServerProcess) -> None:
    """While there is no room, the next request is applied when the last reply was read."""
    size, count = 15 << 10, 400
    with Wire(server) as wire:
        for _ in range(count):
            assert stored(wire, size) == b"STORED\r\n"
        begun = stats(wire, "jobs")["items"]
        with Wire(server) as greedy:
            begin_item(greedy, LIMIT, 1)
            until(lambda: buffered(server) >= LIMIT)
            slow = [Wire(server) for _ in range(8)]
            for one in slow:
                one.send(b"get jobs/peek\r\n" * count)
            for one in slow:
                one.until(b"VALUE")
            assert buffered(server) <= LIMIT + len(slow) * 2 * size
            for one in slow[1:]:
                one.close()
            for _ in range(count - 1):
                slow[0].until(b"VALUE")
            slow[0].close()
        assert stats(wire, "jobs")["items"] == begun
        until(lambda: buffered(server) == 0)


@linux_only
@pytest.mark.parametrize("seed", range(3))
def test_the_account_is_even_after_clients_of_every_kind(server: ServerProcess, seed: int) -> None:
    """They announce up to 1.6 GB, send a part or all, read a part or nothing, and go."""
    source = Random(seed)
    with Wire(server) as wire:
        for _ in range(4):
            assert stored(wire, 4 * MIB) == b"STORED\r\n"
        before = resident(server)
        for _ in range(4):
            with ExitStack() as stack:
                for _ in range(40):
                    hostile(stack, server, source)
                assert resident(server) - before < 3 * LIMIT
            until(lambda: buffered(server) == 0)
        assert stored(wire, 4 * MIB) == b"STORED\r\n"
        put(wire, "small", "a")
        wire.ask(b"get small\r\n", value("small", "a") + b"END\r\n")


FEW: Final = 200
KINDS: Final = (
    "memcache",
    "text",
    "thrift",
    "line",
    "waits",
    "unread",
    "head",
    "body",
    "hello",
    "name",
)


@linux_only
def test_hostile_clients_of_every_kind(tmp_path: Path) -> None:
    """What the server holds for them is within the setting, and 24 KiB of each; it goes again."""
    survive(tmp_path, FEW, 8 * MIB)


@linux_only
@pytest.mark.soak
def test_very_many_hostile_clients_of_every_kind(tmp_path: Path) -> None:
    """Likewise, at the size that counts."""
    survive(tmp_path, 10 * FEW, 64 * MIB)


def survive(directory: Path, count: int, limit: int) -> None:
    """Have so many clients of all kinds, and watch the memory of the server."""
    (directory / "certificates").mkdir()
    shown = Authority(directory / "certificates").server()
    config = (
        f"max_buffered_bytes = {limit}\nmax_queues = 20\n[default]\nmax_memory_size = '1 MiB'\n"
        f'[tls]\ncertificate = "{shown.certificate}"\nkey = "{shown.key}"\n'
        'listeners = ["text"]\n'
    )
    with (
        running_server(directory, "--text-path", str(directory / "t"), config=config) as server,
        Wire(server) as wire,
    ):
        for _ in range(100):
            assert stored(wire, 200 << 10) == b"STORED\r\n"
        put(wire, "small", "a")
        wire.ask(b"get small\r\n", value("small", "a") + b"END\r\n")
        before, sockets = resident(server), descriptors(server)
        most = limit + count * (24 << 10) + 8 * MIB
        with ExitStack() as stack:
            for number in range(count):
                stack.enter_context(HostileClient(server, directory / "t", KINDS, number))
                if number % 20 == 0:
                    assert resident(server) - before < most, KINDS[number % len(KINDS)]
            put(wire, "small", "a")
            wire.ask(b"get small\r\n", value("small", "a") + b"END\r\n")
            grown, account = resident(server) - before, buffered(server)
            sys.stderr.write(f"{grown >> 20} MiB, of which {account >> 20} MiB are counted\n")
            assert grown < most
            assert account < limit + count * (16 << 10)
        until(lambda: buffered(server) == 0)
        until(lambda: descriptors(server) <= sockets)


class HostileClient:
    """A client that has the server hold as much as it can, and goes on to do so."""

    def __init__(
        self, server: ServerProcess, text: Path, kinds: tuple[str, ...], number: int
    ) -> None:
        kind = kinds[number % len(kinds)]
        size = 250 << 10
        sent = {
            "memcache": b"set jobs 0 0 %d\r\n%b" % (size, bytes(size - 1)),
            "text": b"put jobs:\n" + b"x" * size,
            "thrift": thrift_put(size)[:-100],
            "line": b"get " + b"x" * 8000,
            "waits": b"get none/t=100000000\r\n" + b"get jobs/peek\r\n" * 5000,
            "unread": b"get jobs/peek\r\n" * 100,
            "head": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 7000,
            "body": b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n" + b"x" * 90_000,
            "hello": b"\x16\x03\x01\x3f\xff\x01" + b"x" * 16_000,
            "name": b"client name %d%b\r\nget q%d/t=100000000\r\n" % (number, b"x" * 90, number),
        }[kind]
        if kind == "text":
            self._wire: Wire = UnixWire(text)
        else:
            listener = {"thrift": "thrift", "head": "admin", "body": "admin", "hello": "text"}
            self._wire = Wire(server, listener.get(kind, "memcache"))
        self._wire.socket.settimeout(0.05)  # it takes what it takes
        with suppress(OSError):
            self._wire.send(sent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wire.close()


def hostile(stack: ExitStack, server: ServerProcess, source: Random) -> None:
    """Open a connection, and leave it in some state."""
    protocol = source.choice(PROTOCOLS)
    wire = stack.enter_context(Wire(server, protocol))
    size = source.choice((1000, MIB, 4 * MIB, 16 * MIB, 1_600_000_000))
    sent = min(source.randrange(size + 1), 2 * MIB)
    if source.random() < 0.3:
        get = {"memcache": b"get jobs/peek\r\n", "text": b"peek jobs\n", "thrift": thrift_put(1)}
        wire.send(get[protocol] * 5)
    elif protocol == "memcache":
        begin_item(wire, size, sent)
    elif protocol == "text":
        wire.send(b"put jobs:\nx\n" + b"y" * sent)
    else:
        wire.send(thrift_put(min(size, 16 * MIB))[: sent + 1])
    if source.random() < 0.3:
        wire.close()
