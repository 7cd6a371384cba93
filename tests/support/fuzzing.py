"""A hostile client: bytes that are almost requests, cut anywhere, on connections that end anyhow.

What it sends follows from its seed alone; how the server sees it cut does not.
"""

import contextlib
import os
import random
import socket
import ssl
import struct
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kestrelmq.client import Client
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess
from tests.support.wire import UnixWire, Wire, stats

SEED: Final = "KESTRELMQ_FUZZ_SEED"
"""Environment variable with the seed of the first round; without it, a random one."""
SECONDS: Final = "KESTRELMQ_FUZZ_SECONDS"
"""Environment variable with how long a soak test goes on."""
DEFAULT_SECONDS: Final = 120
MOST_GROWTH: Final = 160 << 20
"""Bytes by which a server's memory may grow over all rounds: its queues have a bounded size."""
_RESET: Final = struct.pack("ii", 1, 0)
_PIECE: Final = 1 << 16

Corpus = Callable[[random.Random], bytes]
"""Makes one valid request."""

HOSTILE: Final = (
    b"\0",
    b"\n",
    b"\r\n",
    b"\xff" * 9,
    b"-1",
    b"99999999999999999999",
    b" ",
    b"+",
    b"/",
)


def mutated(chance: random.Random, request: bytes) -> bytes:
    """Return a request with some of its bytes changed, cut out, repeated or put in."""
    data = bytearray(request)
    for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(5):
            case 0:
                data[place : place + 1] = chance.randbytes(1)
            case 1:
                del data[place : place + chance.randrange(1, 9)]
            case 2:
                data[place:place] = chance.choice(HOSTILE)
            case 3:
                data[place:place] = data[place : place + chance.randrange(1, 99)]
            case _:
                data[place:] = chance.randbytes(chance.randrange(40))
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed.

    Attributes:
        server: the server.
        listener: the listener.
        corpus: the requests of its protocol.
        context: what it takes to speak TLS; None to speak none.
        greeting: what each connection sends first.
        local: a Unix socket of memcache on which these tests may do everything; without it, they
            may on the port.
    """

    server: ServerProcess
    listener: str
    corpus: Corpus
    context: ssl.SSLContext | None = None
    greeting: bytes = b""
    local: Path | None = None

    def connect(self, chance: random.Random) -> socket.socket:
        """Return a connection; where TLS is spoken, some have got only so far in the handshake."""
        address = ("127.0.0.1", self.server.ports[self.listener])
        client = socket.create_connection(address, PATIENCE)
        if self.context is not None:
            if chance.random() < 0.3:
                sent = ssl.MemoryBIO()
                hello = self.context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
                with contextlib.suppress(ssl.SSLWantReadError):
                    hello.do_handshake()
                client.sendall(mutated(chance, sent.read()))
            else:
                client = self.context.wrap_socket(client, server_hostname="localhost")
        with contextlib.suppress(OSError):
            client.sendall(self.greeting)
        client.setblocking(False)
        return client


class Hostile:
    """Connections to one listener, and what they send."""

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._chance = random.Random(seed)
        self._open: list[socket.socket] = []

    def round(self, connections: int) -> None:
        """Open so many connections, send on all of them in turn, and end them."""
        chance = self._chance
        for _ in range(connections):
            self._open.append(self._target.connect(chance))
        streams = {client: self._stream() for client in self._open}
        while streams:
            client = chance.choice(list(streams))
            data = streams[client]
            size = chance.choice((1, 7, 100, 1000, len(data)))
            if not data or not self._send(client, data[:size]):
                del streams[client]
            else:
                streams[client] = data[size:]
        for client in self._open:
            self._end(client)
        self._open.clear()

    def _stream(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.1:
            return chance.randbytes(chance.randrange(1, 3000))
        requests = (self._target.corpus(chance) for _ in range(chance.randrange(1, 30)))
        return b"".join(mutated(chance, request) for request in requests)

    def _send(self, client: socket.socket, data: bytes) -> bool:
        """Send `data`; False when the server does not take it, or has closed the connection."""
        try:
            sent = client.send(data)
            if self._chance.random() < 0.7:
                with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
                    client.recv(_PIECE)
        except OSError:
            return False
        return sent == len(data)

    def _end(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            match self._chance.randrange(4):
                case 0:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                case 1:
                    client.shutdown(socket.SHUT_WR)
                    client.recv(_PIECE)
                case 2:
                    client.shutdown(socket.SHUT_RD)
                case _:
                    pass


def resident(server: ServerProcess) -> int:
    """Return the memory a server has in use, in bytes."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def descriptors(server: ServerProcess) -> int:
    """Return how many sockets a server has open."""
    found = 0
    for entry in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += str(entry.readlink()).startswith("socket:")
    return found


def check(target: Target, sockets: int) -> None:
    """Make sure that a server serves as before, has said nothing bad, and has let all go."""
    server = target.server
    assert server.process.poll() is None, server.output
    with Client(f"unix:{target.local}" if target.local else server.address) as client:
        client.flush("checked")
        assert client.put("checked", b"item")
        assert client.get("checked") == b"item"
    with UnixWire(target.local) if target.local else Wire(server) as wire:
        until(lambda: stats(wire)["curr_connections"] == "1")
    assert "Traceback" not in server.output
    assert "internal error" not in server.output
    until(lambda: descriptors(server) <= sockets)


def fuzz(target: Target, seed: int, rounds: int) -> None:
    """Send so many rounds; the first with `seed`, and each other with the next."""
    server = target.server
    check(target, 1 << 20)
    sockets, memory = descriptors(server), resident(server)
    for number in range(seed, seed + rounds):
        sys.stderr.write(f"{SEED}={number} {target.listener}\n")
        Hostile(target, number).round(connections=1 + number % 20)
        check(target, sockets)
    assert resident(server) - memory < MOST_GROWTH


def soak(target: Target) -> None:
    """Send rounds for as long as the environment says."""
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(1 << 40))
    ends = time.monotonic() + float(os.environ.get(SECONDS) or DEFAULT_SECONDS)
    while time.monotonic() < ends:
        fuzz(target, seed, 20)
        seed += 20
