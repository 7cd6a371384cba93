"""Raw bytes at the admin listener: whatever comes, no reply is an internal error and none hangs.

The seed of a failure is in its message; `make soak` tries fresh seeds for longer.
"""

import gzip
import random
import re
import socket
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kestrelmq.admin.operations import OPERATIONS, PREFIX
from tests.admin.conftest import Admin
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

SEEDS = 3
SOAK_SECONDS = 600.0
TOGETHER = 20
METHODS = (b"GET", b"POST", b"PUT", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"PATCH", b"X", b"")
VERSIONS = (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2", b"http/1.1", b"")
NAMES = (
    b"Host",
    b"Content-Type",
    b"Content-Length",
    b"Content-Encoding",
    b"Transfer-Encoding",
    b"Connection",
    b"Expect",
    b"Upgrade",
    b"Origin",
    b"Sec-Fetch-Site",
    b"Authorization",
    b"If-None-Match",
    b"Range",
    b"Cookie",
    b"X\xff",
    b"",
)
VALUES = (
    b"localhost",
    b"127.0.0.1:1",
    b"[::1]",
    b"evil.example",
    b"application/json",
    b"0",
    b"5",
    b"99999999999999999999",
    b"-1",
    b"gzip",
    b"deflate",
    b"br",
    b"chunked",
    b"identity, chunked",
    b"close",
    b"keep-alive",
    b"upgrade",
    b"websocket",
    b"100-continue",
    b"same-origin",
    b"cross-site",
    b"Bearer wrong",
    b"\xff\xfe",
    b"\x00",
    b"",
    b"x" * 9000,
)
PATHS = (
    b"/",
    b"/ping",
    b"/health",
    b"/metrics",
    b"/stats.json",
    b"/stats.txt?period=5",
    b"/server_info.json",
    b"/config.json",
    b"/reload",
    b"/console/main.js",
    b"/nothing",
    b"*",
    b"http://localhost/ping",
    b"//",
    b"/%",
    b"/%00",
    b"/\xff",
    b"/" + b"x" * 9000,
    *(
        (PREFIX + operation.path).replace("{name}", name).replace("{id}", name).encode()
        for operation in OPERATIONS
        for name in ("jobs", "none", "%FF", "a%2Fb")
    ),
)
BODIES = (
    b"",
    b"{}",
    b'{"name": "jobs"}',
    b'{"text": "x"}',
    b'{"xids": [1, 2]}',
    b'{"status": "up"}',
    b"[" * 50_000,
    b"\xff\xfe\x00",
    gzip.compress(b'{"text": "x"}', mtime=0),
    zlib.compress(bytes(40 << 20)),
    gzip.compress(bytes(1000), mtime=0)[:-3],
)


class HastyServer(ServerProcess):
    """Waits for requests two seconds, not half a minute."""

    command = (
        "from kestrelmq.admin import bodies, connections, events;"
        "connections.IDLE_TIMEOUT = bodies.BODY_TIMEOUT = events.STALL_TIMEOUT = 2.0;"
        "from kestrelmq.cli.main import main; main()"
    )


@pytest.fixture
def fuzzed(tmp_path: Path) -> Iterator[Admin]:
    """A server that must survive everything."""
    with running_server(tmp_path, kind=HastyServer) as server:
        yield Admin(server)


def request(source: random.Random) -> bytes:
    """Return a request that is odd in some way, or several, or none."""
    body = source.choice(BODIES)
    headers = [(b"Host", b"localhost")] if source.random() < 0.9 else []
    if source.random() < 0.8:
        headers.append((b"Content-Type", b"application/json"))
    is_chunked = source.random() < 0.3
    if is_chunked:
        headers.append((b"Transfer-Encoding", b"chunked"))
        body = chunked(source, body)
    elif source.random() < 0.9:
        headers.append((b"Content-Length", b"%d" % len(body)))
    if source.random() < 0.3:
        headers.append((b"Content-Encoding", source.choice((b"gzip", b"deflate", b"br"))))
    headers += [
        (source.choice(NAMES), source.choice(VALUES))
        for _ in range(source.choice((0, 0, 0, 1, 2, 200)))
    ]
    line = b" ".join(
        (
            source.choice(METHODS[:4] * 3 + METHODS),
            source.choice(PATHS),
            source.choice(VERSIONS[:1] * 9 + VERSIONS),
        )
    )
    head = b"".join(b"%s: %s\r\n" % header for header in headers)
    return changed(source, line + b"\r\n" + head + b"\r\n" + body)


def chunked(source: random.Random, body: bytes) -> bytes:
    """Return `body` in chunks, which may lie."""
    parts = []
    for start in range(0, len(body), 10_000):
        part = body[start : start + 10_000]
        size = len(part) + source.choice((0, 0, 0, 0, 0, 0, 1, -1))
        parts.append(b"%x\r\n%s\r\n" % (max(size, 0), part))
    return b"".join(parts) + source.choice((b"0\r\n\r\n", b"0\r\nX: y\r\n\r\n", b"", b"-0\r\n\r\n"))


def changed(source: random.Random, data: bytes) -> bytes:
    """Return `data`, perhaps cut, or with bytes replaced or put in."""
    kind = source.random()
    place = source.randrange(len(data))
    if kind < 0.1:
        return data[:place]
    if kind < 0.2:
        return data[:place] + source.randbytes(source.randrange(1, 4)) + data[place + 1 :]
    if kind < 0.25:
        return source.randbytes(source.randrange(1, 2000))
    return data


def exchange(admin: Admin, source: random.Random) -> bytes:
    """Send some requests on one connection, in pieces; return all that comes."""
    sent = b"".join(request(source) for _ in range(source.choice((1, 1, 2, 5))))
    received = b""
    with socket.create_connection(("127.0.0.1", admin.port), PATIENCE) as connection:
        with suppress(ConnectionError):
            for start in range(
                0, len(sent), size := source.choice((1 << 20, 1000, 37 + len(sent) // 50))
            ):
                connection.sendall(sent[start : start + size])
        if source.random() < 0.2:
            return b""  # leaves without a look at the reply
        with suppress(ConnectionError):
            while data := connection.recv(65536):
                received += data
    return received


def check(received: bytes, seed: int) -> int:
    """Fail if a reply is an internal error or lacks the headers for browsers; count the replies."""
    heads = re.findall(rb"(?:^|(?<=[}\n>]))HTTP/1\.[01] [^\x00]*?\r\n\r\n", received)
    for head in heads:
        status = head.split(None, 2)[1]
        assert status[:1] in b"1234" or status in {b"503", b"505"}, (seed, head)
        if status != b"100":
            assert b"X-Content-Type-Options: nosniff" in head, (seed, head)
    return len(heads)


def run(admin: Admin, seed: int) -> int:
    """Do what `seed` says: exchanges, beside connections that send only a part. Count replies."""
    count = 0
    source = random.Random(seed)
    with ExitStack() as stack:
        for _ in range(TOGETHER):
            slow = stack.enter_context(
                socket.create_connection(("127.0.0.1", admin.port), PATIENCE)
            )
            part = request(source)
            with suppress(ConnectionError):
                slow.sendall(part[: source.randrange(len(part) + 1)][:60_000])
        for _ in range(TOGETHER):
            count += check(exchange(admin, source), seed)
    assert admin.server.process.poll() is None, seed
    return count


def finish(admin: Admin, before: int) -> None:
    """Check that the server serves as ever, and holds nothing any more."""
    assert admin.get("/ping").text == "pong\n"
    admin.ask("DELETE", f"{PREFIX}/queues/jobs")  # its journal is open
    place = Path(f"/proc/{admin.server.process.pid}/fd")
    until(lambda: len(list(place.iterdir())) <= before + 2, pause=0.1)
    admin.server.stop()
    assert "Traceback" not in admin.server.output


def open_descriptors(admin: Admin) -> int:
    """Return how many descriptors the server has open."""
    admin.get("/ping")
    return len(list(Path(f"/proc/{admin.server.process.pid}/fd").iterdir()))


@pytest.mark.timeout(600)
def test_raw_requests(fuzzed: Admin) -> None:
    """The same requests in every run."""
    before = open_descriptors(fuzzed)
    assert sum(run(fuzzed, seed) for seed in range(SEEDS)) > SEEDS * TOGETHER // 2
    finish(fuzzed, before)


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS * 3)
def test_raw_requests_for_long(fuzzed: Admin) -> None:
    """Others in every run."""
    before = open_descriptors(fuzzed)
    seed = time.time_ns() // 1_000_000
    end = time.monotonic() + SOAK_SECONDS
    while time.monotonic() < end:
        run(fuzzed, seed)
        seed += 1
    finish(fuzzed, before)
