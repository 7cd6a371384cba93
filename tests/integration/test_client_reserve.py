"""Items that clients reserve, at real servers: leases, heartbeats, restarts."""
# ruff: noqa: PT012 # the whole block is what raises

import asyncio
import copy
import math
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from sys import executable

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions
from kestrelmq.errors import InvalidRequest, LeaseEnded, ServerRefused
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server

CONFIG = """
[queues.careful]
max_deliveries = 3
dead_letter_queue = "careful_dead"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    with running_server(tmp_path_factory.mktemp("server"), config=CONFIG) as process:
        yield process


def test_an_item_says_what_the_server_knows(client: Client, server: ServerProcess) -> None:
    """Its deliveries grow with each error; it is data like any other."""
    before = time.time() * 1000 - 1
    client.put("work", b"a", expiry=1000)
    for deliveries in (1, 2):
        with pytest.raises(KeyError), client.reserve("work") as item:
            assert item is not None
            assert (item, item.deliveries, item.server) == (b"a", deliveries, server.address)
            assert item.add_time is not None
            assert item.expiry is not None
            assert before <= item.add_time <= time.time() * 1000 < item.expiry
            assert type(copy.copy(item)) is type(pickle.loads(pickle.dumps(item))) is bytes  # noqa: S301
            raise KeyError
    with client.reserve("work") as item:
        assert item is not None
        assert item.deliveries == 3
    with client.reserve("work") as item:
        assert item is None


def test_an_item_is_released_as_asked(client: Client) -> None:
    """After a delay, without being counted, or as a dead letter."""
    client.put_many("careful", [b"a", b"b"])
    with client.reserve("careful") as item:
        assert item is not None
        item.release(delay=1)
        assert item.is_over
    with client.reserve("careful") as other:
        assert other == b"b"
    with client.reserve("careful", timeout=PATIENCE) as item:
        assert item is not None
        assert (item, item.deliveries) == (b"a", 2)
        item.release(counted=False)
    with client.reserve("careful") as item:
        assert item is not None
        assert item.deliveries == 2
        item.release(dead=True)
    assert client.get("careful") is None
    assert client.get("careful_dead") == b"a"


def test_a_client_shows_what_it_reserves(client: Client) -> None:
    """Among the connected clients, its connection has the reads."""
    client.put_many("work", [b"a", b"b"])
    with client.reserve("work"), client.reserve("work"):
        held = [one.open_reads for one in client.clients() if one.open_reads]
    assert held == [{"work": 1}, {"work": 1}]
    assert not any(one.open_reads for one in client.clients())


def test_many_items_are_reserved(client: Client, server: ServerProcess) -> None:
    """Of the first queues that have any; they are finished one by one, or many at once."""
    client.put_many("low", [b"%d" % n for n in range(400)])
    client.put("high", b"first")
    found = client.reserve_many(["high", "low"], 500, PATIENCE)
    assert found is not None
    assert len(found) == 401
    assert (found[0].queue, found[0].data, found[0].server) == ("high", b"first", server.address)
    assert [one.data for one in found[1:]] == [b"%d" % n for n in range(400)]
    assert client.finish("high", found[0]) == 1
    assert client.extend("low", PATIENCE, found[1:]) == 400
    assert client.release("low", found[1].read, delay=0) == 1
    assert client.release("low", found[2:4], counted=False) == 2
    assert client.finish("low", found[1:], server=server.address) == 397
    again = client.reserve_many("low", 500, PATIENCE, PATIENCE)
    assert again is not None
    assert [(one.data, one.deliveries) for one in again] == [(b"1", 1), (b"2", 1), (b"0", 2)]
    assert client.finish("low", again) == 3
    assert client.reserve_many("low", 1, 1, 0.05) == []


def test_a_tag_makes_a_step_that_is_repeated(client: Client) -> None:
    """The same items until they are finished, and then none."""
    client.put_many("work", [b"a", b"b", b"c"])
    first = client.reserve_many("work", 2, PATIENCE, tag="sink:7:0")
    assert client.reserve_many("work", 2, PATIENCE, PATIENCE, tag="sink:7:0") == first
    assert client.extend("work", PATIENCE, tag="sink:7:0") == 2
    assert [client.finish("work", tag="sink:7:0") for _ in range(2)] == [2, 2]
    assert client.reserve_many("work", 2, PATIENCE, tag="sink:7:0") is None
    assert client.reserve_many("work", 2, PATIENCE, tag="sink:8:0", owner="me") is not None
    assert client.extend_owner("me", PATIENCE) == 1
    assert client.release("work", owner="me") == 1
    assert client.retire("work", "sink", 8) == 1
    with pytest.raises(ServerRefused):
        client.reserve_many("work", 2, PATIENCE, tag="sink:8:1")


def test_how_much_is_reserved(client: Client, server: ServerProcess) -> None:
    """Without the data; and a tag that is not open takes nothing."""
    client.put_many("held", [b"a", b"bcd"])
    assert client.hold_many(["held", "other"], 9, 0, tag="h:1:0", owner="h", again=True) == []
    held = client.hold_many(["held", "other"], 9, 0, tag="h:1:0", owner="h")
    assert held is not None
    assert [(one.queue, one.count, one.bytes, one.server) for one in held] == [
        ("held", 2, 4, server.address)
    ]
    found = client.reserve_many("held", 9, 0, tag="h:1:0", owner="h", again=True)
    assert found is not None
    assert [(one.data, one.read.partition("-")[2]) for one in found] == [
        (b"a", held[0].nonce),
        (b"bcd", held[0].nonce),
    ]
    (owner,) = client.owners("h")
    assert (owner.reads, owner.queues, owner.tags, owner.server) == (2, 1, 1, server.address)
    assert client.release_owner("h", counted=False) == 2
    assert client.reserve_many("held", 9, 0, tag="h:1:0", again=True) == []
    assert client.finish("held", client.reserve_many("held", 9, 60)) == 2
    assert client.finish("held", tag="h:1:0") == 0


def test_what_cannot_be_reserved_is_refused(client: Client) -> None:
    """Before anything is sent."""
    for wrong in (
        lambda: client.reserve_many("a/b", 1, 1),
        lambda: client.reserve_many("work", 1, -1),
        lambda: client.reserve("work", lease=0).__enter__(),
        lambda: client.reserve_many("work", 1, 1, grace=math.inf),
        lambda: client.reserve("work", lease=math.nan).__enter__(),
        lambda: client.reserve("work", grace=-1).__enter__(),
        lambda: client.reserve_many("work", 1, 1, server="other:1"),
        lambda: client.reserve_many("work", 1, 1, owner="two words"),
        lambda: client.finish("work"),
        lambda: client.release("work", "7-ab", tag="a:1:b"),
        lambda: client.release("work", "7-ab", delay=-1),
    ):
        with pytest.raises(InvalidRequest):
            wrong()


def test_a_tag_needs_one_server(server: ServerProcess) -> None:
    """Of several, the one that has the tag must be asked each time."""
    with Client([server.address, "127.0.0.1:1"]) as both:
        with pytest.raises(InvalidRequest):
            both.reserve_many("work", 1, 60, tag="sink:7:0")
        found = both.reserve_many("work", 1, 60, tag="apart:7:0", server=server.address)
        assert found == []


def test_an_item_is_confirmed_early(client: Client) -> None:
    """What fails afterwards does not bring it back."""
    client.put("work", b"a")
    with pytest.raises(KeyError), client.reserve("work") as item:
        assert item is not None
        item.finish()
        raise KeyError
    assert client.get("work") is None


def test_there_is_no_dead_letter_queue(client: Client) -> None:
    """That is said, and the item goes back."""
    client.put("work", b"a")
    with pytest.raises(ServerRefused), client.reserve("work") as item:
        assert item is not None
        item.release(dead=True)
    assert client.get("work", timeout=PATIENCE) == b"a"


def test_a_lease_ends(client: Client) -> None:
    """Without heartbeats the item is delivered again, and the block says so."""
    client.put("work", b"a")
    with pytest.raises(LeaseEnded), client.reserve("work", lease=0.2, heartbeat=False) as item:
        assert item is not None
        assert client.get("work", timeout=PATIENCE) == b"a"
        assert not item.extend()


def test_a_lease_is_extended(client: Client) -> None:
    """By hand, it lasts as long as it is told."""
    client.put("work", b"a")
    with client.reserve("work", lease=0.5, heartbeat=None) as item:
        assert item is not None
        assert item.extend(PATIENCE)
        assert client.get("work", timeout=1.5) is None
    assert client.get("work") is None


def test_heartbeats_keep_an_item(client: Client) -> None:
    """Several blocks may be open, some of which have none."""
    client.put_many("work", [b"a", b"b", b"c"])
    with (
        client.reserve("work", lease=5, heartbeat=0.05) as first,
        client.reserve("work", lease=6) as second,
        client.reserve("work", lease=PATIENCE, heartbeat=False) as third,
    ):
        assert (first, second, third) == (b"a", b"b", b"c")
        assert client.get("work", timeout=7) is None
    assert client.get("work") is None


def test_a_dead_process_gives_its_item_back(client: Client, server: ServerProcess) -> None:
    """At once, as its connection ends; with a grace, after that."""
    client.put("work", b"a")
    for grace in (0, 0.5):
        code = (
            "import sys, time; from kestrelmq.client import Client\n"
            f"with Client({server.address!r}).reserve('work', {PATIENCE}, grace={grace}) as item:\n"
            "    print(item.deliveries, flush=True); time.sleep(1000)"
        )
        with Popen([executable, "-c", code], stdout=PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == (b"2" if grace else b"1")
            assert client.peek("work") is None
            os.kill(process.pid, signal.SIGKILL)
        assert client.peek("work", timeout=PATIENCE) == b"a"


@pytest.mark.parametrize("kills", [True, False])
def test_a_restarted_server_keeps_an_item(tmp_path: Path, *, kills: bool) -> None:
    """It is confirmed over another connection; an error gives it back over another one."""
    options = ClientOptions(restart_patience=PATIENCE)
    with running_server(tmp_path) as server, Client(server.address, options=options) as client:
        client.put_many("work", [b"a", b"b"])

        def restart() -> None:
            if kills:
                server.kill9()
            else:
                server.stop()
            server.restart()

        with client.reserve("work") as item:
            assert item == b"a"
            restart()
            assert client.peek("work") == b"b"
        with pytest.raises(KeyError), client.reserve("work") as item:
            assert item == b"b"
            restart()
            assert client.peek("work") is None
            raise KeyError
        with client.reserve("work") as item:
            assert item is not None
            assert (item, item.deliveries) == (b"b", 2)


async def test_tasks_hold_items(server: ServerProcess) -> None:
    """The asyncio client does the same; a cancelled task gives its item back."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        await client.put_many("work", [b"a", b"b"])
        async with client.reserve("work", lease=0.5, heartbeat=0.05) as item:
            assert item is not None
            assert (item, item.deliveries) == (b"a", 1)
            await asyncio.sleep(1)
            assert await item.extend()
        held = asyncio.Event()

        async def work() -> None:
            async with client.reserve("work") as item:
                assert item == b"b"
                held.set()
                await asyncio.sleep(1000)

        task = asyncio.create_task(work())
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        async with client.reserve("work", timeout=PATIENCE) as item:
            assert item is not None
            await item.release(delay=0.1)
        with pytest.raises(LeaseEnded):
            async with client.reserve("work", PATIENCE, lease=0.1, heartbeat=False) as item:
                assert item is not None
                assert item.deliveries == 3
                assert await client.get("work", timeout=PATIENCE) == b"b"
        async with client.reserve("work") as item:
            assert item is None


async def test_a_task_cancelled_while_it_waits_takes_nothing(server: ServerProcess) -> None:
    """Its connection is closed, and with it ends whatever it was sent."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()

        async def work() -> None:
            async with client.reserve("work", PATIENCE):
                raise AssertionError("there was nothing")

        task = asyncio.create_task(work())
        with Client(server.address) as other:
            await asyncio.to_thread(
                until, lambda: any(queue.number("waiters") for queue in other.queues())
            )
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await client.put("work", b"a")
        assert await client.get("work", timeout=PATIENCE) == b"a"


@pytest.mark.parametrize("name", ["a,b", "%2C", "a%25,%2Cb", "100%", "%2c,"])
def test_a_queue_with_a_comma_in_its_name_is_one_queue(client: Client, name: str) -> None:
    """Though a request for several queues lists them with commas."""
    before = {queue.name for queue in client.queues()}
    client.put(name, b"1")
    client.put(name, b"2")
    with client.reserve(name) as item:
        assert item == b"1"
    assert client.reserve_many([name, "other"], 5, 30, server=None) != []
    assert {queue.name for queue in client.queues()} - before <= {name, "other"}
