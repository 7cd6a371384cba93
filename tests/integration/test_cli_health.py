"""`kestrelmq health`: the exit status that container checks use."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kestrelmq.client import Client
from kestrelmq.config import ServerConfig
from tests.integration.test_tls import Site
from tests.support.commands import run_command
from tests.support.server import ServerProcess, running_server
from tests.support.users import PASSWORD, users_config


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Run one server for the tests of this module."""
    with running_server(tmp_path_factory.mktemp("server")) as process:
        yield process


def health(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Run the command; return its exit status, and what it printed."""
    done = run_command("health", *arguments, environment=environment)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def admin(server: ServerProcess) -> str:
    """Where its admin service listens."""
    return f"127.0.0.1:{server.ports['admin']}"


def test_a_server_is_live_and_ready(server: ServerProcess) -> None:
    """Ready is the default; the server may be named by a variable."""
    assert health("--server", admin(server)) == (0, "ready\n", "")
    assert health("--ready", "--server", admin(server)) == (0, "ready\n", "")
    assert health("--live", environment={"KESTRELMQ_ADMIN": admin(server)}) == (0, "live\n", "")
    status, printed, _ = health("--json", "--server", admin(server))
    assert (status, json.loads(printed)) == (0, {"ready": True, "status": "UP", "reasons": []})


def test_a_quiescent_server_is_live_but_not_ready(server: ServerProcess) -> None:
    """The reason is told."""
    with Client(server.address) as client:
        client.set_status("quiescent")
        try:
            status, printed, reason = health("--server", admin(server))
            assert (status, printed) == (1, "")
            assert "is not ready: the status is QUIESCENT" in reason
            status, printed, _ = health("--json", "--server", admin(server))
            assert (status, json.loads(printed)["ready"]) == (1, False)
            assert health("--live", "--server", admin(server))[0] == 0
        finally:
            client.set_status("up")


def test_no_answer_is_exit_status_1(server: ServerProcess, tmp_path: Path) -> None:
    """Where nobody listens, and where another protocol does."""
    for where in (f"unix:{tmp_path}/none", server.address):
        status, printed, reason = health("--server", where, "--timeout", "500ms")
        assert (status, printed, reason.count("\n")) == (1, "", 1), reason
        assert where in reason


class _Foreign(BaseHTTPRequestHandler):
    """Another HTTP server, whose errors are in JSON, too."""

    def do_GET(self) -> None:
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b'{"error": "not found"}')


def test_another_http_server() -> None:
    """What it says is shown."""
    with HTTPServer(("127.0.0.1", 0), _Foreign) as foreign:
        answering = Thread(target=foreign.handle_request)
        answering.start()
        status, printed, reason = health("--server", f"127.0.0.1:{foreign.server_port}")
        answering.join()
    assert (status, printed, reason.count("\n")) == (1, "", 1), reason
    assert "not found" in reason


def test_a_port_that_is_none_is_wrong_usage() -> None:
    """As with the other commands."""
    assert health("--server", "localhost:99999")[0] == 2
    assert health("--live", "--ready")[0] == 2


def test_a_unix_socket(tmp_path: Path) -> None:
    """As `kestrelmq serve --admin-path` makes it."""
    path = tmp_path / "admin"
    with running_server(tmp_path, "--admin-path", str(path)):
        assert health("--server", f"unix:{path}") == (0, "ready\n", "")


def test_tls_and_users(tmp_path: Path) -> None:
    """No user is needed; but what is wrong is told only to users."""
    site = Site(tmp_path)
    config = users_config(root="admin = true") + site.config()
    password = tmp_path / "password"
    password.write_text(PASSWORD)
    with running_server(tmp_path, config=config) as server:
        secure = ("--server", admin(server), "--tls-ca", str(site.authority.certificate))
        user = ("--user", "root", "--password-file", str(password))
        assert health(*secure) == health(*secure, *user) == (0, "ready\n", "")
        assert health("--server", admin(server), "--timeout", "1s")[0] == 1
        (tmp_path / "wrong").write_text("another")
        status, _, reason = health(*secure, *user[:3], str(tmp_path / "wrong"))
        assert (status, "authentication failure" in reason) == (1, True), reason
        with Client(server.address, tls=site.context, user="root", password=PASSWORD) as client:
            client.pause("work")
            client.set_status("quiescent")
        status, _, reason = health(*secure)
        assert (status, "the status is QUIESCENT" in reason) == (1, True), reason


def test_the_default_port_is_that_of_the_server() -> None:
    """It is written down twice, so that the command need not load all settings."""
    from kestrelmq.cli.health import _PORT  # noqa: PLC0415

    assert ServerConfig().admin_http_port == _PORT
