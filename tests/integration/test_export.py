"""Exporting the items of a queue as lines of JSON, and importing them, by every way there is."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import ImportStopped
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire

CONFIG = """
[queues.small]
max_items = 2
[queues.disk]
max_memory_size = "1 KiB"
"""
BINARY = bytes(range(256))
COUNT = 2500


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


def test_times_are_kept(server: ServerProcess) -> None:
    """What has expired is left out, and what is not due waits."""
    now = round(time.time() * 1000)
    fields = [
        {"data": "old", "expiry": 5},
        {"data": "mortal", "expiry": now + 600_000},
        {"data": "late", "due": now + 600_000},
        {"data": "due", "due": 5},
    ]
    with Client(server.address) as client:
        assert client.import_items(map(json.dumps, fields), queue="timed") == 3
        (page,) = client.browse("timed").values()
        assert [item.data for item in page.items] == [b"mortal", b"due"]
        assert 0 <= page.items[0].expiry - now - 600_000 <= 1000
        (found,) = [one for one in client.queues() if one.name == "timed"]
        assert found.values["delayed"] == 1


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
