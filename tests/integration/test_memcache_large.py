"""Items so large that a thread writes them, before they are added, on the wire of a real server."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.format.records import item_data
from kestrelmq.queues.collection import QueueCollection
from kestrelmq.scheduling.worker import LARGE_ITEM
from tests.support.fake_clock import FakeClock
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats

pytestmark = pytest.mark.compiled_only

CONFIG: Final = """
[queues.full]
max_items = 1
[queues.aged]
max_age = "1 hour"
[queues.synced]
sync_journal = "0ms"
"""
LARGE: Final = (bytes(range(256)) * (LARGE_ITEM // 256 + 1))[: LARGE_ITEM + 77]


def setting(queue: str, data: bytes = LARGE, *, noreply: bool = False) -> bytes:
    """Return a `set`."""
    return b"set %b 0 0 %d%b\r\n%b\r\n" % (
        queue.encode(),
        len(data),
        b" noreply" if noreply else b"",
        data,
    )


def value(queue: str, data: bytes = LARGE) -> bytes:
    """Return the reply to a `get`."""
    return b"VALUE %b 0 %d\r\n%b\r\nEND\r\n" % (queue.encode(), len(data), data)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that the tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("large"), config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("queue", ["jobs", "aged", "synced"])
def test_what_follows_a_large_item_waits_for_it(wire: Wire, queue: str) -> None:
    """Requests sent along are answered after it, in their order, and find it."""
    wire.send(
        setting(queue) + setting(queue, b"small") + setting(queue) + b"get %b\r\n" % queue.encode()
    )
    wire.expect(b"STORED\r\n" * 3 + value(queue))
    wire.ask(b"get %b\r\n" % queue.encode(), value(queue, b"small"))
    wire.ask(b"get %b\r\n" % queue.encode(), value(queue))
    wire.ask(b"get %b\r\n" % queue.encode(), b"END\r\n")


def test_without_a_reply(wire: Wire) -> None:
    """Nothing is said of it, and it is stored."""
    wire.ask(b"get quiet\r\n", b"END\r\n")
    wire.ask(setting("quiet", noreply=True) + b"get quiet\r\n", value("quiet"))
    wire.expect_silence()


def test_a_client_that_sends_no_more(server: ServerProcess, wire: Wire) -> None:
    """What it sent is applied and answered, and then the connection ends."""
    wire.ask(setting("half", b"first"), b"STORED\r\n")
    wire.send(setting("half") + setting("half", b"last") + b"get half\r\n")
    wire.socket.shutdown(socket.SHUT_WR)
    wire.expect_close(b"STORED\r\nSTORED\r\n" + value("half", b"first"))
    with Wire(server) as other:
        other.ask(b"get half\r\n", value("half"))
        other.ask(b"get half\r\n", value("half", b"last"))


def test_a_client_that_goes(server: ServerProcess, wire: Wire) -> None:
    """The whole item that it sent is stored."""
    with Wire(server) as other:
        other.ask(setting("left", b"first"), b"STORED\r\n")
        wire.send(setting("left"))
        wire.close()
        other.ask(b"get left\r\n", value("left", b"first"))
        other.ask(b"get left/t=10000\r\n", value("left"))


def test_a_reader_that_waits(server: ServerProcess, wire: Wire) -> None:
    """It gets a large item, too."""
    wire.send(b"get awaited/t=20000\r\n")
    with Wire(server) as other:
        other.ask(setting("awaited"), b"STORED\r\n")
    wire.expect(value("awaited"))


def test_a_full_queue_refuses_it(server: ServerProcess, wire: Wire) -> None:
    """And keeps no file of it."""
    wire.ask(setting("full", b"first"), b"STORED\r\n")
    wire.ask(setting("full"), b"NOT_STORED\r\n")
    wire.ask(b"get full\r\n", value("full", b"first"))
    wire.ask(setting("full"), b"STORED\r\n")
    assert [name.name for name in server.queue_path.glob("full~~*")] == []


def test_fanout_queues_get_it(wire: Wire) -> None:
    """All of them."""
    queues = ("master", "master+one", "master+two")
    for queue in queues:
        wire.ask(b"get %b\r\n" % queue.encode(), b"END\r\n")
    wire.ask(setting("master"), b"STORED\r\n")
    for queue in queues:
        wire.ask(b"get %b\r\n" % queue.encode(), value(queue))


def test_another_deletes_the_queue(server: ServerProcess, wire: Wire) -> None:
    """A `set` gets some answer, and no file stays behind."""
    with Wire(server) as other:
        for _ in range(5):
            wire.ask(setting("gone", b"first"), b"STORED\r\n")
            wire.send(setting("gone"))
            other.ask(b"delete gone\r\n", b"DELETED\r\n")
            reply = wire.until(b"\r\n")
            assert reply in {b"STORED\r\n", b"SERVER_ERROR queue gone is closed\r\n"}
            other.ask(b"delete gone\r\n", b"DELETED\r\n")
    assert [name.name for name in server.queue_path.glob("gone*")] == []


def test_more_than_memory_holds(tmp_path: Path) -> None:
    """Large and small items come back in their order from behind, also after a kill."""
    config = '[default]\nmax_memory_size = "2 MiB"\nmax_journal_size = "8 MiB"\n'
    with running_server(tmp_path, config=config) as server:
        with Wire(server) as wire:
            for number in range(12):
                wire.ask(setting("jobs", b"%d" % number), b"STORED\r\n")
                wire.ask(setting("jobs", b"%d" % number + LARGE), b"STORED\r\n")
            for number in range(5):
                wire.ask(b"get jobs\r\n", value("jobs", b"%d" % number))
                wire.ask(b"get jobs\r\n", value("jobs", b"%d" % number + LARGE))
            assert int(stats(wire)["queue_jobs_mem_bytes"]) <= 3 << 20
        server.kill9()
        server.restart()
        with Wire(server) as wire:
            for number in range(5, 12):
                wire.ask(b"get jobs\r\n", value("jobs", b"%d" % number))
                wire.ask(b"get jobs\r\n", value("jobs", b"%d" % number + LARGE))
            wire.ask(b"get jobs\r\n", b"END\r\n")


def test_a_kill_while_one_is_written(tmp_path: Path) -> None:
    """Whenever it comes: every item that was acknowledged is there, and none in part."""
    with running_server(tmp_path) as server:
        for rounds in range(4):
            with Wire(server) as wire:
                for _ in range(rounds):
                    wire.ask(setting("jobs"), b"STORED\r\n")
                wire.send(setting("jobs"))
                server.kill9()
            server.restart()
        spool = server.queue_path
    collection = QueueCollection(ServerConfig(queue_path=spool), FakeClock())
    collection.open()
    try:
        found = [item_data(record) for record in collection.obtain("jobs").backlog.browse(100)]
    finally:
        collection.close()
    assert 6 <= len(found) <= 10
    assert all(data == LARGE for data in found)
