"""Clients that mean no good to the admin listener: who else is served, and what it costs."""

import gzip
import http.client
import json
import re
import socket
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from kestrelmq.admin.signins import FAILURE_BURST
from tests.admin.conftest import TOKEN, Admin, Reply
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire

ITEMS = "/api/v1/queues/jobs/items"
JSON = {"Content-Type": "application/json"}
LARGEST = 16 << 20

HALVES = [
    b"",
    b"GET",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Content-Length: 100\r\n\r\n{"name": '
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"nam'
    ),
    b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\nGET /pi",
    b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n",
]


class ImpatientServer(ServerProcess):
    """Waits for requests some seconds, not half a minute."""

    command = (
        "from kestrelmq.admin import bodies, connections, events;"
        "connections.IDLE_TIMEOUT = bodies.BODY_TIMEOUT = events.STALL_TIMEOUT = 4.0;"
        "from kestrelmq.cli.main import main; main()"
    )


class PoorServer(ServerProcess):
    """Has 200 descriptors."""

    command = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200));"
        "from kestrelmq.cli.main import main; main()"
    )


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Admin]:
    """A server that does not wait for long."""
    with running_server(tmp_path, kind=ImpatientServer) as server:
        yield Admin(server)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Admin]:
    """One such server for all tests that leave nothing behind."""
    with running_server(tmp_path_factory.mktemp("hasty"), kind=ImpatientServer) as server:
        yield Admin(server)


def connected(admin: Admin, sent: bytes = b"", address: str = "127.0.0.1") -> socket.socket:
    """Return a connection from `address` on which `sent` was sent."""
    connection = socket.create_connection(
        ("127.0.0.1", admin.port), PATIENCE, source_address=(address, 0)
    )
    connection.sendall(sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    """Return what comes until the server ends the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while data := connection.recv(65536):
            received += data
    return received


def head(connection: socket.socket) -> bytes:
    """Return what comes up to the end of a reply's head, or of the connection."""
    received = b""
    with suppress(ConnectionResetError):
        while b"\r\n\r\n" not in received and (data := connection.recv(65536)):
            received += data
    return received


def descriptors(admin: Admin) -> int:
    """Return how many descriptors the server has open."""
    return len(list(Path(f"/proc/{admin.server.process.pid}/fd").iterdir()))


def memory(admin: Admin) -> int:
    """Return the most memory that the server ever had, in bytes."""
    status = Path(f"/proc/{admin.server.process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def test_an_incomplete_request_ends_the_connection(impatient: Admin) -> None:
    """A head, a body or a next request that does not come ends the connection."""
    impatient.get("/ping")
    before = descriptors(impatient)
    with ExitStack() as stack:
        connections = [
            stack.enter_context(connected(impatient, half)) for half in HALVES for _ in range(3)
        ]
        for connection in connections:
            assert b" 500 " not in rest(connection)
        assert descriptors(impatient) <= before + 1


def test_a_body_that_is_too_slow_is_told_so(impatient: Admin) -> None:
    """The reply says what the matter is."""
    with connected(impatient, HALVES[3]) as connection:
        reply = rest(connection)
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b"body_too_slow" in reply


def test_bytes_that_come_one_by_one_save_no_connection(impatient: Admin) -> None:
    """The time is for the whole head, not for its next byte."""
    with connected(impatient, b"GET /ping HTTP/1.1\r\nX-Slow: ") as connection:
        begun = time.monotonic()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):  # noqa: PT012
            while time.monotonic() < begun + PATIENCE:
                connection.sendall(b"x")
                time.sleep(0.05)


def test_a_client_that_goes_while_it_sends_is_no_failure(tmp_path: Path) -> None:
    """Nothing of it is in the log."""
    with running_server(tmp_path) as server:
        admin = Admin(server)
        admin.get("/ping")
        before = descriptors(admin)
        for _ in range(10):
            with connected(admin, HALVES[3]) as connection:
                # The server has read what was sent when it serves another request.
                admin.get("/ping")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        until(lambda: descriptors(admin) <= before + 1)
        server.stop()
        assert "Traceback" not in server.output


def test_a_client_that_takes_no_reply_is_ended(impatient: Admin) -> None:
    """Replies that nobody reads are given up."""
    with impatient.client() as client:
        client.put_many("jobs", [b"x" * 100_000] * 50)
    before = descriptors(impatient)
    request = b"GET " + ITEMS.encode() + b"?limit=50 HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", impatient.port))
        connection.sendall(request * 20)
        connection.recv(1)
        until(lambda: descriptors(impatient) <= before)


def posted(path: str, body: object) -> bytes:
    """Return a request."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n%b" % (len(content), content)


PING = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
CREATE = posted("/api/v1/queues", {"name": "new"})
RESERVE = posted("/api/v1/reserve", {"queues": ["work"], "count": 1, "lease": 60, "timeout": 600})


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (PING, [200]),
        (PING * 3, [200] * 3),
        (CREATE, [201]),
        (PING + CREATE + PING, [200, 201, 200]),
        (b"GET /stats.json HTTP/1.0\r\n\r\n", [200]),
        (b"GET /no-such-page HTTP/1.1\r\nHost: localhost\r\n\r\n", [404]),
        (b"no request\r\n\r\n", [400]),
        (CREATE[:-1], []),
        (b"", []),
    ],
)
def test_a_client_that_ends_its_side(tmp_path: Path, sent: bytes, statuses: list[int]) -> None:
    """It gets the replies to whole requests, and then the end."""
    with running_server(tmp_path) as server, connected(Admin(server), sent) as connection:
        connection.shutdown(socket.SHUT_WR)
        received = rest(connection)
        assert [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+)", received)] == statuses


def test_a_client_that_ends_its_side_reserves_nothing(tmp_path: Path) -> None:
    """It may be gone: what is reserved for it could not reach it."""
    with running_server(tmp_path) as server:
        with connected(Admin(server), RESERVE) as connection:
            connection.shutdown(socket.SHUT_WR)
            # It gets no reply if it ended its side only after the wait had begun.
            assert re.match(
                rb"HTTP/1\.1 400 .*must not end its side|$", rest(connection), re.DOTALL
            )
        with Wire(server) as wire:
            wire.ask(b"set work 0 0 4\r\nitem\r\nget work\r\n", b"STORED\r\n")
            wire.expect(b"VALUE work 0 4\r\nitem\r\nEND\r\n")


def test_a_stream_that_is_not_read_is_ended(impatient: Admin) -> None:
    """A watcher that reads nothing loses its place."""
    with Wire(impatient.server) as wire:
        names = [f"a-queue-with-a-name-that-takes-some-room-{n}" for n in range(5000)]
        wire.send(b"".join(b"set %s 0 0 1\r\nx\r\n" % name.encode() for name in names))
        wire.expect(b"STORED\r\n" * len(names))
    before = descriptors(impatient)
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", impatient.port))
        connection.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(10) == b"HTTP/1.1 2"
        until(lambda: descriptors(impatient) <= before)


def test_a_stream_that_is_read_goes_on(impatient: Admin) -> None:
    """A watcher is not idle, however long it stays."""
    with connected(
        impatient, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"
    ) as connection:
        received = b""
        while received.count(b"event: server") < 6:  # one a second
            data = connection.recv(65536)
            assert data, "the stream ended"
            received += data


def test_a_flood_keeps_nobody_out(tmp_path: Path) -> None:
    """More half-sent requests than there are descriptors: every listener still serves."""
    with running_server(tmp_path, kind=PoorServer) as server, ExitStack() as stack:
        admin = Admin(server)
        for _ in range(400):
            stack.enter_context(connected(admin, HALVES[2]))
        with admin.client() as client:
            client.put("jobs", b"x")
            assert client.get("jobs") == b"x"
        for listener, request, reply in (
            ("text", b"version\n", b":"),
            ("memcache", b"version\r\n", b"VERSION"),
        ):
            with Wire(server, listener) as wire:
                wire.ask(request, reply)
        assert admin.get("/ping").status == 200
        assert descriptors(admin) < 100


def stream(admin: Admin, address: str) -> tuple[socket.socket, bytes]:
    """Ask for events from `address`; return the connection and the reply's first line."""
    connection = connected(
        admin, b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n", address
    )
    return connection, head(connection).split(b"\r\n")[0]


def test_streams_of_one_peer_lock_no_other_out(admin: Admin) -> None:
    """With every place taken by one address, others get some; the one gets no more of them."""
    with ExitStack() as stack:
        first = []
        for _ in range(64):
            connection, line = stream(admin, "127.0.0.1")
            stack.enter_context(connection)
            assert line == b"HTTP/1.1 200 OK"
            first.append(connection)
        for _ in range(2):
            connection, line = stream(admin, "127.0.0.2")
            stack.enter_context(connection)
            assert line == b"HTTP/1.1 200 OK"
        rest(first[0])
        rest(first[1])
        connection, line = stream(admin, "127.0.0.1")
        stack.enter_context(connection)
        assert line == b"HTTP/1.1 503 Service Unavailable"


def test_a_place_is_free_when_its_stream_ends(admin: Admin) -> None:
    """Nobody waits for the next event to find that a watcher is gone."""
    for _ in range(3):
        with ExitStack() as stack:

            def admitted(stack: ExitStack = stack) -> bool:
                connection, line = stream(admin, "127.0.0.1")
                stack.enter_context(connection)
                return line == b"HTTP/1.1 200 OK"

            for _ in range(64):
                until(admitted)


def put(admin: Admin, body: bytes, encoding: str) -> Reply:
    """Put an item whose JSON was encoded as `body`."""
    return admin.ask("POST", ITEMS, body, Content_Encoding=encoding)


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip", "GZIP", "deflate", "raw", "identity"])
def test_bodies_may_be_compressed(shared: Admin, encoding: str) -> None:
    """Each usual encoding is understood."""
    body = json.dumps({"text": "compressed " * 100_000}).encode()
    packers: dict[str, Callable[[bytes], bytes]] = {
        "deflate": zlib.compress,
        "raw": lambda data: zlib.compress(data)[2:-4],
        "identity": lambda data: data,
    }
    packed = packers[encoding](body) if encoding in packers else gzip.compress(body)
    reply = put(shared, packed, "deflate" if encoding == "raw" else encoding)
    assert (reply.status, reply.json["size"]) == (201, 1_100_000)
    shared.ask("DELETE", "/api/v1/queues/jobs")


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"no gzip at all", "gzip", 400),
        (gzip.compress(b'{"text": "x"}', mtime=0)[:-4], "gzip", 400),
        (gzip.compress(b'{"text": "x"}', mtime=0)[:12], "gzip", 400),
        (gzip.compress(b'{"text": "x"}', mtime=0) + b"more", "gzip", 400),
        (b"\x78", "deflate", 400),
        (b"\x78\x9c\xff\xff", "deflate", 400),
        (b"\x00", "deflate", 400),
        (b"{}", "br", 415),
        (b"{}", "gzip, gzip", 415),
        (b"{}", "\xff", 415),
    ],
    ids=range(10),
)
def test_bad_compression_is_the_clients_error(
    shared: Admin, body: bytes, encoding: str, status: int
) -> None:
    """Never the server's."""
    assert put(shared, body, encoding).status == status


def test_what_would_inflate_to_much_is_refused(admin: Admin) -> None:
    """A body that is small until it is inflated takes no more memory than a large one."""
    admin.get("/ping")
    before = memory(admin)
    bomb = zlib.compress(bytes(1 << 28), 9)
    for _ in range(3):
        reply = put(admin, bomb, "deflate")
        assert (reply.status, reply.code) == (413, "body_too_large")
    assert memory(admin) < before + 5 * LARGEST


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("open-reads/requeue", "application/json"), ("import", "application/x-ndjson")],
)
def test_json_of_very_many_parts_is_refused(shared: Admin, operation: str, kind: str) -> None:
    """It is not parsed: that would take long, and much memory."""
    many = b'{"xids":[' + b"1," * (1 << 20) + b"1]}"
    reply = shared.ask("POST", f"/api/v1/queues/jobs/{operation}", many, Content_Type=kind)
    assert (reply.status, reply.code) == (413, "too_many_parts")


def test_bodies_that_nobody_asked_for_are_not_inflated(admin: Admin) -> None:
    """A GET with a body costs no more than its bytes."""
    admin.get("/ping")
    before = memory(admin)
    bomb = zlib.compress(bytes(1 << 28), 9)
    for method, path in (("GET", "/ping"), ("POST", "/reload"), ("GET", ITEMS)):
        for encoding in ("deflate", "gzip"):
            reply = admin.ask(method, path, bomb, Content_Encoding=encoding)
            assert reply.status in {200, 404}
    assert memory(admin) < before + (16 << 20)


def test_a_body_that_is_too_large_is_refused_unread(shared: Admin) -> None:
    """Its length is enough to know."""
    with connected(
        shared,
        b"POST " + ITEMS.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 16777217\r\n\r\n",
    ) as connection:
        assert head(connection).startswith(b"HTTP/1.1 413 ")


def test_bodies_share_a_budget(shared: Admin) -> None:
    """Many large bodies that never end take bounded memory; then there is room again."""
    prefix = (
        b"POST " + ITEMS.encode() + b" HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n"
    )
    with ExitStack() as stack:
        refused = 0
        for _ in range(6):
            connection = stack.enter_context(connected(shared))
            with suppress(ConnectionError):
                connection.sendall(prefix + b"x" * 15_999_999)
            connection.setblocking(False)
            with suppress(BlockingIOError):
                refused += b"HTTP/1.1 503 " in connection.recv(4096)
        deadline = time.monotonic() + PATIENCE
        while not refused and time.monotonic() < deadline:
            refused += put(shared, b'{"text": "' + b"x" * 15_000_000 + b'"}', "").status == 503
    deadline = time.monotonic() + PATIENCE
    while (reply := put(shared, b'{"text": "x"}', "")).status == 503:
        assert time.monotonic() < deadline
    assert reply.status == 201
    shared.ask("DELETE", "/api/v1/queues/jobs")


ODD = [
    b"\r\n\r\n\r\n",
    b"get / http/1.1\r\n\r\n",
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET  / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n broken\r\n\r\n",
    b"GET / HTTP/1.1\r\nNo colon\r\n\r\n",
    b"GET / HTTP/1.1\r\n: no name\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
    b"GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    b"POST /reload HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /reload HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    b"POST /reload HTTP/1.1\r\nTransfer-Encoding: odd\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"X-Many: 1\r\n" * 1000 + b"\r\n",
    b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET http://x:99999999/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /% HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nExpect: a miracle\r\nConnection: close\r\n\r\n",
    (
        b"POST /reload HTTP/1.1\r\nHost: localhost\r\nAuthorization: \xff\r\nContent-Length: 0\r\n"
        b"Origin: \xff\xfe\r\nConnection: close\r\n\r\n"
    ),
    b"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: \xff;=;a=\x01\r\nConnection: close\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nRange: bytes=9-1\r\nConnection: close\r\n\r\n",
    (
        b"GET /stats.json?period=%FF&%&=&&a=%zz HTTP/1.1\r\nHost: localhost\r\n"
        b"Connection: close\r\n\r\n"
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: \xff/;=;\r\n"
        b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; "
        b"charset=utf-99\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n"
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n-2\r\n{}\r\n0\r\n\r\n"
    ),
    (
        b"POST /api/v1/queues HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n{}garbage\r\n0\r\n\r\n"
    ),
    (
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: upgrade\r\n"
        b"\r\n\xff\xff\xff\xff\xff\xff\r\n\r\n"
    ),
    (
        b"GET /ping HTTP/1.1\r\nHost: localhost\r\nUpgrade: h2c\r\nConnection: upgrade, "
        b"HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    ),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]


@pytest.mark.parametrize("request_bytes", ODD, ids=range(len(ODD)))
def test_odd_requests_are_answered_and_marked(hasty: Admin, request_bytes: bytes) -> None:
    """Whatever comes, the server makes no mistake, and browsers are told what they may do."""
    with connected(hasty, request_bytes) as connection:
        replies = re.split(rb"(?:^|(?<=[}\n]))HTTP/1.[01] ", rest(connection))[1:]
    assert replies or not request_bytes.strip()
    for reply in replies:
        assert 200 <= int(reply[:3]) < 500
        assert b"X-Content-Type-Options: nosniff" in reply
        assert b"Content-Security-Policy: default-src 'none'" in reply
    assert hasty.get("/ping").status == 200


def test_a_malformed_request_is_a_marked_error(shared: Admin) -> None:
    """The parser's own errors look like all others, and do not repeat what was sent."""
    with connected(shared, b"<script>alert(1)</script>\r\n\r\n") as connection:
        reply = rest(connection)
    header, _, body = reply.partition(b"\r\n\r\n")
    assert header.startswith((b"HTTP/1.0 400 ", b"HTTP/1.1 400 "))
    for line in (b"nosniff", b"default-src 'none'", b"X-Frame-Options: DENY", b"application/json"):
        assert line in header
    assert b"Server: kestrelmq/" in header
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert b"script" not in body


def sign_in(admin: Admin, token: str) -> Reply:
    """Try a change with `token`."""
    return admin.ask("POST", "/reload", Authorization=f"Bearer {token}")


def test_guessing_tokens_is_slow_and_is_logged(guarded: Admin) -> None:
    """After some failures no token is even looked at, until the peer has waited."""
    guess = (
        b"POST /reload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
        b"Authorization: Bearer wrong-token-%08d\r\n%b\r\n"
    )
    count = FAILURE_BURST + 370
    with connected(
        guarded,
        b"".join(guess % (n, b"" if n else b"Connection: close\r\n") for n in range(count)[::-1]),
    ) as connection:
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", rest(connection))
    assert statuses[:FAILURE_BURST] == [b"401"] * FAILURE_BURST
    assert b"429" in statuses
    assert len(statuses) == count
    deadline = time.monotonic() + PATIENCE
    while (reply := sign_in(guarded, TOKEN)).status == 429:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert reply.status == 200
    failures = statuses.count(b"401")
    assert (
        f"kestrelmq_failed_sign_ins_total {failures}.0" in guarded.get("/metrics").content.decode()
    )
    guarded.server.stop()
    assert 1 <= guarded.server.output.count("wrong admin token") <= 20
    assert "wrong-token-" not in guarded.server.output


def test_one_peers_guesses_cost_another_nothing(guarded: Admin) -> None:
    """Failures are counted for each address."""
    for number in range(FAILURE_BURST + 10):
        sign_in(guarded, f"wrong-token-{number:08}")
    connection = http.client.HTTPConnection(
        "127.0.0.1", guarded.port, timeout=PATIENCE, source_address=("127.0.0.2", 0)
    )
    connection.request("POST", "/reload", headers={"Authorization": f"Bearer {TOKEN}"})
    assert connection.getresponse().status == 200
    connection.close()
