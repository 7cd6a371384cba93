"""Moving and copying items on a real server, by every way there is."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Event, Thread

import pytest

from kestrelmq.client import AsyncClient, Client, DeadLetter, Moved
from kestrelmq.errors import ClientError, ServerRefused
from tests.admin.conftest import Admin
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

CONFIG = """
[queues.small]
max_items = 2
[queues.disk]
max_memory_size = "1 KiB"
[queues.work]
max_deliveries = 1
dead_letter_queue = "dead"
[queues.shared]
max_deliveries = 1
dead_letter_queue = "dead"
[aliases.both]
destination_queues = ["left", "right"]
"""
COUNT = 2000


@pytest.fixture(name="server")
def running(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server."""
    with running_server(tmp_path, config=CONFIG) as server:
        yield server


def test_items_are_moved_and_copied(server: ServerProcess) -> None:
    """The reply says how many, and why no more."""
    with Wire(server) as wire:
        put(wire, "a", "one", "two", "three")
        wire.ask(b"copy a b 2\r\n", b"COPIED 2\r\n")
        wire.ask(b"move a b 1\r\n", b"MOVED 1\r\n")
        wire.ask(b"move a small\r\n", b"MOVED 2\r\n")
        wire.ask(b"move b small\r\n", b"MOVED 0 small is full, or the item is too large for it\r\n")
        wire.ask(b"copy b both\r\n", b"COPIED 3\r\n")
        wire.ask(
            b"copy b small 5\r\n", b"COPIED 0 small is full, or the item is too large for it\r\n"
        )
        for queue in ("b", "left", "right"):
            for item in ("one", "two", "one"):
                wire.ask(f"get {queue}\r\n".encode(), value(queue, item) + b"END\r\n")
        wire.ask(b"get a\r\n", b"END\r\n")
        wire.ask(b"get small\r\n", value("small", "two") + b"END\r\n")


def test_what_cannot_be_moved_is_told(server: ServerProcess) -> None:
    """Nothing is moved or created."""
    with Wire(server) as wire:
        put(wire, "a", "one")
        wire.ask(b"move nosuch a\r\n", b"NOT_FOUND\r\n")
        wire.ask(b"copy nosuch a 1\r\n", b"NOT_FOUND\r\n")
        wrong = ("move a", "move a a", "copy a a", "move a b -1", "move a b/c", "copy a b c d")
        for line in (*wrong, "redrive", "redrive a a"):
            reply = wire.ask_until(line.encode() + b"\r\n", b"\r\n")
            assert reply.startswith(b"CLIENT_ERROR "), line
        wire.ask(b"pause b writes\r\n", b"NOT_FOUND\r\n")
        wire.ask(b"status readonly\r\n", b"END\r\n")
        refusal = b"SERVER_ERROR the server is read-only: it takes no writes\r\n"
        for line in ("move a b", "copy a b", "redrive a"):
            with Wire(server) as other:  # as any command that the status forbids, it closes
                other.send(line.encode() + b"\r\n")
                other.expect_close(refusal)
        wire.ask(b"get a\r\n", value("a", "one") + b"END\r\n")


def test_dead_letters_go_back(server: ServerProcess) -> None:
    """To the queue that they came from, or to another."""
    with Wire(server) as wire:
        for item in ("one", "two"):
            put(wire, "work", item)
            wire.ask(b"get work/open\r\n", value("work", item) + b"END\r\n")
            wire.ask(b"get work/abort\r\n", b"END\r\n")
        assert stats(wire, "dead")["items"] == "2"
        queues = "/api/v1/queues"
        work = Admin(server).get(f"{queues}/work").json
        dead = Admin(server).get(f"{queues}/dead").json
        assert work["dead_letter_queue"] == {"name": "dead", "items": 2}
        assert {"name": "work", "items": 0} in dead["dead_letters_of"]
        assert (work["dead_letters_of"], dead["dead_letter_queue"]) == ([], None)
        wire.ask(b"redrive dead\r\n", b"MOVED 2\r\n")
        wire.ask(b"get work\r\n", value("work", "one") + b"END\r\n")
        wire.ask(b"redrive work other\r\n", b"MOVED 1\r\n")
        wire.ask(b"get other\r\n", value("other", "two") + b"END\r\n")


def test_a_dead_letter_tells_where_it_came_from(server: ServerProcess) -> None:
    """Why, when, and after how many deliveries; to every client, and after a kill."""
    began = round(time.time() * 1000)
    admin, dead = Admin(server), "/api/v1/queues/dead"
    with Wire(server) as wire, Client(server.address) as client:
        for name in ("work", "shared"):
            put(wire, name, name)
            wire.ask_until(f"get {name}/open\r\n".encode(), b"END\r\n")
            wire.ask(f"get {name}/abort\r\n".encode(), b"END\r\n")
        (page,) = client.browse("dead").values()
        first, second = (one.dead_letter for one in page.items)
        assert first is not None
        assert second is not None
        assert began <= first.died <= second.died <= round(time.time() * 1000)
        assert first == DeadLetter("work", first.died, "it was given back", 1)
        assert second.origin == "shared"
        words = b" from=work died=%d deliveries=1 why=it%%20was%%20given%%20back 4\r\n"
        assert words % first.died in wire.ask_until(b"browse dead 0 1\r\n", b"END\r\n")
        line = json.loads(next(iter(client.export("dead"))))
        assert line["dead_letter"] == asdict(first)
        exported = admin.get(f"{dead}/export")
        assert json.loads(exported.content.splitlines()[0])["dead_letter"] == asdict(first)
        client.put("dead", b"unknown")
    server.kill9()
    server.restart()
    (one, _, unknown) = Admin(server).get(f"{dead}/items").json["items"]
    assert (one["deliveries"], unknown["dead_letter"]) == (1, None)
    assert {**one["dead_letter"], "deliveries": 1} == asdict(first)
    redriven = Admin(server).ask("POST", f"{dead}/redrive", {}).json
    assert redriven == {"count": 2, "stopped": "1 stay: where they came from is not known"}
    with Client(server.address) as client:
        assert (client.get("work"), client.get("shared")) == (b"work", b"shared")
        assert client.redrive("dead") == {server.address: Moved(0, redriven["stopped"])}


def test_both_clients_move_items(server: ServerProcess) -> None:
    """From disk, many slices, while others are served."""
    items = [b"%d" % number for number in range(COUNT)]
    with Client(server.address) as client:
        client.put_many("disk", items)
        assert client.copy("disk", "copied") == {server.address: Moved(COUNT)}
        assert client.move("disk", "moved", 10) == {server.address: Moved(10)}
        assert client.redrive("disk", "moved") == {server.address: Moved(COUNT - 10)}
        assert client.move("nosuch", "moved") == {}
        with pytest.raises(ServerRefused, match="comes to moved, too"):
            client.move("moved", "moved")

    async def move() -> tuple[dict[str, Moved], list[bytes | None]]:
        async with AsyncClient(server.address) as client:
            moved = await client.move("moved", "disk")
            return moved, [await client.get(queue) for queue in ("disk", "copied", "moved")]

    assert asyncio.run(move()) == ({server.address: Moved(COUNT)}, [b"0", b"0", None])


def test_the_api_moves_items(server: ServerProcess) -> None:
    """It says why it ended early."""
    admin = Admin(server)
    queues = "/api/v1/queues"
    with Client(server.address) as client:
        client.put_many("a", [b"1", b"2", b"3"])
        copied = admin.ask("POST", f"{queues}/a/copy", {"target": "b", "count": 2})
        assert (copied.status, copied.json) == (200, {"count": 2, "stopped": None})
        moved = admin.ask("POST", f"{queues}/a/move", {"target": "small"})
        assert moved.json == {
            "count": 2,
            "stopped": "small is full, or the item is too large for it",
        }
        assert admin.ask("POST", f"{queues}/a/redrive", {"target": "b"}).json["count"] == 1
        assert [client.get("b") for _ in range(4)] == [b"1", b"2", b"3", None]
    assert admin.ask("POST", f"{queues}/a/redrive", {"target": "a"}).code == "invalid_queue_name"
    assert admin.ask("POST", f"{queues}/nosuch/move", {"target": "b"}).code == "queue_not_found"
    assert admin.ask("POST", f"{queues}/a/move", {"target": "a"}).status == 400


def test_others_are_served_during_a_long_move(server: ServerProcess) -> None:
    """Requests of others are answered before it ends."""
    with Client(server.address) as client:
        client.put_many("disk", [b"%d" % number for number in range(20_000)])
    with Wire(server) as slow, Wire(server) as quick:
        slow.send(b"move disk moved\r\n")
        seen = set()
        while True:
            left = int(stats(quick, "moved").get("items", "0"))
            seen.add(left)
            if left == 20_000:
                break
        slow.expect(b"MOVED 20000\r\n")
    assert len(seen) > 3


def test_killing_the_server_loses_nothing(server: ServerProcess) -> None:
    """Each item is in one queue, the other, or both; at most a slice is in both."""
    chance = random.Random(5)
    items = [b"%d" % number for number in range(COUNT)]
    with Client(server.address) as client:
        client.put_many("disk", items)
    names = ["disk", "other"]
    for _ in range(6):
        begun = Event()

        def move(source: str = names[0], target: str = names[1], begun: Event = begun) -> None:
            try:
                with Client(server.address) as client:
                    begun.set()
                    client.move(source, target)
            except ClientError:
                begun.set()

        mover = Thread(target=move)
        mover.start()
        begun.wait()
        with Wire(server) as wire:
            for _ in range(chance.randrange(8)):
                wire.ask_until(b"version\r\n", b"\r\n")
        server.kill9()
        mover.join()
        server.start()
        names.reverse()
    with Client(server.address) as client:
        found: Counter[bytes] = Counter()
        for name in names:
            while (item := client.get(name)) is not None:
                found[item] += 1
    assert set(found) == set(items)
    assert sum(found.values()) <= COUNT + 6 * 200
