"""The command-line tools of libmemcached, and netcat, on a server."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, stats


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Return a server of the memcached dialect."""
    path = tmp_path_factory.mktemp("tools")
    with running_server(path, config='memcache_dialect = "memcached"') as running:
        yield running


def tool(server: ServerProcess, name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one of libmemcached's tools on the server."""
    return subprocess.run(
        [name, f"--servers={server.address}", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_memcping(server: ServerProcess) -> None:
    """The server is alive."""
    assert tool(server, "memcping").returncode == 0


def test_memccp_and_memccat(server: ServerProcess, tmp_path: Path) -> None:
    """A file is put into a queue and comes out again, once."""
    file = tmp_path / "letters"
    file.write_text("some text\nin lines\n")
    assert tool(server, "memccp", str(file)).returncode == 0
    assert (tool(server, "memccat", "letters/peek").stdout) == "some text\nin lines\n\n"
    assert (tool(server, "memccat", "letters").stdout) == "some text\nin lines\n\n"
    assert tool(server, "memccat", "letters").stdout == ""


def test_memccat_that_waits_and_closes(server: ServerProcess) -> None:
    """An open read of a tool that ends goes back."""
    with Wire(server) as wire:
        wire.ask(b"set held 0 0 1\r\nx\r\n", b"STORED\r\n")
        assert tool(server, "memccat", "held/t=100/open").stdout == "x\n"
        wire.ask(b"get held/t=20000\r\n", b"VALUE held/t=20000 0 1\r\nx\r\nEND\r\n")


def test_memcstat(server: ServerProcess) -> None:
    """Statistics are printed."""
    result = tool(server, "memcstat")
    assert result.returncode == 0
    assert "curr_connections: 1" in result.stdout
    assert "cmd_set:" in result.stdout


def test_memcrm_and_memcflush(server: ServerProcess) -> None:
    """Queues are deleted and flushed."""
    with Wire(server) as wire:
        wire.ask(b"set one 0 0 1\r\nx\r\nset two 0 0 1\r\nx\r\n", b"STORED\r\n" * 2)
        assert tool(server, "memcrm", "one").returncode == 0
        assert stats(wire, "one") == {}
        assert tool(server, "memcflush").returncode == 0
        assert stats(wire, "two")["items"] == "0"


def test_tools_that_need_a_cache(server: ServerProcess) -> None:
    """What a queue cannot do fails, and the server goes on."""
    for name in ("memctouch", "memcexist"):
        assert tool(server, name, "nothing").returncode != 0
    assert tool(server, "memcping").returncode == 0


def test_netcat(tmp_path: Path) -> None:
    """The first example of the README."""
    with running_server(tmp_path) as server:
        result = subprocess.run(
            ["nc", "-N", "127.0.0.1", str(server.ports["memcache"])],
            input=b"set work 0 0 5\r\nhello\r\nget work\r\n",
            capture_output=True,
            timeout=PATIENCE,
            check=True,
        )
        assert result.stdout == b"STORED\r\nVALUE work 0 5\r\nhello\r\nEND\r\n"
