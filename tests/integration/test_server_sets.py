"""A whole server in ZooKeeper's server sets."""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.support.patience import PATIENCE, until
from tests.support.server import ServerProcess, running_server
from tests.support.zookeeper import SERVE_ON_LOOPBACK, ZooKeeper

PREFIX = "/services/kestrel"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeper]:
    """Return a running ZooKeeper."""
    server = ZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def observer(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    """Return a client that sees what others see."""
    client = zookeeper.client()
    yield client
    client.stop()
    client.close()


def config(zookeeper: ZooKeeper) -> str:
    """Return a configuration file that joins the server sets."""
    return (
        f'[zookeeper]\nhosts = ["{zookeeper.hosts}"]\npath_prefix = "{PREFIX}"\n'
        'session_timeout = "5s"\n'
    )


@pytest.fixture
def server(
    zookeeper: ZooKeeper, observer: KazooClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ServerProcess]:
    """Return a server that is in both sets."""
    monkeypatch.setattr(ServerProcess, "command", SERVE_ON_LOOPBACK)
    with running_server(tmp_path, config=config(zookeeper)) as running:
        until(lambda: sizes(observer) == (1, 1))
        yield running
    until(lambda: sizes(observer) == (0, 0))


def members(client: KazooClient, kind: str) -> list[bytes]:
    """Return the data of the members of a set."""
    try:
        names = client.get_children(f"{PREFIX}/{kind}")
        return [client.get(f"{PREFIX}/{kind}/{name}")[0] for name in names]
    except NoNodeError:
        return []


def sizes(client: KazooClient) -> tuple[int, int]:
    """Return how many members the read and the write set have."""
    return len(members(client, "read")), len(members(client, "write"))


def ask(server: ServerProcess, command: bytes) -> bytes:
    """Return the reply to a command of the text protocol."""
    with socket.create_connection(
        ("127.0.0.1", server.ports["text"]), timeout=PATIENCE
    ) as connection:
        connection.sendall(command + b"quit\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_a_server_announces_the_ports_it_listens_on(
    server: ServerProcess, observer: KazooClient
) -> None:
    """In both sets, all its protocols, memcache first."""
    endpoints = {
        name: {"host": "127.0.0.1", "port": server.ports[name]}
        for name in ("memcache", "thrift", "text")
    }
    for kind in ("read", "write"):
        (data,) = members(observer, kind)
        assert json.loads(data) == {
            "serviceEndpoint": endpoints["memcache"],
            "additionalEndpoints": endpoints,
            "status": "ALIVE",
        }


def test_the_status_decides_which_sets_it_is_in_also_after_a_restart(
    server: ServerProcess, observer: KazooClient
) -> None:
    """A server that was taken out of service does not come back by itself."""
    assert ask(server, b"status readonly\n") == b"+0\n"
    until(lambda: sizes(observer) == (1, 0))
    until(lambda: ask(server, b"flush q\n").startswith(b"-the server is read-only"))
    assert ask(server, b"status quiescent\n") == b"+0\n"
    until(lambda: sizes(observer) == (0, 0))
    server.restart()
    assert ask(server, b"status\n") == b":QUIESCENT\n"
    assert sizes(observer) == (0, 0)
    assert ask(server, b"status writeavoid\n") == b"+0\n"
    until(lambda: sizes(observer) == (1, 0))
    assert ask(server, b"put q:\nx\n\n") == b"+1\n"
    assert ask(server, b"status up\n") == b"+0\n"
    until(lambda: sizes(observer) == (1, 1))


def test_a_server_that_stops_leaves_at_once(server: ServerProcess, observer: KazooClient) -> None:
    """Its clients need not find out by trying."""
    assert server.stop() == 0
    assert sizes(observer) == (0, 0)


def test_a_server_that_is_killed_drops_out_after_its_session(
    server: ServerProcess, observer: KazooClient
) -> None:
    """ZooKeeper notices."""
    server.kill9()
    assert sizes(observer) == (1, 1)
    until(lambda: sizes(observer) == (0, 0))


def test_a_loopback_address_refuses_to_start(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """Nobody could reach it; the error says what to set, and nothing was announced or bound."""
    file = tmp_path / "kestrelmq.toml"
    file.write_text(config(zookeeper))
    command = "from kestrelmq.cli.main import main; main()"
    arguments = ["serve", "--config", str(file), "--queue-path", str(tmp_path / "queues")]
    ended = subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert ended.returncode != 0
    assert ended.stdout == ""
    assert "listen_address: found '127.0.0.1', a loopback address" in ended.stderr
    assert "Traceback" not in ended.stderr
