"""Looking at queues, moving items and setting queues up over thrift, with thriftpy2."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from thriftpy2.thrift import TApplicationException

from kestrelmq.protocol.thrift import SERVICE
from tests.integration.test_thrift_server import IDL, connected
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats, wait_for

pytestmark = pytest.mark.compiled

CONFIG = """
[queues.small]
max_items = 2
[queues.disk]
max_memory_size = "1 KiB"
[queues.work]
max_deliveries = 1
dead_letter_queue = "dead"
[queues.mine]
allowed_client_ids_for_dequeue = ["me"]
"""


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


@pytest.fixture(params=["binary", "compact"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of each protocol."""
    with closing(connected(server, request.param)) as client:
        yield client


def browsed(page: Any) -> tuple[list[tuple[int, bytes]], int | None]:
    """Return the places and the data of a page's items, and where to go on."""
    assert all(item.add_time > 0 and item.expiry == 0 for item in page.items)
    return [(item.place, item.data) for item in page.items], page.next_offset


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_items_are_shown_and_searched(server: ServerProcess, client: Any, queue: str) -> None:
    """They stay in the queue, and the page says where to go on."""
    client.put(queue, [b"item %d!" % number for number in range(2000)])
    page = client.browse(queue, 20, 2)
    assert browsed(page) == ([(20, b"item 20!"), (21, b"item 21!")], 22)
    assert page.total == 2000
    assert browsed(client.browse(queue, 1999, 9)) == ([(1999, b"item 1999!")], None)
    assert browsed(client.browse(queue, 0, 9, b"m 1777")) == ([(1777, b"item 1777!")], None)
    found, _ = browsed(client.browse(queue, 0, 9, rb"^item (\d)\1\1!$", is_pattern=True))
    assert [place for place, _ in found] == [111 * number for number in range(1, 10)]
    # Whatever is asked for, a page is bounded.
    page = client.browse(queue, 0, 2**31 - 1)
    assert (len(page.items), page.next_offset) == (500, 500)
    assert browsed(client.browse(queue, 2**40, 1)) == ([], None)
    with Wire(server) as wire:
        assert stats(wire, queue)["items"] == "2000"


def test_items_are_moved_and_copied(client: Any) -> None:
    """The answer says how many, and why no more."""
    client.put("a", [b"one", b"two", b"three\n"])
    moved = [client.copy("a", "b", 2), client.move("a", "b", 1), client.move("a", "small")]
    assert [(one.count, one.stopped) for one in moved] == [(2, None), (1, None), (2, None)]
    refused = client.move("b", "small")
    assert refused.count == 0
    assert refused.stopped == "small is full, or the item is too large for it"
    assert [item.data for item in client.get("b", 9)] == [b"one", b"two", b"one"]
    assert [item.data for item in client.get("small", 9)] == [b"two", b"three\n"]


def test_dead_letters_go_back(server: ServerProcess, client: Any) -> None:
    """To the queue that they came from, or to another one."""
    client.put("work", [b"x", b"y"])
    with Wire(server) as wire:
        for _ in range(2):
            wire.ask_until(b"get work/open\r\n", b"END\r\n")
            wire.ask(b"get work/abort\r\n", b"END\r\n")
    assert client.redrive("dead").count == 2
    assert client.redrive("work", "other").count == 2
    assert [item.data for item in client.get("other", 9)] == [b"x", b"y"]


def test_what_is_paused_and_declared_survives_a_kill(server: ServerProcess) -> None:
    """It is in force at once, over every protocol, and until it is resumed."""
    with closing(connected(server)) as client:
        client.put("work", [b"one"])
        client.pause_queue("work", IDL.Operations.WRITES)
        with pytest.raises(TApplicationException, match="work is paused for writes"):
            client.put("work", [b"two"])
        client.declare_queue(
            "reply", journal=IDL.Journal.NO, expires_msec=600_000, max_age_msec=60_000, max_items=1
        )
        client.declare_queue("broadcast", fanout_only=True)
        assert client.put("reply", [b"a", b"b"]) == 1
        server.kill9()
    server.start()
    with Wire(server) as wire, closing(connected(server, "compact")) as client:
        assert stats(wire, "work")["paused"] == "writes"
        shown = wire.ask_until(b"dump_config reply broadcast\r\n", b"END\r\n")
        for line in (b"keep_journal=false", b"max_queue_age=10m", b"max_age=1m", b"max_items=1"):
            assert line in shown
        assert shown.count(b"fanout_only=true") == 1
        client.resume_queue("work")
        client.pause_queue("work", IDL.Operations.READS)
        assert client.put("work", [b"two"]) == 1
        assert client.get("work", 1) == []
        wire.send(b"get work/t=600000\r\n")
        with Wire(server) as other:
            wait_for(other, "work", "waiters", 1)
        client.resume_queue("work", IDL.Operations.READS)
        wire.expect(b"VALUE work 0 3\r\none\r\nEND\r\n")


def test_clients_are_listed_and_disconnected(server: ServerProcess, client: Any) -> None:
    """With what they do and hold open."""
    client.put("jobs", [b"a"])
    with Wire(server) as other:
        other.ask(b"get jobs/open\r\n", b"VALUE jobs 0 1\r\na\r\nEND\r\n")
        waiting = Wire(server)
        waiting.send(b"get empty/t=600000\r\n")
        wait_for(other, "empty", "waiters", 1)
        clients = client.get_clients()
        assert [one.protocol for one in clients] == ["thrift", "memcache", "memcache"]
        mine, reader, waiter = clients
        host, port = other.socket.getsockname()
        assert (reader.address, reader.open_reads) == (f"{host}:{port}", {"jobs": 1})
        assert (reader.state, reader.queue_name) == ("idle", None)
        assert (waiter.state, waiter.queue_name) == ("waiting", "empty")
        assert 0 < mine.since <= reader.since
        assert [one.id for one in client.get_clients(1)] == [reader.id, waiter.id]
        assert client.get_clients(9) == []
        client.kill_client(reader.id)
        other.expect_close()
        waiting.close()
    until(lambda: [one.id for one in client.get_clients()] == [mine.id])
    with pytest.raises(TApplicationException, match=f"there is no client {reader.id}"):
        client.kill_client(reader.id)
    assert [item.data for item in client.get("jobs", 1)] == [b"a"]


def test_a_list_of_clients_comes_in_pages(server: ServerProcess) -> None:
    """So that the answer to none is long."""
    wires = [Wire(server) for _ in range(150)]
    for wire in wires:
        wire.ask_until(b"version\r\n", b"\r\n")
    with closing(connected(server)) as client:
        first = client.get_clients()
        assert len(first) == 100
        found = [one.id for one in [*first, *client.get_clients(100)]]
        assert len(found) == 151
        assert found == sorted(set(found))
    for wire in wires:
        wire.close()


def test_what_is_refused_is_told(server: ServerProcess, client: Any) -> None:
    """The connection stays, and nothing is created."""
    client.put("a", [b"x"])
    every = IDL.Operations.ALL
    for method, arguments, reason in (
        ("browse", ("nosuch", 0, 1), "there is no queue nosuch"),
        ("move", ("nosuch", "a"), "there is no queue nosuch"),
        ("copy", ("nosuch", "a", 3), "there is no queue nosuch"),
        ("redrive", ("nosuch", "a"), "there is no queue nosuch"),
        ("pause_queue", ("nosuch", every), "there is no queue nosuch"),
        ("resume_queue", ("nosuch",), "there is no queue nosuch"),
        ("browse", ("b/c", 0, 1), "/"),
        ("pause_queue", ("b/c", every), "/"),
        ("declare_queue", ("b/c",), "/"),
        ("move", ("a", "b/c"), "/"),
        ("browse", ("a", -1, 5), "whole numbers"),
        ("browse", ("a", 0, 1, b"(", True), "no regular expression"),
        ("move", ("a", "b", -2), "max_items is below 0"),
        ("move", ("a", "a"), "comes to a, too"),
        ("redrive", ("a",), "no queue has a as dead_letter_queue"),
        ("browse", ("mine", 0, 1), "may not read mine"),
        ("move", ("mine", "a"), "may not read mine"),
        ("kill_client", (999_999,), "there is no client 999999"),
    ):
        with pytest.raises(TApplicationException, match=reason):
            getattr(client, method)(*arguments)
    with Wire(server) as wire:
        listed = wire.ask_until(b"stats\r\n", b"END\r\n")
    assert b"queue_a_items 1" in listed
    for absent in (b"nosuch", b"queue_b", b"queue_mine"):
        assert absent not in listed
    assert not (server.queue_path / "~~queues").exists()


def test_the_status_of_the_server_holds(client: Any) -> None:
    """As for the same commands over memcache."""
    client.put("a", [b"x"])
    client.set_status(IDL.Status.READ_ONLY)
    for method, arguments in (
        ("move", ("a", "b")),
        ("copy", ("a", "b")),
        ("declare_queue", ("b",)),
    ):
        with pytest.raises(TApplicationException):
            getattr(client, method)(*arguments)
    assert browsed(client.browse("a", 0, 1)) == ([(0, b"x")], None)
    client.set_status(IDL.Status.QUIESCENT)
    with pytest.raises(TApplicationException):
        client.browse("a", 0, 1)


def test_the_service_has_a_method_for_each_command() -> None:
    """Of those that memcache and text have for looking at queues, moving and setting up."""
    named = {"browse", "move", "copy", "redrive", "get_clients", "kill_client"}
    named |= {f"{verb}_queue" for verb in ("pause", "resume", "declare")}
    assert named <= set(SERVICE.thrift_services)
