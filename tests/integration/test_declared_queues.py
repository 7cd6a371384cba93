"""Declaring queues on a real server, by every way there is."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.queues.registry import decode
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

CONFIG = """
expiration_timer_frequency = "20ms"
[default]
max_items = 9
[queues.fixed]
max_items = 2
[aliases.both]
destination_queues = ["a", "b"]
"""


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def settings(wire: Wire, queue: str) -> dict[str, str]:
    """Return the settings of a queue that `dump_config` shows."""
    lines = wire.ask_until(f"dump_config {queue}\r\n".encode(), b"END\r\n").decode().splitlines()
    pairs = (line.strip().partition("=") for line in lines[1:-2])
    return {name: value for name, _, value in pairs}


def test_what_is_declared_survives_a_kill_right_after_the_reply(server: ServerProcess) -> None:
    """`dump_config` shows it, and the server obeys it, before and after."""
    with Wire(server) as wire:
        wire.ask(b"declare work max_items=1 max_age=60000\r\n", b"END\r\n")
        wire.ask(b"declare work+replies journal=no expires=600000\r\n", b"END\r\n")
        server.kill9()
    server.start()
    with Wire(server) as wire:
        found = settings(wire, "work")
        assert (found["max_items"], found["max_age"]) == ("1", "1m")
        child = settings(wire, "work+replies")
        assert (child["max_items"], child["keep_journal"]) == ("1", "false")
        assert child["max_queue_age"] == "10m"
        put(wire, "work", "one")
        put(wire, "work", "two", reply=b"NOT_STORED\r\n")
        wire.ask(b"get work+replies\r\n", value("work+replies", "one") + b"END\r\n")
        assert stats(wire, "work+replies")["logsize"] == "0"


def test_the_configuration_of_exactly_this_queue_wins(server: ServerProcess) -> None:
    """Over what is declared, which wins over the defaults."""
    with Wire(server) as wire:
        wire.ask(b"declare fixed max_items=5\r\ndeclare other max_items=5\r\n", b"END\r\n" * 2)
        found = [settings(wire, name)["max_items"] for name in ("fixed", "other")]
        assert found == ["2", "5"]


def test_an_empty_queue_expires_and_is_forgotten(server: ServerProcess) -> None:
    """Also by the next start."""
    with Wire(server) as wire:
        wire.ask(b"declare reply expires=1 max_items=1\r\n", b"END\r\n")
        until(lambda: b"queue_reply" not in wire.ask_until(b"stats\r\n", b"END\r\n"))
        until(lambda: decode((server.queue_path / "~~queues").read_bytes()) == {})
        server.kill9()
    server.start()
    with Wire(server) as wire:
        assert b"queue_reply" not in wire.ask_until(b"stats\r\n", b"END\r\n")
        put(wire, "reply", "one", "two")


def test_what_cannot_be_declared_is_told(server: ServerProcess) -> None:
    """And nothing is created, or changed."""
    with Wire(server) as wire:
        for words in (
            b"both max_items=1",
            b"a/b",
            b"work max_size=1",
            b"work max_age=" + b"9" * 19,
        ):
            reply = wire.ask_until(b"declare " + words + b"\r\n", b"\r\n")
            assert reply.startswith(b"CLIENT_ERROR "), reply
        put(wire, "kept", "x")
        reply = wire.ask_until(b"declare kept journal=no\r\n", b"\r\n")
        assert reply.startswith(b"CLIENT_ERROR ")
        assert reply.endswith(b"delete it first\r\n")
        assert settings(wire, "kept")["keep_journal"] == "true"
        wire.ask(b"status readonly\r\n", b"END\r\n")
        wire.ask_until(b"declare work\r\n", b"SERVER_ERROR ")
    assert not (server.queue_path / "~~queues").exists()


def test_both_clients_declare_queues(server: ServerProcess) -> None:
    """With times in seconds."""
    with Client(server.address) as client:
        client.declare("work", fanout_only=True, journal=False, expires=0.5, max_age=2, max_items=3)

    async def declare() -> None:
        async with AsyncClient(server.address) as client:
            await client.declare("other", journal=True)

    asyncio.run(declare())
    with Wire(server) as wire:
        found = settings(wire, "work")
        names = ("fanout_only", "keep_journal", "max_queue_age", "max_age", "max_items")
        assert [found[name] for name in names] == ["true", "false", "500ms", "2s", "3"]
        assert settings(wire, "other")["keep_journal"] == "true"
