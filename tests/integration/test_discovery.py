"""Servers found by a real ZooKeeper, while members come and go."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from kestrelmq.client import AsyncClient, Client
from kestrelmq.client.address import Address, parse_address
from kestrelmq.client.discovery import ZooKeeperMembership
from kestrelmq.errors import ServerUnavailable
from kestrelmq.server.advertise import member_data
from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.zookeeper import ZooKeeper

PREFIX = "/services/kestrel"


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeper]:
    """Run a ZooKeeper."""
    server = ZooKeeper(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def registry(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    """Connect as what registers servers, which stay so while ZooKeeper is started again."""
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """Run two servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(running_server(tmp_path / name)) for name in ("a", "b")]


def join(registry: KazooClient, kind: str, address: str) -> str:
    """Add a server to a set as servers do; return its node."""
    at = parse_address(address)
    data = member_data({"memcache": (at.host, at.port)})
    path = f"{PREFIX}/{kind}/member_"
    node: str = registry.create(path, data, ephemeral=True, sequence=True, makepath=True)
    return node


def test_reads_and_writes_follow_their_own_sets(
    zookeeper: ZooKeeper, registry: KazooClient, servers: list[ServerProcess]
) -> None:
    """A server in the read set only gives items and gets none."""
    for server in servers:
        join(registry, "read", server.address)
    join(registry, "write", servers[0].address)
    with (
        Client.discover(zookeeper.hosts, PREFIX) as client,
        Client(servers[1].address) as second,
    ):
        assert client.put_many("work", [b"1"] * 600) == [True] * 600
        assert second.get("work") is None
        second.put("other", b"2")
        assert client.get("other") == b"2"


async def test_the_asyncio_client_discovers_servers_too(
    zookeeper: ZooKeeper, registry: KazooClient, servers: list[ServerProcess]
) -> None:
    """Discovery does not block the event loop's operations."""
    for kind in ("read", "write"):
        join(registry, kind, servers[0].address)
    async with AsyncClient.discover(zookeeper.hosts, PREFIX) as client:
        assert await client.put("work", b"x")
        assert await client.get("work") == b"x"


def test_members_come_and_go(zookeeper: ZooKeeper, registry: KazooClient) -> None:
    """A set may appear late, change, vanish, and appear again; the client follows."""
    members = ZooKeeperMembership(zookeeper.hosts, PREFIX)
    members.start()
    try:
        assert (members.reads(), members.writes()) == ((), ())
        nodes = [join(registry, "read", f"h{n}:1") for n in range(2)]
        until(lambda: members.reads() == (Address("h0", 1), Address("h1", 1)))
        assert members.writes() == ()
        registry.delete(nodes[0])
        until(lambda: members.reads() == (Address("h1", 1),))
        registry.delete(f"{PREFIX}/read", recursive=True)
        until(lambda: members.reads() == ())
        join(registry, "read", "h3:1")
        until(lambda: members.reads() == (Address("h3", 1),))
        registry.create(f"{PREFIX}/read/member_x", b"nonsense")
        registry.create(f"{PREFIX}/read/other", member_data({"memcache": ("h4", 1)}))
        join(registry, "read", "h5:1")
        until(lambda: members.reads() == (Address("h3", 1), Address("h5", 1)))
    finally:
        members.close()


def test_known_servers_stay_in_use_without_zookeeper(
    zookeeper: ZooKeeper, registry: KazooClient, servers: list[ServerProcess]
) -> None:
    """When ZooKeeper dies, operations go on; when it is back, changes are seen again."""
    for kind in ("read", "write"):
        join(registry, kind, servers[0].address)
    members = ZooKeeperMembership(zookeeper.hosts, PREFIX, timeout=5.0)
    with Client(members) as client, ExitStack() as stack:
        assert client.put("work", b"1")
        zookeeper.stop()
        assert client.put("work", b"2")
        zookeeper.start()
        # A connection that was made too early hangs until it times out, and its session may too.
        other = zookeeper.client()
        stack.callback(other.close)
        stack.callback(other.stop)
        join(other, "read", servers[1].address)
        until(lambda: len(members.reads()) == 2)
        assert [client.get("work"), client.get("work")] == [b"1", b"2"]


def test_an_empty_set_and_a_dead_zookeeper_are_told(zookeeper: ZooKeeper) -> None:
    """Both are errors that say what is missing, not an empty queue."""
    with Client.discover(zookeeper.hosts, PREFIX) as client:
        with pytest.raises(ServerUnavailable, match="no server is known"):
            client.put("work", b"x")
        with pytest.raises(ServerUnavailable, match="no server is known"):
            client.get("work", timeout=0.1)
    zookeeper.stop()
    with (
        Client(ZooKeeperMembership(zookeeper.hosts, PREFIX, timeout=0.5)) as client,
        pytest.raises(ServerUnavailable, match="ZooKeeper"),
    ):
        client.get("work")
