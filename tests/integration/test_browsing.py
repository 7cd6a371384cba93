"""Browsing and searching queues of a real server, by every way there is."""

import asyncio
import base64
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from urllib.parse import quote

import pytest

from kestrelmq.client import AsyncClient, Client
from kestrelmq.errors import InvalidRequest, ServerRefused
from kestrelmq.queues.searching import MAX_SECONDS
from kestrelmq.server.browsing import MAX_SEARCHES
from tests.admin.conftest import Admin
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, stats, value

pytestmark = pytest.mark.compiled_only

CONFIG = '[queues.disk]\nmax_memory_size = "1 KiB"\n'
COUNT = 3000


@pytest.fixture(name="server", scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a queue in memory and one of which most is on disk, with the same items."""
    with running_server(tmp_path_factory.mktemp("browse"), config=CONFIG) as server:
        with Client(server.address) as client:
            for queue in ("memory", "disk"):
                client.put_many(queue, [b"item %d!" % number for number in range(COUNT)])
        yield server


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_items_are_shown_from_an_offset_and_stay(server: ServerProcess, queue: str) -> None:
    """In pages; the answer says where to go on."""
    with Wire(server) as wire:
        before = stats(wire, queue)["items"]
        reply = wire.ask_until(b"browse %b 2000 2\r\n" % queue.encode(), b"END\r\n")
        first, data, *rest = reply.split(b"\r\n")
        assert first.split()[:2] == [b"ITEM", b"2000"]
        assert (first.split()[3:], data) == ([b"0", b"10"], b"item 2000!")
        assert rest[-3:] == [b"NEXT 2002", b"END", b""]
        end = wire.ask_until(b"browse %b %d 5\r\n" % (queue.encode(), COUNT), b"END\r\n")
        assert [line.split()[:1] for line in end.splitlines()] == [[b"PLACE"], [b"END"]]
        assert stats(wire, queue)["items"] == before
        wire.ask(b"get %b/peek\r\n" % queue.encode(), value(queue, "item 0!") + b"END\r\n")


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_a_place_stays_whatever_is_read_and_added(tmp_path: Path, queue: str) -> None:
    """Each item that stays is seen once; after a restart there are other places."""
    with running_server(tmp_path, config=CONFIG) as server, Client(server.address) as client:
        client.put_many(queue, [b"%d" % number for number in range(100)])
        found: list[bytes] = []
        page = next(iter(client.browse(queue, count=0).values()))
        while True:
            page = client.browse(queue, count=7, place=page.place)[server.address]
            found += [item.data for item in page.items]
            if page.next_offset is None:
                break
            assert client.get(queue) is not None
            with pytest.raises(ValueError), client.reserve(queue):  # noqa: PT011
                raise ValueError
            client.put(queue, b"late")
        begun = found.index(b"99") + 1
        assert found[:begun] == [b"%d" % number for number in range(100)]
        assert set(found[begun:]) == {b"late"}
        assert len(found) == 100 + (len(found) - begun)
        admin = Admin(server)
        items = f"/api/v1/queues/{queue}/items"
        shown = admin.get(f"{items}?limit=3&offset=2").json
        client.get(queue)
        (item,) = admin.get(f"{items}?limit=1&place={shown['place']}").json["items"]
        assert (
            base64.b64decode(item["data"])
            == client.browse(queue, 4, 1)[server.address].items[0].data
        )
        client.put_many(queue, [b"x", b"yy x"])
        text = client.browse(queue, text="x", count=1, place=page.place)[server.address]
        assert [one.data for one in text.items] == [b"x"]
        server.restart()
        with pytest.raises(ServerRefused, match="is not a place in queue"):
            client.browse(queue, place=page.place)
        reply = admin.get(f"{items}?place={shown['place']}")
        assert (reply.status, reply.code) == (409, "place_refused")


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_texts_and_patterns_are_found(server: ServerProcess, queue: str) -> None:
    """By both clients, with what is special in a line or an expression."""
    with Client(server.address) as client:
        (page,) = client.browse(queue, 10, 3, text="99!").values()
        assert [(item.place, item.data) for item in page.items] == [
            (99, b"item 99!"),
            (199, b"item 199!"),
            (299, b"item 299!"),
        ]
        assert page.next_offset == 399
        (page,) = client.browse(queue, count=9, pattern=r"^item (\d)\1\1\1?!$").values()
        assert [item.place for item in page.items] == [111 * n for n in range(1, 10)]
        (page,) = client.browse(queue, text=" \r\n%").values()
        assert (page.items, page.next_offset) == ([], None)
        for text, pattern in (("a", "a"), ("", None), ("x" * 1001, None)):
            with pytest.raises(InvalidRequest):
                client.browse(queue, text=text, pattern=pattern)
        with pytest.raises(ServerRefused, match="no regular expression"):
            client.browse(queue, pattern="(")
        assert client.browse("nosuch") == {}

    async def last() -> list[bytes]:
        async with AsyncClient(server.address) as client:
            (page,) = (await client.browse(queue, COUNT - 1)).values()
            return [item.data for item in page.items]

    assert asyncio.run(last()) == [b"item %d!" % (COUNT - 1)]


def test_an_endless_pattern_is_stopped_and_holds_up_nobody(server: ServerProcess) -> None:
    """Others are served while it runs; then its client gets an error."""
    with Client(server.address) as client:
        client.put("evil", b"a" * 40 + b"b")
    ended = Event()
    told: list[bytes] = []

    def search() -> None:
        with Wire(server) as wire:
            wire.socket.settimeout(MAX_SECONDS * 20)
            told.append(wire.ask_until(b"browse evil 0 1 pattern=(a%2B)%2B%24\r\n", b"\r\n"))
        ended.set()

    searching = Thread(target=search)
    searching.start()
    served = 0
    with Wire(server) as wire:
        while not ended.is_set():
            put(wire, "other", "x")
            wire.ask(b"get other\r\n", value("other", "x") + b"END\r\n")
            served += 1
    searching.join()
    assert told == [b"CLIENT_ERROR the regular expression took longer than 5 s\r\n"]
    assert served > 100


def test_a_search_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    """Nobody is left to end it when its time is over."""
    with running_server(tmp_path) as server, Wire(server) as wire:
        put(wire, "evil", "a" * 40 + "b")
        wire.send(b"browse evil 0 1 pattern=(a%2B)%2B%24\r\n")
        until(lambda: bool(_children(server)))
        (search,) = _children(server)
        server.kill9()
    until(lambda: not _runs(search))


class Endless(ServerProcess):
    """A server whose regular expressions never end by themselves."""

    command = (
        "from kestrelmq.queues import searching\n"
        "searching._PROGRAM = 'import time; time.sleep(1000)'\n"
        "searching.MAX_SECONDS = 1000\n"
        "from kestrelmq.cli.main import main\n"
        "main()"
    )


def test_searches_are_bounded_and_end_with_their_clients(tmp_path: Path) -> None:
    """One is served and some wait, the next is refused; none goes on when nobody wants it."""
    search, path = b"browse jobs 0 1 pattern=x\r\n", "/api/v1/queues/jobs/items?pattern=x"
    with running_server(tmp_path, kind=Endless) as server:
        admin = Admin(server)
        with Wire(server) as wire:
            put(wire, "jobs", "a")
        with ExitStack() as stack:
            wires = [stack.enter_context(Wire(server)) for _ in range(MAX_SEARCHES + 2)]
            for wire in wires:
                wire.send(search)
            (answered,), _, _ = select.select([wire.socket for wire in wires], [], [], PATIENCE)
            assert answered.recv(99) == b"SERVER_ERROR too many searches; try again later\r\n"
            assert (admin.get(path).status, admin.get(path).code) == (503, "too_many_searches")
            assert len(_children(server)) == 1
            assert admin.get(path.partition("?")[0]).json["total"] == 1
        until(lambda: not _children(server))
        with socket.create_connection(("127.0.0.1", admin.port), PATIENCE) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            until(lambda: len(_children(server)) == 1)
        until(lambda: not _children(server))
        with Wire(server) as wire:
            wire.send(search)
            until(lambda: len(_children(server)) == 1)
            wire.socket.shutdown(socket.SHUT_WR)
            wire.expect_close()
        until(lambda: not _children(server))
        with Wire(server) as wire:
            wire.send(search + b"get jobs\r\n")
            until(lambda: len(_children(server)) == 1)
        assert server.stop() == 0
        assert "Traceback" not in server.output


def _children(server: ServerProcess) -> list[Path]:
    threads = Path(f"/proc/{server.process.pid}/task").iterdir()
    children = [child for one in threads for child in (one / "children").read_text().split()]
    return [Path("/proc", child) for child in children]


def _runs(process: Path) -> bool:
    """Whether it is there and has not ended; one that has ended has no command line."""
    try:
        return bool((process / "cmdline").read_bytes())
    except OSError:
        return False


def test_what_cannot_be_browsed_is_told(server: ServerProcess) -> None:
    """No queue is created."""
    with Wire(server) as wire:
        wire.ask(b"browse nosuch 0 1\r\n", b"NOT_FOUND\r\n")
        for words in (b"", b"memory", b"memory 0", b"memory 0 -1", b"memory 0 1 x=y", b"a/b 0 1"):
            reply = wire.ask_until(b"browse " + words + b"\r\n", b"\r\n")
            assert reply.startswith(b"CLIENT_ERROR "), reply
        wire.ask(b"version\r\n", b"VERSION ")


@pytest.mark.parametrize("queue", ["memory", "disk"])
def test_the_api_browses_and_searches(server: ServerProcess, queue: str) -> None:
    """With `next_offset` to go on from."""
    admin = Admin(server)
    items = f"/api/v1/queues/{queue}/items"

    def places(query: str) -> tuple[list[int], int | None]:
        answer = admin.get(f"{items}?{query}").json
        for item in answer["items"]:
            assert base64.b64decode(item["data"]) == b"item %d!" % item["position"]
        return [item["position"] for item in answer["items"]], answer["next_offset"]

    assert places("offset=1500&limit=2") == ([1500, 1501], 1502)
    assert places(f"offset={COUNT - 1}") == ([COUNT - 1], None)
    assert places("text=123") == ([123, 1123, *range(1230, 1240), 2123], None)
    assert places(f"limit=1&offset=7&pattern={quote('7!$')}") == ([7], 17)
    assert admin.get(f"{items}?pattern=(").code == "invalid_pattern"
    assert admin.get(f"{items}?pattern=a&text=a").code == "invalid_query"
    assert admin.get(f"{items}?offset=-1").code == "invalid_query"


def test_large_items_make_short_pages(server: ServerProcess) -> None:
    """A page has about 1 MiB, and all of each item."""
    with Client(server.address) as client:
        large = [bytes([number]) * 700_000 for number in range(4)]
        client.put_many("large", large)
        (page,) = client.browse("large").values()
        assert [item.data for item in page.items] == large[:2]
        assert page.next_offset == 2
    answer = Admin(server).get("/api/v1/queues/large/items?max_bytes=10").json
    assert [item["size"] for item in answer["items"]] == [700_000] * 4


def test_a_queue_that_is_used_is_browsed(tmp_path: Path) -> None:
    """While its files are rotated and replaced, every page has items in the order of their adds."""
    config = '[default]\nmax_memory_size = "4 KiB"\nmax_journal_size = "40 KiB"\n'
    config += 'default_journal_size = "8 KiB"\nmin_journal_compact_delay = 0\n'
    with running_server(tmp_path, config=config) as server:
        done = Event()

        def use() -> None:
            number = 0
            with Client(server.address) as client:
                while not done.is_set():
                    client.put_many("work", [b"%d" % (number + n) for n in range(300)])
                    number += 300
                    if number > 3000:
                        for _ in range(300):
                            client.get("work")

        user = Thread(target=use)
        user.start()
        pages = refused = 0
        try:
            with Client(server.address) as client:
                while pages < 200:
                    try:
                        found = client.browse("work", 500, 50)
                    except ServerRefused as error:
                        assert "being rewritten" in str(error)  # noqa: PT017
                        refused += 1
                        continue
                    for page in found.values():
                        numbers = [int(item.data) for item in page.items]
                        first = numbers[0] if numbers else 0
                        assert numbers == list(range(first, first + len(numbers)))
                    pages += 1
        finally:
            done.set()
            user.join()
        assert refused < pages
