"""Looking at queues, moving items and setting queues up over the text protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, wait_for

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


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """A connection of the text protocol."""
    with Wire(server, "text") as connected:
        yield connected


def browse(wire: Wire, words: str) -> tuple[list[tuple[int, str]], bytes]:
    """Return the places and the data of the items of a `browse`, and its last line."""
    wire.send(f"browse {words}\n".encode())
    found = []
    while (line := wire.until(b"\n"))[:1] == b":":
        place, added, expiry, data = line[1:-1].decode().split(" ", 3)
        assert int(added) > 0
        assert expiry == "0"
        found.append((int(place), data))
    return found, line


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_items_are_shown_and_searched(server: ServerProcess, wire: Wire, queue: str) -> None:
    """They stay; the last line says where to go on, or that the queue ends there."""
    with Wire(server) as memcache:
        put(memcache, queue, *(f"item {number}!" for number in range(50)))
    assert browse(wire, f"{queue} 20 2") == ([(20, "item 20!"), (21, "item 21!")], b"+22\n")
    assert browse(wire, f"{queue} 48 9") == ([(48, "item 48!"), (49, "item 49!")], b"*\n")
    assert browse(wire, f"{queue} 0 9 text=m%2017") == ([(17, "item 17!")], b"*\n")
    assert browse(wire, f"{queue} 2 1 text=m%201") == ([(10, "item 10!")], b"+11\n")
    assert browse(wire, f"{queue} 0 9 pattern=9%21$")[0] == [
        (place, f"item {place}!") for place in (9, 19, 29, 39, 49)
    ]
    assert browse(wire, f"{queue} 99 9") == ([], b"*\n")
    with Wire(server) as memcache:
        assert stats(memcache, queue)["items"] == "50"


def test_any_item_can_be_shown(server: ServerProcess, wire: Wire) -> None:
    """What would end its line is percent-encoded."""
    with Wire(server) as memcache:
        put(memcache, "lines", "a\r\nb 100%", "")
    assert browse(wire, "lines 0 9") == ([(0, "a%0D%0Ab 100%25"), (1, "")], b"*\n")


def test_items_are_moved_and_copied(server: ServerProcess, wire: Wire) -> None:
    """The reply says how many, and why no more."""
    with Wire(server) as memcache:
        put(memcache, "a", "one", "two", "three")
    wire.ask(b"copy a b 2\n", b"+2\n")
    wire.ask(b"move a b 1\n", b"+1\n")
    wire.ask(b"move a small\n", b"+2\n")
    wire.ask(b"move b small\n", b"+0 small is full, or the item is too large for it\n")
    assert browse(wire, "b 0 9") == ([(0, "one"), (1, "two"), (2, "one")], b"*\n")
    assert browse(wire, "small 0 9") == ([(0, "two"), (1, "three")], b"*\n")


def test_dead_letters_go_back(server: ServerProcess, wire: Wire) -> None:
    """To the queue that they came from, or to another one."""
    with Wire(server) as memcache:
        put(memcache, "work", "x", "y")
        for _ in range(2):
            memcache.ask_until(b"get work/open\r\n", b"END\r\n")
            memcache.ask(b"get work/abort\r\n", b"END\r\n")
    wire.ask(b"redrive dead\n", b"+2\n")
    wire.ask(b"redrive work other\n", b"+2\n")
    assert browse(wire, "other 0 9") == ([(0, "x"), (1, "y")], b"*\n")


def test_what_is_paused_and_declared_survives_a_kill(server: ServerProcess, wire: Wire) -> None:
    """It is in force at once, over every protocol, and until it is resumed."""
    wire.ask(b"put work:\none\n\n", b"+1\n")
    wire.ask(b"pause work writes\n", b"+0\n")
    wire.ask(b"put work:\ntwo\n\n", b"-queue work is paused for writes\n")
    wire.ask(b"declare reply max_items=1 journal=no expires=600000\n", b"+0\n")
    wire.ask(b"put reply:\na\nb\n\n", b"+1\n")
    server.kill9()
    server.start()
    with Wire(server) as memcache, Wire(server, "text") as again:
        assert stats(memcache, "work")["paused"] == "writes"
        again.ask(b"put reply:\na\nb\n\n", b"+1\n")
        again.ask(b"resume work\n", b"+0\n")
        again.ask(b"pause work reads\n", b"+0\n")
        again.ask(b"put work:\ntwo\n\n", b"+1\n")
        again.ask(b"get work\n", b"*\n")
        again.send(b"get work 600000\n")
        wait_for(memcache, "work", "waiters", 1)
        memcache.ask(b"resume work reads\r\n", b"END\r\n")
        again.expect(b":one\n")


def test_clients_are_listed_and_disconnected(server: ServerProcess, wire: Wire) -> None:
    """With the words of the memcache command."""
    with Wire(server, "text") as other:
        other.ask(b"put jobs:\na\n\n", b"+1\n")
        other.ask(b"get jobs\n", b":a\n")
        wire.send(b"clients\nversion\n")
        lines = wire.until(b"*\n").decode().splitlines()
        wire.until(b"\n")
        host, port = other.socket.getsockname()
        (line,) = [line for line in lines if f"address={host}:{port} " in line]
        assert line.startswith(":id=")
        assert "protocol=text" in line
        assert line.endswith("state=idle open=jobs/1")
        number = line.partition(" ")[0].removeprefix(":id=").encode()
        wire.ask(b"client kill %b\n" % number, b"+0\n")
        other.expect_close()
    until(lambda: wire.ask_until(b"client kill %b\n" % number, b"\n").startswith(b"-there is no"))


def test_what_is_refused_is_told(server: ServerProcess, wire: Wire) -> None:
    """The connection stays, and nothing is created."""
    wire.ask(b"put a:\nx\n\n", b"+1\n")
    for line, reason in (
        ("browse nosuch 0 1", "there is no queue nosuch"),
        ("move nosuch a", "there is no queue nosuch"),
        ("copy nosuch a 3", "there is no queue nosuch"),
        ("pause nosuch all", "there is no queue nosuch"),
        ("resume nosuch", "there is no queue nosuch"),
        ("browse b/c 0 1", "/"),
        ("pause b/c all", "/"),
        ("declare b/c", "/"),
        ("move a b/c", "/"),
        ("browse a 0", "browse takes a queue, an offset, a count"),
        ("browse a -1 5", "browse takes whole numbers"),
        ("browse a 0 1 text=", "browse takes text= or pattern="),
        ("browse a 0 1 pattern=(", "no regular expression"),
        ("move a", "move takes two queues"),
        ("move a b many", "move takes whole numbers"),
        ("move a a", "comes to a, too"),
        ("redrive a", "no queue has a as dead_letter_queue"),
        ("redrive", "redrive takes a queue"),
        ("pause a some", "only reads, writes or all"),
        ("declare", "declare takes a queue"),
        ("declare b max_size=1", "max_size=1: declare takes"),
        ("browse mine 0 1", "may not read mine"),
        ("move mine a", "may not read mine"),
        ("clients all", "clients takes nothing"),
        ("client kill x", "client kill takes whole numbers"),
        ("client", "client takes kill and an id"),
        ("client kill 999999", "there is no client 999999"),
    ):
        reply = wire.ask_until(line.encode() + b"\n", b"\n").decode()
        assert reply.startswith("-"), line
        assert reason in reply, (line, reply)
    with Wire(server) as memcache:
        listed = memcache.ask_until(b"stats\r\n", b"END\r\n")
    assert b"queue_a_items 1" in listed
    for absent in (b"nosuch", b"queue_b", b"queue_mine"):
        assert absent not in listed
    assert not (server.queue_path / "~~queues").exists()


def test_the_status_of_the_server_holds(wire: Wire) -> None:
    """As for the same commands over memcache."""
    wire.ask(b"put a:\nx\n\n", b"+1\n")
    wire.ask(b"status readonly\n", b"+0\n")
    for line in (b"move a b", b"copy a b", b"declare b"):
        assert wire.ask_until(line + b"\n", b"\n").startswith(b"-"), line
    assert browse(wire, "a 0 1") == ([(0, "x")], b"*\n")
    wire.ask(b"status quiescent\n", b"+0\n")
    assert wire.ask_until(b"browse a 0 1\n", b"\n").startswith(b"-")
