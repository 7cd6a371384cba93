"""A client that talks to a port where no memcache protocol is spoken: what its errors say."""

import re
import socketserver
import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from threading import Thread

import pytest

from kestrelmq.client import AsyncClient, Client, ClientOptions, commands
from kestrelmq.client.address import parse_address
from kestrelmq.client.blocking import Connection
from kestrelmq.errors import ClientError
from tests.support.commands import run_command
from tests.support.server import ServerProcess, running_server

PATIENT = ClientOptions(operation_timeout=60.0, restart_patience=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


def _tls(request: socketserver.StreamRequestHandler) -> None:
    with suppress(OSError), _CONTEXT.wrap_socket(request.connection, server_side=True):
        pass


_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def _redis(request: socketserver.StreamRequestHandler) -> None:
    request.rfile.readline()
    request.wfile.write(b"-ERR unknown command 'stats', with args beginning with: \r\n")


def _ssh(request: socketserver.StreamRequestHandler) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH_9.2p1\r\n")
    request.rfile.readline()


def _mysql(request: socketserver.StreamRequestHandler) -> None:
    request.wfile.write(b"\x4a\x00\x00\x00\x0a8.0.36\x00")
    request.rfile.readline()


def _mute(request: socketserver.StreamRequestHandler) -> None:
    request.rfile.readline()


FOREIGN: dict[str, tuple[Callable[[socketserver.StreamRequestHandler], None], str]] = {
    "tls": (_tls, "TLS is spoken there|is it the memcache port"),
    "redis": (_redis, "is it a Redis server"),
    "ssh": (_ssh, "SSH is spoken there"),
    "mysql": (_mysql, "is it the memcache port"),
    "mute": (_mute, "is it the memcache port"),
}
OURS = {
    "admin": "is it the admin port",
    "text": "is it the text port",
    "thrift": "is it the memcache port",
}
COMMANDS = [
    ["queues"],
    ["stats"],
    ["clients"],
    ["status"],
    ["put", "work", "x"],
    ["get", "work"],
    ["peek", "work"],
    ["browse", "work"],
    ["reserve", "work", "--lease", "1s"],
    ["declare", "work"],
    ["delete", "work"],
    ["reload"],
    ["top", "--once", "--interval", "1ms"],
]


@contextmanager
def foreign(serve: Callable[[socketserver.StreamRequestHandler], None]) -> Iterator[str]:
    """Run a server that is none of ours; yield its address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                serve(self)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        thread = Thread(target=listening.serve_forever)
        thread.start()
        yield f"127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


@pytest.mark.parametrize("listener", OURS)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: words[0])
def test_another_port_of_the_server(
    server: ServerProcess, listener: str, command: list[str]
) -> None:
    """Every command names the server and guesses which port that is."""
    address = f"127.0.0.1:{server.ports[listener]}"
    result = run_command(*command, "--servers", address)
    said = (result.stdout + result.stderr).decode()
    assert result.returncode == 1
    assert address in said
    assert OURS[listener] in said
    assert "Traceback" not in said


@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("command", [["queues"], ["status"]], ids=lambda words: words[0])
def test_a_server_that_is_none_of_ours(kind: str, command: list[str]) -> None:
    """It is named, and what it speaks if that can be seen."""
    serve, guess = FOREIGN[kind]
    with foreign(serve) as address:
        result = run_command(*command, "--servers", address)
    error = result.stderr.decode()
    assert (result.returncode, error.count("\n")) == (1, 1)
    assert error.startswith(f"kestrelmq: error: {address}: ")
    assert re.search(guess, error)


@pytest.mark.parametrize("listener", OURS)
async def test_both_clients_say_the_same(server: ServerProcess, listener: str) -> None:
    """The blocking and the asyncio client."""
    address = f"127.0.0.1:{server.ports[listener]}"
    with (
        Client(address, options=PATIENT) as client,
        pytest.raises(ClientError, match=OURS[listener]) as blocking,
    ):
        client.stats()
    async with AsyncClient(address, options=PATIENT) as asynchronous:
        with pytest.raises(ClientError, match=OURS[listener]) as other:
            await asynchronous.stats()
    assert str(blocking.value) == str(other.value)
    assert type(blocking.value) is type(other.value)


def test_nothing_is_guessed_of_a_server_that_has_replied(server: ServerProcess) -> None:
    """A server that goes away is what it was."""
    connection = Connection(parse_address(server.address), PATIENT)
    connection.open()
    with closing(connection), Client(server.address, options=PATIENT) as client:
        (own,) = [one.id for one in connection.run(commands.clients())]
        assert client.kill_client(own)
        with pytest.raises(ClientError) as ended:
            connection.run(commands.status())
    assert "port" not in str(ended.value)
