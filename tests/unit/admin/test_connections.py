"""What a connection of the admin listener knows of its client."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from aiohttp import web

from kestrelmq.admin.connections import Connections, HttpConnection
from kestrelmq.config import ServerConfig
from kestrelmq.queues.counters import Counters
from kestrelmq.server.admission import Admission
from kestrelmq.server.loop.turns import HANDSHAKE_SHARE
from tests.support.patience import PATIENCE

BYTES = 50_000
"""Less than aiohttp waits for, and more than the socket takes."""
Handler = Callable[[HttpConnection, web.BaseRequest], Awaitable[None]]


@contextlib.asynccontextmanager
async def asked(path: Path, handle: Handler) -> AsyncIterator[socket.socket]:
    """Yield a client's end of a connection, on which a request was sent that `handle` serves."""

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request.protocol, HttpConnection)
        assert request.transport is not None
        request.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 4096
        )
        await handle(request.protocol, request)
        return web.Response()

    server, connections = web.Server(serve), Connections(Admission(ServerConfig(), Counters()))
    listening = await asyncio.get_running_loop().create_unix_server(
        lambda: HttpConnection(connections, server), path / "admin.sock"
    )
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path / "admin.sock"))
        client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.setblocking(False)
        yield client
    listening.close()
    await server.shutdown(0)


async def write(request: web.BaseRequest) -> None:
    """Write a reply."""
    response = web.StreamResponse()
    response.content_length = BYTES
    await response.prepare(request)
    await response.write(bytes(BYTES))
    await response.write_eof()


async def test_all_is_sent_once_the_socket_has_taken_it(tmp_path: Path) -> None:
    """Not before the client has read, and not if it goes instead."""
    loop = asyncio.get_running_loop()
    for reads in (True, False):
        waiting, ended = loop.create_future(), loop.create_future()

        async def handle(
            connection: HttpConnection,
            request: web.BaseRequest,
            waiting: asyncio.Future[None] = waiting,
            ended: asyncio.Future[bool] = ended,
        ) -> None:
            await write(request)
            assert request.transport is not None
            assert request.transport.get_write_buffer_size() > 0
            waiting.set_result(None)
            try:
                await connection.all_sent(request)
            except ConnectionError:
                ended.set_result(False)
            else:
                ended.set_result(True)

        path = tmp_path / str(reads)
        path.mkdir()
        async with asyncio.timeout(PATIENCE), asked(path, handle) as client:
            await waiting
            await asyncio.sleep(0)
            assert not ended.done()
            while reads and not ended.done():
                await loop.sock_recv(client, 1024)
            client.close()
            assert await ended is reads


async def test_what_the_socket_refuses_is_not_sent(tmp_path: Path) -> None:
    """The client is gone, and the server learns of it only by the write."""
    ended = asyncio.get_running_loop().create_future()

    async def handle(connection: HttpConnection, request: web.BaseRequest) -> None:
        client.close()
        try:
            assert request.transport is not None
            request.transport.write(bytes(BYTES))
            assert request.transport.get_write_buffer_size() == 0
            with pytest.raises(ConnectionError):
                await connection.all_sent(request)
        except BaseException as error:
            ended.set_exception(error)
            raise
        ended.set_result(None)

    async with asyncio.timeout(PATIENCE), asked(tmp_path, handle) as client:
        await ended


async def test_a_wait_of_one_that_is_gone_does_not_begin(tmp_path: Path) -> None:
    """And one that has begun is ended when the client goes."""
    loop = asyncio.get_running_loop()
    waiting, lost, ended = loop.create_future(), loop.create_future(), loop.create_future()

    async def handle(connection: HttpConnection, _request: web.BaseRequest) -> None:
        with connection.waiting(lambda: lost.set_result(None), _nothing):
            waiting.set_result(None)
            await lost
        with pytest.raises(ConnectionError), connection.waiting(_nothing, _nothing):
            pass
        ended.set_result(None)

    async with asyncio.timeout(PATIENCE), asked(tmp_path, handle) as client:
        await waiting
        client.close()
        await ended


def _nothing() -> None:
    """Do nothing."""


async def test_handshakes_share_an_iteration_of_the_loop() -> None:
    """Clients of the queues are served in between, however many say hello at once."""
    connections = Connections(Admission(ServerConfig(), Counters()))
    taken: list[int] = []

    def step(number: int) -> None:
        time.sleep(HANDSHAKE_SHARE)
        taken.append(number)

    for number in range(5):
        connections.defer(partial(step, number))
    while len(taken) < 5:
        before = len(taken)
        await asyncio.sleep(0)
        assert len(taken) <= before + 1
    assert taken == list(range(5))
