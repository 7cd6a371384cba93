"""The asyncio client against a real server."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from kestrelmq.client import AsyncClient, ClientOptions
from kestrelmq.errors import ClientClosed, ServerUnavailable
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


async def waiters(client: AsyncClient, count: int) -> None:
    """Wait until the server says that so many readers wait."""
    while sum(queue.number("waiters") for queue in await client.queues()) != count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_the_asyncio_client_does_the_same(server: ServerProcess) -> None:
    """Every operation of AsyncClient works on a real server."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        assert await client.put("work", b"1")
        assert await client.put_many("work", [b"2", b"3", b""]) == [True] * 3
        assert await client.peek("work") == b"1"
        assert await client.get("work") == b"1"
        with pytest.raises(KeyError):
            async with client.reserve("work") as item:
                raise KeyError(item)
        async with client.reserve("work") as item:
            assert item == b"2"
        assert [item async for item in client.consume("work", idle_timeout=0)] == [b"3", b""]
        await client.put_many("work", [b"4", b"5"])
        async with client.monitor("work", 5, 2) as items:
            assert items == [b"4", b"5"]
        assert await client.get("work", timeout=0.05) is None
        assert {queue.name for queue in await client.queues()} >= {"work"}
        assert (await client.stats())[server.address]["version"] == (await client.version())[
            server.address
        ]
        assert (await client.status())[server.address].upper() == "UP"
        await client.reload()
        await client.flush("work")
        await client.delete("work")


async def test_a_cancelled_read_loses_nothing(server: ServerProcess) -> None:
    """A task that is cancelled while it waits, or holds an item, gives the item back."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()

        async def hold() -> None:
            async with client.reserve("work", timeout=PATIENCE):
                holding.set()
                await asyncio.sleep(30)

        holding = asyncio.Event()
        waiting = asyncio.create_task(client.get("work", timeout=PATIENCE))
        await waiters(client, 1)
        waiting.cancel()
        await waiters(client, 0)
        await client.put("work", b"x")
        holder = asyncio.create_task(hold())
        await holding.wait()
        holder.cancel()
        with pytest.raises(asyncio.CancelledError):
            await holder
        assert await client.get("work", timeout=PATIENCE) == b"x"


async def test_an_asyncio_consumer_that_is_closed_gives_its_item_back(
    server: ServerProcess,
) -> None:
    """With aclosing, an early end returns the item at once."""
    async with AsyncClient(server.address) as client:
        await client.flush_all()
        await client.put_many("work", [b"1", b"2"])
        async with aclosing(client.consume("work")) as items:
            async for item in items:
                assert item == b"1"
                break
        assert await client.get("work") == b"1"


async def test_a_client_that_is_closed_gives_back_what_it_holds(server: ServerProcess) -> None:
    """At once, though the block goes on; its own error is not replaced by another one."""
    async with AsyncClient(server.address) as other:
        await other.flush_all()
        await other.put("work", b"x")
        closed = AsyncClient(server.address)
        waiting = asyncio.create_task(closed.get("empty", timeout=10_000))
        await waiters(other, 1)

        async def hold() -> None:
            async with closed.reserve("work", lease=10_000):
                await closed.close()
                assert await other.get("work", timeout=PATIENCE) == b"x"
                raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"):
            await hold()
        with pytest.raises(ClientClosed):
            await waiting


async def test_a_server_that_is_not_there_is_named_as_by_the_blocking_client() -> None:
    """With the reason, in the words of the operating system."""
    options = ClientOptions(restart_patience=0)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    for at, why in (
        (address, "connection refused"),
        ("unix:/nowhere", "no such file or directory"),
    ):
        async with AsyncClient(at, options=options) as client:
            with pytest.raises(ServerUnavailable) as caught:
                await client.put("work", b"x")
        assert str(caught.value) == f"{at}: {why}"


async def test_a_long_listing_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time counts anew from each part that comes."""
    later = asyncio.Event()
    reschedule = asyncio.Timeout.reschedule

    def spy(limit: asyncio.Timeout, when: float | None) -> None:
        reschedule(limit, when)
        later.set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        later.clear()  # a time-out that begins is scheduled, too
        writer.write(b"STAT uptime 1\r\n")
        await later.wait()
        writer.write(b"STAT version 1.0\r\nEND\r\n")
        await reader.read()
        writer.close()

    monkeypatch.setattr(asyncio.Timeout, "reschedule", spy)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        async with AsyncClient(f"127.0.0.1:{port}") as client:
            async with asyncio.timeout(PATIENCE):
                found = await client.stats()
    assert found == {f"127.0.0.1:{port}": {"uptime": "1", "version": "1.0"}}
