"""A server that is stopped while clients of every kind use it."""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from threading import Semaphore, Thread
from typing import Final

from tests.support.server import ServerProcess, running_server

STOPS: Final = 3
"""How often the server is stopped: whatever is wrong may not happen each time."""
CLIENTS: Final = 12
"""How many clients put and get, and how many create and delete a queue."""
RESERVATION: Final = json.dumps({"wait_ms": 60_000, "tag": "t"}).encode()
WAITING: Final = (
    ("memcache", b"get none/t=60000\r\n"),
    ("memcache", b"monitor none 60 10\r\n"),
    ("text", b"get none/t=60000\r\n"),
    ("admin", b"GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    (
        "admin",
        b"POST /api/v1/queues/none/reserve HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
        % (len(RESERVATION), RESERVATION),
    ),
)
"""Requests that wait for what never comes, or get replies without an end."""


class RealServer(ServerProcess):
    """Shows what Python says of objects that are left over, as at the end of a program."""

    command = """
import gc
import sys
from kestrelmq.cli.main import main
try:
    main()
except SystemExit as end:
    status = end.code
gc.collect()
sys.exit(status)
"""


class LingeringServer(ServerProcess):
    """Has a task that uses the server when it is cancelled, and prints the answer."""

    command = """
import asyncio
import kestrelmq.cli.serve as module
from kestrelmq.cli.main import main
from kestrelmq.server.app import Server

class Lingering:
    name = "lingering"

    async def open(self, context):
        path = context.config.memcache_listen_path
        self.reader, self.writer = await asyncio.open_unix_connection(path)
        self.task = asyncio.create_task(self.linger())
        return ()

    async def linger(self):
        try:
            await asyncio.Event().wait()
        finally:
            self.writer.write(b"reload\\r\\n")
            try:
                print("answer:", await self.reader.readline(), flush=True)
            except ConnectionError:
                print("no answer", flush=True)

    async def close(self):
        pass

def server(*arguments, services, **others):
    return Server(*arguments, services=(*services, Lingering()), **others)

module.Server = server
main()
"""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[StreamReader, StreamWriter]]:
    """Return a connection, which the server may end at any time."""
    with suppress(ConnectionError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()
            await writer.wait_closed()


async def repeat(port: int, requests: bytes, end: bytes, served: Semaphore) -> None:
    """Send requests as fast as their last reply comes, until the server ends the connection."""
    async with connected(port) as (reader, writer):
        while True:
            writer.write(requests)
            await reader.readuntil(end)
            served.release()


async def wait(port: int, request: bytes) -> None:
    """Send a request, and read replies until the server ends the connection."""
    async with connected(port) as (reader, writer):
        writer.write(request)
        while await reader.read(65_536):
            pass


async def use(ports: dict[str, int], served: Semaphore) -> None:
    """Use the server until it is gone; count the requests that were served."""
    port = ports["memcache"]
    clients = [wait(ports[name], request) for name, request in WAITING]
    for number in range(CLIENTS):
        puts = b"set q%d 0 0 1\r\nx\r\nget q%d\r\n" % (number, number) * 50
        clients.append(repeat(port, puts + b"version\r\n", b"VERSION", served))
        # A thread works on each deletion, and a task waits for it.
        deletes = b"set d%d 0 0 1\r\nx\r\ndelete d%d\r\n" % (number, number)
        clients.append(repeat(port, deletes, b"DELETED\r\n", served))
    await asyncio.gather(*clients)


def test_a_stop_under_load_is_quiet(tmp_path: Path) -> None:
    """No thread reports to a loop that has ended, and no task is left over."""
    quiet = 'log_level = "warning"\n'
    for _ in range(STOPS):
        with running_server(tmp_path, config=quiet, kind=RealServer) as server:
            announced, served = server.output, Semaphore(0)
            clients = Thread(target=lambda: asyncio.run(use(server.ports, served)))  # noqa: B023
            clients.start()
            for _ in range(10 * CLIENTS):
                served.acquire()
            assert server.stop() == 0
            clients.join()
            assert server.output == announced


def test_no_client_is_served_while_tasks_are_cancelled(tmp_path: Path) -> None:
    """Its request could begin another task, which nobody would cancel."""
    config = f'memcache_listen_path = "{tmp_path / "socket"}"\n'
    with running_server(tmp_path, config=config, kind=LingeringServer) as server:
        assert server.stop() == 0
        assert "no answer\n" in server.output.splitlines(keepends=True)
