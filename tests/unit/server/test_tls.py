"""TLS between a connection and its socket: nothing stays behind in it, and nobody waits for it."""

import asyncio
import contextlib
import hmac
import ssl
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from kestrelmq.config import ServerConfig, TlsConfig
from kestrelmq.server.certificates import load_context
from kestrelmq.server.loop.turns import HANDSHAKE_SHARE
from kestrelmq.server.tls import HANDSHAKE_TIME, MEMORY, PLACE_TIME, Handshake, Handshakes
from tests.support.certificates import Authority
from tests.support.tls_turning import TlsClient
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

RECORD = 16_384


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signs the certificates of the tests."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def turning(tmp_path: Path) -> Iterator[Turning]:
    """The loop of a server."""
    with Turning(tmp_path / "queues") as found:
        yield found


@pytest.fixture(scope="module")
def server(authority: Authority) -> ssl.SSLContext:
    """The server's side of TLS."""
    shown = authority.server()
    tls = TlsConfig(certificate=shown.certificate, key=shown.key)
    context = load_context(ServerConfig(tls=tls))
    assert context is not None
    return context


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def client(authority: Authority, request: pytest.FixtureRequest) -> ssl.SSLContext:
    """A client's side of TLS, of each version."""
    context = authority.client_context()
    context.maximum_version = request.param
    return context


class Accept:
    """Makes clients of a server's loop."""

    def __init__(self, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
        self._contexts = server, client
        self.clients: list[TlsClient] = []

    def __call__(
        self,
        turning: Turning,
        *,
        on_end: Callable[[Handshake], object] = lambda _: None,
        buffer: int | None = None,
    ) -> TlsClient:
        """Return a client that is accepted, and whose handshake is still to be started."""
        made = TlsClient(turning, *self._contexts, on_end=on_end, buffer=buffer)
        self.clients.append(made)
        return made

    def close(self) -> None:
        """End the clients."""
        for one in self.clients:
            one.socket.close()
            if not one.is_over:
                one.handshake.close()


@pytest.fixture
def accept(server: ssl.SSLContext, client: ssl.SSLContext) -> Iterator[Accept]:
    """Clients that end with the test."""
    with contextlib.closing(Accept(server, client)) as found:
        yield found


def held(turning: Turning) -> int:
    """Return how many bytes count as held in memory for clients."""
    return turning.context.counters.buffered.held


def test_a_request_behind_the_handshake(turning: Turning, accept: Accept) -> None:
    """It comes with the last bytes of the handshake, and no event tells of it."""

    async def scenario() -> None:
        one = accept(turning)
        one.handshake.start()
        await one.shake_hands()
        await one.send(b"set work 0 0 1\r\nx\r\n")
        assert await one.receive(b"\r\n") == b"STORED\r\n"

    turning.run(scenario())


def test_a_request_longer_than_the_short_ones_before(turning: Turning, accept: Accept) -> None:
    """After many short requests little is received at once; no part of a record stays behind."""

    async def scenario() -> None:
        one = accept(turning)
        await one.connect()
        for _ in range(20):
            await one.send(b"get work\r\n")
            assert await one.receive(b"END\r\n") == b"END\r\n"
        for size in (1024, RECORD, 3 * RECORD + 1):
            await one.send(b"set work 0 0 %d\r\n%s\r\n" % (size, b"x" * size))
            assert await one.receive(b"\r\n") == b"STORED\r\n"

    turning.run(scenario())


def test_requests_that_come_during_a_pause(turning: Turning, accept: Accept) -> None:
    """All are applied after it, those, too, that came in many records and were not received yet."""
    count = 300

    async def scenario() -> None:
        one, other = accept(turning), accept(turning)
        await one.connect()
        await other.connect()
        sets = b"set more 0 0 1000\r\n%s\r\n" % (b"x" * 1000) * count
        sending = asyncio.create_task(one.send(b"get work/t=60000\r\n" + sets))
        await turning.until(lambda: len(turning.context.waiting) > 0)
        await other.send(b"set work 0 0 1\r\nx\r\n")
        assert await other.receive(b"\r\n") == b"STORED\r\n"
        replies = b"VALUE work 0 1\r\nx\r\nEND\r\n" + b"STORED\r\n" * count
        assert await one.receive(replies) == replies
        await sending

    turning.run(scenario())


def test_half_a_record_is_not_the_end(turning: Turning, accept: Accept) -> None:
    """OpenSSL wants more, which Python reports as an `OSError`."""

    async def scenario() -> None:
        one = accept(turning)
        await one.connect()
        one.tls.write(b"version\r\n")
        record = one.outgoing.read()
        for byte in record[:-1]:
            one.socket.send(bytes([byte]))
            await turning.turn()
            assert one.number in turning.connections
        one.socket.send(record[-1:])
        assert (await one.receive(b"\r\n")).startswith(b"VERSION")

    turning.run(scenario())


def test_a_slow_reader_gets_every_byte(turning: Turning, accept: Accept) -> None:
    """What was encrypted and not sent comes before what follows, and counts as buffered."""
    item = bytes(range(256)) * 12_000

    async def scenario() -> None:
        one = accept(turning, buffer=4096)
        await one.connect()
        await one.send(b"set work 0 0 %d\r\n%s\r\n" % (len(item), item))
        assert await one.receive(b"\r\n") == b"STORED\r\n"
        assert held(turning) == MEMORY
        await one.send(b"get work/peek\r\nget work\r\nversion\r\n")
        await turning.until(lambda: held(turning) > len(item))
        value = b"VALUE work 0 %d\r\n%s\r\nEND\r\n" % (len(item), item)
        received = await one.receive(b"VERSION 1.0.0\r\n")
        assert received == value + value + b"VERSION 1.0.0\r\n"
        await turning.until(lambda: held(turning) == MEMORY)
        await turning.hang_up(one.socket)
        assert held(turning) == 0

    turning.run(scenario())


def test_the_server_says_that_it_closes(turning: Turning, accept: Accept) -> None:
    """A reply that was cut off looks different: there is a close_notify."""

    async def scenario() -> None:
        one = accept(turning)
        await one.connect()
        await one.send(b"version\r\nquit\r\n")
        assert (await one.end()).startswith(b"VERSION")
        assert one.number not in turning.connections
        assert held(turning) == 0

    turning.run(scenario())


def test_the_client_says_that_it_closes(turning: Turning, accept: Accept) -> None:
    """Its close_notify is the end of its input, although its socket stays open; it gets replies."""

    async def scenario() -> None:
        one = accept(turning)
        await one.connect()
        one.tls.write(b"get work/t=60000\r\n")
        with contextlib.suppress(ssl.SSLWantReadError):
            one.tls.unwrap()
        await one.flush()
        await turning.until(lambda: one.number not in turning.connections)
        assert held(turning) == 0

    turning.run(scenario())


def test_a_broken_record_ends_only_its_connection(turning: Turning, accept: Accept) -> None:
    """As does a record of TLS from another connection."""

    async def scenario() -> None:
        one, other = accept(turning), accept(turning)
        await one.connect()
        await other.connect()
        one.tls.write(b"version\r\n")
        one.outgoing.read()  # so the next record has a number that is not expected
        await one.send(b"version\r\n")
        await turning.until(lambda: one.number not in turning.connections)
        await other.send(b"version\r\n")
        assert (await other.receive(b"\r\n")).startswith(b"VERSION")

    turning.run(scenario())


def hellos_again(one: TlsClient, keys: Path, count: int) -> bytes:
    """Return records of TLS 1.2 in which a client that is connected says hello again and again.

    It is hostile, so no library makes them. `keys` is the file with its secrets.
    """
    _, client_random, master = keys.read_text().splitlines()[-1].split()
    seed = b"key expansion" + bytes(one.received[11:43]) + bytes.fromhex(client_random)
    block = step = b""
    while len(block) < 72:
        step = hmac.digest(bytes.fromhex(master), step or seed, "sha384")
        block += hmac.digest(bytes.fromhex(master), step + seed, "sha384")
    cipher, salt = AESGCM(block[:32]), block[64:68]
    hello = b"\x01\0\0\0"
    records = []
    for number in range(1, count + 1):
        explicit = struct.pack(">Q", number)
        about = struct.pack(">QBHH", number, 22, 0x303, len(hello))
        sealed = cipher.encrypt(salt + explicit, hello, about)
        records.append(struct.pack(">BHH", 22, 0x303, 8 + len(sealed)) + explicit + sealed)
    return b"".join(records)


def test_a_client_that_does_not_read_what_tls_answers(
    turning: Turning, server: ssl.SSLContext, authority: Authority, tmp_path: Path
) -> None:
    """It asks for another handshake again and again; what is kept for it is bounded."""
    context = authority.client_context()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-AES256-GCM-SHA384")
    context.keylog_filename = str(tmp_path / "keys")
    accept = Accept(server, context)

    async def scenario() -> None:
        one = accept(turning, buffer=4096)
        await one.connect()
        rest = memoryview(hellos_again(one, tmp_path / "keys", 5000))
        most = 0
        while one.number in turning.connections:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):
                rest = rest[one.socket.send(rest) :]
            await turning.turn()
            most = max(most, held(turning))
        assert MEMORY < most < MEMORY + (64 << 10)
        assert held(turning) == 0

    with contextlib.closing(accept):
        turning.run(scenario())


@pytest.mark.parametrize("sent", [b"get work\r\n", b"\x16\x03\x01\x00\x05hello", bytes(4096)])
def test_a_client_that_sends_no_hello_is_given_up(
    turning: Turning, accept: Accept, sent: bytes
) -> None:
    """The server gives up the client, says why, and holds nothing for it."""

    async def scenario() -> None:
        one = accept(turning)
        one.handshake.start()
        one.socket.send(sent)
        await turning.until(lambda: one.is_refused)
        assert isinstance(one.failure, ssl.SSLError)
        assert held(turning) == 0

    turning.run(scenario())


def test_a_client_that_leaves_in_its_handshake(turning: Turning, accept: Accept) -> None:
    """Before its hello, and after it."""

    async def scenario() -> None:
        silent, half = accept(turning), accept(turning)
        silent.handshake.start()
        half.handshake.start()
        half.say_hello()
        await turning.until(lambda: held(turning) == MEMORY)
        silent.socket.close()
        half.socket.close()
        await turning.until(lambda: silent.is_refused and half.is_refused)
        assert held(turning) == 0

    turning.run(scenario())


def test_a_turn_takes_few_steps(turning: Turning, accept: Accept) -> None:
    """Many hellos at once: one step a turn if the time is over then, and all are served at last."""
    count = 20

    async def connect_first() -> None:
        await working.connect()

    async def finish() -> None:
        await asyncio.gather(*(one.shake_hands() for one in clients))
        for one in clients:
            await one.send(b"version\r\n")
            assert (await one.receive(b"\r\n")).startswith(b"VERSION")

    working = accept(turning)
    turning.run(connect_first())
    turning.turns.handshake_share = 0.0
    clients = [accept(turning) for _ in range(count)]
    for one in clients:
        one.handshake.start()
        one.say_hello()
    for done in range(count):
        assert held(turning) == (1 + done) * MEMORY
        working.tls.write(b"version\r\n")
        working.socket.send(working.outgoing.read())
        before = turning.context.counters.bytes_written
        turning.turns.run_turns(0.0)
        # Whoever works is served in each turn.
        assert turning.context.counters.bytes_written > before
    turning.turns.handshake_share = HANDSHAKE_SHARE
    turning.run(finish())


def test_late_handshakes_end(turning: Turning, accept: Accept) -> None:
    """Those that have taken too long; when there are too many, the oldest makes room."""
    handshakes = Handshakes(most=2)

    async def scenario() -> None:
        clients = [accept(turning, on_end=handshakes.discard) for _ in range(3)]
        for one in clients[:2]:
            assert handshakes.has_room()
            handshakes.add(one.handshake)
            one.handshake.start()
        assert not handshakes.has_room()
        handshakes.close_late()
        assert not any(one.is_refused for one in clients)
        clients[0].handshake.began -= PLACE_TIME
        assert handshakes.has_room()
        assert [one.is_refused for one in clients] == [True, False, False]
        handshakes.add(clients[2].handshake)
        clients[2].handshake.start()
        clients[1].handshake.began -= HANDSHAKE_TIME
        handshakes.close_late()
        assert [one.is_refused for one in clients] == [True, True, False]
        handshakes.close()
        assert clients[2].is_refused

    turning.run(scenario())


def test_no_memory_for_tls(tmp_path: Path, accept: Accept) -> None:
    """The newcomer is refused, and who is served goes on."""
    config = ServerConfig(queue_path=tmp_path, max_buffered_bytes=MEMORY + 1000)

    async def scenario(turning: Turning) -> None:
        one, other = accept(turning), accept(turning)
        await one.connect()
        other.handshake.start()
        other.say_hello()
        await turning.until(lambda: other.is_refused)
        assert "max_buffered_bytes" in str(other.failure)
        await one.send(b"set work 0 0 1\r\nx\r\n")
        assert await one.receive(b"\r\n") == b"STORED\r\n"

    with Turning(tmp_path, config) as full:
        full.run(scenario(full))
