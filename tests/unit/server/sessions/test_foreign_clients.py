"""What a connection begins with, if it is no client of ours: nothing in it is a command."""

import struct
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import ServerConfig
from tests.support.turning import Turning

pytestmark = pytest.mark.compiled

LISTENERS: Final = ["text", "kestrel", "memcached"]
LINES: Final = b"\r\nset q 0 0 1\r\nx\r\nput q:\nx\n\nput q:\r\nget q\r\n\r\n"


def hello(ticket: bytes) -> bytes:
    """Return a TLS ClientHello with that session ticket, which a server, and so a page, chooses."""
    extension = struct.pack(">HH", 35, len(ticket)) + ticket
    body = (
        b"\x03\x03" + bytes(range(32)) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
        + struct.pack(">H", len(extension)) + extension
    )  # fmt: skip
    handshake = b"\x01" + struct.pack(">I", len(body))[1:] + body
    return b"\x16\x03\x01" + struct.pack(">H", len(handshake)) + handshake


def serving(path: Path, listener: str) -> tuple[Turning, str]:
    """Return a server, and the protocol to connect with."""
    dialect = "memcached" if listener == "memcached" else "kestrel"
    turning = Turning(path, ServerConfig(queue_path=path, memcache_dialect=dialect))
    return turning, "text" if listener == "text" else "memcache"


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_tls_hello_has_no_effect(tmp_path: Path, listener: str) -> None:
    """Its first byte closes the connection, wherever it is cut."""
    turning, protocol = serving(tmp_path, listener)
    whole = hello(LINES)

    async def scenario() -> None:
        for cut in range(1, len(whole) + 1):
            client = turning.connect(protocol)
            client.sendall(whole[:cut])
            await turning.until(lambda: not turning.connections)
            client.close()

    with turning:
        turning.run(scenario())
        assert not turning.collection.queues


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("begin", [b"EHLO me", b"*1", b":", b"x" * 600, b"x" * 10_000, b"\x01\x02"])
def test_a_first_line_that_is_no_command_has_no_effect(
    tmp_path: Path, listener: str, begin: bytes
) -> None:
    """It is answered with an error that ends the connection."""
    turning, protocol = serving(tmp_path, listener)

    async def scenario() -> None:
        client = turning.connect(protocol)
        client.sendall(begin + LINES)
        await turning.until(lambda: not turning.connections)
        assert client.recv(1000).startswith(b"-" if protocol == "text" else b"CLIENT_ERROR ")
        client.close()

    with turning:
        turning.run(scenario())
        assert not turning.collection.queues


@pytest.mark.parametrize(
    ("listener", "first"),
    [
        ("text", b"verbosity 1\n"),
        ("text", b"version\n"),
        ("memcached", b"verbosity 1\r\n"),
        ("memcached", b"get a/what\r\n"),
        ("memcached", b"version\r\n"),
        ("memcached", b"set a/producer=p/seq=1 0 0 1\r\nx\r\n"),
    ],
)
def test_a_later_line_that_is_no_command_is_an_error(
    tmp_path: Path, listener: str, first: bytes
) -> None:
    """A command of memcached's is one, and so is one that is malformed."""
    turning, protocol = serving(tmp_path, listener)

    async def scenario() -> None:
        client = turning.connect(protocol)
        for line in (first, b"EHLO me\r\n", b"version\r\n"):
            await turning.send(client, line)
            await turning.receive(client, b"\n")
        await turning.hang_up(client)

    with turning:
        turning.run(scenario())
