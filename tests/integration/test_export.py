"""Exporting the items of a queue as lines of JSON, and importing them, by every way there is."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from urllib.request import urlopen

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import ImportStopped, ServerRefused
from kestrelmq.format.records import LATEST
from tests.admin.conftest import Admin
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

CONFIG = """
[queues.small]
max_items = 2
[queues.disk]
max_memory_size = "1 KiB"
"""
BINARY = bytes(range(256))
COUNT = 2500
QUEUES = "/api/v1/queues"


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def test_both_clients_export_and_import(server: ServerProcess) -> None:
    """Any bytes, in memory and on disk, page after page."""
    items = [BINARY, *[b"%d" % number for number in range(COUNT)]]
    with Client(server.address) as client:
        client.put_many("disk", items)
        lines = list(client.export("disk"))
        assert [json.loads(line)["position"] for line in lines] == list(range(COUNT + 1))
        assert list(client.export("nosuch")) == []
        assert client.import_items(lines, queue="second") == COUNT + 1
        assert client.import_items(["", *lines[:2]]) == 2

    async def transfer() -> tuple[list[str], int]:
        async with AsyncClient(server.address) as client:
            exported = [line async for line in client.export("second")]
            return exported, await client.import_items(exported, queue="third")

    exported, count = asyncio.run(transfer())
    assert count == COUNT + 1
    with Client(server.address) as client:
        assert [client.get("third") for _ in range(COUNT + 2)] == [*items, None]
        assert [client.get("disk") for _ in range(COUNT + 4)] == [*items, *items[:2], None]
        assert [line.replace("second", "disk") for line in exported[5:9]] != lines[5:9]  # new times


def test_a_queue_that_is_deleted_during_an_export(server: ServerProcess) -> None:
    """What was exported until then is not taken for all of it."""
    with Client(server.address) as client:
        client.put_many("disk", [b"%d" % number for number in range(COUNT)])
        lines = client.export("disk")
        assert next(lines)
        client.delete("disk")
        with pytest.raises(ServerRefused, match="queue disk was deleted before all of it"):
            list(lines)

        client.put_many("disk", [b"x" * 100_000] * 100)
        with urlopen(f"http://127.0.0.1:{server.ports['admin']}/api/v1/queues/disk/export") as rows:
            assert rows.read(10)
            client.delete("disk")
            with pytest.raises(IncompleteRead):
                rows.read()


def test_the_api_streams_both(server: ServerProcess) -> None:
    """An export of the API is that of the client; many items, and large ones, both ways."""
    admin = Admin(server)
    items = [BINARY, b"\xc3\xa9\n" * 500_000, *[b"%d" % number for number in range(COUNT)]]
    with Client(server.address) as client:
        client.put_many("disk", items)
        exported = admin.get(f"{QUEUES}/disk/export")
        assert exported.headers["Content-Type"] == "application/x-ndjson"
        assert "disk.jsonl" in exported.headers["Content-Disposition"]
        assert exported.content.decode().splitlines() == list(client.export("disk"))
        lines = {"Content_Type": "application/x-ndjson"}
        imported = admin.ask("POST", f"{QUEUES}/copied/import", exported.content, **lines)
        assert (imported.status, imported.json) == (200, {"added": len(items)})
        assert [client.get("copied") for _ in range(len(items) + 1)] == [*items, None]
        nothing = admin.ask("POST", f"{QUEUES}/copied/import", b"\n", **lines)
        assert nothing.json == {"added": 0}
        assert admin.get(f"{QUEUES}/copied/export").content == b""
    assert admin.get(f"{QUEUES}/nosuch/export").code == "queue_not_found"


@pytest.mark.parametrize(
    ("lines", "queue", "status", "why", "added"),
    [
        (b'{"data": "x"}\n\nwrong\n', "q", 400, "line 3: not a row", 1),
        (b'{"data": "x"}\n' * 3, "small", 409, "small is full", 2),
        (b'{"data": "x"}\n' * 3, "paused", 503, "paused is paused for writes", 0),
        (b'{"data": "x"}\n' + b"x" * (16 << 20) + b"\n", "q", 413, "a line of an import, has", 1),
    ],
)
def test_an_import_of_the_api_that_stops_says_why(
    server: ServerProcess, lines: bytes, queue: str, status: int, why: str, added: int
) -> None:
    """With the number of the line, and what was added before stays."""
    admin = Admin(server)
    with Wire(server) as wire:
        wire.ask(b"declare paused\r\npause paused writes\r\n", b"END\r\nEND\r\n")
    reply = admin.ask(
        "POST", f"{QUEUES}/{queue}/import", lines, Content_Type="application/x-ndjson"
    )
    message = reply.json["error"]["message"]
    assert (reply.status, why in message) == (status, True), message
    assert message.endswith(f"; {added} items added")
    with Wire(server) as wire:
        assert int(stats(wire, queue).get("items", "0")) == added


def test_a_slow_import_and_a_slow_export_hold_up_nobody(server: ServerProcess) -> None:
    """Memory stays small, too: only a part of the items is on its way."""
    admin = Admin(server)
    with (
        Client(server.address) as client,
        socket.create_connection(("127.0.0.1", admin.port)) as export,
        socket.create_connection(("127.0.0.1", admin.port)) as import_,
    ):
        client.put_many("disk", [bytes(1000)] * 40_000)
        export.sendall(b"GET /api/v1/queues/disk/export HTTP/1.1\r\nHost: localhost\r\n\r\n")
        import_.sendall(
            b"POST /api/v1/queues/slow/import HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/x-ndjson\r\nContent-Length: 27\r\n\r\n"
            b'{"data": "a"}\n{"data'
        )
        until(lambda: client.peek("slow") == b"a")
        assert client.get("disk") == bytes(1000)
        import_.sendall(b'": "b"}')
        assert import_.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert [client.get("slow") for _ in range(3)] == [b"a", b"b", None]
        assert export.recv(17) == b"HTTP/1.1 200 OK\r\n"


def test_times_are_kept(server: ServerProcess) -> None:
    """What has expired is left out, and what is not due waits."""
    now = round(time.time() * 1000)
    fields = [
        {"data": "old", "expiry": 5},
        {"data": "mortal", "expiry": now + 600_000},
        {"data": "late", "due": now + 600_000},
        {"data": "due", "due": 5},
        {"data": "far", "expiry": LATEST},
        {"data": "farthest", "due": LATEST},
    ]
    with Client(server.address) as client:
        assert client.import_items(map(json.dumps, fields), queue="timed") == 5
        (page,) = client.browse("timed").values()
        assert [item.data for item in page.items] == [b"mortal", b"due", b"far"]
        assert page.items[2].expiry == LATEST
        assert 0 <= page.items[0].expiry - now - 600_000 <= 1000
        (found,) = [one for one in client.queues() if one.name == "timed"]
        assert found.values["delayed"] == 2


@pytest.mark.parametrize(
    ("lines", "queue", "why", "added"),
    [
        (['{"queue": "q", "data": "x"}', "wrong"], None, "line 2: not a row", 1),
        (['{"data": "x"}'], None, "line 1: not a row", 0),
        (['{"queue": "a/b", "data": "x"}'], None, "line 1: not a row", 0),
        (['{"data": "x"}'] * 3, "small", "queue 'small' is full", 2),
        (['{"data": "x"}'] * 3, "paused", "paused is paused for writes", 0),
    ],
)
def test_an_import_that_stops_says_how_far_it_came(
    server: ServerProcess, lines: list[str], queue: str | None, why: str, added: int
) -> None:
    """What was added before stays."""
    with Wire(server) as wire:
        wire.ask(b"declare paused\r\npause paused writes\r\n", b"END\r\nEND\r\n")
    with Client(server.address) as client:
        with pytest.raises(ImportStopped, match=f"{why}.*; {added} items added") as stopped:
            client.import_items(lines, queue=queue)
        assert stopped.value.added == added
