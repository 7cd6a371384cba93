"""Memory comes back when clients go, at once: what they sent and what they did not read."""

import struct
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = [
    pytest.mark.compiled_only,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

SIZE: Final = 60_000_000
CLIENTS: Final = 6
SLACK: Final = 48 << 20
"""More than an allocator keeps, and less than one client's bytes."""

UNFINISHED: Final = {
    "memcache": b"set work 0 0 200000000\r\n",
    "text": b"put work:\n",
    "thrift": struct.pack(">i", 1 << 26) + b"\x80\x01\x00\x01",
}


def resident(server: ServerProcess) -> int:
    """Return the memory a server has in use, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def until_alone(wire: Wire) -> None:
    """Return when the server has closed every other connection."""
    until(lambda: stats(wire)["curr_connections"] == "1")


def until_received(wire: Wire, size: int) -> None:
    """Return when the server has received so many bytes."""
    until(lambda: int(stats(wire)["bytes_read"]) >= size)


@pytest.mark.parametrize("protocol", UNFINISHED)
def test_memory_of_unfinished_requests(tmp_path: Path, protocol: str) -> None:
    """Clients that go in the middle of a request take its bytes along."""
    with running_server(tmp_path) as server, Wire(server) as wire:
        wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")
        before = resident(server)
        received = int(stats(wire)["bytes_read"])
        piece = bytes(1 << 20)
        for _ in range(CLIENTS):
            with Wire(server, protocol) as one:
                one.send(UNFINISHED[protocol])
                for _ in range(SIZE >> 20):
                    one.send(piece)
                received += SIZE >> 20 << 20
                until_received(wire, received)
                assert resident(server) - before > SIZE // 2
            until_alone(wire)
        assert resident(server) - before < SLACK


@pytest.mark.parametrize("protocol", ["memcache", "text"])
def test_memory_of_replies_that_were_not_read(tmp_path: Path, protocol: str) -> None:
    """Clients that go without reading what they asked for take it along."""
    # Rewriting a journal takes memory of its own for a while.
    config = "[queues.work]\nkeep_journal = false\n"
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        before = resident(server)
        item = b"x" * SIZE
        for _ in range(CLIENTS):
            wire.ask(b"set work 0 0 %d\r\n%b\r\n" % (SIZE, item), b"STORED\r\n")
            with Wire(server, protocol) as one:
                one.send(b"get work\r\n")
                one.read(1)
            until_alone(wire)
            wire.ask(b"flush work\r\n", b"END\r\n")  # what the text client read went back
        assert resident(server) - before < SLACK
