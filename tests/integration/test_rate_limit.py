"""`rate_limit` of a user, over every protocol. No test needs a fast machine, only one that ends."""

import base64
import http.client
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelmq import Client
from kestrelmq.client.address import parse_address
from kestrelmq.errors import ServerRefused
from kestrelmq.loadtests.connections import LoadTestError
from kestrelmq.loadtests.thrift_connection import ThriftConnection
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.users import PASSWORD, users_config
from tests.support.wire import Wire

pytestmark = pytest.mark.compiled_only

LIMIT: Final = 5
ALL: Final = 'read = ["*"]\nwrite = ["*"]\n'
CONFIG: Final = users_config(alice=f"{ALL}rate_limit = {LIMIT}", bob=ALL, root="admin = true")
REFUSED: Final = "user alice may not make more than 5 requests a second (rate_limit); try again"
OVER_MEMCACHE: Final = f"CLIENT_ERROR {REFUSED}\r\n".encode()
ALICE: Final = ("alice", PASSWORD)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server with a user who may ask for little, and one who may not."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def signed_in(server: ServerProcess, user: str) -> Wire:
    """Return a memcache connection of a user."""
    wire = Wire(server)
    data = f"{user} {PASSWORD}".encode()
    wire.ask(b"set _ 0 0 %d\r\n%b\r\n" % (len(data), data), b"STORED\r\n")
    return wire


def metric(server: ServerProcess) -> float:
    """Return how many requests were refused, as /metrics has it."""
    lines = over_http(server, "root").splitlines()
    name = "kestrelmq_rate_limited_requests_total "
    return next(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def over_http(server: ServerProcess, user: str) -> str:
    """Return the reply to a request over HTTP, or the status and the code of a refusal."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
    token = base64.b64encode(f"{user}:{PASSWORD}".encode()).decode()
    connection.request("GET", "/metrics", headers={"Authorization": f"Basic {token}"})
    reply = connection.getresponse()
    text = reply.read().decode()
    connection.close()
    if reply.status == 200:
        return text
    return f"{reply.status} {reply.headers['Retry-After']} {text}"


def test_a_burst_is_served_and_the_rest_is_refused(server: ServerProcess) -> None:
    """Nothing is stored then; the connection goes on, and so do other users, however many ask."""
    count = 200
    with signed_in(server, "alice") as wire, signed_in(server, "bob") as other:
        begun = time.monotonic()
        wire.send(b"set work 0 0 1\r\nx\r\n" * count)
        replies = [wire.until(b"\r\n").splitlines(keepends=True)[-1] for _ in range(count)]
        most = LIMIT + LIMIT * (time.monotonic() - begun) + 1
        stored = replies.count(b"STORED\r\n")
        assert LIMIT <= stored <= most
        assert set(replies) <= {b"STORED\r\n", OVER_MEMCACHE}
        if stored < count:
            assert metric(server) == count - stored
            assert server.logged(f"may not make more than {LIMIT} requests a second")
        other.ask(b"get work\r\n" * stored, b"VALUE work 0 1\r\nx\r\nEND\r\n" * stored)
        other.ask(b"get work\r\n" * 1000, b"END\r\n" * 1000)
        until(lambda: wire.ask_until(b"get work\r\n", b"\r\n") == b"END\r\n")


def test_what_does_not_count(server: ServerProcess) -> None:
    """What everyone may ask for; a quiet `set` that is refused has no reply."""
    with signed_in(server, "alice") as wire:
        for _ in range(50):
            wire.ask(b"version\r\n", b"VERSION ")
            wire.until(b"\r\n")
        wire.send(b"set work 0 0 1 noreply\r\nx\r\n" * 100 + b"version\r\n")
        assert wire.until(b"\r\n").startswith(b"VERSION ")


def test_a_large_item_counts_once(tmp_path: Path) -> None:
    """Although it is looked at when it begins and when all of it is there."""
    size = 300 << 10
    config = CONFIG.replace(f"rate_limit = {LIMIT}", "rate_limit = 2")
    item = b"set work 0 0 %d\r\n%b\r\n" % (size, bytes(size))
    with running_server(tmp_path, config=config) as server, signed_in(server, "alice") as wire:
        wire.send(item * 2)
        for _ in range(2):
            wire.expect(b"STORED\r\n")


def refused_over_text(server: ServerProcess) -> bool:
    """Whether one of some commands of the text protocol is refused."""
    with Wire(server, "text") as wire:
        wire.ask(f"auth alice {PASSWORD}\n".encode(), b"+0\n")
        wire.send(b"get work\n" * 20)
        replies = [wire.until(b"\n") for _ in range(20)]
    assert set(replies) <= {b"*\n", f"-{REFUSED}\n".encode()}
    return replies[-1] != b"*\n"


def refused_over_thrift(server: ServerProcess) -> bool:
    """The same of calls."""
    connection = ThriftConnection(parse_address(f"127.0.0.1:{server.ports['thrift']}"), ALICE)
    try:
        for _ in range(20):
            connection._call("peek", "work")
    except LoadTestError as error:
        return REFUSED in str(error)
    finally:
        connection.close()
    return False


def refused_over_http(server: ServerProcess) -> bool:
    """The same of requests."""
    reply = over_http(server, "alice")
    assert "kestrelmq_" in reply or (reply.startswith("429 1 ") and "too_many_requests" in reply)
    return reply.startswith("429")


def refused_to_the_client(server: ServerProcess) -> bool:
    """The same of our own client; the error is of a kind that it does not try elsewhere."""
    with Client(server.address, user="alice", password=PASSWORD) as client:
        try:
            for _ in range(20):
                client.get("work")
        except ServerRefused as error:
            return error.kind == "CLIENT_ERROR" and str(error).endswith(REFUSED)
    return False


@pytest.mark.parametrize(
    "refused",
    [refused_over_text, refused_over_thrift, refused_over_http, refused_to_the_client],
)
def test_every_protocol(server: ServerProcess, refused: Callable[[ServerProcess], bool]) -> None:
    """A refusal is one that its clients know; after a while they are served again."""
    until(lambda: refused(server))
    with signed_in(server, "alice") as wire:
        until(lambda: wire.ask_until(b"get work\r\n", b"\r\n") == b"END\r\n")


def test_a_reload_changes_the_limit(server: ServerProcess, tmp_path: Path) -> None:
    """For connections that are there, both ways."""
    with signed_in(server, "alice") as wire, signed_in(server, "root") as root:
        (tmp_path / "kestrelmq.toml").write_text(CONFIG.replace(f"rate_limit = {LIMIT}", ""))
        root.ask(b"reload\r\n", b"Reloaded config.\r\n")
        wire.ask(b"get work\r\n" * 1000, b"END\r\n" * 1000)
        (tmp_path / "kestrelmq.toml").write_text(CONFIG)
        root.ask(b"reload\r\n", b"Reloaded config.\r\n")
        wire.send(b"set work 0 0 1\r\nx\r\n" * 1000 + b"version\r\n")
        assert OVER_MEMCACHE in wire.until(b"VERSION ")
