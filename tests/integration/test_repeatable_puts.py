"""Adds that a producer repeats, in every protocol and interface, on a server that is killed."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions
from kestrelmq.config import QueueConfig
from kestrelmq.errors import ClientError, InvalidRequest
from kestrelmq.library import AsyncPersistentQueue, PersistentQueue, QueueCollection
from tests.admin.conftest import Admin
from tests.support.commands import run_command
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats

pytestmark = pytest.mark.compiled_only

CONFIG = """
[queues.short]
max_items = 2

[queues.small]
max_items = 2

[queues.safe]
sync_journal = "0ms"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    with running_server(tmp_path_factory.mktemp("server"), config=CONFIG) as process:
        yield process


def found(wire: Wire, queue: str) -> list[str]:
    """Read everything that waits in a queue."""
    got = []
    while (reply := wire.ask_until(f"get {queue}\r\n".encode(), b"END\r\n")) != b"END\r\n":
        got.append(reply.split(b"\r\n")[1].decode())
    return got


def test_a_set_that_is_repeated(server: ServerProcess) -> None:
    """It is stored once; large items, noreply and several in one packet make no difference."""
    with Wire(server) as wire:
        for _ in range(2):
            put(wire, "one/producer=p/seq=1", "a")
            put(wire, "one/seq=2/producer=p", "b")
            put(wire, "one/producer=q/seq=1/delay=0", "c")
        put(wire, "one/producer=p/seq=1", "older")
        wire.ask(b"set one/producer=p/seq=3 0 0 1 noreply\r\nd\r\n" * 3, b"")
        assert found(wire, "one") == ["a", "b", "c", "d"]
        put(wire, "one/producer=p/seq=3", "again")
        assert found(wire, "one") == []
        for size in (300 << 10, 1 << 20, 5 << 20):
            for _ in range(2):
                put(wire, f"large/producer=p/seq={size}", "x" * size)
        assert stats(wire, "large")["items"] == "3"


def test_what_comes_after_a_refusal(server: ServerProcess) -> None:
    """A producer need not wait for each answer if it says what must be there."""
    with Wire(server) as wire:
        for number in range(3):
            reply = b"STORED\r\n" if number < 2 else b"NOT_STORED\r\n"
            after = f"/after={number - 1}" if number else ""
            put(wire, f"short/producer=p/seq={number}{after}", "x", reply=reply)
        found(wire, "short")
        put(wire, "short/producer=p/seq=3/after=2", "y", reply=b"NOT_STORED\r\n")
        put(wire, "short/producer=p/seq=2/after=1", "x")
        put(wire, "short/producer=p/seq=3/after=2", "y")


def test_bad_options_cost_neither_the_data_nor_the_connection(server: ServerProcess) -> None:
    """The next request is served."""
    options = (
        ("producer=p", "producer= and seq= go together"),
        ("seq=1", "producer= and seq= go together"),
        ("producer=p/after=1", "producer= and seq= go together"),
        ("producer=p/seq=x", "seq= takes a number"),
        ("producer=p/seq=-1", "seq= takes a number"),
        ("producer=p/seq=1/seq=1", "/seq is given twice"),
        ("producer=p/seq=1/producer=p", "/producer is given twice"),
        ("producer=/seq=1", "a producer's name has 1 to 64 bytes"),
        (f"producer={'x' * 65}/seq=1", "a producer's name has 1 to 64 bytes"),
        ("producer=\x07/seq=1", "a producer's name has no spaces, slashes or control characters"),
    )
    with Wire(server) as wire:
        for option, error in options:
            put(wire, f"two/{option}", "flush", reply=f"CLIENT_ERROR {error}\r\n".encode())
        assert stats(wire, "two") == {}


def numbers_of(client: Client, queue: str) -> tuple[int, int]:
    """Return how many items of a queue wait, and how many are delayed."""
    (found,) = [one for one in client.queues() if one.name == queue]
    return found.items, int(found.values["delayed"])


async def test_both_clients(server: ServerProcess) -> None:
    """One item or many."""
    with Client(server.address) as client:
        for _ in range(2):
            assert client.put("client", "a", producer="p", sequence=1) is True
            many = [b"%d" % number for number in range(600)]
            assert all(client.put_many("client", many, producer="p", sequence=2))
        assert numbers_of(client, "client") == (601, 0)
        client.flush("short")
        first = client.put_many("short", [b"1", b"2", b"3", b"4"], producer="c", sequence=1)
        assert first == [True, True, False, False]
        client.flush("short")
        assert client.put_many("short", [b"3", b"4"], producer="c", sequence=3) == [True, True]
        for bad in (("p", None), (None, 1), ("a b", 1), ("p", -1), ("\udcff", 1)):
            with pytest.raises(InvalidRequest):
                client.put("client", b"x", producer=bad[0], sequence=bad[1])
    async with AsyncClient(server.address) as other:
        assert await other.put("client", b"a", producer="p", sequence=1, delay=60)
        assert await other.put("client", b"late", producer="q", sequence=1, delay=60)
        assert await other.put("client", b"late", producer="q", sequence=1)
    with Client(server.address) as client:
        assert numbers_of(client, "client") == (601, 1)
    with Client([server.address, "127.0.0.1:9"]) as cluster, pytest.raises(InvalidRequest):
        cluster.put("client", b"x", producer="p", sequence=1)


def test_the_command_line(server: ServerProcess) -> None:
    """One item, or one for each line; a command that is repeated adds what is new."""
    with Wire(server) as wire:
        for lines in (b"b\nc\n", b"b\nc\nd\n"):
            for arguments in (("a", "--sequence", "1"), ("--lines", "--sequence", "2")):
                done = run_command(
                    *("put", "line", *arguments, "--producer", "me"),
                    data=lines,
                    environment={"KESTRELMQ_SERVERS": server.address},
                )
                assert done.returncode == 0
                expected = b"%d items put\n" % lines.count(b"\n")
                assert done.stdout == (expected if "--lines" in arguments else b"")
        assert found(wire, "line") == ["a", "b", "c", "d"]


def test_the_api(server: ServerProcess) -> None:
    """The body of a put names the producer and the number."""
    admin = Admin(server)
    body = {"text": "a", "producer": "p", "sequence": 5}
    for _ in range(2):
        assert admin.ask("POST", "/api/v1/queues/api/items", body).status == 201
    for bad in ({"sequence": None}, {"producer": "a b"}, {"sequence": -1}, {"producer": "x" * 65}):
        assert admin.ask("POST", "/api/v1/queues/api/items", body | bad).status == 400
    with Wire(server) as wire:
        assert found(wire, "api") == ["a"]


def test_a_sync_covers_a_repeated_item(server: ServerProcess) -> None:
    """With `sync_journal` at 0 the reply waits for it, and comes."""
    with Client(server.address) as client:
        for _ in range(2):
            assert client.put_many("safe", [b"a", b"b"], producer="p", sequence=1) == [True] * 2
            assert client.put("safe", b"c", producer="p", sequence=3, delay=60)
        assert client.get("safe") == b"a"
        assert client.get("safe") == b"b"


def test_aliases_and_fanout(tmp_path: Path) -> None:
    """Each queue that gets an item decides for itself."""
    config = '[aliases.both]\ndestination_queues = ["one", "two"]\n'
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        wire.ask(b"get one+child\r\n", b"END\r\n")
        for _ in range(2):
            put(wire, "both/producer=p/seq=1", "a")
        put(wire, "one/producer=p/seq=1", "again")
        put(wire, "two/producer=p/seq=2", "b")
        put(wire, "both/producer=p/seq=2", "b")
        for queue in ("one", "two", "one+child"):
            assert found(wire, queue) == ["a", "b"]


def kill_now_and_then(server: ServerProcess, kills: int, done: threading.Event) -> None:
    """Kill the server at random moments, and start it again each time."""
    chance = random.Random(7)
    for _ in range(kills):
        done.wait(chance.uniform(0.02, 0.2))
        server.kill9()
        server.restart()
    done.set()


def produce_through_kills(server: ServerProcess, kills: int) -> int:
    """Let a producer repeat all that it got no answer for; return how many items it added.

    It goes on until the server has been killed `kills` times.
    """
    done = threading.Event()
    killer = threading.Thread(target=kill_now_and_then, args=(server, kills, done))
    killer.start()
    number = 0
    with Client(server.address, options=ClientOptions(restart_patience=0.05)) as client:
        while not done.is_set() or number % 50:
            batch = [b"%d" % one for one in range(number, number + 10)]
            delay = 0.1 if number % 50 == 40 else None
            try:
                stored = client.put_many("jobs", batch, producer="p", sequence=number, delay=delay)
            except ClientError:
                continue
            # If memory has no room for delayed items, they are refused, and sent again.
            number += 10 * all(stored)
    killer.join()
    return number


def everything(server: ServerProcess, queue: str) -> list[int]:
    """Return the items of a queue, once it is loaded and none is delayed any more."""
    until(lambda: Admin(server).get("/health/ready").status == 200)
    with Wire(server) as wire:
        until(lambda: stats(wire, queue)["delayed"] == "0")
        return [int(item) for item in found(wire, queue)]


def test_a_producer_through_kills(tmp_path: Path) -> None:
    """Each item is stored once, in the queue and in its fanout child."""
    with running_server(tmp_path) as server:
        with Wire(server) as wire:
            wire.ask(b"get jobs+child\r\n", b"END\r\n")
        count = produce_through_kills(server, 5)
        for queue in ("jobs", "jobs+child"):
            assert sorted(everything(server, queue)) == list(range(count))


@pytest.mark.soak
@pytest.mark.parametrize("compact", [False, True])
def test_a_producer_through_200_kills(tmp_path: Path, *, compact: bool) -> None:
    """The same, with journals that are rewritten all the time as well."""
    config = """
[default]
default_journal_size = "4 KiB"
max_journal_size = "8 KiB"
max_memory_size = "2 KiB"
min_journal_compact_delay = "0s"
"""
    with running_server(tmp_path, config=config if compact else "") as server:
        count = produce_through_kills(server, 200)
        assert sorted(everything(server, "jobs")) == list(range(count))


def test_the_library(tmp_path: Path) -> None:
    """A queue, and a collection of them."""
    for _ in range(2):
        with PersistentQueue("jobs", tmp_path) as queue:
            assert queue.add(b"a", producer="p", sequence=1)
            assert queue.add(b"b", producer="p", sequence=2, delay=3600)
            assert queue.add(b"b", producer="p", sequence=2)
            for bad in (("p", None), (None, 1), ("a b", 1)):
                with pytest.raises(ValueError, match="producer"):
                    queue.add(b"x", producer=bad[0], sequence=bad[1])
    with QueueCollection(tmp_path) as queues:
        assert queues.add("jobs", b"a", producer="p", sequence=1)
        assert queues.add("jobs", b"c", producer="p", sequence=3)
        left = [queues.queue("jobs").remove() for _ in range(3)]
    assert [item.data if item is not None else None for item in left] == [b"a", b"c", None]


async def test_the_library_with_asyncio(tmp_path: Path) -> None:
    """The same with asyncio, synced."""
    synced = QueueConfig.model_validate({"sync_journal": 0})
    for _ in range(2):
        async with AsyncPersistentQueue("jobs", tmp_path, synced) as queue:
            assert await queue.add(b"a", producer="p", sequence=1)
            assert await queue.add(b"b", producer="p", sequence=2, delay=3600)
            assert await queue.add(b"b", producer="p", sequence=2)
            assert len(queue) == 1
