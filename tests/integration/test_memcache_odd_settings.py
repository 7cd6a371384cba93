"""Settings and requests that meet in odd ways, seen by clients of a real server."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.format.records import item
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = """
expiration_timer_frequency = "20ms"
[queues.itself]
expire_to_queue = "itself"
[queues.aged]
max_age = "100ms"
expire_to_queue = "aged"
[queues.there]
expire_to_queue = "and_back"
[queues.and_back]
expire_to_queue = "roundabout"
[queues."family+late"]
expire_to_queue = "family"
[queues.ring]
max_items = 2
discard_old_when_full = true
expire_to_queue = "ring"
[queues.vip]
allowed_client_ids_for_enqueue = ["boss"]
[aliases.roundabout]
destination_queues = ["there"]
[aliases.everybody]
destination_queues = ["anybody", "vip"]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; one of its queues is damaged."""
    path = tmp_path_factory.mktemp("odd")
    (path / "queues").mkdir()
    (path / "queues" / "damaged").write_bytes(item(1, 0, b"x") + b"c" * 30 + item(1, 0, b"y"))
    with running_server(path, config=CONFIG) as running:
        yield running


@pytest.mark.parametrize(("queue", "stay"), [("itself", 1), ("family+late", 1), ("there", 0)])
def test_items_that_expire_to_where_they_are(wire: Wire, queue: str, stay: int) -> None:
    """They go to the end, without an expiry; those that others hold meanwhile are not lost."""
    name = queue.encode()
    wire.ask(b"set %b 0 -1 3\r\nold\r\nset %b 0 0 3\r\nnew\r\n" % (name, name), b"STORED\r\n" * 2)
    wait_for(wire, queue, "expired_items", 1)
    if stay:
        wire.ask(b"get %b\r\n" % name, b"VALUE %b 0 3\r\nold\r\nEND\r\n" % name)
    else:
        wire.ask(b"get and_back\r\n", b"VALUE and_back 0 3\r\nold\r\nEND\r\n")
    wire.ask(b"get %b\r\n" % name, b"VALUE %b 0 3\r\nnew\r\nEND\r\n" % name)
    wire.ask(b"get %b\r\n" % name, b"END\r\n")


def test_items_that_expire_to_where_they_are_again_and_again(wire: Wire) -> None:
    """With an age that ends; the other queues are swept as ever."""
    wire.ask(b"set aged 0 0 1\r\nx\r\n", b"STORED\r\n")
    wire.ask(b"set other 0 1 1\r\nx\r\n", b"STORED\r\n")
    wait_for(wire, "other", "expired_items", 1)
    found = stats(wire, "aged")
    assert int(found["expired_items"]) >= 2
    assert found["items"] == "1"


def test_a_full_queue_that_expires_to_itself(wire: Wire) -> None:
    """What expires goes to the end, though the queue is full; nothing is lost."""
    wire.ask(b"set ring 0 1 1\r\n1\r\nset ring 0 0 1\r\n2\r\n", b"STORED\r\n" * 2)
    wait_for(wire, "ring", "expired_items", 1)
    wire.ask(b"get ring\r\n", b"VALUE ring 0 1\r\n2\r\nEND\r\n")
    wire.ask(b"get ring\r\n", b"VALUE ring 0 1\r\n1\r\nEND\r\n")


def test_an_alias_of_a_restricted_queue(server: ServerProcess, wire: Wire) -> None:
    """It is no way around the queue's rights, in any protocol, and nothing is added anywhere."""
    refusal = b"this client may not add to vip"
    wire.ask(b"set everybody 0 0 1\r\nx\r\n", b"CLIENT_ERROR " + refusal + b"\r\n")
    with socket.create_connection(("127.0.0.1", server.ports["text"]), timeout=PATIENCE) as text:
        text.sendall(b"put everybody:\nx\n\n")
        assert text.recv(1000) == b"-" + refusal + b"\n"
    wire.ask(b"get anybody\r\n", b"END\r\n")


@pytest.mark.parametrize("expiry", [9_223_372_036_854_776, 10**19 - 1])
def test_an_expiry_beyond_all_times(wire: Wire, expiry: int) -> None:
    """It is as good as never."""
    wire.ask(b"set eternal 0 %d 1\r\nx\r\n" % expiry, b"STORED\r\n")
    wire.ask(b"get eternal\r\n", b"VALUE eternal 0 1\r\nx\r\nEND\r\n")


@pytest.mark.parametrize("change", [b"flush", b"delete", b"flush_expired"])
def test_changes_of_a_damaged_queue(server: ServerProcess, wire: Wire, change: bytes) -> None:
    """They fail with the reason, and its file stays."""
    wire.send(change + b" damaged\r\n")
    assert wire.until(b"\r\n").startswith(b"SERVER_ERROR queue damaged cannot be loaded")
    assert (server.queue_path / "damaged").exists()


def test_statistics_of_a_damaged_queue(wire: Wire) -> None:
    """They are why it is one."""
    reason = "queue damaged cannot be loaded"
    assert stats(wire)["queue_damaged_failure"].startswith(reason)
    assert [*stats(wire, "damaged")] == ["failure"]
    wire.send(b"dump_stats damaged\r\n")
    assert wire.until(b"END\r\n").startswith(b"queue 'damaged' {\r\n  failure=" + reason.encode())


@pytest.mark.parametrize("status", [b"readonly", b"quiescent"])
@pytest.mark.parametrize("change", [b"flush_expired jobs", b"flush_all_expired"])
def test_a_status_that_forbids_changes(tmp_path: Path, status: bytes, change: bytes) -> None:
    """It forbids to expire items, too, and the connection closes."""
    with running_server(tmp_path) as server, Wire(server) as wire:
        wire.ask(b"set jobs 0 0 1\r\nx\r\n", b"STORED\r\n")
        wire.ask(b"status %b\r\n" % status, b"END\r\n")
        wire.send(change + b"\r\n")
        assert wire.until(b"\r\n").startswith(b"SERVER_ERROR ")
        wire.expect_close(b"")
