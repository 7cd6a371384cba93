"""A `get` of several keys takes an item only with the reply that has it, on a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value, wait_for

pytestmark = pytest.mark.compiled_only

CONFIG = """
[queues.short]
open_transaction_timeout = "100ms"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that the tests here share; each uses queues of its own."""
    path = tmp_path_factory.mktemp("several")
    (path / "queues").mkdir()
    (path / "queues" / "damaged").write_bytes(b"\x77")
    with running_server(path, config=CONFIG) as running:
        yield running


@pytest.mark.parametrize("before", ["", "held/close ", "a/peek "])
def test_disconnected_while_a_later_key_waits(server: ServerProcess, before: str) -> None:
    """What the keys before took is at the head again, in order; a closed read stays closed."""
    with Wire(server) as other:
        other.ask(b"flush_all\r\n", b"Flushed all queues.\r\n")
        put(other, "a", "1", "2", "3")
        put(other, "held", "h")
        with Wire(server) as gone:
            gone.ask(b"get held/open\r\n", value("held", "h") + b"END\r\n")
            gone.send(f"get {before}a a a/open late/t=60000\r\n".encode())
            wait_for(other, "late", "waiters", 1)
            assert stats(other, "a")["items"] == "0"
        wait_for(other, "a", "items", 3)
        other.ask(b"get a a a\r\n", value("a", "1", "2", "3") + b"END\r\n")
        assert stats(other, "held")["items"] == ("0" if "close" in before else "1")


def test_a_later_key_is_refused(wire: Wire, other: Wire) -> None:
    """ERROR and close: nothing was delivered, and so everything is back."""
    put(wire, "b", "1", "2", "3")
    wire.send(b"get b b/open b\r\n")
    wire.expect_close(b"ERROR\r\n")
    wait_for(other, "b", "items", 3)
    other.ask(b"get b b b\r\n", value("b", "1", "2", "3") + b"END\r\n")


def test_a_later_key_fails(wire: Wire) -> None:
    """An error that leaves the connection open leaves the items where they were, at once."""
    put(wire, "c", "1", "2")
    assert b"_ERROR " in wire.ask_until(b"get c c damaged\r\n", b"\r\n")
    assert stats(wire, "c")["open_transactions"] == "0"
    wire.ask(b"gets c c none\r\n", b"VALUE c 0 1 0\r\n1\r\nVALUE c 0 1 0\r\n2\r\nEND\r\n")
    assert stats(wire, "c")["open_transactions"] == "0"


def test_a_later_key_fails_after_an_open_one(wire: Wire) -> None:
    """What was opened is given back: the client has not seen it, and /close would confirm it."""
    put(wire, "i", "1", "2", "3")
    wire.ask(b"get i/open\r\n", value("i", "1") + b"END\r\n")
    assert b"_ERROR " in wire.ask_until(b"get i/close/open j damaged\r\n", b"\r\n")
    wire.ask(b"get i/close/open\r\n", value("i", "2") + b"END\r\n")
    assert b"_ERROR " in wire.ask_until(b"get i/close i i/open damaged\r\n", b"\r\n")
    wire.ask(b"get i\r\n", value("i", "3") + b"END\r\n")
    assert stats(wire, "i")["open_transactions"] == "0"


def test_given_back_items_go_to_those_who_wait(wire: Wire, other: Wire) -> None:
    """A waiting reader gets what a request that failed had taken."""
    put(wire, "d", "1")
    wire.send(b"get d e/t=60000 damaged\r\n")
    wait_for(other, "e", "waiters", 1)
    other.send(b"set e 0 0 1\r\nx\r\nget d/t=60000 e\r\n")
    other.expect(b"STORED\r\n" + value("d", "1") + value("e", "x") + b"END\r\n")
    assert b"_ERROR " in wire.until(b"\r\n")


def test_taken_items_are_no_open_reads(wire: Wire) -> None:
    """They count towards no limit, `/close` does not see them, and they are gone with the reply."""
    put(wire, "f", "1", "2", "3")
    wire.ask(b"get f f/close f f/open\r\n", value("f", "1", "2", "3") + b"END\r\n")
    wire.ask(b"confirm f 2\r\n", b"ERROR\r\n")
    wire.ask(b"get f/close f\r\n", b"END\r\n")


def test_a_long_wait_outlasts_the_time_of_open_reads(
    server: ServerProcess, wire: Wire, other: Wire
) -> None:
    """`open_transaction_timeout` is for `/open`: what a waiting request took does not go back."""
    put(other, "short", "1", "2")
    wire.send(b"get short long/t=60000\r\n")
    wait_for(other, "long", "waiters", 1)
    with Wire(server) as holder:
        holder.ask(b"get short/open\r\n", value("short", "2") + b"END\r\n")
        wait_for(other, "short", "items", 1)
    put(other, "long", "x")
    wire.expect(value("short", "1") + value("long", "x") + b"END\r\n")
    other.ask(b"get short\r\n", value("short", "2") + b"END\r\n")


def test_a_queue_is_deleted_while_a_later_key_waits(wire: Wire, other: Wire) -> None:
    """Its item went with it."""
    put(other, "g", "1")
    put(other, "h", "2")
    wire.send(b"get g h i/t=60000\r\n")
    wait_for(other, "i", "waiters", 1)
    other.ask(b"delete g\r\n", b"DELETED\r\n")
    put(other, "i", "3")
    wire.expect(value("h", "2") + value("i", "3") + b"END\r\n")


@pytest.mark.parametrize("crash", [True, False])
def test_the_server_ends_while_a_later_key_waits(tmp_path: Path, *, crash: bool) -> None:
    """After a crash or a clean end the items are there; those of a reply that left are not."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire, Wire(server) as other:
            put(wire, "a", "1", "2", "3")
            wire.ask(b"get a none\r\n", value("a", "1") + b"END\r\n")
            wire.send(b"get a a late/t=60000\r\n")
            wait_for(other, "late", "waiters", 1)
            if crash:
                server.kill9()
            else:
                assert server.stop() == 0
        server.restart()
        with Wire(server) as wire:
            wire.ask(b"get a a a\r\n", value("a", "2", "3") + b"END\r\n")


def test_what_counts_as_a_transaction(server: ServerProcess) -> None:
    """Each transactional read, once; no read that only removes, and no second time after a wait."""
    with Wire(server) as wire, Wire(server) as other:
        put(wire, "kinds", "1", "2", "3")
        wire.ask(b"get kinds kinds\r\n", value("kinds", "1", "2") + b"END\r\n")
        wire.ask(b"get kinds\r\nget kinds none\r\n", value("kinds", "3") + b"END\r\nEND\r\n")
        assert stats(wire, "kinds")["transactions"] == "0"
        wire.send(b"get kinds/t=60000/open\r\n")
        wait_for(other, "kinds", "waiters", 1)
        put(other, "kinds", "4")
        wire.expect(value("kinds", "4") + b"END\r\n")
        wire.ask(b"get kinds/close/open\r\n", b"END\r\n")
        assert stats(wire, "kinds")["transactions"] == "2"


def test_what_counts_as_a_canceled_transaction(server: ServerProcess) -> None:
    """A transactional read that is given back; no item that was only held until the reply."""
    with Wire(server) as wire:
        put(wire, "given", "1", "2")
        assert b"_ERROR " in wire.ask_until(b"get given given damaged\r\n", b"\r\n")
        with Wire(server) as gone:
            gone.send(b"get given late/t=60000\r\n")
            wait_for(wire, "late", "waiters", 1)
        wait_for(wire, "given", "items", 2)
        assert stats(wire, "given")["canceled_transactions"] == "0"
        wire.ask(b"get given/open\r\n", value("given", "1") + b"END\r\n")
        wire.ask(b"get given/abort\r\n", b"END\r\n")
        counts = stats(wire, "given")
        assert (counts["transactions"], counts["canceled_transactions"]) == ("1", "1")
