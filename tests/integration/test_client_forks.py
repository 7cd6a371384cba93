"""Clients in a process that is forked from one that uses them: it has copies of their sockets."""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from kestrelmq.client import AsyncClient, Client
from tests.support.forks import in_a_fork
from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module that do not harm it."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


@pytest.fixture
def other(server: ServerProcess) -> Iterator[Client]:
    """Return the client of another user, who would get what is given back."""
    with Client(server.address) as client:
        yield client


def connections(client: Client) -> set[int]:
    """Return the numbers of the connections that the server has."""
    return {one.id for one in client.clients()}


def at_once(work: Coroutine[Any, Any, object]) -> object:
    """Run what never waits, as in a fork there is no event loop for it; return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def test_a_fork_that_closes_a_client_interrupts_no_thread_of_its_parent(
    client: Client, other: Client
) -> None:
    """A thread that waits for an item keeps its connection."""
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(client.get, "work", PATIENCE)
        until(lambda: sum(queue.number("waiters") for queue in other.queues()) == 1)
        before = connections(other)
        assert in_a_fork(client.close) == "None"
        other.put("work", b"x")
        assert waiting.result(PATIENCE) == b"x"
    assert connections(other) == before


def test_a_fork_begins_anew_with_connections_of_its_own(client: Client, other: Client) -> None:
    """Nobody else reads its replies; the connections of its parent stay as they are."""
    client.put("work", b"x")
    before = connections(other)
    assert in_a_fork(lambda: client.get("work")) == "b'x'"
    assert in_a_fork(lambda: connections(client) & before == before) == "True"
    with client._begun.get().pool._lock:  # as another thread might when the process is forked
        assert in_a_fork(lambda: client.get("work")) == "None"
    assert client.put("work", b"y")
    assert connections(other) == before
    client.close()
    assert in_a_fork(lambda: client.get("work")) == "ClientClosed"


@pytest.mark.parametrize("error", [None, KeyError()])
def test_a_fork_that_leaves_a_block_ends_no_read_of_its_parent(
    client: Client, other: Client, error: Exception | None
) -> None:
    """The item is neither confirmed nor given back, and cannot be by the fork."""
    client.put_many("work", [b"a", b"b", b"c"])
    kind = None if error is None else type(error)
    reserving = client.reserve("work")
    collecting = client.monitor("work", 1, 1)
    consumer = client.consume("work")
    with reserving as item, collecting as items:
        assert item is not None
        assert (item, items, next(consumer)) == (b"a", [b"b"], b"c")
        for block in (reserving, collecting):
            assert in_a_fork(lambda block=block: block.__exit__(kind, error, None)) == "False"  # type: ignore[misc]
        assert in_a_fork(consumer.close) == "None"
        for use in (item.finish, item.release, item.extend, lambda: next(consumer)):
            assert in_a_fork(use) == "InvalidRequest"
        assert item.extend()
        assert other.get("work") is None
        consumer.close()
        assert other.get("work", PATIENCE) == b"c"
    assert other.get("work") is None


def test_a_fork_leaves_a_block_while_a_thread_of_its_parent_extends_leases(client: Client) -> None:
    """That thread may hold a lock when the process is forked, and the fork has no such thread."""
    client.put("work", b"a")
    block = client.reserve("work")
    with block as item:
        assert item is not None
        with client._begun.get().heartbeats[item.server]._changed:
            assert in_a_fork(lambda: block.__exit__(None, None, None)) == "False"


async def test_a_fork_leaves_the_blocks_of_an_asyncio_client(
    server: ServerProcess, other: Client
) -> None:
    """It ends no read of its parent, whose event loop goes on to get the replies."""
    other.flush_all()
    async with AsyncClient(server.address) as client:
        await client.put_many("work", [b"a", b"b"])
        reserving = client.reserve("work")
        async with reserving as item:
            assert item is not None
            before = await asyncio.to_thread(connections, other)
            assert in_a_fork(lambda: at_once(reserving.__aexit__(None, None, None))) == "False"
            assert in_a_fork(lambda: at_once(client.close())) == "None"
            assert in_a_fork(lambda: asyncio.run(client.get("work"))) == "b'b'"
            for use in (item.finish, item.release, item.extend):
                assert in_a_fork(lambda use=use: asyncio.run(use())) == "InvalidRequest"  # type: ignore[misc]
            assert await item.extend()
            assert await client.get("work") is None
        assert await client.get("work") is None
        assert before <= await asyncio.to_thread(connections, other)
