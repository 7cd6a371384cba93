"""The thrift port against clients that mean harm, or nothing at all."""

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kestrelmq.client import Client
from kestrelmq.protocol import thrift
from kestrelmq.version import VERSION
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

VERSION_CALL = struct.pack(">HHi", 0x8001, 1, 11) + b"get_version" + b"\x00\x00\x00\x07\x00"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Run a server for each test, so that its memory is its own."""
    with running_server(tmp_path) as running:
        yield running


def connected(server: ServerProcess) -> socket.socket:
    """Return a connection to the thrift port."""
    return socket.create_connection(("127.0.0.1", server.ports["thrift"]), timeout=PATIENCE)


def frame(content: bytes) -> bytes:
    """Return a frame with such content."""
    return struct.pack(">i", len(content)) + content


def assert_serves(server: ServerProcess) -> None:
    """Make sure that others are served: by thrift, and by memcache."""
    with connected(server) as other:
        other.sendall(frame(VERSION_CALL))
        assert VERSION.encode() in other.recv(4096)
    with Client(server.address) as client:
        assert client.put("work", b"x")
        assert client.get("work") == b"x"


def resident_bytes(server: ServerProcess) -> int:
    """Return how much memory the server has now."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def test_announced_frames_that_never_come_cost_nothing(server: ServerProcess) -> None:
    """A hundred connections announce 64 MiB each and send a little of it."""
    assert_serves(server)
    before = resident_bytes(server)
    with ExitStack() as stack:
        for _ in range(100):
            raw = stack.enter_context(connected(server))
            raw.sendall(struct.pack(">i", thrift.MAX_FRAME_BYTES) + b"\x80\x01\x00\x01")
        assert_serves(server)
        assert resident_bytes(server) - before < 32 * 1024 * 1024
    assert_serves(server)


def test_the_longest_frame_may_be_an_item_and_one_byte_more_ends_the_connection(
    server: ServerProcess,
) -> None:
    """What is accepted arrives whole."""
    head = struct.pack(">HHi", 0x8001, 1, 3) + b"put" + struct.pack(">i", 1)
    head += struct.pack(">bhi", 11, 1, 4) + b"work" + struct.pack(">bhbi", 15, 2, 11, 1)
    size = thrift.MAX_FRAME_BYTES - len(head) - 5
    with connected(server) as raw:
        raw.sendall(frame(head + struct.pack(">i", size) + bytes(size) + b"\x00"))
        assert raw.recv(4096)[4:15] == struct.pack(">HHi", 0x8001, 2, 3) + b"put"
    with Client(server.address) as client:
        assert client.get("work", timeout=PATIENCE) == bytes(size)
    with connected(server) as raw:
        raw.sendall(struct.pack(">i", thrift.MAX_FRAME_BYTES + 1))
        assert raw.recv(1) == b""
    assert_serves(server)


def test_a_large_frame_of_nonsense_is_answered_or_ends_its_connection(
    server: ServerProcess,
) -> None:
    """And others are served while it comes in."""
    nonsense = random.Random(4).randbytes(8 * 1024 * 1024)
    for head in (b"", VERSION_CALL[:-1]):
        with connected(server) as raw:
            data = frame(head + nonsense)
            raw.sendall(data[: len(data) // 2])
            assert_serves(server)
            raw.sendall(data[len(data) // 2 :])
            raw.shutdown(socket.SHUT_WR)
            assert len(raw.recv(4096)) < 4096
    assert_serves(server)


@pytest.mark.parametrize("seed", range(5))
def test_random_frames_and_random_bytes_end_nothing_but_their_connection(
    server: ServerProcess, seed: int
) -> None:
    """Calls with bytes changed, cut or added, in frames that fit and frames that don't."""
    chance = random.Random(seed)
    for _ in range(60):
        content = bytearray(VERSION_CALL)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        sent = frame(bytes(content) + chance.randbytes(chance.randrange(40)))
        if chance.random() < 0.3:
            sent = chance.randbytes(chance.randrange(1, 200))
        with connected(server) as raw:
            raw.sendall(sent)
            raw.shutdown(socket.SHUT_WR)
            while raw.recv(65536):
                pass
    assert_serves(server)
