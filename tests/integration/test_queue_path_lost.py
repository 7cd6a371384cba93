"""A queue path that is removed or replaced under a server: nothing more is acknowledged."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from tests.support.patience import until
from tests.support.server import ServerProcess, running_server
from tests.support.wire import Wire, put, value

pytestmark = pytest.mark.compiled_only

CONFIGS = ["", '[default]\nsync_journal = "0ms"\n']


def health(server: ServerProcess, path: str = "/health") -> tuple[int, str]:
    """Return the status and the text of `/health`, or of one of its parts."""
    try:
        with urlopen(f"http://127.0.0.1:{server.ports['admin']}{path}") as reply:
            return int(reply.status), reply.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()


def refused(wire: Wire, request: bytes) -> None:
    """Send a request, which must fail."""
    found = wire.ask_until(request, b"\r\n")
    assert found.startswith(b"SERVER_ERROR "), (request, found)


def everything_is_refused(wire: Wire) -> None:
    """Whatever changes a queue, one that is there or one that is not."""
    for request in (
        b"set jobs 0 0 1\r\nx\r\n",
        b"set new 0 0 1\r\nx\r\n",
        b"set large 0 0 2000000\r\n" + b"x" * 2_000_000 + b"\r\n",
        b"set jobs 0 0 2000000\r\n" + b"x" * 2_000_000 + b"\r\n",
        b"get jobs\r\n",
        b"get jobs/open\r\n",
        b"flush jobs\r\n",
        b"delete jobs\r\n",
    ):
        refused(wire, request)


def replace(path: Path) -> Path:
    """Put an empty directory in the place of `path`; return where that is now."""
    moved = path.with_name("moved")
    path.rename(moved)
    path.mkdir()
    return moved


def remove(path: Path) -> None:
    """Remove a queue path."""
    shutil.rmtree(path)


def rename(path: Path) -> None:
    """Rename a queue path."""
    path.rename(path.with_name("moved"))


def copy(path: Path) -> None:
    """Put a copy in the place of a queue path."""
    shutil.copytree(path, path.with_name("copy"))
    path.rename(path.with_name("moved"))
    path.with_name("copy").rename(path)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("lose", [remove, rename, replace, copy])
def test_nothing_is_acknowledged_from_then_on(
    tmp_path: Path, lose: Callable[[Path], object], config: str
) -> None:
    """From the very next request on, in the reply as in `/health`; and nothing is created."""
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        put(wire, "jobs", "a", "b", "c")
        lose(server.queue_path)
        before = sorted(os.walk(server.queue_path))
        refused(wire, b"set jobs 0 0 1\r\nx\r\n")
        everything_is_refused(wire)
        assert sorted(os.walk(server.queue_path)) == before
        status, text = health(server)
        assert (status, "removed or replaced" in text) == (503, True)
        assert health(server, "/health/ready")[0] == 503
        assert health(server, "/health/live")[0] == 200
        wire.ask(b"version\r\n", b"VERSION ")
        wire.until(b"\r\n")
        assert server.logged("nothing is acknowledged")
        told = [line for line in server.output.splitlines() if "nothing is acknowledged" in line]
        assert len(told) == 1


@pytest.mark.parametrize("config", CONFIGS)
def test_a_queue_path_that_is_back(tmp_path: Path, config: str) -> None:
    """The server goes on where it was, without a restart, and what it refused is not there."""
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        put(wire, "jobs", "a", "b")
        moved = replace(server.queue_path)
        everything_is_refused(wire)
        server.queue_path.rmdir()
        moved.rename(server.queue_path)
        until(lambda: health(server)[0] == 200)
        put(wire, "jobs", "c")
        put(wire, "new", "d")
        server.kill9()
        server.start()
        with Wire(server) as again:
            for item in "abc":
                again.ask(b"get jobs\r\n", value("jobs", item) + b"END\r\n")
            again.ask(b"get new\r\n", value("new", "d") + b"END\r\n")


def test_a_directory_above_is_renamed(tmp_path: Path) -> None:
    """The path leads nowhere then, though the queue path itself was not touched."""
    base = tmp_path / "base"
    with running_server(base) as server, Wire(server) as wire:
        put(wire, "jobs", "a")
        base.rename(tmp_path / "elsewhere")
        refused(wire, b"set jobs 0 0 1\r\nx\r\n")
        (tmp_path / "elsewhere").rename(base)
        until(lambda: health(server)[0] == 200)
        put(wire, "jobs", "b")


def delete_file(path: Path) -> None:
    """Delete a journal."""
    path.unlink()


def move_file(path: Path) -> None:
    """Move a journal away."""
    path.rename(path.parent.parent / "moved")


def replace_file(path: Path) -> None:
    """Put a copy in the place of a journal."""
    shutil.copy(path, path.parent.parent / "copy")
    (path.parent.parent / "copy").rename(path)


def link_file(path: Path) -> None:
    """Put a symbolic link to it in the place of a journal."""
    path.rename(path.parent.parent / "moved")
    path.symlink_to(path.parent.parent / "moved")


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("lose", [delete_file, move_file, replace_file, link_file])
def test_a_journal_that_is_removed_or_replaced(
    tmp_path: Path, lose: Callable[[Path], None], config: str
) -> None:
    """Its queue takes no more, but can be deleted; the others are as ever."""
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        put(wire, "jobs", "a", "b")
        put(wire, "other", "a")
        lose(server.queue_path / "jobs")
        for request in (b"set jobs 0 0 1\r\nx\r\n", b"get jobs\r\n", b"flush jobs\r\n"):
            refused(wire, request)
        put(wire, "other", "b")
        status, text = health(server)
        (problem,) = json.loads(text)["problems"]
        assert (status, problem["kind"], problem["queue"]) == (200, "failing", "jobs")
        assert problem["reason"].startswith("the journal cannot be written: queue jobs: ")
        wire.ask(b"delete jobs\r\n", b"DELETED\r\n")
        put(wire, "jobs", "c")
        assert not json.loads(health(server)[1])["problems"]


def test_a_journal_that_is_back(tmp_path: Path) -> None:
    """The same file: its queue goes on."""
    with running_server(tmp_path) as server, Wire(server) as wire:
        put(wire, "jobs", "a")
        file = server.queue_path / "jobs"
        move_file(file)
        refused(wire, b"set jobs 0 0 1\r\nx\r\n")
        (tmp_path / "moved").rename(file)
        put(wire, "jobs", "b")
        wire.ask(b"get jobs\r\n", value("jobs", "a") + b"END\r\n")
        wire.ask(b"get jobs\r\n", value("jobs", "b") + b"END\r\n")


def test_what_the_server_does_with_its_files_is_no_loss(tmp_path: Path) -> None:
    """Rotation, packing, large items, deleting: all of that is told by the watch, too."""
    config = '[default]\nmax_memory_size = "20 KiB"\ndefault_journal_size = "10 KiB"\n'
    with running_server(tmp_path, config=config) as server, Wire(server) as wire:
        for number in range(20):
            for _ in range(10):
                put(wire, f"q{number % 3}", "x" * 1000)
            put(wire, "large", "x" * 1_500_000)
            for _ in range(10):
                wire.ask(
                    b"get q%d\r\n" % (number % 3), value(f"q{number % 3}", "x" * 1000) + b"END\r\n"
                )
            if number % 5 == 4:
                wire.ask(b"delete q1\r\n", b"DELETED\r\n")
                wire.ask(b"delete large\r\n", b"DELETED\r\n")
        assert health(server)[0] == 200
