"""Memcached clients as they are published, on the dialect of Kestrel, without options."""

import asyncio
from collections.abc import Callable, Iterator

import emcache
import pytest

from tests.conformance.clients import CLIENTS, Client
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server

pytestmark = pytest.mark.compiled_only


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server without settings, but for a queue that is soon full."""
    config = "[queues.full]\nmax_items = 1\n"
    with running_server(tmp_path_factory.mktemp("plain"), config=config) as running:
        yield running


@pytest.mark.parametrize("make", CLIENTS.values(), ids=list(CLIENTS))
def test_put_and_get(make: Callable[[int], Client], server: ServerProcess) -> None:
    """As docs/languages.md says; a refused item is told."""
    client = make(server.ports["memcache"])
    assert client.set("work", b"a")
    assert client.set("work", b"b")
    assert [client.get("work") for _ in range(3)] == [b"a", b"b", None]
    assert client.set("full", b"a")
    assert not client.set("full", b"b")
    client.delete("full")
    client.close()


def test_emcache(server: ServerProcess) -> None:
    """It is asynchronous only."""

    async def scenario() -> bytes:
        place = emcache.MemcachedHostAddress("127.0.0.1", server.ports["memcache"])
        client = await emcache.create_client([place], timeout=PATIENCE)
        try:
            await client.set(b"work", b"a")
            item = await client.get(b"work")
        finally:
            await client.close()
        assert item is not None
        return item.value

    assert asyncio.run(scenario()) == b"a"
