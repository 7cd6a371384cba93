"""Every command of every protocol and every route of the API, by every kind of client.

The commands come from the tables that the server itself uses, so a new one without a row here, or
without a right, fails.
"""

import base64
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web

from kestrelmq import Client
from kestrelmq.admin.calls import AdminContext, LongRequests
from kestrelmq.admin.endpoints import Endpoints
from kestrelmq.admin.guard import RIGHT
from kestrelmq.admin.operations import OPERATIONS, PREFIX, add_operations
from kestrelmq.admin.sampling import Sampler
from kestrelmq.admin.sessions import Sessions
from kestrelmq.client.address import parse_address
from kestrelmq.loadtests.connections import LoadTestError
from kestrelmq.loadtests.thrift_connection import ThriftConnection
from kestrelmq.names import queue_name_error
from kestrelmq.protocol import memcache, text
from kestrelmq.protocol.memcache import Parser
from kestrelmq.protocol.rights import RIGHTS, Right
from kestrelmq.protocol.text import TextParser
from kestrelmq.protocol.thrift_service import METHODS
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.turning import Turning
from tests.support.users import PASSWORD, users_config

pytestmark = pytest.mark.compiled_only

READERS: Final = {"reader": {"work", "spare"}, "admin": {"work", "spare"}}
WRITERS: Final = {"writer": {"work", "spare"}, "admin": {"work", "spare"}}
PEOPLE: Final = ("nobody", "wrong", "reader", "writer", "elsewhere", "admin")
CONFIG: Final = users_config(
    reader='read = ["work", "spare"]',
    writer='write = ["w?rk", "sp*"]',
    elsewhere='read = ["other*"]\nwrite = ["other*"]',
    admin="admin = true",
)

MEMCACHE: Final[dict[bytes, tuple[str, ...]]] = {
    b"set": ("set work 0 0 1\r\nx", "set spare/delay=9000 0 0 1\r\nx"),
    b"get": ("get work/peek", "get work/open", "get work/t=1 spare/peek"),
    b"gets": ("gets work/peek",),
    b"monitor": ("monitor spare 0",),
    b"confirm": ("confirm work 0",),
    b"touch_read": ("touch_read work 9",),
    b"delete": ("delete gone",),
    b"flush": ("flush work",),
    b"flush_all": ("flush_all",),
    b"flush_expired": ("flush_expired work",),
    b"flush_all_expired": ("flush_all_expired",),
    b"stats": ("stats", "stats work"),
    b"dump_stats": ("dump_stats", "dump_stats work"),
    b"dump_config": ("dump_config", "dump_config work"),
    b"status": ("status", "status writeavoid"),
    b"version": ("version",),
    b"reload": ("reload",),
    b"shutdown": ("shutdown",),
    b"quit": ("quit",),
    b"browse": ("browse work 0 1",),
    b"move": ("move work spare 1",),
    b"copy": ("copy work spare 1",),
    b"redrive": ("redrive work", "redrive work spare"),
    b"declare": ("declare spare max_items=99",),
    b"pause": ("pause spare reads",),
    b"resume": ("resume spare",),
    b"clients": ("clients",),
    b"client": ("client name me", "client kill 999999"),
    b"reserve": ("reserve work,spare 1 lease=1",),
    b"finish": ("finish work tag=a:1:x",),
    b"release": ("release work tag=a:1:x", "release owner=someone"),
    b"extend": ("extend work 9 tag=a:1:x", "extend owner=someone 9"),
    b"retire": ("retire work name 1",),
    b"owners": ("owners",),
}
TEXT: Final[dict[bytes, tuple[str, ...]]] = {
    b"put": ("put work:\nx\n",),
    b"get": ("get work",),
    b"peek": ("peek work",),
    b"monitor": ("monitor spare 0",),
    b"confirm": ("confirm work 0",),
    b"flush": ("flush work",),
    b"flush_all": ("flush_all",),
    b"flush_expired": ("flush_expired work",),
    b"delete": ("delete gone",),
    b"auth": ("auth reader wrong",),
    b"reload": ("reload",),
    b"status": ("status", "status writeavoid"),
    b"version": ("version",),
    b"shutdown": ("shutdown",),
    b"quit": ("quit",),
}
THRIFT: Final[dict[str, tuple[Any, ...]]] = {
    "put": ("work", [b"x"], 0),
    "get": ("work", 1, 0, 1),
    "confirm": ("work", [1]),
    "abort": ("work", [1]),
    "peek": ("work",),
    "flush_queue": ("work",),
    "flush_all_queues": (),
    "delete_queue": ("gone",),
    "current_status": (),
    "set_status": (3,),
    "login": ("reader", "wrong"),
    "get_version": (),
}
_ONE: Final = f"{PREFIX}/queues/{{name}}"
_READS: Final = {"reads": ["1-0000000000000001"]}
BODIES: Final[dict[tuple[str, str], object]] = {
    ("POST", f"{PREFIX}/queues"): {"name": "spare"},
    ("POST", f"{_ONE}/pause"): {"operations": "reads"},
    ("POST", f"{_ONE}/resume"): {"operations": "reads"},
    ("POST", f"{_ONE}/items"): {"text": "x"},
    ("POST", f"{_ONE}/import"): b'{"data":"x"}\n',
    ("POST", f"{_ONE}/move"): {"target": "spare", "count": 1},
    ("POST", f"{_ONE}/copy"): {"target": "spare", "count": 1},
    ("POST", f"{_ONE}/redrive"): {"target": "spare"},
    ("POST", f"{_ONE}/open-reads/requeue"): {"xids": [1]},
    ("POST", f"{PREFIX}/reserve"): {"queues": ["work", "spare"], "lease": 0.001},
    ("POST", f"{_ONE}/finish"): _READS,
    ("POST", f"{_ONE}/release"): _READS,
    ("POST", f"{_ONE}/extend"): _READS | {"lease": 1},
    ("POST", f"{PREFIX}/extend-owner"): {"owner": "someone", "lease": 1},
    ("POST", f"{PREFIX}/release-owner"): {"owner": "someone"},
    ("POST", f"{_ONE}/retire"): {"name": "name", "epoch": 1},
    ("PUT", f"{PREFIX}/status"): {"status": "writeavoid"},
    ("POST", f"{PREFIX}/session"): {"user": "reader", "password": PASSWORD},
}
"""The bodies of requests; the others have none."""
ALSO_WRITTEN: Final = {"move", "copy", "redrive"}
"""The last part of the paths of operations that add to a queue that the body names."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with users, and items in two queues."""
    with running_server(tmp_path_factory.mktemp("rights"), config=CONFIG) as server:
        with admin_of(server) as client:
            for name in ("work", "spare"):
                client.put_many(name, [b"1", b"2", b"3"])
        yield server


def admin_of(server: ServerProcess) -> Client:
    """Return a client of a user who may do everything."""
    return Client(server.address, user="admin", password=PASSWORD)


def state_of(server: ServerProcess) -> dict[str, object]:
    """Return what a request might change, once what others have read has gone back."""
    with admin_of(server) as client:
        until(lambda: not any(one.number("open_transactions") for one in client.queues()))
        queues = sorted(client.queues(), key=lambda one: one.name)
        browsed = {
            one.name: [
                item.data for page in client.browse(one.name).values() for item in page.items
            ]
            for one in queues
        }
        stats = [(one.name, one.items, one.paused) for one in queues]
        return {"status": client.status(), "items": browsed, "stats": stats}


def may(person: str, needs: list[tuple[Right, list[str]]]) -> bool:
    """Whether someone may make a request that takes these rights, by the words of the tests."""
    signed_in = person not in {"nobody", "wrong"}
    allowed = False
    for right, names in needs:
        match right:
            case Right.READ | Right.SEE:
                allowed = set(names) <= READERS.get(person, set())
            case Right.WRITE:
                allowed = set(names) <= WRITERS.get(person, set())
            case Right.ADMIN:
                allowed = person == "admin"
            case Right.SIGNED_IN:
                allowed = signed_in
            case Right.ANYONE:
                allowed = True
        if not allowed:
            return False
    return True


def needs_of(request: object) -> list[tuple[Right, list[str]]]:
    """Return what the table says of a request."""
    return [(right, list(names(request))) for right, names in RIGHTS[type(request)]]


def is_refusal(reply: bytes) -> bool:
    """Whether a reply says that the client may not do that."""
    texts = (b" may not ", b"sign in first", b"CLIENT_ERROR authentication failure")
    return any(text in reply for text in texts)


def connected(server: ServerProcess, protocol: str, person: str) -> socket.socket:
    """Return a connection, from an address of its own so that failures concern nobody else."""
    source = ("127.0.0.2", 0) if person == "wrong" else None
    place = ("127.0.0.1", server.ports[protocol])
    return socket.create_connection(place, PATIENCE, source_address=source)


def credentials(person: str) -> tuple[str, str] | None:
    """Return what someone signs in with; None if not at all."""
    if person == "nobody":
        return None
    return ("reader", "wrong") if person == "wrong" else (person, PASSWORD)


def answer(opened: socket.socket, request: bytes) -> bytes:
    """Send a request, and return all that comes until the server closes, when asked to."""
    opened.sendall(request)
    opened.shutdown(socket.SHUT_WR)
    received = b""
    while data := opened.recv(1 << 16):
        received += data
    return received


def ask_memcache(server: ServerProcess, person: str, request: str) -> bytes:
    """Return the reply to a memcache request of someone."""
    with connected(server, "memcache", person) as opened:
        signed = b""
        if (known := credentials(person)) is not None:
            data = " ".join(known).encode()
            opened.sendall(b"set _ 0 0 %d\r\n%b\r\n" % (len(data), data))
            signed = opened.recv(999)
            assert (signed == b"STORED\r\n") == (person != "wrong"), signed
        return answer(opened, request.encode() + b"\r\n")


def ask_text(server: ServerProcess, person: str, request: str) -> bytes:
    """Return the reply to a text request of someone."""
    with connected(server, "text", person) as opened:
        if (known := credentials(person)) is not None:
            opened.sendall(" ".join(("auth", *known)).encode() + b"\n")
            assert (opened.recv(999) == b"+0\n") == (person != "wrong")
        return answer(opened, request.encode() + b"\n")


def test_what_takes_an_admin() -> None:
    """What takes items from others, or is about the server."""
    found = {one.__name__ for one, needs in RIGHTS.items() if needs[0][0] is Right.ADMIN}
    assert found == {
        "Delete",
        "Flush",
        "FlushAll",
        "FlushExpired",
        "KillClient",
        "ListClients",
        "ListOwners",
        "Pause",
        "Reload",
        "SetStatus",
        "Shutdown",
    }


@pytest.mark.parametrize("person", PEOPLE)
def test_every_memcache_command(server: ServerProcess, person: str) -> None:
    """It is allowed or refused as the table says; a refused one changes nothing."""
    assert set(MEMCACHE) == set(memcache._VERBS)
    parser = Parser("kestrel", queue_name_error)
    before = state_of(server)
    refused: list[str] = []
    allowed: list[str] = []
    for line in (line for lines in MEMCACHE.values() for line in lines):
        request = parser.parse_long(line.partition("\n")[0].encode())
        (allowed if may(person, needs_of(request)) else refused).append(line)
    for line in refused:
        reply = ask_memcache(server, person, line)
        assert reply.startswith(b"CLIENT_ERROR "), line
        assert is_refusal(reply), line
    assert state_of(server) == before
    for line in allowed:
        if line != "shutdown":
            assert not is_refusal(ask_memcache(server, person, line)), line
    with admin_of(server) as client:
        client.resume("spare")
        client.set_status("up")


@pytest.mark.parametrize("person", PEOPLE)
def test_every_text_command(server: ServerProcess, person: str) -> None:
    """It is allowed or refused as the table says; a refused one changes nothing."""
    assert set(TEXT) == {*text._PARSERS, b"put"}
    before = state_of(server)
    refused: list[str] = []
    allowed: list[str] = []
    for line in (line for lines in TEXT.values() for line in lines):
        parser = TextParser()
        parser.receive(line.encode() + b"\n")
        request = parser.next_command()
        (allowed if may(person, needs_of(request)) else refused).append(line)
    for line in refused:
        reply = ask_text(server, person, line)
        assert reply.startswith(b"-"), line
        assert is_refusal(reply), line
    assert state_of(server) == before
    for line in allowed:
        if line != "shutdown":
            assert not is_refusal(ask_text(server, person, line)), line
    with admin_of(server) as client:
        client.set_status("up")


@pytest.mark.parametrize("person", PEOPLE)
def test_every_thrift_method(server: ServerProcess, person: str) -> None:
    """It is allowed, or refused with an exception, as the table says."""
    assert set(THRIFT) == set(METHODS)
    address = parse_address(f"127.0.0.1:{server.ports['thrift']}")
    known = credentials(person)
    if person == "wrong":
        with pytest.raises(LoadTestError, match="authentication failure"):
            ThriftConnection(address, known)
        known = None
    before = state_of(server)
    for allows in (False, True):
        for method, arguments in THRIFT.items():
            request = METHODS[method].request(*arguments)
            if may(person, needs_of(request)) != allows:
                continue
            connection = ThriftConnection(address, known)
            reply = b""
            try:
                connection._call(method, *arguments)
            except LoadTestError as error:
                reply = str(error).encode()
            connection.close()
            assert is_refusal(reply) != allows, (method, reply)
        if not allows:
            assert state_of(server) == before


def routes(tmp_path: Path) -> dict[tuple[str, str], Right]:
    """Return the right of each route of the API and beside it, as the server makes them."""
    found = {}
    with Turning(tmp_path) as turning:
        admin = AdminContext(
            turning.context,
            Sampler(turning.context),
            token_needed=False,
            changes_allowed=True,
            reserves=LongRequests(1, "reserves", "too_many_reserves"),
            sessions=Sessions(turning.context.users, 0),
        )
        app = web.Application()
        add_operations(app, admin)
        Endpoints(turning.context).add_to(app)
        for route in app.router.routes():
            assert route.resource is not None
            path = route.resource.canonical
            found[route.method, path] = getattr(route.handler, RIGHT)
    return found


def ask_http(
    server: ServerProcess, person: str, method: str, path: str, body: object
) -> tuple[int, bytes]:
    """Return the status and the body of the reply to an HTTP request of someone."""
    source = ("127.0.0.2", 0) if person == "wrong" else None
    port = server.ports["admin"]
    connection = http.client.HTTPConnection("127.0.0.1", port, PATIENCE, source_address=source)
    headers = {}
    if (known := credentials(person)) is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(":".join(known).encode()).decode()
    content = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    if content is not None:
        is_json = not isinstance(body, bytes)
        headers["Content-Type"] = "application/json" if is_json else "application/x-ndjson"
    connection.request(method, path, content, headers)
    response = connection.getresponse()
    if response.headers.get("Content-Type", "").startswith("text/event-stream"):
        connection.close()
        return response.status, b""
    found = response.status, response.read()
    connection.close()
    return found


@pytest.mark.parametrize("person", PEOPLE)
def test_every_route(server: ServerProcess, tmp_path: Path, person: str) -> None:
    """It is allowed or refused as its right says; a refused request changes nothing."""
    known = routes(tmp_path)
    assert {(one.method, PREFIX + one.path) for one in OPERATIONS} <= known.keys()
    assert BODIES.keys() <= known.keys()
    before = state_of(server)
    checked: dict[bool, list[tuple[str, str, object]]] = {True: [], False: []}
    for (method, path), right in known.items():
        body = BODIES.get((method, path))
        names = ["work"] if "{name}" in path else []
        if path in {f"{PREFIX}/reserve", f"{PREFIX}/queues"} and method == "POST":
            names = ["work", "spare"]
        needs = [(right, names)]
        if path.rpartition("/")[2] in ALSO_WRITTEN:
            needs.append((Right.WRITE, ["spare"]))
        is_allowed = may(person, needs) and person != "wrong"
        checked[is_allowed].append((method, path, body))
    for method, path, body in checked[False]:
        place = path.replace("{name}", "work").replace("{id}", "999999")
        status, reply = ask_http(server, person, method, place, body)
        expected = {"nobody": {401}, "wrong": {401, 429}}.get(person, {403})
        assert status in expected, (method, path, status, reply)
    assert state_of(server) == before
    for method, path, body in checked[True]:
        place = path.replace("{name}", "work").replace("{id}", "999999")
        if path in {"/shutdown", "/quiesce"} or (method == "DELETE" and "queues" in path):
            continue
        status, reply = ask_http(server, person, method, place, body)
        assert status not in {401, 403, 429, 500}, (method, path, status, reply)
    with admin_of(server) as client:
        client.set_status("up")
        client.resume("work")


def test_a_route_without_a_right_is_for_admins(server: ServerProcess) -> None:
    """The event stream and the console's files have theirs beside these tables."""
    for path, person, expected in (
        ("/api/v1/events", "nobody", 401),
        ("/api/v1/events", "reader", 200),
        ("/", "nobody", 200),
        ("/console/signin.js", "nobody", 200),
    ):
        assert ask_http(server, person, "GET", path, None)[0] == expected, path
