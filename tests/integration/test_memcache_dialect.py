"""The memcached dialect on the wire: what ordinary clients rely on, byte for byte."""

import time
from collections.abc import Iterator

import pytest

from kestrelmq.protocol.foreign import binary_refusal
from kestrelmq.version import VERSION
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

CONFIG = """
memcache_dialect = "memcached"
[queues.full]
max_items = 1
"""

DAY = 24 * 60 * 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share."""
    with running_server(tmp_path_factory.mktemp("dialect"), config=CONFIG) as running:
        yield running


QUIET = [
    b"set full 0 0 1 noreply\r\nx\r\nset full 0 0 1 noreply\r\ny\r\n",
    b"set a~b 0 0 1 noreply\r\nx\r\n",
    b"add q 0 0 11 noreply\r\nflush_all\r\n\r\n",
    b"cas q 0 0 3 1 noreply\r\nabc\r\n",
    b"incr q 1 noreply\r\n",
    b"touch q 0 noreply\r\n",
    b"verbosity 1 noreply\r\n",
    b"mn noreply\r\n",
    b"delete a~b noreply\r\n",
    b"delete nothing noreply\r\n",
    b"delete nothing 0 noreply\r\n",
    b"flush nothing noreply\r\n",
    b"flush_all 10 noreply\r\n",
]


@pytest.mark.parametrize("request_", QUIET)
def test_no_reply(wire: Wire, request_: bytes) -> None:
    """A client that reads no reply is not one reply behind afterwards; nothing else happens."""
    wire.ask(b"flush_all\r\n", b"OK\r\n")
    put(wire, "kept", "item")
    wire.send(request_)
    wire.expect_silence()
    wire.ask(b"get kept\r\nget q\r\n", value("kept", "item") + b"END\r\nEND\r\n")


def test_large_item_of_an_unknown_command(wire: Wire) -> None:
    """Its data is dropped as it comes, and the next request is served."""
    size = 3 << 20
    wire.send(b"add q 0 0 %d noreply\r\n%b\r\n" % (size, (b"version\r\n" * (size // 9 + 1))[:size]))
    wire.expect_silence()


def test_bare_get(wire: Wire) -> None:
    """It answers as memcached does, and the connection lives."""
    wire.ask(b"get\r\ngets\r\nversion\r\n", b"ERROR\r\n" * 2 + b"VERSION %b\r\n" % VERSION.encode())


@pytest.mark.parametrize(
    ("expiry", "stays"),
    [
        (14 * DAY, True),
        (30 * DAY, True),
        (30 * DAY + 1, False),  # a moment in January 1970
        (-1, False),
    ],
)
def test_expiry(wire: Wire, expiry: int, *, stays: bool) -> None:
    """Up to 30 days an expiry counts from now, above since 1970."""
    wire.ask(b"flush_all\r\n", b"OK\r\n")
    put(wire, "fresh", "x", expiry=expiry)
    wire.ask(b"get fresh\r\n", (value("fresh", "x") if stays else b"") + b"END\r\n")


def test_expiry_since_1970(wire: Wire) -> None:
    """A moment that is past or to come."""
    wire.ask(b"flush_all\r\n", b"OK\r\n")
    now = int(time.time())
    put(wire, "fresh", "past", expiry=now - DAY)
    put(wire, "fresh", "future", expiry=now + DAY)
    wire.ask(b"get fresh\r\nget fresh\r\n", value("fresh", "future") + b"END\r\nEND\r\n")


def test_expiry_of_a_large_item(wire: Wire) -> None:
    """It takes another way through the server, by the same rule."""
    size = 2 << 20
    wire.ask(b"set big 0 %d %d\r\n%b\r\n" % (14 * DAY, size, bytes(size)), b"STORED\r\n")
    assert stats(wire, "big")["items"] == "1"
    wire.ask(b"flush_expired big\r\n", b"0\r\n")


@pytest.mark.parametrize("start", [b"POST / HTTP/1.1\r\n", b"Host: 127.0.0.1\r\n"])
def test_http_closes(server: ServerProcess, start: bytes) -> None:
    """Unknown commands keep the connection; a browser's request ends it before its body comes."""
    with Wire(server) as browser, Wire(server) as wire:
        browser.send(start + b"Content-Type: text/plain\r\n\r\nset injected 0 0 1\r\nx\r\n")
        browser.expect_close(b"CLIENT_ERROR this is no HTTP server\r\n")
        assert stats(wire, "injected") == {}


def test_binary_closes(wire: Wire) -> None:
    """The binary protocol is refused in its own words."""
    request = bytes.fromhex("80000004000000000000000400000001000000000000000071756575")
    wire.send(request)
    wire.expect_close(binary_refusal(request))
