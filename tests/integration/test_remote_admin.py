"""What clients on other machines may do to the whole server, over each protocol."""

import http.client
import json
import logging
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kestrelmq.config import ServerConfig
from kestrelmq.server.server_actions import RemoteAdminRefused, ServerActionGuard, is_loopback
from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire

pytestmark = pytest.mark.compiled_only

REFUSED = "is refused to clients on other machines (see allow_remote_admin)"
TOKEN = "0123456789abcdef-token"  # noqa: S105 # of a server that lives for one test


def own_address() -> str:
    """Return an address of this machine that is not loopback: its clients count as remote."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            pytest.skip("this machine has no network")
        address = str(probe.getsockname()[0])
    if is_loopback(address):
        pytest.skip("this machine has no address but loopback")
    return address


class RemoteWire(Wire):
    """A connection as from another machine."""

    def __init__(self, server: ServerProcess, listener: str = "memcache") -> None:
        super().__init__(server, listener)
        self.socket.close()
        self.socket = socket.create_connection((own_address(), server.ports[listener]), PATIENCE)


@contextmanager
def open_server(tmp_path: Path, config: str = "") -> Iterator[ServerProcess]:
    """Run a server that other machines can reach."""
    config = f'listen_address = "0.0.0.0"\nallow_unauthenticated = true\n{config}'
    with running_server(tmp_path, config=config) as server:
        yield server


def test_each_listener_may_have_its_own_address(tmp_path: Path) -> None:
    """An admin service on loopback needs no token, though other machines reach the other ports."""
    config = 'admin_http_address = "127.0.0.1"\nthrift_listen_address = "127.0.0.2"\n'
    with open_server(tmp_path, config) as server:
        for name, address in ("text", "0.0.0.0"), ("thrift", "127.0.0.2"), ("admin", "127.0.0.1"):
            assert server.logged(f"{name} listening on {address}:")
        socket.create_connection(("127.0.0.2", server.ports["thrift"]), PATIENCE).close()
        flush = http.client.HTTPConnection("127.0.0.1", server.ports["admin"], timeout=PATIENCE)
        flush.request("POST", "/api/v1/queues/jobs/flush")
        assert flush.getresponse().status == 404
        flush.close()


def set_status_call(status: int) -> bytes:
    """Return a thrift call of `set_status`."""
    call = struct.pack(">HHi", 0x8001, 1, 10) + b"set_status" + struct.pack(">i", 1)
    call += struct.pack(">bhib", 8, 1, status, 0)
    return struct.pack(">i", len(call)) + call


def ask(server: ServerProcess, method: str, path: str, body: object = None, token: str = "") -> int:
    """Send an HTTP request as from another machine; return the status of the reply."""
    connection = http.client.HTTPConnection(own_address(), server.ports["admin"], timeout=PATIENCE)
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    status = connection.getresponse().status
    connection.close()
    return status


def test_clients_elsewhere_may_not_act_on_the_server(tmp_path: Path) -> None:
    """Each request is refused with the reason, the connection survives, and nothing happened."""
    with open_server(tmp_path) as server:
        with RemoteWire(server) as wire:
            for request in ("shutdown", "reload", "status"):
                line = f"{request} readonly" if request == "status" else request
                wire.ask(f"{line}\r\n".encode(), f"CLIENT_ERROR {request} {REFUSED}\r\n".encode())
            wire.ask(b"client kill 1\r\n", f"CLIENT_ERROR client kill {REFUSED}\r\n".encode())
            wire.ask(b"status\r\n", b"UP\r\n")
        with RemoteWire(server, "text") as wire:
            for request in ("shutdown", "reload", "status"):
                line = f"{request} readonly" if request == "status" else request
                wire.ask(f"{line}\n".encode(), f"-{request} {REFUSED}\n".encode())
            wire.ask(b"status\n", b":UP\n")
        with RemoteWire(server, "thrift") as wire:
            for _ in range(2):
                wire.send(set_status_call(2))
                wire.until(REFUSED.encode())
        assert ask(server, "POST", "/shutdown") == 403
        assert ask(server, "POST", "/api/v1/reload") == 403
        assert ask(server, "PUT", "/api/v1/status", {"status": "readonly"}) == 403
        assert ask(server, "DELETE", "/api/v1/clients/1") == 403
        with Wire(server) as wire:
            wire.ask(b"status\r\n", b"UP\r\n")
        assert server.process.poll() is None
        server.stop()
        for action in ("shutdown", "reload", "status"):
            for protocol in ("memcache", "text"):
                assert f"{action}: refused to {own_address()}:" in server.output
                assert f"({protocol}), which is not on this machine" in server.output


def test_clients_of_this_machine_may(tmp_path: Path) -> None:
    """Also where the listener is open to others; and the log says who it was."""
    with open_server(tmp_path) as server:
        with Wire(server) as wire:
            wire.ask(b"reload\r\n", b"Reloaded config.\r\n")
            wire.ask(b"status readonly\r\n", b"END\r\n")
        with Wire(server, "text") as wire:
            wire.ask(b"status up\n", b"+0\n")
            wire.ask(b"reload\n", b"+0\n")
        with Wire(server, "thrift") as wire:
            wire.send(set_status_call(3))
            wire.until(b"set_status")
        with Wire(server) as wire:
            wire.send(b"shutdown\r\n")
            wire.expect_close()
        assert server.stop() == 0
        for line in (
            ("reload", "memcache"),
            ("status", "memcache"),
            ("status", "text"),
            ("reload", "text"),
            ("status", "thrift"),
            ("shutdown", "memcache"),
        ):
            assert any(
                f"{line[0]}: asked for by 127.0.0.1:" in logged and f"({line[1]})" in logged
                for logged in server.output.splitlines()
            ), line


def test_the_setting_lets_them(tmp_path: Path) -> None:
    """`allow_remote_admin` is for those three actions, over every protocol, and no others."""
    with open_server(tmp_path, "allow_remote_admin = true\n") as server:
        assert server.logged("and stop the server")
        with RemoteWire(server) as wire:
            wire.ask(b"status readonly\r\n", b"END\r\n")
        with RemoteWire(server, "text") as wire:
            wire.ask(b"status up\n", b"+0\n")
        assert ask(server, "PUT", "/api/v1/status", {"status": "readonly"}) == 200
        assert ask(server, "POST", "/reload") == 200
        assert ask(server, "POST", "/api/v1/queues", {"name": "jobs"}) == 403
        assert ask(server, "POST", "/shutdown") == 200
        assert server.process.wait(PATIENCE) == 0


def test_a_token_lets_them_over_http(tmp_path: Path) -> None:
    """As it does for every other change."""
    with open_server(tmp_path, f'admin_tokens = ["{TOKEN}"]\n') as server:
        assert ask(server, "POST", "/reload") == 401
        assert ask(server, "POST", "/reload", token=TOKEN) == 200
        with RemoteWire(server) as wire:
            wire.send(b"reload\r\n")
            wire.until(REFUSED.encode())
        server.stop()
        assert f"reload: asked for by {own_address()}:" in server.output


def test_changes_over_http_are_logged(tmp_path: Path) -> None:
    """With who asked for what, but not the traffic of items; and no line is forged."""
    with running_server(tmp_path) as server:
        port = server.ports["admin"]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
        headers = {"Content-Type": "application/json"}
        for method, path, body in (
            ("POST", "/api/v1/queues/jobs/items", '{"text": "x"}'),
            ("POST", "/api/v1/queues/jobs/flush", None),
            ("DELETE", "/api/v1/queues/jobs", None),
            ("DELETE", "/api/v1/queues/%0aforged%1b", None),
            ("PUT", "/api/v1/status", '{"status": "readonly"}'),
        ):
            connection.request(method, path, body, headers)
            connection.getresponse().read()
        connection.close()
        server.stop()
        lines = [line for line in server.output.splitlines() if "(http)" in line]
    assert [line.split(": ", 1)[1].split(" from")[0].split(": asked")[0] for line in lines] == [
        "POST /api/v1/queues/jobs/flush",
        "DELETE /api/v1/queues/jobs",
        "DELETE /api/v1/queues/%0aforged%1b",
        "status",
    ]


def test_a_server_that_others_reach_warns_at_the_start(tmp_path: Path) -> None:
    """Not on loopback."""
    with open_server(tmp_path / "open") as server:
        assert server.logged("listen_address 0.0.0.0 can be reached from other machines")
    with running_server(tmp_path / "closed") as server:
        server.stop()
        assert "can be reached from other machines" not in server.output


@pytest.mark.parametrize(
    "peer", ["127.0.0.1:1", "127.9.9.9:65535", "::1:80", "::ffff:127.0.0.1:80", "localhost:1"]
)
def test_peers_on_this_machine(peer: str) -> None:
    """Loopback in every form, mapped into IPv6 too."""
    ServerActionGuard(ServerConfig()).check("shutdown", "memcache", peer)


@pytest.mark.parametrize(
    "peer", ["10.0.0.7:1", "fe80::1%eth0:80", "::ffff:10.0.0.7:80", "128.0.0.1:1", ":1", ""]
)
def test_peers_that_are_not_surely_here(peer: str) -> None:
    """Whoever is not surely on this machine is not."""
    with pytest.raises(RemoteAdminRefused, match="shutdown is refused"):
        ServerActionGuard(ServerConfig()).check("shutdown", "memcache", peer)
    ServerActionGuard(ServerConfig()).check("shutdown", "http", peer, has_token=True)
    ServerActionGuard(ServerConfig(allow_remote_admin=True)).check("shutdown", "memcache", peer)


def test_refusals_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    """A client that asks again and again does not fill the log."""
    actions = ServerActionGuard(ServerConfig())
    for port in range(1000):
        with pytest.raises(RemoteAdminRefused):
            actions.check("reload", "memcache", f"10.0.0.7:{port}")
    assert len(caplog.records) == 1


def test_the_requests_of_one_client_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Beyond ten in a second, one line says how many; others are logged as always."""
    caplog.set_level("INFO")
    actions = ServerActionGuard(ServerConfig())
    for number in range(1000):
        actions.log_request("flush", "text", f"10.0.0.1:{number}", "jobs")
    actions.log_request("GET", "http", "10.0.0.1:1", level=logging.DEBUG)
    actions.log_request("delete", "text", "10.0.0.2:1", "jobs")
    actions.log_counts()
    assert len(caplog.messages) == 12
    assert caplog.messages[10:] == [
        "delete jobs: asked for by 10.0.0.2:1 (text)",
        "10.0.0.1 asked for 990 more changes, which are not logged one by one",
    ]
    actions.log_counts()
    assert len(caplog.messages) == 12
    actions.log_request("flush", "text", "10.0.0.1:1", "jobs")
    assert len(caplog.messages) == 13


def test_very_many_clients_share_their_lines(caplog: pytest.LogCaptureFixture) -> None:
    """What is kept of them is bounded, and so are the lines of a second."""
    caplog.set_level("INFO")
    actions = ServerActionGuard(ServerConfig())
    for number in range(3000):
        actions.log_request("flush", "text", f"10.0.{number // 256}.{number % 256}:1", "jobs")
    actions.log_counts()
    assert len(caplog.messages) == 1024 + 10 + 1
    assert caplog.messages[-1].startswith("other clients asked for 1966 more changes")
