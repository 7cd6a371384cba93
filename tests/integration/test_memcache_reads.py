"""Reads that wait and reads that stay open, over sockets, on a real server."""

import time
from collections.abc import Iterator

import pytest

from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, arrived, put, stats, value, wait_for

pytestmark = pytest.mark.compiled

CONFIG = """
max_monitor_transactions = 3
[queues.short]
open_transaction_timeout = "100ms"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share; each uses queues of its own."""
    with running_server(tmp_path_factory.mktemp("reads"), config=CONFIG) as running:
        yield running


def test_waiting_read_is_served_at_once(wire: Wire, other: Wire) -> None:
    """A `get` with a time-out gets what arrives in the meantime."""
    wire.send(b"get w1/t=20000\r\n")
    wait_for(other, "w1", "waiters", 1)
    put(other, "w1", "x")
    wire.expect(value("w1", "x") + b"END\r\n")
    wait_for(other, "w1", "waiters", 0)
    assert stats(other, "w1")["items"] == "0"


def test_waiting_read_times_out(wire: Wire, other: Wire) -> None:
    """After its time it answers END, and takes nothing that comes later."""
    began = time.monotonic()
    wire.ask(b"get w2/t=50\r\n", b"END\r\n")
    assert time.monotonic() - began >= 0.049
    put(other, "w2", "x")
    wire.ask(b"get w2/peek/t=50\r\n", value("w2", "x") + b"END\r\n")


def test_replies_keep_their_order_behind_a_waiting_get(wire: Wire, other: Wire) -> None:
    """What was pipelined behind a waiting read is served after it, and answered after it."""
    wire.send(b"version\r\nget w3/t=20000/open\r\nset w3b 0 0 1\r\ny\r\nget w3/close\r\nstatus\r\n")
    wire.until(b"\r\n")
    wait_for(other, "w3", "waiters", 1)
    assert stats(other, "w3b") == {}
    put(other, "w3", "x")
    wire.expect(value("w3", "x") + b"END\r\nSTORED\r\nEND\r\nUP\r\n")


def test_monitors_take_turns(server: ServerProcess, wire: Wire) -> None:
    """Several items at once go to those who wait in turn, not all to the first."""
    with Wire(server) as first, Wire(server) as second, Wire(server) as holder:
        put(wire, "turns", *"abcd")
        holder.send(b"monitor turns 0 3\r\n")
        wait_for(wire, "turns", "open_transactions", 3)
        wire.ask(b"get turns\r\n", value("turns", "d") + b"END\r\n")
        for number, reader in enumerate((first, second)):
            reader.send(b"monitor turns 20 2\r\n")
            wait_for(wire, "turns", "waiters", number + 1)
        holder.close()
        for reader, item in ((first, "a"), (second, "b"), (first, "c")):
            reader.until(f"{item}\r\n".encode())
        put(wire, "turns", "e")
        second.until(b"e\r\n")


def test_waiting_readers_are_served_in_order(server: ServerProcess, wire: Wire) -> None:
    """Who began to wait first gets the first item, whatever kind of read it is."""
    readers = [Wire(server) for _ in range(5)]
    requests = ["get line/t=20000", "get line/t=20000/open", "monitor line 20 1"]
    for number, reader in enumerate(readers):
        reader.send(f"{requests[number % 3]}\r\n".encode())
        wait_for(wire, "line", "waiters", number + 1)
    put(wire, "line", *"abcde")
    for number, (item, reader) in enumerate(zip("abcde", readers, strict=True)):
        reader.expect(value("line", item) + b"END\r\n")
        reader.expect(b"END\r\n" if number % 3 == 2 else b"")
        reader.close()


def test_peeking_reader_takes_nothing(server: ServerProcess, wire: Wire, other: Wire) -> None:
    """A waiting peek and the read behind it get the same item."""
    wire.send(b"get w4/peek/t=20000\r\n")
    wait_for(other, "w4", "waiters", 1)
    with Wire(server) as third:
        third.send(b"get w4/t=20000\r\n")
        wait_for(other, "w4", "waiters", 2)
        put(other, "w4", "x")
        wire.expect(value("w4", "x") + b"END\r\n")
        third.expect(value("w4", "x") + b"END\r\n")


@pytest.mark.parametrize("request_", ["get Q/t=60000", "get Q/t=60000/open", "monitor Q 60"])
def test_disconnected_reader_takes_nothing(
    server: ServerProcess, other: Wire, request_: str
) -> None:
    """A reader that hung up while it waited leaves the line; its successor gets the item."""
    queue = "gone" + request_.replace("/", "").replace(" ", "").replace("=", "")
    gone, patient = Wire(server), Wire(server)
    gone.send((request_.replace("Q", queue) + "\r\n").encode())
    wait_for(other, queue, "waiters", 1)
    patient.send(f"get {queue}/t=20000\r\n".encode())
    wait_for(other, queue, "waiters", 2)
    gone.close()
    wait_for(other, queue, "waiters", 1)
    put(other, queue, "x")
    patient.expect(value(queue, "x") + b"END\r\n")
    patient.close()


def test_reader_that_hangs_up_as_the_item_comes(server: ServerProcess, other: Wire) -> None:
    """An open read that cannot be delivered goes back to the head."""
    for round_ in range(20):
        gone = Wire(server)
        gone.send(b"get race/t=20000/open\r\n")
        wait_for(other, "race", "waiters", 1)
        other.send(b"set race 0 0 2\r\n%02d\r\n" % round_)
        gone.close()
        other.expect(b"STORED\r\n")
        wait_for(other, "race", "items", 1)
        other.ask(b"get race\r\n", value("race", f"{round_:02}") + b"END\r\n")


def test_several_keys_wait_in_turn(wire: Wire, other: Wire) -> None:
    """Keys are answered in one reply, in the order in which they were asked for."""
    put(other, "k2", "second")
    wire.send(b"get k1/t=20000 k2 k3\r\n")
    wait_for(other, "k1", "waiters", 1)
    assert stats(other, "k2")["items"] == "1"
    put(other, "k1", "first")
    wire.expect(value("k1", "first") + value("k2", "second") + b"END\r\n")


# --- open reads ---


def test_open_read_goes_back_on_disconnect(server: ServerProcess, other: Wire) -> None:
    """What a client had open when it hung up is at the head again, in the old order."""
    put(other, "o1", *"abcd")
    gone = Wire(server)
    gone.ask(b"monitor o1 5 3\r\n", arrived("o1", *"abc"))
    wait_for(other, "o1", "open_transactions", 3)
    gone.close()
    wait_for(other, "o1", "items", 4)
    other.ask(b"get o1 o1 o1 o1\r\n", b"".join(value("o1", item) for item in "abcd"))
    other.expect(b"END\r\n")


def test_second_open_read_is_refused(wire: Wire, other: Wire) -> None:
    """`max_open_transactions` is 1: ERROR, and what was open goes back."""
    put(other, "o2", "a", "b")
    wire.ask(b"get o2/open\r\n", value("o2", "a") + b"END\r\n")
    wire.send(b"get o2/open\r\n")
    wire.expect_close(b"ERROR\r\n")
    wait_for(other, "o2", "items", 2)
    other.ask(b"get o2\r\n", value("o2", "a") + b"END\r\n")


@pytest.mark.parametrize("request_", [b"get o3", b"get o3/t=10"])
def test_plain_get_with_an_open_read_is_refused(wire: Wire, other: Wire, request_: bytes) -> None:
    """A read without `/open` while one is open is a mistake: ERROR and close."""
    put(other, "o3", "a", "b")
    wire.ask(b"get o3/open\r\n", value("o3", "a") + b"END\r\n")
    wire.ask(b"get o3/peek\r\n", value("o3", "b") + b"END\r\n")
    wire.ask(b"get o3x\r\n", b"END\r\n")
    wire.send(request_ + b"\r\n")
    wire.expect_close(b"ERROR\r\n")
    wait_for(other, "o3", "items", 2)
    other.ask(b"flush o3\r\n", b"END\r\n")


def test_reads_open_on_several_queues(wire: Wire, other: Wire) -> None:
    """The limit counts for each queue; close and abort act on the queue they name."""
    put(other, "p", "1")
    put(other, "q", "2")
    wire.ask(b"get p/open\r\n", value("p", "1") + b"END\r\n")
    wire.ask(b"get q/open\r\n", value("q", "2") + b"END\r\n")
    wire.ask(b"get q/close\r\nget p/abort\r\n", b"END\r\n" * 2)
    other.ask(b"get p q\r\n", value("p", "1") + b"END\r\n")


def test_aborted_item_is_the_next(wire: Wire, other: Wire) -> None:
    """An abort puts the item at the head, and a waiting reader gets it."""
    put(other, "o4", "a")
    wire.ask(b"get o4/open\r\n", value("o4", "a") + b"END\r\n")
    other.send(b"get o4/t=20000\r\n")
    wait_for(wire, "o4", "waiters", 1)
    put(wire, "o4x", "y")
    wire.ask(b"get o4/abort\r\n", b"END\r\n")
    other.expect(value("o4", "a") + b"END\r\n")


def test_open_read_times_out(server: ServerProcess, wire: Wire, other: Wire) -> None:
    """After `open_transaction_timeout` the item goes to the next reader; the first lost it."""
    put(other, "short", "a")
    wire.ask(b"get short/open\r\n", value("short", "a") + b"END\r\n")
    other.ask(b"get short/t=20000/open\r\n", value("short", "a") + b"END\r\n")
    wire.ask(b"confirm short 1\r\ntouch_read short 5000\r\n", b"ERROR\r\nNOT_FOUND\r\n")
    other.ask(b"touch_read short 60000\r\n", b"TOUCHED\r\n")
    wire.ask(b"get short/t=300\r\n", b"END\r\n")
    other.ask(b"confirm short 1\r\n", b"END\r\n")
    assert stats(wire, "short")["canceled_transactions"] == "1"


# --- monitor ---


def test_monitor(wire: Wire, other: Wire) -> None:
    """Each item is sent as it arrives, as a whole reply and an open read; then comes END."""
    put(other, "m1", "a")
    wire.ask(b"monitor m1 20 3\r\n", arrived("m1", "a"))
    wait_for(other, "m1", "waiters", 1)
    put(other, "m1", "b")
    wire.expect(arrived("m1", "b"))
    put(other, "m1", "c", "d")
    wire.expect(arrived("m1", "c") + b"END\r\n")
    assert stats(other, "m1")["open_transactions"] == "3"
    wire.ask(b"confirm m1 4\r\n", b"ERROR\r\n")
    assert stats(other, "m1")["open_transactions"] == "3"
    wire.ask(b"confirm m1 2\r\n", b"END\r\n")
    wire.ask(b"get m1/abort\r\n", b"END\r\n")
    other.ask(b"get m1 m1\r\n", value("m1", "c") + value("m1", "d") + b"END\r\n")


def test_monitor_ends_in_time(wire: Wire) -> None:
    """Without items there is END after the time."""
    began = time.monotonic()
    wire.ask(b"monitor m2 1\r\n", b"END\r\n")
    assert time.monotonic() - began >= 0.99


def test_monitor_limit(wire: Wire, other: Wire) -> None:
    """`max_monitor_transactions` bounds what one connection holds; then it must confirm."""
    put(other, "m3", *"abcde")
    wire.ask(b"monitor m3 20\r\n", arrived("m3", *"abc") + b"END\r\n")
    wire.ask(b"monitor m3 20\r\n", b"END\r\n")
    wire.ask(b"confirm m3 3\r\n", b"END\r\n")
    wire.ask(b"monitor m3 0\r\n", arrived("m3", "d", "e") + b"END\r\n")


def test_monitors_share_fairly(server: ServerProcess, other: Wire) -> None:
    """Monitoring readers take turns, item by item."""
    first, second = Wire(server), Wire(server)
    for number, reader in enumerate((first, second), start=1):
        reader.send(b"monitor m4 60 3\r\n")
        wait_for(other, "m4", "waiters", number)
    put(other, "m4", *"abcdef")
    first.expect(arrived("m4", *"ace") + b"END\r\n")
    second.expect(arrived("m4", *"bdf") + b"END\r\n")
    first.close()
    second.close()


def test_deleted_queue_ends_waits(wire: Wire, other: Wire) -> None:
    """A reader of a queue that is deleted hears END, not the silence of a queue that is gone."""
    wire.send(b"get d1/t=60000\r\n")
    wait_for(other, "d1", "waiters", 1)
    other.ask(b"delete d1\r\n", b"DELETED\r\n")
    wire.expect(b"END\r\n")
    wire.send(b"monitor d2 60\r\n")
    wait_for(other, "d2", "waiters", 1)
    other.ask(b"delete d2\r\n", b"DELETED\r\n")
    wire.expect(b"END\r\n")


def test_open_read_of_a_deleted_queue(wire: Wire, other: Wire) -> None:
    """The item is gone with its queue; closing it is harmless."""
    put(other, "d3", "a")
    wire.ask(b"get d3/open\r\n", value("d3", "a") + b"END\r\n")
    other.ask(b"delete d3\r\n", b"DELETED\r\n")
    put(other, "d3", "b")
    wire.ask(b"get d3/close\r\nconfirm d3 1\r\n", b"END\r\nERROR\r\n")
    wire.ask(b"get d3\r\n", value("d3", "b") + b"END\r\n")


def test_flush_leaves_open_reads(wire: Wire, other: Wire) -> None:
    """A flush drops what waits; an open item may still come back."""
    put(other, "f1", "a", "b")
    wire.ask(b"get f1/open\r\n", value("f1", "a") + b"END\r\n")
    other.ask(b"flush f1\r\n", b"END\r\n")
    assert stats(other, "f1")["items"] == "0"
    wire.ask(b"get f1/abort\r\n", b"END\r\n")
    other.ask(b"get f1\r\n", value("f1", "a") + b"END\r\n")
