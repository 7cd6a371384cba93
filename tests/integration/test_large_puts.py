"""Items of text and thrift puts so large that a thread writes them, on a real server."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import thriftpy2
from thriftpy2 import protocol, transport
from thriftpy2.thrift import TApplicationException, TClient

from kestrelmq.client import Client
from kestrelmq.protocol import thrift
from kestrelmq.scheduling.worker import LARGE_ITEM
from tests.support.limits import largest_file
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only

# The library has types for some of this, and none for the rest.
PROTOCOL: Any = protocol
TRANSPORT: Any = transport
IDL: Any = thriftpy2.load(
    str(Path(thrift.__file__).with_name("kestrel.thrift")), module_name="large_kestrel_thrift"
)
CONFIG: Final = """
[queues.small]
max_items = 2
"""
LARGE: Final = b"x" * (LARGE_ITEM + 77)
ALMOST: Final = b"y" * (LARGE_ITEM * 3 // 4)
"""As large as an item may be that the loop writes itself."""


class ThriftPuts:
    """A thrift client."""

    def __init__(self, server: ServerProcess) -> None:
        connection = TRANSPORT.TSocket(
            "127.0.0.1", server.ports["thrift"], socket_timeout=PATIENCE * 1000
        )
        framed = TRANSPORT.TFramedTransport(connection)
        framed.open()
        self._client: Any = TClient(IDL.Kestrel, PROTOCOL.TBinaryProtocol(framed))

    def put(self, queue: str, *items: bytes) -> int | str:
        """Return how many were accepted, or the error."""
        try:
            count: int = self._client.put(queue, list(items))
        except TApplicationException as error:
            return str(error.message)
        return count

    def close(self) -> None:
        """Hang up."""
        self._client.close()


class TextPuts:
    """A client of the text protocol."""

    def __init__(self, server: ServerProcess) -> None:
        self._socket = socket.create_connection(
            ("127.0.0.1", server.ports["text"]), timeout=PATIENCE
        )
        self._lines = self._socket.makefile("rb")

    def put(self, queue: str, *items: bytes) -> int | str:
        """Return how many were accepted, or the error."""
        self._socket.sendall(b"\n".join([b"put %b:" % queue.encode(), *items, b"\n"]))
        reply = self._lines.readline().decode()
        return int(reply[1:]) if reply.startswith("+") else reply[1:].strip()

    def close(self) -> None:
        """Hang up."""
        self._lines.close()
        self._socket.close()


Puts = TextPuts | ThriftPuts
PROTOCOLS: Final[dict[str, type[TextPuts] | type[ThriftPuts]]] = {
    "text": TextPuts,
    "thrift": ThriftPuts,
}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Return a server."""
    with running_server(tmp_path, config=CONFIG) as running:
        yield running


@pytest.fixture(params=PROTOCOLS)
def puts(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Puts]:
    """Return a client of each protocol in turn; the queue `jobs` is there."""
    client = PROTOCOLS[request.param](server)
    assert client.put("jobs", b"first") == 1
    yield client
    client.close()


def contents(server: ServerProcess, queue: str) -> list[bytes]:
    """Take all items of a queue."""
    with Client(server.address) as client:
        return list(iter(lambda: client.get(queue), None))


def begun_files(server: ServerProcess) -> list[str]:
    """Return the names of files that are part of no journal."""
    return [path.name for path in server.queue_path.glob("*~~*") if not path.name.startswith("~~")]


def test_items_keep_their_order(server: ServerProcess, puts: Puts) -> None:
    """Large and small ones of one put, and of the next; also after a kill."""
    assert puts.put("jobs", LARGE + b"1", b"2", LARGE + b"3", LARGE + b"4", b"5") == 5
    assert puts.put("jobs", b"6") == 1
    expected = [b"first", LARGE + b"1", b"2", LARGE + b"3", LARGE + b"4", b"5", b"6"]
    server.kill9()
    with running_server(server.queue_path.parent, config=CONFIG) as again:
        assert contents(again, "jobs") == expected


def test_what_follows_a_large_item_waits_for_it(server: ServerProcess) -> None:
    """Commands sent along are answered after it, in their order, and find it."""
    with socket.create_connection(("127.0.0.1", server.ports["text"]), timeout=PATIENCE) as client:
        client.sendall(b"put jobs:\nfirst\n\n")
        client.sendall(b"put jobs:\n%b\n\nput jobs:\nsmall\n\npeek jobs\n" % LARGE)
        replies = client.makefile("rb")
        found = [replies.readline() for _ in range(4)]
        replies.close()
    assert found == [b"+1\n", b"+1\n", b"+1\n", b":first\n"]
    assert contents(server, "jobs") == [b"first", LARGE, b"small"]


def test_a_client_that_goes(server: ServerProcess) -> None:
    """What it sent is stored, once."""
    with Client(server.address) as reader:
        reader.put("jobs", b"first")
        with socket.create_connection(("127.0.0.1", server.ports["text"])) as client:
            client.sendall(b"put jobs:\n%b\nsmall\n\n" % LARGE)
        found = [reader.get("jobs", timeout=PATIENCE) for _ in range(3)]
    assert found == [b"first", LARGE, b"small"]


def test_a_queue_that_is_full_ends_a_put(server: ServerProcess, puts: Puts) -> None:
    """What fitted is counted and stays; no file is left of what did not."""
    assert puts.put("small", b"1") == 1
    assert puts.put("small", LARGE, LARGE, b"4") == 1
    assert puts.put("small", LARGE) == 0
    assert contents(server, "small") == [b"1", LARGE]
    assert begun_files(server) == []


def test_a_disk_that_is_full(server: ServerProcess, puts: Puts) -> None:
    """No item of the put is stored, whichever could not be written; then the queue goes on."""
    with largest_file(LARGE_ITEM // 2, server.process.pid):
        assert "File too large" in str(puts.put("jobs", LARGE))
        assert "File too large" in str(puts.put("jobs", b"2", LARGE, b"4"))
    with largest_file(LARGE_ITEM + len(ALMOST) // 2, server.process.pid):
        assert "File too large" in str(puts.put("jobs", b"2", ALMOST, ALMOST, LARGE))
    assert puts.put("jobs", b"last") == 1
    assert contents(server, "jobs") == [b"first", b"last"]
    assert begun_files(server) == []
