"""The unit of systemd, and what the server tells a service manager."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kestrelmq.config import load_config
from tests.support.patience import PATIENCE
from tests.support.server import running_server

_FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
_UNIT = _FOLDER / "kestrelmq.service"
_LOGROTATE = _FOLDER.parent / "logrotate" / "kestrelmq"
_MOST_EXPOSED = 2.0
"""Most exposure that `systemd-analyze security` may find, of 10."""


def analyze(*arguments: str | Path) -> str:
    """Run systemd-analyze; return what it printed."""
    done = subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_unit_is_right(tmp_path: Path) -> None:
    """Its command must exist, so this looks at one with a command that does."""
    text = _UNIT.read_text()
    unit = tmp_path / _UNIT.name
    unit.write_text(text.replace("/opt/kestrelmq/bin/kestrelmq", sys.executable))
    assert analyze("verify", "--man=no", unit) == ""
    unit.write_text(unit.read_text().replace("StateDirectory=", "StatDirectory="))
    assert "StatDirectory" in analyze("verify", "--man=no", unit)


def test_the_unit_is_hardened() -> None:
    """It gets what the server needs, and little else."""
    found = re.search(
        r"Overall exposure level .*: (\d+\.\d)", analyze("security", "--offline=true", _UNIT)
    )
    assert found is not None
    assert float(found[1]) <= _MOST_EXPOSED


def test_the_configuration_beside_it() -> None:
    """It names the directories that the unit makes."""
    config = load_config(_FOLDER / "kestrelmq.toml")
    text = _UNIT.read_text()
    assert str(config.queue_path) == "/var/lib/kestrelmq"
    assert "StateDirectory=kestrelmq\n" in text
    for path in (config.memcache_listen_path, config.admin_listen_path):
        assert str(path).startswith("/run/kestrelmq/")
    assert "RuntimeDirectory=kestrelmq\n" in text
    assert "\n/var/log/kestrelmq/*.log {\n" in _LOGROTATE.read_text()
    assert "LogsDirectory=kestrelmq\n" in text


@pytest.fixture
def manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[socket.socket]:
    """A socket on which a service manager would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        path = tmp_path / "notify"
        listening.bind(str(path))
        listening.settimeout(PATIENCE)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        yield listening


def wait_for(message: bytes, manager: socket.socket) -> set[bytes]:
    """Wait for a message; return those that came before it."""
    before = set()
    deadline = time.monotonic() + PATIENCE
    while (received := manager.recv(100)) != message:
        before.add(received)
        assert time.monotonic() < deadline
    return before


@pytest.mark.parametrize("arguments", [(), ("--processes", "2")], ids=["one", "several"])
def test_the_server_tells_its_manager(
    arguments: tuple[str, ...], manager: socket.socket, tmp_path: Path
) -> None:
    """When it serves, that its loop turns, and that it stops."""
    with running_server(tmp_path, *arguments, waits=False) as server:
        assert wait_for(b"READY=1", manager) <= {b"WATCHDOG=1"}
        for _ in range(3):
            assert wait_for(b"WATCHDOG=1", manager) == set()
        assert server.stop() == 0
        assert wait_for(b"STOPPING=1", manager) <= {b"WATCHDOG=1"}


def test_a_manager_that_is_gone_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The log says so."""
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with running_server(tmp_path) as server:
        assert server.logged("the service manager cannot be told READY=1")
        assert server.stop() == 0


def test_the_variables_are_not_passed_on(manager: socket.socket) -> None:
    """A child would speak for the server."""
    assert manager.fileno() >= 0
    program = (
        "import os; from kestrelmq.server.service_manager import ServiceManager; ServiceManager(); "
        "print(sorted(name for name in os.environ if name.startswith(('NOTIFY', 'WATCHDOG'))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "[]\n"
