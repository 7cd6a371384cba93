"""Requests that wait for an item when the server becomes quiescent."""

import asyncio
from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.protocol.reserving import Reserve
from kestrelmq.server.requests.reserving import AwaitedRequest
from kestrelmq.server.status import Status
from tests.support.open_reads import open_read
from tests.support.turning import Turning
from tests.unit.server.test_closed_connections import thrift_get
from tests.unit.server.test_half_closed import NO_ITEMS

pytestmark = pytest.mark.compiled

WAITING = {
    "get": ("memcache", b"get work/t=60000\r\n", b"END\r\n"),
    "get of an alias": ("memcache", b"get alias/t=60000\r\n", b"END\r\n"),
    "get of several": ("memcache", b"get held work/t=60000 work\r\n", b"no queue\r\n"),
    "reserve": ("memcache", b"reserve work,other 9 lease=9999 t=60000\r\n", b"END\r\n"),
    "text get": ("text", b"get work 60000\n", b"*\n"),
    "text monitor": ("text", b"monitor work 60000\n", b"*\n"),
    "thrift get": ("thrift", thrift_get(b"work", 9, 60_000), NO_ITEMS),
}
"""For each request: its protocol, and how its answer ends."""


@pytest.mark.parametrize("kind", WAITING)
def test_a_wait_ends_and_takes_nothing(tmp_path: Path, kind: str) -> None:
    """It is answered as when its time is up; what comes back to a queue later stays there."""
    protocol, request, end = WAITING[kind]
    config = ServerConfig(
        queue_path=tmp_path, aliases={"alias": {"destination_queues": ["elsewhere"]}}
    )

    async def scenario() -> None:
        work, held = turning.collection.obtain("work"), turning.collection.obtain("held")
        work.add(b"x")
        held.add(b"y")
        opened = open_read(work)
        assert opened is not None
        client = turning.connect(protocol)
        await turning.send(client, request)
        connection = turning.connections[client.fileno()]
        await turning.until(lambda: connection.state == "waiting")
        turning.context.status.set(Status.QUIESCENT)
        await turning.receive(client, end)
        work.returns.give_back([opened[0]])
        await turning.turn()
        for queue in (work, held):
            assert (len(queue), queue.reads.held, queue.waiters.readers) == (1, 0, 0)
        client.close()

    with Turning(tmp_path, config) as turning:
        turning.run(scenario())


def test_a_monitor_ends_and_its_reads_can_be_confirmed(tmp_path: Path) -> None:
    """They were opened before, so confirming them is allowed; another read is not."""

    async def scenario() -> None:
        queue = turning.collection.obtain("work")
        queue.add(b"x")
        client = turning.connect("memcache")
        await turning.send(client, b"monitor work 60\r\n")
        await turning.receive(client, b"x\r\nEND\r\n")
        turning.context.status.set(Status.QUIESCENT)
        await turning.receive(client, b"END\r\n")
        await turning.send(client, b"confirm work 1\r\n")
        await turning.receive(client, b"END\r\n")
        assert (len(queue), queue.reads.held) == (0, 0)
        await turning.send(client, b"get work/t=60000\r\n")
        assert b"quiescent" in await turning.receive(client, b"\r\n")
        client.close()

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_a_reserve_of_a_task_ends(tmp_path: Path) -> None:
    """As those over HTTP do."""

    async def scenario() -> None:
        awaited = AwaitedRequest(turning.context)
        waiting = asyncio.create_task(awaited.reserve(Reserve(("work",), 1, 9999, 60_000)))
        await turning.until(lambda: bool(turning.context.waiting))
        turning.context.status.set(Status.QUIESCENT)
        assert await waiting == []

    with Turning(tmp_path) as turning:
        turning.run(scenario())


def test_other_statuses_end_no_wait(tmp_path: Path) -> None:
    """A read-only server serves readers; one that is up again lets those wait who ask then."""

    async def scenario() -> None:
        client = turning.connect("memcache")
        status = turning.context.status
        status.set(Status.QUIESCENT)
        for new in (Status.UP, Status.READ_ONLY, Status.WRITE_AVOID):
            status.set(new)
            await turning.send(client, b"get work/t=60000\r\n")
            await turning.turn()
            turning.collection.obtain("work").add(b"x")
            await turning.receive(client, b"x\r\nEND\r\n")
        assert not turning.context.waiting
        client.close()

    with Turning(tmp_path) as turning:
        turning.run(scenario())
