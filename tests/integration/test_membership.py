"""Membership of server sets, against a real ZooKeeper."""

import asyncio
import json
import re
import sys
import types
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError, NoNodeError

from kestrelmq.clock import SystemClock
from kestrelmq.config import ZooKeeperConfig
from kestrelmq.errors import ConfigError
from kestrelmq.server.advertise import member_data
from kestrelmq.server.membership import ServerSetMembership
from kestrelmq.server.status import ServerStatus, Status
from tests.support.patience import PATIENCE
from tests.support.zookeeper import ZooKeeper

MEMBER = member_data({"memcache": ("192.0.2.7", 22133), "text": ("192.0.2.7", 2222)})
PREFIX = "/services/kestrel"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Return a running ZooKeeper."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def root() -> str:
    """Return the test's own part of the tree."""
    return f"/{uuid.uuid4()}"


@pytest.fixture
def observer(zookeeper: ZooKeeper, root: str) -> Iterator[KazooClient]:
    """Return a client that sees what others see in the test's own part of the tree."""
    client = zookeeper.client(root)
    yield client
    client.stop()
    client.close()


class Server:
    """A status and a membership, put together as the server does."""

    def __init__(self, config: ZooKeeperConfig, default: Status, grace: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self.status = ServerStatus(
            None, default, grace, SystemClock(), loop.call_later, listener_limit=0.5
        )
        self.membership = ServerSetMembership(config, MEMBER, loop.call_soon_threadsafe)
        self.status.listener = self.membership.status_changed

    async def start(self) -> None:
        """Join, and wait until the sets are right."""
        self.membership.start(self.status.status)
        await until(lambda: self.membership.agrees)


Start = Callable[..., Any]


@pytest.fixture
async def start(zookeeper: ZooKeeper, root: str) -> AsyncIterator[Start]:
    """Return what starts servers; they are stopped after the test."""
    servers: list[Server] = []

    async def begin(default: Status = Status.UP, grace: float = 0.0, **settings: Any) -> Server:
        config = ZooKeeperConfig.model_validate(
            {"hosts": [zookeeper.hosts], "path_prefix": root + PREFIX} | settings
        )
        server = Server(config, default, grace)
        servers.append(server)
        await server.start()
        return server

    yield begin
    for server in servers:
        await server.membership.stop()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another process or thread does."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 # another process sets no event
            await asyncio.sleep(0.01)


def members(client: KazooClient, kind: str) -> list[str]:
    """Return the members of a set."""
    try:
        found: list[str] = client.retry(client.get_children, f"{PREFIX}/{kind}")
    except NoNodeError:
        return []
    return found


def sizes(client: KazooClient) -> tuple[int, int]:
    """Return how many members the read and the write set have."""
    return len(members(client, "read")), len(members(client, "write"))


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (Status.UP, (1, 1)),
        (Status.WRITE_AVOID, (1, 0)),
        (Status.READ_ONLY, (1, 0)),
        (Status.QUIESCENT, (0, 0)),
    ],
)
async def test_the_status_says_which_sets_the_server_is_in(
    start: Start, observer: KazooClient, status: Status, expected: tuple[int, int]
) -> None:
    """Readers look in one set, writers in the other."""
    await start(status)
    assert sizes(observer) == expected


async def test_a_member_is_an_ephemeral_numbered_node_with_the_endpoints(
    start: Start, observer: KazooClient
) -> None:
    """Any reader of Twitter's server sets understands it."""
    await start()
    (name,) = members(observer, "write")
    assert re.fullmatch(r"member_\d{10}", name)
    data, stat = observer.get(f"{PREFIX}/write/{name}")
    assert json.loads(data) == json.loads(MEMBER)
    assert stat.owner_session_id


async def test_servers_share_a_set(start: Start, observer: KazooClient) -> None:
    """Each has its own node, and takes only that away."""
    await start()
    second = await start()
    assert sizes(observer) == (2, 2)
    await second.membership.stop()
    assert sizes(observer) == (1, 1)


async def test_a_stricter_status_leaves_the_set_before_it_is_enforced(
    start: Start, observer: KazooClient
) -> None:
    """When writes are first refused, no writer finds the server any more."""
    server = await start()
    server.status.set(Status.READ_ONLY)
    assert server.status.writes_allowed
    await until(lambda: not server.status.writes_allowed)
    assert sizes(observer) == (1, 0)


async def test_a_looser_status_is_enforced_before_the_set_is_joined(
    start: Start, observer: KazooClient
) -> None:
    """A reader that finds the server is served."""
    server = await start(Status.QUIESCENT)
    allowed: dict[str, tuple[bool, bool]] = {}

    def watch(kind: str) -> None:
        def changed(children: list[str]) -> None:
            if children:
                allowed.setdefault(
                    kind, (server.status.reads_allowed, server.status.writes_allowed)
                )

        observer.ensure_path(f"{PREFIX}/{kind}")
        observer.ChildrenWatch(f"{PREFIX}/{kind}", changed)

    watch("read")
    watch("write")
    server.status.set(Status.UP)
    await until(lambda: len(allowed) == 2)
    assert allowed == {"read": (True, True), "write": (True, True)}
    await until(lambda: server.membership.agrees)
    assert sizes(observer) == (1, 1)


async def test_stopping_leaves_the_sets_at_once(start: Start, observer: KazooClient) -> None:
    """Clients need not wait for the session to time out."""
    server = await start()
    server.status.shutdown()
    await server.membership.stop()
    assert sizes(observer) == (0, 0)


async def test_a_lost_session_is_followed_by_joining_again(
    start: Start, observer: KazooClient, zookeeper: ZooKeeper
) -> None:
    """ZooKeeper forgets the server, and the server comes back as a new member."""
    server = await start()
    (before,) = members(observer, "read")
    await asyncio.to_thread(zookeeper.expire, server.membership._client)
    await until(lambda: sizes(observer) == (1, 1) and members(observer, "read") != [before])


async def test_a_node_that_somebody_deleted_is_made_again(
    start: Start, observer: KazooClient
) -> None:
    """A slip of an administrator's does not take the server out of service."""
    await start()
    (name,) = members(observer, "read")
    observer.delete(f"{PREFIX}/read/{name}")
    await until(lambda: sizes(observer) == (1, 1))


async def test_zookeeper_stopped_and_started_again(
    start: Start, observer: KazooClient, zookeeper: ZooKeeper
) -> None:
    """Changes made meanwhile come into force within the limit, and into the sets afterwards."""
    server = await start(session_timeout=3)
    zookeeper.stop()
    try:
        await until(lambda: not server.membership.agrees)
        server.status.set(Status.READ_ONLY)
        assert server.status.writes_allowed
        await until(lambda: not server.status.writes_allowed)
    finally:
        await asyncio.to_thread(zookeeper.start)
    await until(lambda: sizes(observer) == (1, 0))
    server.status.set(Status.UP)
    await until(lambda: sizes(observer) == (1, 1))


async def test_a_server_starts_without_zookeeper_and_joins_when_it_comes(
    zookeeper: ZooKeeper, observer: KazooClient, root: str
) -> None:
    """Queues are served in any case; nothing in the event loop waits."""
    zookeeper.stop()
    config = ZooKeeperConfig.model_validate(
        {"hosts": [zookeeper.hosts], "path_prefix": root + PREFIX}
    )
    server = Server(config, Status.UP)
    try:
        server.membership.start(Status.UP)
        await asyncio.to_thread(zookeeper.start)
        await until(lambda: sizes(observer) == (1, 1))
    finally:
        await server.membership.stop()


async def test_a_server_stops_though_zookeeper_is_gone() -> None:
    """A shutdown does not hang on what cannot be reached."""
    config = ZooKeeperConfig.model_validate({"hosts": ["127.0.0.1:1"], "path_prefix": PREFIX})
    server = Server(config, Status.UP)
    server.membership.start(Status.UP)
    async with asyncio.timeout(PATIENCE):
        await server.membership.stop(limit=4)


async def test_credentials_and_acl_keep_others_from_the_member(
    start: Start, observer: KazooClient
) -> None:
    """Everyone may read, only the creator may change or delete."""
    await start(credentials="queue:secret", acl="everyone-read-creator-all")
    (name,) = members(observer, "read")
    assert observer.get(f"{PREFIX}/read/{name}")[0] == MEMBER
    for forbidden in (observer.delete, lambda path: observer.set(path, b"")):
        with pytest.raises(NoAuthError):
            forbidden(f"{PREFIX}/read/{name}")


async def test_initializers_make_the_client_and_the_sets(
    start: Start, observer: KazooClient, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Site-specific code has the last word."""
    held: list[tuple[str, bytes | None]] = []

    class Set:
        def __init__(self, path: str) -> None:
            self.path = path

        def keep(self, member: bytes | None) -> None:
            held.append((self.path, member))

    site = types.ModuleType("site_specific")
    vars(site)["connect"] = lambda config: KazooClient(hosts=config.hosts[0], timeout=4.0)
    vars(site)["server_set"] = lambda _config, _client, path: Set(path)
    monkeypatch.setitem(sys.modules, "site_specific", site)
    server = await start(
        Status.READ_ONLY,
        client_initializer="site_specific:connect",
        server_set_initializer="site_specific:server_set",
    )
    assert held == [(f"{root}{PREFIX}/write", None), (f"{root}{PREFIX}/read", MEMBER)]
    assert server.membership._client._session_timeout == 4000
    assert sizes(observer) == (0, 0)


@pytest.mark.parametrize(
    ("initializer", "reason"),
    [("no_such_module:f", "ModuleNotFoundError"), ("json:no_such", "AttributeError")],
)
async def test_an_initializer_that_is_not_there_stops_the_start(
    initializer: str, reason: str
) -> None:
    """A misspelt setting is an error of configuration, not a server that nobody finds."""
    config = ZooKeeperConfig.model_validate(
        {"hosts": ["127.0.0.1:1"], "path_prefix": PREFIX, "client_initializer": initializer}
    )
    server = Server(config, Status.UP)
    with pytest.raises(ConfigError, match=f"{initializer}: {reason}"):
        server.membership.start(Status.UP)
