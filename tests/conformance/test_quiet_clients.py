"""Unmodified memcached clients that read no replies, set long expiries, or speak binary."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import memcache
import pylibmc
import pymemcache
import pytest

from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats, wait_for

pytestmark = pytest.mark.compiled_only

ITEMS: Final = [b"item %d" % number for number in range(50)]
_PATIENT: Final = {"_poll_timeout": PATIENCE * 1000}
"""What libmemcached waits for a reply, in milliseconds."""
MONTH: Final = 30 * 24 * 60 * 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server that all tests here share."""
    config = 'memcache_dialect = "memcached"\n'
    with running_server(tmp_path_factory.mktemp("quiet"), config=config) as running:
        yield running


@pytest.fixture
def wire(server: ServerProcess) -> Iterator[Wire]:
    """Return a connection to the server, which is empty."""
    with Wire(server) as connection:
        connection.ask(b"flush_all\r\n", b"OK\r\n")
        yield connection


def test_pymemcache(server: ServerProcess, wire: Wire) -> None:
    """It asks for no reply unless it is told otherwise, and is never a reply behind."""
    client = pymemcache.Client(("127.0.0.1", server.ports["memcache"]), timeout=PATIENCE)
    orders: list[Callable[[], object]] = [
        lambda: client.add("other", b"flush_all\r\n"),
        lambda: client.replace("other", b"x" * 100_000),
        lambda: client.append("other", b"x"),
        lambda: client.prepend("other", b"x"),
        lambda: client.cas("other", b"x", b"1", noreply=True),
        lambda: client.incr("other", 1, noreply=True),
        lambda: client.decr("other", 1, noreply=True),
        lambda: client.touch("other", 10),
        lambda: client.delete("other"),
        lambda: client.set("work/../x", b"x"),
    ]
    taken = []
    for number, item in enumerate(ITEMS):
        orders[number % len(orders)]()
        client.set("work", item)
        orders[(number + 1) % len(orders)]()
        taken.append(client.get("work/open"))
        orders[(number + 2) % len(orders)]()
        assert client.get("work/close") is None
    assert taken == ITEMS
    client.set_many({"work": b"many"})
    client.flush_all()
    assert client.get("work/t=1/open") is None
    client.close()
    assert stats(wire, "other").get("items", "0") == "0"


def test_python_memcached(server: ServerProcess, wire: Wire) -> None:
    """It can be told to read no replies."""
    client = memcache.Client([server.address], socket_timeout=PATIENCE)
    for item in ITEMS:
        assert client.set("work", item, noreply=True)
        client.add("other", b"x", noreply=True)
        client.incr("other", noreply=True)
        client.touch("other", 10, noreply=True)
        client.delete("other", noreply=True)
        found = client.get("work")
        assert (found.encode() if isinstance(found, str) else found) == item
    client.disconnect_all()
    assert stats(wire, "other").get("items", "0") == "0"


def test_pylibmc(server: ServerProcess, wire: Wire) -> None:
    """And so can libmemcached."""
    client = pylibmc.Client([server.address], behaviors={"_noreply": True, **_PATIENT})
    for number, item in enumerate(ITEMS, start=1):
        assert client.set("work", item)
        with contextlib.suppress(pylibmc.Error):
            client.add("other", b"x")
        client.delete("other")
        wait_for(wire, "work", "items", 1)
        assert client.get("work") == item, number
    client.disconnect_all()
    assert stats(wire, "other").get("items", "0") == "0"


@pytest.mark.parametrize("seconds", [14 * 24 * 60 * 60, MONTH])
def test_expiries_up_to_a_month(server: ServerProcess, wire: Wire, seconds: int) -> None:
    """They count from now, as every client's user thinks."""
    plain = pymemcache.Client(("127.0.0.1", server.ports["memcache"]), default_noreply=False)
    assert plain.set("fresh", b"1", expire=seconds)
    plain.close()
    other = memcache.Client([server.address])
    assert other.set("fresh", b"2", time=seconds)
    other.disconnect_all()
    libmemcached = pylibmc.Client([server.address])
    assert libmemcached.set("fresh", b"3", time=seconds)
    libmemcached.disconnect_all()
    wire.ask(b"flush_expired fresh\r\n", b"0\r\n")
    assert stats(wire, "fresh")["items"] == "3"


def test_binary(server: ServerProcess, wire: Wire) -> None:
    """A client that speaks binary gets an error, and does not wait for an answer."""
    client = pylibmc.Client([server.address], binary=True, behaviors=_PATIENT)
    with pytest.raises(pylibmc.Error):
        client.set("work", b"x")
    with contextlib.suppress(pylibmc.Error):  # libmemcached 1.1 takes the error for a miss
        assert client.get("work") is None
    client.disconnect_all()
    assert stats(wire, "work").get("items", "0") == "0"
