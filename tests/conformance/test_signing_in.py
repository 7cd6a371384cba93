"""Clients as they are published sign in: of memcached by its text authentication, and of thrift."""

import asyncio
import gc
import json
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

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
from tests.support.patience import PATIENCE
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
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a user, in the dialect for such clients."""
    with running_server(tmp_path_factory.mktemp("signing"), config=CONFIG) as running:
        yield running


class SigningIn(pymemcache.Client):  # type: ignore[misc] # it has no types
    """pymemcache, which signs in whenever it connects; as docs/security.md has it."""

    def _connect(self) -> None:
        super()._connect()
        self.set("auth", f"alice {PASSWORD}", noreply=False)


def test_pymemcache(server: ServerProcess) -> None:
    """At each connection; a refusal is an error."""
    client = SigningIn(("127.0.0.1", server.ports["memcache"]), timeout=PATIENCE)
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


def test_emcache(server: ServerProcess) -> None:
    """It has signing in built in."""

    async def scenario(password: str) -> bytes | None:
        place = emcache.MemcachedHostAddress("127.0.0.1", server.ports["memcache"])
        client = await emcache.create_client(
            [place], timeout=PATIENCE, username="alice", password=password
        )
        try:
            await client.set(b"work", b"x")
            item = await client.get(b"work")
        finally:
            await client.close()
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


def test_node(server: ServerProcess) -> None:
    """With one connection, its first `set` signs it in; a refusal is an error, and it goes on."""
    command = ["node", str(NODE / "agent.js"), f"127.0.0.1:{server.ports['memcache']}"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=NODE
    ) as agent:

        def call(*words: object) -> Any:
            assert agent.stdin is not None
            assert agent.stdout is not None
            agent.stdin.write(json.dumps(words) + "\n")
            agent.stdin.flush()
            return json.loads(agent.stdout.readline())

        assert call("set", "auth", "alice wrong", 0)["error"] is not None
        assert call("set", "auth", f"alice {PASSWORD}", 0)["result"] is True
        assert "may not read other" in call("get", "other")["error"]
        assert call("set", "work", "x", 0)["result"] is True
        assert call("get", "work")["result"] == "x"
        assert agent.stdin is not None
        agent.stdin.close()


def test_a_generated_thrift_client(server: ServerProcess) -> None:
    """`login` is a method as any other; what is refused is an exception."""
    connection = TRANSPORT.TSocket(
        "127.0.0.1", server.ports["thrift"], socket_timeout=PATIENCE * 1000
    )
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
