"""Pausing a queue of a real server, by every way there is."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import ServerRefused
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = "[aliases.both]\ndestination_queues = ['work', 'other']\n"


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server whose queue `work` has one item."""
    with running_server(tmp_path, config=CONFIG) as server:
        with Wire(server) as wire:
            put(wire, "work", "one")
        yield server


def test_a_reader_waits_on_and_is_served_after_the_resume(server: ServerProcess) -> None:
    """One that does not wait finds the queue empty, however it reads."""
    with Wire(server) as admin, Wire(server) as reader:
        admin.ask(b"pause work reads\r\n", b"END\r\n")
        for request in (b"get work", b"get work/peek", b"get work/open", b"monitor work 0"):
            admin.ask(request + b"\r\n", b"END\r\n")
        reader.send(b"get work/t=%d\r\n" % (PATIENCE * 1000))
        wait_for(admin, "work", "waiters", 1)
        put(admin, "work", "two")
        assert stats(admin, "work")["items"] == "2"
        admin.ask(b"resume work reads\r\n", b"END\r\n")
        reader.expect(b"VALUE work 0 3\r\none\r\nEND\r\n")


def test_open_reads_are_ended_while_all_is_paused(server: ServerProcess) -> None:
    """Closed, confirmed and aborted."""
    with Wire(server) as wire:
        put(wire, "work", "two")
        wire.ask(b"get work/open\r\n", b"VALUE work 0 3\r\none\r\nEND\r\n")
        wire.ask(b"pause work all\r\n", b"END\r\n")
        wire.ask(b"get work/close\r\n", b"END\r\n")
        wire.ask(b"resume work\r\n", b"END\r\n")
        wire.ask(b"get work/open\r\n", b"VALUE work 0 3\r\ntwo\r\nEND\r\n")
        wire.ask(b"pause work all\r\n", b"END\r\n")
        wire.ask(b"get work/abort\r\n", b"END\r\n")
        wire.ask(b"get work\r\n", b"END\r\n")
        wire.ask(b"resume work all\r\n", b"END\r\n")
        wire.ask(b"get work\r\n", b"VALUE work 0 3\r\ntwo\r\nEND\r\n")


def test_a_refused_add_says_why(server: ServerProcess) -> None:
    """In every protocol; an alias adds to its other queues."""
    with Wire(server) as wire, Wire(server, "text") as text:
        wire.ask(b"pause work writes\r\n", b"END\r\n")
        reason = b"queue work is paused for writes"
        wire.ask(b"set work 0 0 1\r\nx\r\n", b"SERVER_ERROR %b\r\n" % reason)
        large = b"x" * (2 << 20)
        wire.ask(
            b"set work 0 0 %d\r\n%b\r\n" % (len(large), large), b"SERVER_ERROR %b\r\n" % reason
        )
        wire.ask(b"set both 0 0 1\r\ny\r\n", b"SERVER_ERROR %b\r\n" % reason)
        assert reason in text.ask_until(b"put work:\nx\n\n", b"\n")
        wire.ask(b"get work\r\n", b"VALUE work 0 3\r\none\r\nEND\r\n")
        wire.ask(b"get other\r\n", b"VALUE other 0 1\r\ny\r\nEND\r\n")
        wire.ask(b"resume work writes\r\n", b"END\r\n")
        wire.ask(b"set work 0 0 1\r\nx\r\n", b"STORED\r\n")


def test_what_cannot_be_paused_is_told(server: ServerProcess) -> None:
    """No queue is created; the connection stays."""
    with Wire(server) as wire:
        wire.ask(b"pause nosuch all\r\n", b"NOT_FOUND\r\n")
        wire.ask(b"resume nosuch\r\n", b"NOT_FOUND\r\n")
        wire.ask(b"pause both all\r\n", b"NOT_FOUND\r\n")
        for line in (b"pause", b"pause work", b"pause work some", b"pause a/b all", b"resume"):
            assert wire.ask_until(line + b"\r\n", b"\r\n").startswith(b"CLIENT_ERROR ")
        assert b"nosuch" not in wire.ask_until(b"stats\r\n", b"END\r\n")
    assert not (server.queue_path / "~~queues").exists()


@pytest.mark.parametrize(("operations", "shown"), [(b"reads", "reads"), (b"all", "all")])
def test_what_is_paused_survives_a_kill_right_after_the_reply(
    server: ServerProcess, operations: bytes, shown: str
) -> None:
    """And what is resumed does, too."""
    with Wire(server) as wire:
        wire.ask(b"pause work %b\r\n" % operations, b"END\r\n")
        server.kill9()
    server.start()
    with Wire(server) as wire:
        assert stats(wire, "work")["paused"] == shown
        wire.ask(b"get work\r\n", b"END\r\n")
        wire.ask(b"resume work\r\n", b"END\r\n")
        server.kill9()
    server.start()
    with Wire(server) as wire:
        assert "paused" not in stats(wire, "work")
        wire.ask(b"get work\r\n", b"VALUE work 0 3\r\none\r\nEND\r\n")


def test_a_deleted_queue_is_not_paused_when_it_is_made_again(server: ServerProcess) -> None:
    """Not after a kill, either."""
    with Wire(server) as wire:
        wire.ask(b"pause work all\r\ndelete work\r\n", b"END\r\nDELETED\r\n")
        server.kill9()
    server.start()
    with Wire(server) as wire:
        put(wire, "work", "two")
        wire.ask(b"get work\r\n", b"VALUE work 0 3\r\ntwo\r\nEND\r\n")


def test_both_clients_pause_and_resume(server: ServerProcess) -> None:
    """They say whether there is such a queue."""
    with Client(server.address) as client:
        assert client.pause("work", "writes")
        assert [queue.paused for queue in client.queues() if queue.name == "work"] == ["writes"]
        with pytest.raises(ServerRefused, match="paused for writes"):
            client.put("work", b"x")
        assert not client.pause("nosuch")
        with pytest.raises(ServerRefused, match="only reads, writes or all"):
            client.pause("work", "some")

    async def resume() -> tuple[bool, bool]:
        async with AsyncClient(server.address) as client:
            return await client.resume("work"), await client.put("work", b"x")

    assert asyncio.run(resume()) == (True, True)


def test_a_write_to_a_path_that_is_gone_is_told(server: ServerProcess) -> None:
    """What could not be saved is in force, and the client knows that a restart undoes it."""
    with Wire(server) as wire:
        server.queue_path.rename(server.queue_path.with_name("away"))
        until(lambda: b"removed or replaced" in wire.ask_until(b"pause work all\r\n", b"\r\n"))
        server.queue_path.with_name("away").rename(server.queue_path)
        until(lambda: wire.ask_until(b"pause work all\r\n", b"\r\n") == b"END\r\n")
        server.kill9()
    server.start()
    with Wire(server) as wire:
        assert stats(wire, "work")["paused"] == "all"
