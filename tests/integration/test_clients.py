"""Who is connected to a real server, what each client does, and how one is disconnected."""

import asyncio
import http.client
import json
import socketserver
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions, ConnectedClient
from kestrelmq.errors import InvalidRequest, ServerRefused
from tests.support.commands import run_command
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, value, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = "max_open_transactions = 10\n"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server without clients."""
    with running_server(tmp_path, config=CONFIG) as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """Connect to the server."""
    with Client(server.address) as connected:
        yield connected


def connected(server: ServerProcess, listener: str = "memcache") -> Wire:
    """Return a connection that the server has accepted: it answered, once."""
    wire = Wire(server, listener)
    wire.ask_until(b"version\r\n", b"\n")
    return wire


def address_of(wire: Wire) -> str:
    """Return the address by which the server knows a connection."""
    host, port = wire.socket.getsockname()
    return f"{host}:{port}"


def thrift_get(queue: str, most: int, auto_abort: int) -> bytes:
    """Return a thrift call of `get` that does not wait."""
    call = struct.pack(">HHi", 0x8001, 1, 3) + b"get" + struct.pack(">i", 1)
    call += struct.pack(">bhi", 11, 1, len(queue)) + queue.encode()
    for field, number in ((2, most), (3, 0), (4, auto_abort)):
        call += struct.pack(">bhi", 8, field, number)
    call += b"\0"
    return struct.pack(">i", len(call)) + call


def found(client: Client, wire: Wire) -> ConnectedClient:
    """Return what the server says about a connection."""
    (one,) = [one for one in client.clients() if one.address == address_of(wire)]
    return one


def ask(server: ServerProcess, method: str, path: str) -> tuple[int, Any]:
    """Ask the API; return the status and the body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
    connection.request(method, f"/api/v1{path}")
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    return reply.status, json.loads(body) if body else None


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `kestrelmq clients`."""
    done = run_command("clients", *arguments)
    return subprocess.CompletedProcess(
        done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
    )


def test_every_protocol_is_listed(server: ServerProcess, client: Client) -> None:
    """With address, protocol, replies, and the reads that it holds open."""
    began = time.time() * 1000
    with (
        connected(server) as memcache,
        connected(server, "text") as text,
        Wire(server, "thrift") as thrift,
    ):
        put(memcache, "jobs", "a", "b", "c", "d")
        memcache.ask(b"get jobs/open\r\n", value("jobs", "a") + b"END\r\n")
        memcache.ask(b"get jobs/open\r\n", value("jobs", "b") + b"END\r\n")
        memcache.ask(b"set jobs 0 0 1 noreply\r\nz\r\nversion\r\n", b"VERSION")
        memcache.until(b"\r\n")
        text.ask(b"get jobs\n", b":c\n")
        thrift.send(thrift_get("jobs", 8, 600_000))
        thrift.until(b"get")
        one = found(client, memcache)
        assert one.open_reads == {"jobs": 2}
        assert (one.protocol, one.commands, one.state, one.queue) == ("memcache", 8, "idle", None)
        assert began - 60_000 < one.since < began + 60_000
        assert found(client, text).protocol == "text"
        assert found(client, text).open_reads == {"jobs": 1}
        assert found(client, thrift).protocol == "thrift"
        assert found(client, thrift).open_reads == {"jobs": 2}
        assert [one.id for one in client.clients()] == [1, 2, 3, 4]
        memcache.ask(b"confirm jobs 2\r\n", b"END\r\n")
        assert found(client, memcache).open_reads == {}


def test_what_a_client_waits_for(server: ServerProcess, client: Client) -> None:
    """The queue, until its item comes; and a client that does not read is stalled."""
    large = b"x" * (4 << 20)
    with (
        connected(server) as waiting,
        connected(server, "text") as other,
        connected(server) as stalled,
    ):
        waiting.send(b"get jobs/t=600000\r\n")
        other.send(b"monitor jobs 600000\n")
        until(lambda: found(client, waiting).state == found(client, other).state == "waiting")
        assert found(client, waiting).queue == found(client, other).queue == "jobs"
        client.put("jobs", b"one")
        waiting.expect(value("jobs", "one") + b"END\r\n")
        assert (found(client, waiting).state, found(client, waiting).queue) == ("idle", None)
        for _ in range(4):
            client.put("large", large)
        stalled.send(b"get large\r\n" * 4)
        until(lambda: found(client, stalled).state == "stalled")


def test_all_queues_that_a_reserve_waits_for(server: ServerProcess, client: Client) -> None:
    """They are listed as in its request, in which commas and percent signs are escaped."""
    with connected(server) as waiting, connected(server, "text") as other:
        waiting.send(b"reserve high,a%2Cb,5%25 1 lease=1000 t=600000\r\n")
        other.send(b"get a,b 600000\n")
        until(lambda: found(client, waiting).state == found(client, other).state == "waiting")
        assert found(client, waiting).queue == "high,a%2Cb,5%25"
        assert found(client, other).queue == "a%2Cb"


def test_a_client_has_a_name(server: ServerProcess, client: Client) -> None:
    """It is listed over memcache, HTTP and by the command; the last one said counts."""
    with connected(server) as wire:
        assert found(client, wire).name is None
        for name in ("first", "caf\u00e9-3", "n" * 64):
            wire.ask(f"client name {name}\r\n".encode(), b"NAMED\r\n")
            assert found(client, wire).name == name
        wire.ask(b"CLIENT NAME billing=3\r\n", b"NAMED\r\n")
        listed = wire.ask_until(b"clients\r\n", b"END\r\n")
        assert b" name=billing=3 address=" + address_of(wire).encode() in listed
        asked = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
        asked.request("GET", "/api/v1/clients")
        names = [one["name"] for one in json.loads(asked.getresponse().read())["clients"]]
        asked.close()
        assert sorted(names, key=str) == [None, "billing=3"]
        shown = run_command("clients", "--servers", server.address).stdout.decode()
        assert shown.split()[4] == "name"
        assert "billing=3" in shown
        for bad in (b"", b" a b", b" " + b"n" * 65, b" \xff", b" \xc2\xa0", b" \xe2\x80\xae"):
            wire.ask_until(b"client name%b\r\n" % bad, b"CLIENT_ERROR ")
            wire.until(b"\r\n")
        assert found(client, wire).name == "billing=3"


def test_the_python_client_has_a_name(server: ServerProcess, client: Client) -> None:
    """On every connection, blocking or not, however it is given; a bad one is refused at once."""
    with Client(server.address, name="blocking") as named:
        named.put("jobs", b"x")
        with named.reserve("jobs"):
            named.get("other")
            assert [one.name for one in client.clients()].count("blocking") == 2

    async def names() -> list[str | None]:
        async with AsyncClient(server.address, options=ClientOptions(name="asyncio")) as named:
            return [one.name for one in await named.clients()]

    assert asyncio.run(names()).count("asyncio") == 1
    for bad in ("", "a b", "n" * 65, "\udcff", "\n", 7):
        with pytest.raises(InvalidRequest, match="name"):
            Client(server.address, name=bad)  # type: ignore[arg-type]


class _Older(socketserver.StreamRequestHandler):
    """A server that knows no `client name`."""

    closes: bool

    def handle(self) -> None:
        for line in self.rfile:
            if line == b"status\r\n":
                self.wfile.write(b"UP\r\n")
            elif self.closes:
                return
            else:
                self.wfile.write(b"CLIENT_ERROR client takes kill and an id\r\n")


@pytest.mark.parametrize("closes", [False, True])
def test_a_name_that_an_older_server_refuses(*, closes: bool) -> None:
    """The client goes without, also where the connection is closed for it."""
    handler = type("Handler", (_Older,), {"closes": closes})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        address = f"127.0.0.1:{listening.server_address[1]}"

        async def status() -> dict[str, str]:
            async with AsyncClient(address, name="me") as client:
                return await client.status()

        try:
            with Client(address, name="me") as client:
                assert client.status() == {address: "UP"}
            assert asyncio.run(status()) == {address: "UP"}
        finally:
            listening.shutdown()
            thread.join()


def test_a_killed_client_is_disconnected(server: ServerProcess, client: Client) -> None:
    """Its open reads go back, and the reader that waited takes no item."""
    with connected(server) as holder, connected(server) as waiter, connected(server) as killer:
        put(holder, "jobs", "a", "b")
        holder.ask(b"get jobs/open\r\n", value("jobs", "a") + b"END\r\n")
        waiter.send(b"get other/t=600000\r\n")
        wait_for(killer, "other", "waiters", 1)
        for wire in (holder, waiter):
            killer.ask(b"client kill %d\r\n" % found(client, wire).id, b"KILLED\r\n")
            wire.expect_close()
        wait_for(killer, "other", "waiters", 0)
        wait_for(killer, "jobs", "open_transactions", 0)
        put(killer, "other", "for somebody else")
        killer.ask(b"get jobs\r\n", value("jobs", "a") + b"END\r\n")
        killer.ask(b"get other\r\n", value("other", "for somebody else") + b"END\r\n")
        killer.ask(b"client kill 999\r\n", b"NOT_FOUND\r\n")
        killer.ask(b"client kill x\r\n", b"CLIENT_ERROR client kill takes whole numbers\r\n")
        asked = f"client kill: asked for by {address_of(killer)} (memcache)"
        assert server.logged(asked)
        assert server.logged("disconnecting client 1, 127.0.0.1:")


def test_a_client_may_kill_itself(server: ServerProcess, client: Client) -> None:
    """It gets its answer first; what it sent after that is not done."""
    with connected(server) as wire:
        number = found(client, wire).id
        wire.send(b"client kill %d\r\n" % number)
        wire.expect_close(b"KILLED\r\n")
    assert number not in [one.id for one in client.clients()]


def test_the_python_client_kills(server: ServerProcess, client: Client) -> None:
    """Blocking or not; on the server that is named, if there are several."""
    with connected(server) as first, connected(server) as second:
        assert client.kill_client(found(client, first).id)
        first.expect_close()
        assert not client.kill_client(999)

        async def kill() -> list[ConnectedClient]:
            async with AsyncClient(server.address) as other:
                assert await other.kill_client(found(client, second).id, server.address)
                return await other.clients()

        left = asyncio.run(kill())
        second.expect_close()
        assert {one.server for one in left} == {server.address}
        assert address_of(second) not in {one.address for one in left}
        with pytest.raises(InvalidRequest, match="none of the servers"):
            client.kill_client(1, "elsewhere:22133")
    with (
        Client([server.address, "127.0.0.1:1"]) as cluster,
        pytest.raises(InvalidRequest, match="on which server"),
    ):
        cluster.kill_client(1)


def test_the_api_lists_and_disconnects(server: ServerProcess, client: Client) -> None:
    """In pages; the same as the protocol says."""
    with connected(server), connected(server, "text") as second:
        listed = client.clients()
        status, page = ask(server, "GET", "/clients")
        assert (status, page["total"], page["offset"]) == (200, 3, 0)
        for one, entry in zip(listed, page["clients"], strict=True):
            expected = asdict(one) | {"state": "idle", "commands": entry["commands"]}
            del expected["server"]
            assert entry == expected
        status, page = ask(server, "GET", "/clients?offset=1&limit=1")
        assert [entry["id"] for entry in page["clients"]] == [2]
        number = found(client, second).id
        assert ask(server, "DELETE", f"/clients/{number}") == (204, None)
        second.expect_close()
        status, error = ask(server, "DELETE", f"/clients/{number}")
        assert (status, error["error"]["code"]) == (404, "client_not_found")
        assert ask(server, "DELETE", "/clients/x")[0] == 404
        assert ask(server, "GET", "/clients?limit=0")[0] == 400


def test_the_command_line_lists_and_kills(server: ServerProcess) -> None:
    """As a table or as JSON; flags that would go astray are refused."""
    servers = ("--servers", server.address)
    with connected(server) as wire:
        put(wire, "jobs", "a")
        wire.ask(b"get jobs/open\r\n", value("jobs", "a") + b"END\r\n")
        entries = json.loads(run("--json", *servers).stdout)
        (entry,) = [one for one in entries if one["address"] == address_of(wire)]
        assert (entry["server"], entry["open_reads"]) == (server.address, {"jobs": 1})
        heads, line, *_ = run(*servers).stdout.splitlines()
        assert heads.split()[:4] == ["server", "id", "address", "protocol"]
        assert line.split()[:4] == [server.address, "1", address_of(wire), "memcache"]
        assert line.endswith("jobs/1")
        wrong = run(*servers, "kill", "1")
        assert (wrong.returncode, "give flags after kill" in wrong.stderr) == (2, True)
        assert run("kill", "1", *servers).returncode == 0
        wire.expect_close()
        missing = run("kill", "1", *servers)
        assert (missing.returncode, missing.stderr) == (
            1,
            "kestrelmq: error: there is no client 1\n",
        )


def test_a_server_that_does_not_know_its_clients(server: ServerProcess, client: Client) -> None:
    """Asking for a client of a number that cannot be sent is refused before anything is sent."""
    with pytest.raises(InvalidRequest):
        client.kill_client(-1)
    with pytest.raises((InvalidRequest, ServerRefused)):
        client.kill_client(2**40)
