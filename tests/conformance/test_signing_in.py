"""Clients as they are published sign in, with TLS and without it."""

import asyncio
import contextlib
import gc
import json
import ssl
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import emcache
import pylibmc
import pymemcache
import pytest
import thriftpy2
from emcache.client_errors import AuthenticationError
from thriftpy2 import protocol, transport
from thriftpy2.thrift import TApplicationException, TClient

from kestrelmq.protocol import thrift
from tests.conformance.clients import NODE
from tests.support.certificates import Authority
from tests.support.patience import PATIENCE, connections_end
from tests.support.server import ServerProcess, running_server
from tests.support.users import PASSWORD, users_config

pytestmark = pytest.mark.compiled_only

CONFIG: Final = 'memcache_dialect = "memcached"\n' + users_config(
    alice='read = ["work"]\nwrite = ["work"]'
)
# The libraries have types for some of this, and none for the rest.
PROTOCOL: Any = protocol
TRANSPORT: Any = transport
IDL: Any = thriftpy2.load(
    str(Path(thrift.__file__).with_name("kestrel.thrift")), module_name="login_kestrel_thrift"
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of the server that speaks TLS."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a user, in the dialect for such clients."""
    with running_server(tmp_path_factory.mktemp("signing"), config=CONFIG) as running:
        yield running


@pytest.fixture(scope="module")
def secure(
    authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """The same with TLS."""
    shown = authority.server()
    tls = f'[tls]\ncertificate = "{shown.certificate}"\nkey = "{shown.key}"\n'
    with running_server(tmp_path_factory.mktemp("secure"), config=CONFIG + tls) as running:
        yield running


@pytest.fixture(params=["plain", "tls"])
def place(
    request: pytest.FixtureRequest,
    server: ServerProcess,
    secure: ServerProcess,
    authority: Authority,
) -> "Place":
    """Each of the two servers."""
    return Place(server, None) if request.param == "plain" else Place(secure, authority.certificate)


class Place(NamedTuple):
    """A server, and the authority of its certificate if it speaks TLS."""

    server: ServerProcess
    authority: Path | None

    @property
    def context(self) -> ssl.SSLContext | None:
        """What a client needs to speak TLS, if the server does."""
        if self.authority is None:
            return None
        return ssl.create_default_context(cafile=self.authority)


class SigningIn(pymemcache.Client):  # type: ignore[misc] # it has no types
    """pymemcache, which signs in whenever it connects; as docs/security.md has it."""

    def _connect(self) -> None:
        super()._connect()
        self.set("auth", f"alice {PASSWORD}", noreply=False)


def test_pymemcache(place: Place) -> None:
    """At each connection; a refusal is an error."""
    address = ("127.0.0.1", place.server.ports["memcache"])
    client = SigningIn(address, timeout=PATIENCE, tls_context=place.context)
    for _ in range(2):
        client.set("work", b"x", noreply=False)
        assert client.get("work") == b"x"
        with pytest.raises(pymemcache.exceptions.MemcacheClientError, match="may not read other"):
            client.get("other")
        client.close()


def test_a_quiet_sign_in_of_pymemcache(server: ServerProcess) -> None:
    """Its `set` expects no reply by default; it must stay in step."""
    client = pymemcache.Client(("127.0.0.1", server.ports["memcache"]), timeout=PATIENCE)
    client.set("auth", f"alice {PASSWORD}")
    assert client.get("work") is None
    client.close()


@pytest.mark.filterwarnings("ignore:ssl.PROTOCOL_TLS is deprecated")
def test_emcache(place: Place) -> None:
    """It has signing in built in."""

    async def scenario(password: str) -> bytes | None:
        address = emcache.MemcachedHostAddress("127.0.0.1", place.server.ports["memcache"])
        client = await emcache.create_client(
            [address],
            timeout=PATIENCE,
            max_connections=1,  # it leaves a second one open that it still makes at the end
            username="alice",
            password=password,
            ssl=place.authority is not None,
            ssl_extra_ca=None if place.authority is None else str(place.authority),
        )
        try:
            await client.set(b"work", b"x")
            item = await client.get(b"work")
        finally:
            await client.close()
            await connections_end()
        return None if item is None else item.value

    assert asyncio.run(scenario(PASSWORD)) == b"x"


def test_emcache_with_a_wrong_password(server: ServerProcess) -> None:
    """The text of our answer is the one it knows."""

    async def scenario() -> None:
        from emcache.protocol import create_protocol  # noqa: PLC0415

        place = emcache.MemcachedHostAddress("127.0.0.1", server.ports["memcache"])
        with pytest.raises(AuthenticationError, match="Incorrect username or password"):
            await create_protocol(
                place,
                ssl=False,
                ssl_verify=False,
                ssl_extra_ca=None,
                username="alice",
                password="wrong",  # noqa: S106
                timeout=PATIENCE,
            )

    asyncio.run(scenario())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # it leaves the connection open that was refused


def test_pylibmc_takes_a_forbidden_queue_for_an_empty_one(server: ServerProcess) -> None:
    """As docs/security.md says: libmemcached reads every error as "not found"."""
    client = pylibmc.Client([f"127.0.0.1:{server.ports['memcache']}"])
    assert client.set("auth", f"alice {PASSWORD}")
    assert client.set("work", b"x")
    assert client.get("other") is None
    assert client.get("work") == b"x"


@contextlib.contextmanager
def agent(script: str, *arguments: str) -> Iterator[Callable[..., Any]]:
    """Run a client of npm; yield a function that calls one of its methods."""
    command = ["node", str(NODE / script), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=NODE
    ) as running:
        given, answers = running.stdin, running.stdout
        assert given is not None
        assert answers is not None

        def call(*words: object) -> Any:
            given.write(json.dumps(words) + "\n")
            given.flush()
            return json.loads(answers.readline())

        yield call
        given.close()


def test_node(server: ServerProcess) -> None:
    """With one connection, its first `set` signs it in; a refusal is an error, and it goes on."""
    with agent("agent.js", server.address) as call:
        assert call("set", "auth", "alice wrong", 0)["error"] is not None
        assert call("set", "auth", f"alice {PASSWORD}", 0)["result"] is True
        assert "may not read other" in call("get", "other")["error"]
        assert call("set", "work", "x", 0)["result"] is True
        assert call("get", "work")["result"] == "x"


def test_the_node_client_with_tls(place: Place) -> None:
    """memcache-client, the one that speaks it: likewise."""
    authority = () if place.authority is None else (str(place.authority),)
    with agent("client-agent.js", place.server.address, *authority) as call:
        assert "authentication failure" in call("set", "auth", "alice wrong")["error"]
        assert call("set", "auth", f"alice {PASSWORD}")["result"] == ["STORED"]
        assert "may not read other" in call("get", "other")["error"]
        assert call("set", "work", "x" * 100_000)["result"] == ["STORED"]
        assert call("get", "work")["result"]["value"] == "x" * 100_000
        assert call("get", "work")["result"] is None


def test_a_generated_thrift_client(place: Place) -> None:
    """`login` is a method as any other; what is refused is an exception."""
    socket = TRANSPORT.TSocket if place.authority is None else TRANSPORT.TSSLSocket
    tls = {} if place.authority is None else {"ssl_context": place.context}
    port = place.server.ports["thrift"]
    connection = socket("localhost", port, socket_timeout=PATIENCE * 1000, **tls)
    framed = TRANSPORT.TFramedTransport(connection)
    framed.open()
    client: Any = TClient(IDL.Kestrel, PROTOCOL.TBinaryProtocol(framed))
    with pytest.raises(TApplicationException, match="sign in first"):
        client.put("work", [b"x"])
    with pytest.raises(TApplicationException, match="authentication failure"):
        client.login("alice", "wrong")
    client.login("alice", PASSWORD)
    assert client.put("work", [b"x"]) == 1
    assert [item.data for item in client.get("work", 9)] == [b"x"]
    with pytest.raises(TApplicationException, match="may not read other"):
        client.get("other", 1)
    client.close()
