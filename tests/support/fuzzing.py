"""A hostile client: bytes that are almost requests, cut anywhere, on connections that end anyhow.

What it sends follows from its seed alone; how the server sees it cut does not.
"""

import contextlib
import os
import random
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kestrelmq.client import Client
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess
from tests.support.wire import Wire, stats

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


class Hostile:
    """Connections to one listener, and what they send."""

    def __init__(self, server: ServerProcess, listener: str, corpus: Corpus, seed: int) -> None:
        self._address = ("127.0.0.1", server.ports[listener])
        self._corpus = corpus
        self._chance = random.Random(seed)
        self._open: list[socket.socket] = []

    def round(self, connections: int) -> None:
        """Open so many connections, send on all of them in turn, and end them."""
        chance = self._chance
        for _ in range(connections):
            client = socket.create_connection(self._address, PATIENCE)
            client.setblocking(False)
            self._open.append(client)
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
        requests = (self._corpus(chance) for _ in range(chance.randrange(1, 30)))
        return b"".join(mutated(chance, request) for request in requests)

    def _send(self, client: socket.socket, data: bytes) -> bool:
        """Send `data`; False when the server does not take it, or has closed the connection."""
        try:
            sent = client.send(data)
            if self._chance.random() < 0.7:
                with contextlib.suppress(BlockingIOError):
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


def check(server: ServerProcess, sockets: int) -> None:
    """Make sure that a server serves as before, has said nothing bad, and has let all go."""
    assert server.process.poll() is None, server.output
    with Client(server.address) as client:
        client.flush("checked")
        assert client.put("checked", b"item")
        assert client.get("checked") == b"item"
    with Wire(server) as wire:
        until(lambda: stats(wire)["curr_connections"] == "1")
    assert "Traceback" not in server.output
    assert "internal error" not in server.output
    until(lambda: descriptors(server) <= sockets)


def fuzz(server: ServerProcess, listener: str, corpus: Corpus, seed: int, rounds: int) -> None:
    """Send so many rounds; the first with `seed`, and each other with the next."""
    check(server, 1 << 20)
    sockets, memory = descriptors(server), resident(server)
    for number in range(seed, seed + rounds):
        sys.stderr.write(f"{SEED}={number} {listener}\n")
        Hostile(server, listener, corpus, number).round(connections=1 + number % 20)
        check(server, sockets)
    assert resident(server) - memory < MOST_GROWTH


def soak(server: ServerProcess, listener: str, corpus: Corpus) -> None:
    """Send rounds for as long as the environment says."""
    seed = int(os.environ.get(SEED) or random.SystemRandom().randrange(1 << 40))
    ends = time.monotonic() + float(os.environ.get(SECONDS) or DEFAULT_SECONDS)
    while time.monotonic() < ends:
        fuzz(server, listener, corpus, seed, 20)
        seed += 20
